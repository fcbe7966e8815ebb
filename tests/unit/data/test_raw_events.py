"""Bad rows are reported or skipped and counted; files must agree; text becomes a log."""

import numpy as np
import polars as pl
import pytest
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data import LogSource
from tapas.data.raw_events import read_events, tokenize, word_positions


def read(*files, **options):
    return read_events(LogSource(files=tuple(map(str, files)), **options), lambda text: None)


def events(raw):
    users = raw.user.keys.gather(raw.user.codes).to_list()
    items = raw.item.keys.gather(raw.item.codes).to_list()
    return list(zip(users, items, raw.time.tolist(), strict=True))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (",5,1", "user_id is empty"),
        ('"",5,1', "user_id is empty"),
        ("a,,1", "item_id is empty"),
        ("a,5,", "time is empty"),
        ("a,5", "time is empty"),
        ("a,5,noon", "time is 'noon', not a time"),
    ],
)
def test_a_bad_row_is_reported_or_skipped_and_counted(tmp_path, row, problem):
    file = tmp_path / "clicks.csv"
    file.write_text(f"user_id,item_id,time\na,5,1\n\n{row}\nb,6,2\n{row}\n")
    words = f"{file}, row 3: {problem}. Drop such rows with --skip-bad-rows (2 found among 5 rows)."
    with raises_text(words, DataError):
        read(file)
    raw = read(file, skip_bad_rows=True)
    assert events(raw) == [("a", 5, 1), ("b", 6, 2)]
    assert raw.report["bad_rows"] == 2
    assert raw.report["bad_examples"][0] == f"{file}, row 3: {problem}"


def test_broken_and_bad_rows_are_counted_together_but_only_some_are_quoted(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("user,item\na,1\na,1,1\n" + ",1\n" * 8 + "b,2\n")
    raw = read(file, skip_bad_rows=True)
    assert events(raw) == [("a", 1, 0), ("b", 2, 1)]
    assert raw.report["bad_rows"] == 9
    assert len(raw.report["bad_examples"]) == 5


def test_nulls_in_parquet_are_bad_rows_even_in_all_columns(tmp_path):
    file = tmp_path / "a.parquet"
    pl.DataFrame({"user": [1, None, None], "item": [5, 6, None]}).write_parquet(file)
    with raises_text(f"{file}, row 2: user is empty", DataError):
        read(file)
    assert read(file, skip_bad_rows=True).report["bad_rows"] == 2


def test_without_a_time_column_the_order_of_the_files_is_the_time(tmp_path):
    for name, user in (("b", 1), ("a", 2)):
        (tmp_path / f"{name}.csv").write_text(f"user,item\n{user},7\n{user},8\n")
    raw = read(tmp_path / "*.csv")
    assert events(raw) == [(2, 7, 0), (2, 8, 1), (1, 7, 2), (1, 8, 3)]
    assert raw.report["time_kind"] == "file order"
    assert raw.report["columns"] == {"user": "user", "item": "item"}


def test_files_of_different_formats_are_read_as_one_log(tmp_path):
    """Keys that are text in some files and integers in others become integers, in any order."""
    typed = pl.DataFrame({"user": [1], "item": [5], "time": [3]})
    typed.write_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("item,user,time\n6,1,4\n")
    (tmp_path / "c.jsonl").write_text('{"time": 5, "user": 2, "item": 5}\n')
    typed.write_parquet(tmp_path / "d.parquet")
    assert events(read(tmp_path / "*")) == [(1, 5, 3), (1, 6, 4), (2, 5, 5), (1, 5, 3)]


def test_files_with_different_columns_or_times_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1,2\n")
    (tmp_path / "b.csv").write_text("user,sku\n1,2\n")
    words = (
        f"{tmp_path}/b.csv has user 'user', item 'sku', but the files before it have user 'user', "
        "item 'item'. Name the columns, or read the files separately."
    )
    with raises_text(words, DataError):
        read(tmp_path / "*.csv")
    with raises_text("b.csv has no column 'item' for the item"):
        read(tmp_path / "*.csv", item="item")
    (tmp_path / "a.csv").write_text("user,item,time\n1,2,3\n")
    (tmp_path / "b.csv").write_text("user,item,time\n1,2,2024-01-01\n")
    words = (
        f"{tmp_path}/b.csv: column 'time' is read as a datetime, but in {tmp_path}/a.csv as a "
        "number. Write times the same way in all files."
    )
    with raises_text(words, DataError):
        read(tmp_path / "*.csv")


def test_text_is_read_as_words_of_documents_and_a_group_is_one_document(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "The cat."}\n{"text": "..."}\n{"text": "the dog"}\n')
    raw = read(file, text="text")
    assert events(raw) == [(0, "the", 0), (0, "cat", 1), (2, "the", 0), (2, "dog", 1)]
    assert raw.report["time_kind"] == "place in the text"
    file = tmp_path / "a.csv"
    file.write_text("book,line\nx,a b\ny,c\nx,b d\n")
    got = events(read(file, text="line", group="book"))
    assert sorted(got) == [
        ("x", "a", 0), ("x", "b", 1), ("x", "b", 2), ("x", "d", 3), ("y", "c", 0)
    ]  # fmt: skip


def test_text_without_words_or_of_another_type_is_refused(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("text,x\n...,1\n")
    words = f"no words in column 'text' of {file}. Use split='spaces', or name another column."
    with raises_text(words, DataError):
        read(file, text="text")
    pl.DataFrame({"text": [1]}).write_parquet(tmp_path / "a.parquet")
    with raises_text("column 'text' has type Int64; expected text.", DataError):
        read(tmp_path / "a.parquet", text="text")


def test_words_are_lower_case_letters_and_digits_and_spaces_keep_words_unchanged():
    words, counts = tokenize(pl.Series(["Don't stop: 42 TIMES!", "...", "a-b"]), "words")
    assert words.to_list() == ["don't", "stop", "42", "times", "a", "b"]
    assert counts.tolist() == [4, 0, 2]
    words, counts = tokenize(pl.Series(["Don't  stop:", " Ä\tb\n"]), "spaces")
    assert words.to_list() == ["Don't", "stop:", "Ä", "b"]
    assert counts.tolist() == [2, 2]


@given(st.lists(st.integers(0, 4)))
def test_word_positions_count_up_within_a_document(documents):
    want = [documents[:i].count(document) for i, document in enumerate(documents)]
    assert word_positions(np.array(documents, dtype=np.uint32)).tolist() == want
