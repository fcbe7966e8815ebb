"""Users and histories from files: what is found, what is left out, and what is said about it."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from error_text import raises_text

from tapas import DataError, UsageError
from tapas.data.histories import (
    find_keys,
    histories_of_lists,
    histories_of_users,
    key_column,
    read_histories,
    read_keys,
)
from tapas.data.prepare import prepare_log
from tapas.data.python_histories import parse_given
from tapas.data.source import LogSource
from tapas.data.vocabulary import Vocabulary

NUMBERS = Vocabulary(pl.Series([7, 900, -3]), np.array([5, 4, 3]))
USERS = Vocabulary(pl.Series(["007", "8"]), np.array([5, 4]), kind="user")
SPANISH = LogSource(files=("old.csv",), user="a", item="b", time="c", time_format="%d/%m/%Y",
                    separator="/-/", where=("d=buy",))  # fmt: skip
WORDS = Vocabulary(pl.Series(["b", "a", "900"]), np.array([5, 4, 3]))


def rows(found):
    """{key: ids} of all histories."""
    pairs = zip(found.keys.to_list(), found.start, found.end, strict=True)
    return {key: found.items[start:end].tolist() for key, start, end in pairs}


def test_keys_are_found_whatever_their_type():
    for known, keys, ids in (
        (NUMBERS, ["900", "7", "x", "7.5"], [1, 0, -1, -1]),
        (NUMBERS, [900, 7, -3], [1, 0, 2]),
        (NUMBERS, [900.0, None, float("nan"), 7.5], [1, -1]),
        (WORDS, ["a", "900", "x"], [1, 2, -1]),
        (WORDS, [900, 901], [2, -1]),
    ):
        assert find_keys(known, key_column(keys)).ids.tolist() == ids


def test_repeated_and_missing_keys_are_counted_and_the_first_bad_row_is_named():
    found = find_keys(WORDS, key_column(["a", "a", "", "x", None, " ", "y", "b"]))
    assert found.keys.to_list() == ["a", "x", "y", "b"]
    assert (found.no_key, found.repeated, found.num_unknown) == (3, 1, 2)
    assert found.first_bad == "row 3"
    assert find_keys(WORDS, key_column(["a", "b", "a"]), once=False).ids.tolist() == [1, 0, 1]
    assert find_keys(WORDS, key_column(["a", "x", ""])).first_bad == "'x', row 2"
    assert find_keys(WORDS, key_column(["a"])).first_bad == ""


def test_known_keys_are_given_back_as_the_log_has_them():
    assert find_keys(NUMBERS, key_column(["900", "8"])).keys.to_list() == [900, 8]
    assert find_keys(NUMBERS, key_column(["900", "x"])).keys.to_list() == ["900", "x"]


def test_a_file_of_users_is_a_table_or_lines(tmp_path):
    for name, text, column, want in (
        ("a.txt", "\ufeffä 1\r\n\r\n  \n b\nlast", None, ["ä 1", "b", "last"]),
        ("b.tsv", "n\tcustomer\n1\t007\n2\t1e3\n", None, ["007", "1e3"]),
        ("c.csv", "what\nx\n\ny\n", None, ["x", None, "y"]),
        ("d.csv", "who;user\nx;1\n;2\n", "who", ["x", None]),
        ("no-header.csv", "007\n8\n", None, ["007", "8"]),
        ("own.csv", "user,a\nx,y\n", None, ["y"]),
        ("e.jsonl", '{"user": "x", "n": 1}\n{"user": null}\n', None, ["x", None]),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        found = read_keys(tmp_path / name, USERS, column, SPANISH)
        assert [key for key in found.to_list() if key] == [key for key in want if key], name


def test_a_file_of_users_that_cannot_be_read_is_named(tmp_path):
    table, text = tmp_path / "users.csv", tmp_path / "users.txt"
    table.write_text("who,when\na,1\n")
    text.write_text("a")
    with raises_text(f"{table} has no column 'user'. Columns: who, when."):
        read_keys(table, USERS, "user")
    with raises_text(
        f"{table}: no column looks like the item. Name it with --column. Columns: who, when."
    ):
        read_keys(table, WORDS, None)
    with raises_text(f"{text} is read as one user per line, without columns."):
        read_keys(text, USERS, "who")
    with raises_text(f"there is no file {tmp_path / 'none'}."):
        read_keys(tmp_path / "none", USERS, None)
    for typed in ("al", "ALL"):
        with raises_text(f"there is no file {typed}. Did you mean all?"):
            read_keys(Path(typed), USERS, None)
    text.write_bytes(b"\xff\xfe\xff")
    with raises_text(f"{text} cannot be read: ", DataError):
        read_keys(text, USERS, None)


def test_histories_of_users_are_those_of_the_log(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,time\nu2,a,3\nu1,b,2\nu1,a,1\n")
    log = prepare_log(LogSource(files=(str(tmp_path / "log.csv"),)), tmp_path / "cache")
    a, b = log.item_keys.ids(["a", "b"])
    assert rows(histories_of_users(log)) == {"u1": [a, b], "u2": [a]}
    found = histories_of_users(log, key_column(["u2", "new", "u1"]))
    assert rows(found) == {"u2": [a], "new": [], "u1": [a, b]}
    assert found.empty.tolist() == [False, True, False]
    assert rows(found.keep(~found.empty)) == {"u2": [a], "u1": [a, b]}


LOG = "customer,sku,date\nx,a,2024-01-03\ny,900,2024-01-02\nx,b,2024-01-01\n,b,2024-01-01\n"


def test_histories_in_a_log_are_sorted_by_time_and_unknown_items_are_left_out(tmp_path):
    file = tmp_path / "new.csv"
    file.write_text(LOG + "y,?,2024-01-05\nz,?,2024-01-05\n")
    found = read_histories(file, {}, WORDS, lambda words: None)
    assert rows(found) == {"x": [0, 1], "y": [2], "z": []}
    assert (found.unknown_items, found.first_unknown_item) == (2, "?")
    assert (found.bad_rows, found.first_bad_row) == (1, f"{file}, row 4: customer is empty")
    swapped = read_histories(file, {"user": "sku", "item": "customer"}, WORDS, lambda words: None)
    assert swapped.keys.to_list() == ["900", "?", "a", "b"]
    assert swapped.empty.all()


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ([["a", "b"], [], ["x", "a"]], {1: [1, 0], 2: [], 3: [1]}),
        ([{"user": "u", "history": ["b", 900]}], {"u": [0, 2]}),
        ([{"n": 1, "visitor": "v", "basket": ["a"]}], {"v": [1]}),
    ],
)
def test_a_line_of_json_is_a_history(tmp_path, lines, want):
    file = tmp_path / "new.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows(read_histories(file, {}, WORDS, lambda words: None)) == want


def test_lists_that_are_not_utf_8_are_an_error(tmp_path):
    file = tmp_path / "new.jsonl"
    file.write_bytes(b'["a"]\n["\xff"]\n')
    words = f"{file} cannot be read: invalid utf8. It may be damaged or truncated; get a new copy."
    with raises_text(words, DataError):
        read_histories(file, {}, WORDS, print)


def test_a_line_of_json_without_a_list_after_lists_is_named(tmp_path):
    file = tmp_path / "new.jsonl"
    file.write_text('["a"]\n\n{"user": 1}\n')
    with raises_text(
        f"{file}, row 3: expected a list of items, or an object with one, as in the rows before "
        "it; got '{\"user\": 1}'.",
        DataError,
    ):
        read_histories(file, {}, WORDS, lambda words: None)
    log = tmp_path / "log.jsonl"
    log.write_text('{"user": "x", "item": "a"}\n')
    assert rows(read_histories(log, {}, WORDS, lambda words: None)) == {"x": [1]}


def test_the_merged_class_may_be_in_a_history():
    rare = Vocabulary(pl.Series(["a", None]), np.array([5, 4]))
    found = histories_of_lists([1], [["(rare)", "a", "x", None]], rare)
    assert rows(found) == {1: [1, 0, 1]}
    assert (found.unknown_items, found.first_unknown_item) == (2, "x")


def test_items_that_a_log_has_merged_or_never_seen_are_of_the_merged_class(tmp_path):
    rare = Vocabulary(pl.Series(["a", None]), np.array([5, 4]))
    file = tmp_path / "new.csv"
    file.write_text("user,item,time\nu,x,1\nu,y,1\nu,a,2\nu,y,3\nv,a,1\nv,x,1\nw,x,1\n")
    found = read_histories(file, {}, rare, lambda words: None)
    assert {key: sorted(ids) for key, ids in rows(found).items()} == {
        "u": [0, 1, 1], "v": [0, 1], "w": [1],
    }  # fmt: skip
    assert rows(found)["u"] == [1, 0, 1]  # twice in the basket of time 1, counted once
    assert found.unknown_items == 5


NUMBERED = LogSource(files=("old.dat",), user="2", item="1", time="3", no_header=True)


@pytest.mark.parametrize(
    ("known", "name", "content", "want"),
    [
        (SPANISH, "x.csv", "a/-/b/-/c/-/d\nx/-/a/-/02/01/2024/-/buy\n"
         "x/-/900/-/02/01/2024/-/view\nx/-/b/-/01/02/2024/-/buy\n", {"x": [1, 0]}),
        (SPANISH, "x.csv", LOG, {"x": [0, 1], "y": [2]}),
        (SPANISH, "x.csv", "a/-/user/-/item\n1/-/x/-/b\n", None),
        (SPANISH, "x.jsonl", '{"a": "x", "b": "b", "c": "02/01/2024", "d": "buy"}\n', {"x": [0]}),
        (NUMBERED, "x.dat", "a::x::2\nb::x::1\n", {"x": [0, 1]}),
        (NUMBERED, "x.csv", "user,item,time\nx,a,2\nx,b,1\n", {"x": [0, 1]}),
        (NUMBERED, "x.jsonl", '["a", "b"]\n', {1: [1, 0]}),
        (LogSource(files=("old.csv",), user="user", item="item"), "x.jsonl", '["a", "b"]\n',
         {1: [1, 0]}),
        (LogSource(files=("old.csv",), text="words"), "x.csv", LOG, {"x": [0, 1], "y": [2]}),
    ],
)  # fmt: skip
def test_a_file_like_the_log_of_the_model_is_read_as_that(tmp_path, known, name, content, want):
    file = tmp_path / name
    file.write_text(content)
    if want is None:  # neither its columns nor its separator are those of the log
        with pytest.raises(UsageError, match="There is only one column"):
            read_histories(file, {}, WORDS, lambda words: None, known)
        return
    assert rows(read_histories(file, {}, WORDS, lambda words: None, known)) == want


def test_columns_that_are_named_come_before_those_of_the_log(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("user,item,sku\nx,a,b\n")
    known = LogSource(files=("old.csv",), user="user", item="item")
    columns = {"item": "sku"}
    assert rows(read_histories(file, columns, WORDS, lambda words: None, known)) == {"x": [0]}


def test_dates_of_a_history_are_in_the_order_of_the_log_or_refused(tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("user,item,time\nx,a,1.3.2021\nx,b,3.1.2021\n")
    for order, want in (("day first", [0, 1]), ("month first", [1, 0])):
        found = read_histories(file, {}, WORDS, lambda words: None, order=order)
        assert rows(found) == {"x": want}
    words = (
        f"{file}: time is '1.3.2021' in row 1, and no row shows whether the day or the month comes "
        "first. Write dates as 2024-01-31."
    )
    with raises_text(words, DataError):
        read_histories(file, {}, WORDS, lambda words: None)
    frame = pl.DataFrame({"user": ["x"] * 2, "item": ["a", "b"], "time": ["1.3.2021", "3.1.2021"]})
    assert rows(parse_given(frame, WORDS, order="day first").histories) == {"x": [0, 1]}
    with raises_text(words.replace(str(file), "the DataFrame"), DataError):
        parse_given(frame, WORDS)
    file.write_text("user,item,time\nx,a,soon\nx,b,later\nx,b,2021-01-31\n")
    words = (
        f"{file}, row 1: time is 'soon', not a time, as in 2 of 3 rows, too many to skip. Write "
        "dates as 2024-01-31."
    )
    with raises_text(words, DataError):
        read_histories(file, {}, WORDS, lambda words: None)


def test_keys_of_other_types_are_refused():
    assert key_column([1, None, np.int64(3)]).to_list() == [1, None, 3]
    assert key_column([2**70, 1]).to_list() == [2**70, 1]
    for bad, kind in ((True, "bool"), ((1,), "tuple"), (b"a", "bytes")):
        with raises_text(
            f"a key is {bad!r}, a {kind}; expected a string or an integer.", UsageError
        ):
            key_column([bad])
