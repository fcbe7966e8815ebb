"""Tables of items in all formats: columns guessed and given, and what cannot be read is told."""

import json
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data.item_table import ItemTable, read_item_table
from tapas.data.vocabulary import Vocabulary

NUMBERS = Vocabulary(pl.Series([7, 3, 5, 9]), np.array([4, 3, 2, 1]))
TEXTS = Vocabulary(pl.Series([None, "a", "b", "c"]), np.array([4, 3, 2, 1]))  # the first is rare
COLUMNS = {"sku": [3, 5, 7, 8], "title": ["Cheese", "Bread", "Milk", "Other"],
           "aisle": ["x", "y", "x", "x"]}  # fmt: skip
WANTED = (["Milk", "Cheese", "Bread", None], {"aisle": ["x", "x", "y", None]}, 3)


def written(folder, columns, name="items.parquet"):
    path = folder / name
    frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(columns)
    if name.endswith(".parquet"):
        frame.write_parquet(path)
    elif name.endswith(".csv"):
        frame.write_csv(path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in frame.to_dicts()))
    return path


def content(table):
    return table.names, table.groups, table.num_found


@pytest.mark.parametrize("name", ["items.parquet", "items.csv", "items.jsonl"])
def test_keys_names_and_groups_are_found_in_every_format(tmp_path, name):
    table = read_item_table(written(tmp_path, COLUMNS, name), NUMBERS)
    assert content(table) == WANTED
    assert table.name(0) == "Milk"
    assert table.name(3) is None
    assert table.values(2) == {"aisle": "y"}
    assert table.values(3) == {}


def test_a_plain_csv_file_may_have_other_separators(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("sku;title;aisle\n3;Cheese;x\n5;Bread;y\n7;Milk;x\n8;Other;x\n")
    assert content(read_item_table(path, NUMBERS)) == WANTED


def test_columns_can_be_named(tmp_path):
    path = written(tmp_path, COLUMNS | {"other": [5, 3, 9, 1]})
    table = read_item_table(path, NUMBERS, {"item": "other", "name": "aisle"})
    assert table.names == [None, "y", "x", "x"]
    assert table.num_found == 3
    assert "aisle" not in table.groups
    assert read_item_table(path, NUMBERS, {"name": "aisle"}).names == ["x", "x", "y", None]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("sku", "title", "name"), "name"),
        (("sku", "item_name", "text"), "item_name"),
        (("sku", "productTitle", "x"), "productTitle"),
        (("sku", "a", "b"), "b"),  # more values
    ],
)
def test_the_column_of_names_is_guessed_by_its_own_name_or_its_values(tmp_path, names, wanted):
    columns = dict(zip(names, ([3, 5, 7], ["ab", "ab", "cd"], ["ef", "gh", "ij"]), strict=True))
    table = read_item_table(written(tmp_path, columns), NUMBERS)
    values = dict(zip(columns["sku"], columns[wanted], strict=True))
    assert table.names == [values.get(key) for key in (7, 3, 5, 9)]


def test_the_column_with_most_items_has_the_keys(tmp_path):
    columns = {"number": [0, 1, 3, 7], "sku": [3, 5, 7, 9], "title": ["A", "B", "C", "D"]}
    assert read_item_table(written(tmp_path, columns), NUMBERS).names == ["C", "A", "B", "D"]


def test_numbers_alone_are_no_names(tmp_path):
    columns = {"sku": [3, 5, 7], "price": [1.5, 2.5, 3.0]}
    assert read_item_table(written(tmp_path, columns), NUMBERS).names is None
    assert read_item_table(written(tmp_path, {"sku": [3]}), NUMBERS).names is None


@pytest.mark.parametrize(
    "keys",
    [
        pl.Series([3, 7, None], dtype=pl.UInt8),
        pl.Series([3, 7, None], dtype=pl.Int128),
        pl.Series([3.0, 7.0, None]),
        pl.Series([3, 7, None]).cast(pl.Decimal(9, 0)),
        pl.Series(["3", "7", None]),
        pl.Series(["3", "7", None], dtype=pl.Categorical),
        pl.Series([b"3", b"7", None]),
    ],
    ids=lambda keys: str(keys.dtype),
)
def test_keys_may_have_any_type_that_a_log_may_have(tmp_path, keys):
    """As pandas writes integers among which some are missing, for example."""
    frame = pl.DataFrame({"sku": keys, "title": ["Xx", "Yy", "Zz"]})
    table = read_item_table(written(tmp_path, frame), NUMBERS)
    assert content(table)[0] == ["Yy", "Xx", None, None]


def test_columns_of_other_types_do_no_harm(tmp_path):
    frame = pl.DataFrame(
        {
            "sku": [3, 7], "title": ["x", "y"], "list": [[1], [2]], "struct": [{"a": 1}] * 2,
            "bytes": [b"\xff", b"x"], "day": [date(2020, 1, 1), date(2020, 1, 2)],
            "length": [timedelta(1)] * 2, "flag": [True, False], "nothing": [None, None],
        }
    )  # fmt: skip
    table = read_item_table(written(tmp_path, frame), NUMBERS)
    assert table.names == ["y", "x", None, None]
    assert table.groups == {
        "day": ["2020-01-02", "2020-01-01", None, None], "flag": ["false", "true", None, None]
    }  # fmt: skip


def test_groups_are_columns_with_few_values(tmp_path):
    number = 40
    known = Vocabulary(pl.Series(range(number)), np.ones(number, dtype=np.int64))
    columns = {
        "id": range(number),
        "name": [f"Item {n}" for n in range(number)],
        "half": [str(n // 2) for n in range(number)],
        "each": [f"x{n}" for n in range(number)],
        "same": ["x"] * number,
    }
    table = read_item_table(written(tmp_path, columns), known)
    assert list(table.groups) == ["half"]
    assert table.values(3) == {"half": "1", "each": "x3", "same": "x"}


@pytest.mark.parametrize("name", ["items.parquet", "items.csv", "items.jsonl"])
def test_numbers_with_many_values_are_groups_too(tmp_path, name):
    number = 40
    known = Vocabulary(pl.Series(range(number)), np.ones(number, dtype=np.int64))
    price = [n / 8 for n in range(number - 2)] + [None, float("nan")]
    columns = {
        "id": range(number), "name": [f"Item {n}" for n in range(number)], "price": price,
        "almost": ["many", *map(str, range(1, number))],
    }  # fmt: skip
    table = read_item_table(written(tmp_path, columns, name), known)
    assert table.groups == {"price": [*price[:-1], None]}
    assert table.values(2)["almost"] == "2"
    assert table.values(2)["price"] == "0.25"
    assert "price" not in table.values(number - 2)


def test_the_first_of_several_rows_of_an_item_counts(tmp_path):
    columns = {"sku": [3, 3, 7, 3], "title": ["First", "Second", "Milk", "Third"]}
    table = read_item_table(written(tmp_path, columns), NUMBERS)
    assert content(table) == (["Milk", "First", None, None], {}, 2)


def test_missing_and_blank_values_are_none(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("sku,title,aisle\n3,,x\n5,  ,\n7, Milk ,y\n,Nothing,y\n")
    table = read_item_table(path, NUMBERS)
    assert table.names == ["Milk", None, None, None]
    assert table.values(2) == {}
    assert table.num_found == 3


def test_bad_rows_are_left_out(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("sku,title\n3,Cheese,more\n7,Milk\n")
    assert read_item_table(path, NUMBERS).names == ["Milk", None, None, None]
    path = tmp_path / "items.jsonl"
    path.write_text('{"sku": 3, "title": "Cheese"}\nnonsense\n{"sku": 7, "title": "Milk"}\n')
    assert read_item_table(path, NUMBERS).names == ["Milk", "Cheese", None, None]


def test_the_class_of_rare_items_has_no_name(tmp_path):
    columns = {"sku": ["(rare)", "", "a"], "title": ["Xx", "Yy", "Zz"]}
    table = read_item_table(written(tmp_path, columns), TEXTS)
    assert table.names == [None, "Zz", None, None]


def test_long_values_are_cut(tmp_path):
    columns = {"sku": [3, 5], "title": ["é" * 300, "b"]}
    assert read_item_table(written(tmp_path, columns), NUMBERS).names[1] == "é" * 200


HINT = "Name it: --column item=NAME. Columns:"


@pytest.mark.parametrize(
    ("columns", "roles", "words"),
    [
        (COLUMNS, {"item": "skuu"}, "{path} has no column 'skuu'. Columns: sku, title, aisle."),
        (COLUMNS, {"name": "Title"}, "{path} has no column 'Title'. Columns: sku, title, aisle."),
        (COLUMNS, {"itme": "sku"},
         "unknown role of a column 'itme'. Did you mean 'item'? Known: item, name."),
        (COLUMNS, {"item": "title"},
         "no value in column 'title' of {path} is an item of the model, such as '7'. Name another "
         "column: --column item=NAME."),
        (COLUMNS, {"item": "sku", "name": "sku"},
         "column 'sku' is to have both item keys and names; expected two."),
        (COLUMNS, {"name": "sku"},
         f"no column of {{path}} looks like the items of the model, such as '7'. {HINT} title, "
         "aisle."),
        ({"sku": [1, 2], "title": ["x", "y"]}, {},
         f"no column of {{path}} looks like the items of the model, such as '7'. {HINT} sku, "
         "title."),
        ({"sku": [3], "title": [["x"]]}, {"name": "title"},
         "column 'title' of {path} has type List(String); expected names as text."),
        ({"sku": pl.Series([], dtype=pl.Int64), "title": pl.Series([], dtype=pl.String)}, {},
         f"no column of {{path}} looks like the items of the model, such as '7'. {HINT} sku, "
         "title."),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_told_why(tmp_path, columns, roles, words):
    path = written(tmp_path, columns)
    with raises_text(words.format(path=path)):
        read_item_table(path, NUMBERS, roles)


def test_an_item_that_is_not_the_rare_class_is_the_example(tmp_path):
    path = written(tmp_path, {"sku": ["x"]})
    with raises_text("looks like the items of the model, such as 'a'. Name it"):
        read_item_table(path, TEXTS)


@pytest.mark.parametrize(
    ("name", "text", "kind", "words"),
    [
        ("items.csv", "", DataError, "{path} is empty. Leave it out."),
        ("items.jsonl", "[1]\n", DataError, "{path} is one JSON list; expected one JSON object"),
        ("items.parquet", "PAR1", DataError, "{path} cannot be read: parquet: File out of spec"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path, name, text, kind, words):
    path = tmp_path / name
    path.write_text(text)
    with raises_text(words.format(path=path), kind):
        read_item_table(path, NUMBERS)


def test_a_missing_file_and_a_folder_are_told(tmp_path):
    with raises_text(f"there is no file {tmp_path / 'x.csv'}."):
        read_item_table(tmp_path / "x.csv", NUMBERS)
    with raises_text(f"{tmp_path} is a folder; expected a file. Name a file in it."):
        read_item_table(tmp_path, NUMBERS)


def test_keys_of_a_column_with_fractions_are_no_items(tmp_path):
    path = written(tmp_path, {"sku": [3.5, 7.0]})
    with raises_text("sku is 3.5, a number with a fraction or beyond 2^53; expected", DataError):
        read_item_table(path, NUMBERS, {"item": "sku"})


WORDS = st.text(alphabet="abİßé ", max_size=4)


@given(names=st.lists(st.none() | WORDS, max_size=12), words=WORDS, limit=st.integers(1, 13))
def test_a_search_finds_the_names_with_all_words_in_order_of_frequency(names, words, limit):
    found = ItemTable(names, pl.DataFrame(), {}, 0).search(words, limit)
    wanted = [
        id for id, name in enumerate(names)
        if name is not None and words.split()
        and all(word.casefold() in name.casefold() for word in words.split())
    ]  # fmt: skip
    assert found == wanted[:limit]
    assert ItemTable(None, pl.DataFrame(), {}, 0).search(words, limit) == []
