"""Tables are read back as written, never left incomplete, and bad files are reported."""

import errno
import os

import numpy as np
import polars as pl
import pytest
from error_text import raises_text

from tapas import DataError
from tapas.data.table_files import read_keys, write_frame

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
    assert read_keys(file, None) == COLUMNS["user"]
    assert read_keys(file, "rank") == ["0", "1", "2"]


@pytest.mark.parametrize("suffix", READERS)
def test_large_integer_keys_are_kept_and_become_text_beside_the_rare_class(tmp_path, suffix):
    file = tmp_path / f"out{suffix}"
    for keys in ([5, "(rare)", 7], [1, 2**63 + 5, 2**64 - 1]):
        write_frame(file, {"item": keys})
        assert read_keys(file, "item") == [str(key) for key in keys]


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
        "place; nothing was left behind."
    ):
        write_frame(file, COLUMNS)
    assert os.listdir(tmp_path) == [file.name]
    assert file.read_text() == "old"


def test_a_text_file_has_one_key_per_line(tmp_path):
    file = tmp_path / "users.txt"
    file.write_bytes("ä 1\r\n\r\n  \n b\nlast".encode())
    assert read_keys(file, None) == ["ä 1", "b", "last"]


def test_a_tsv_is_split_at_tabs_and_numbers_stay_as_written(tmp_path):
    file = tmp_path / "users.tsv"
    file.write_text("n\tuser\n1\t007\n2\t1e3\n")
    assert read_keys(file, "user") == ["007", "1e3"]
    assert read_keys(file, None) == ["1", "2"]


def test_a_missing_column_or_key_is_reported(tmp_path):
    file = tmp_path / "users.csv"
    file.write_text("who,when\na,1\n,2\n")
    with raises_text(f"{file} has no column 'user'. It has: who, when."):
        read_keys(file, "user")
    with raises_text(f"{file}, row 2: who is empty. Remove such rows.", DataError):
        read_keys(file, "who")


def test_the_error_for_a_damaged_or_empty_file_is_one_line(tmp_path):
    junk = b'PAR1 \xff\xfe { nothing "'
    cases = [("a.parquet", junk), ("a.jsonl", junk), ("a.txt", junk)]
    cases += [("a.parquet", b""), ("a.csv", b""), ("a.jsonl", b"")]
    for name, content in cases:
        (tmp_path / name).write_bytes(content)
        with raises_text(f"{tmp_path / name} cannot be read: ", DataError) as error:
            read_keys(tmp_path / name, None)
        assert "\n" not in str(error.value)
