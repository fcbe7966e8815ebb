"""Tables are read back as written, at once or in parts, and never left incomplete."""

import errno
import os

import numpy as np
import polars as pl
import pytest
from error_text import raises_text

from tapas import UsageError
from tapas.data import table_files
from tapas.data.table_files import check_new, table_writer, write_frame

COLUMNS = {"user": ["ä", 'b,\n"c"', "1"], "rank": np.arange(3), "score": np.float32([1, -2, 0.5])}
READERS = {".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson, ".csv": pl.read_csv}


@pytest.mark.parametrize("suffix", READERS)
def test_what_is_written_is_read_back(tmp_path, suffix):
    file = tmp_path / f"out{suffix}"
    file.write_text("old")
    write_frame(file, COLUMNS)
    frame = READERS[suffix](file)
    assert frame["user"].cast(pl.String).to_list() == COLUMNS["user"]
    assert frame["rank"].to_list() == [0, 1, 2]
    assert frame["score"].to_list() == [1, -2, 0.5]
    assert os.listdir(tmp_path) == [file.name]


@pytest.mark.parametrize("suffix", READERS)
def test_large_integer_keys_are_kept_and_become_text_beside_the_rare_class(tmp_path, suffix):
    file = tmp_path / f"out{suffix}"
    for keys in ([5, "(rare)", 7], [1, 2**63 + 5, 2**64 - 1]):
        write_frame(file, {"item": keys})
        assert READERS[suffix](file)["item"].to_list() == (
            keys if keys[0] == 1 else ["5", "(rare)", "7"]
        )


def test_vectors_become_a_column_of_parquet(tmp_path):
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    write_frame(tmp_path / "v.parquet", {"key": ["a", "b", "c"], "vector": vectors})
    assert pl.read_parquet(tmp_path / "v.parquet")["vector"].to_list() == vectors.tolist()


def test_a_missing_folder_is_reported(tmp_path):
    for suffix in READERS:
        file = tmp_path / "missing" / f"out{suffix}"
        with raises_text(f"cannot write {file}: there is no folder {file.parent}. Make it first."):
            write_frame(file, COLUMNS)


@pytest.mark.parametrize("suffix", READERS)
def test_a_full_disk_leaves_the_old_file(monkeypatch, tmp_path, suffix):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / f"out{suffix}"
    file.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with raises_text(
        f"cannot write {file}: No space left on device. Free some space or choose another "
        "place; nothing unfinished was left behind."
    ):
        write_frame(file, COLUMNS)
    assert os.listdir(tmp_path) == [file.name]
    assert file.read_text() == "old"


@pytest.mark.parametrize("suffix", READERS)
def test_rows_that_come_in_parts_are_one_table_in_order(monkeypatch, tmp_path, suffix):
    monkeypatch.setattr(table_files, "ROWS_PER_PART", 5)
    file = tmp_path / f"[odd] name{suffix}"
    with table_writer(file) as write:
        for start in range(0, 14, 2):
            write({"user": ["ä", 'b,\n"c"'], "rank": np.arange(start, start + 2)})
    assert os.listdir(tmp_path) == [file.name]
    frame = READERS[suffix](file.rename(tmp_path / f"out{suffix}"))  # polars would read a glob
    assert frame["rank"].to_list() == list(range(14))
    assert frame["user"].to_list() == ["ä", 'b,\n"c"'] * 7


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_rows_that_end_early_leave_the_old_file(monkeypatch, tmp_path, suffix, error):
    monkeypatch.setattr(table_files, "ROWS_PER_PART", 2)
    file = tmp_path / f"out{suffix}"
    file.write_text("old")

    def interrupted():
        with table_writer(file) as write:
            write({"rank": np.arange(3)})
            raise error

    with pytest.raises((KeyboardInterrupt, UsageError)):
        interrupted()
    assert os.listdir(tmp_path) == [file.name]
    assert file.read_text() == "old"


def test_an_existing_file_is_replaced_only_by_force(tmp_path):
    file = tmp_path / "a.csv"
    check_new(file, force=False)
    file.write_text("old")
    check_new(file, force=True)
    with raises_text(f"{file} exists. Choose another --out or add --force."):
        check_new(file, force=False)
    away = file.parent / "none" / "a.csv"
    with raises_text(f"cannot write {away}: there is no folder {away.parent}. Make it first."):
        check_new(away, force=True)
