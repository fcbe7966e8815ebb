"""Small tables: what goes in comes out, whole or not at all, and bad files are named."""

import errno
import os

import numpy as np
import polars as pl
import pytest
from words import told

from tapas import DataError
from tapas.data.small_tables import read_keys, write_frame

COLUMNS = {"user": ["ä", 'b,\n"c"', "1"], "rank": np.arange(3), "score": np.float32([1, -2, 0.5])}
READERS = {".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson, ".csv": pl.read_csv}


@pytest.mark.parametrize("ending", READERS)
def test_what_is_written_is_read_back(tmp_path, ending):
    file = tmp_path / f"out{ending}"
    file.write_text("older")
    write_frame(file, COLUMNS)
    frame = READERS[ending](file)
    assert frame["user"].cast(pl.String).to_list() == COLUMNS["user"]
    assert frame["rank"].to_list() == [0, 1, 2]
    assert frame["score"].to_list() == [1, -2, 0.5]
    assert os.listdir(tmp_path) == [file.name]
    assert read_keys(file, None) == COLUMNS["user"]
    assert read_keys(file, "rank") == ["0", "1", "2"]


@pytest.mark.parametrize("ending", READERS)
def test_keys_of_any_size_stay_what_they_are_and_become_text_beside_the_rare_class(
    tmp_path, ending
):
    file = tmp_path / f"out{ending}"
    for keys in ([5, "(rare)", 7], [1, 2**63 + 5, 2**64 - 1]):
        write_frame(file, {"item": keys})
        assert read_keys(file, "item") == [str(key) for key in keys]


def test_vectors_are_a_column_of_parquet(tmp_path):
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    write_frame(tmp_path / "v.parquet", {"key": ["a", "b", "c"], "vector": vectors})
    assert pl.read_parquet(tmp_path / "v.parquet")["vector"].to_list() == vectors.tolist()


def test_a_place_that_cannot_be_written_to_is_told(tmp_path):
    for ending in READERS:
        file = tmp_path / "missing" / f"out{ending}"
        with told(f"cannot write {file}: there is no folder {file.parent}. Make it first."):
            write_frame(file, COLUMNS)


@pytest.mark.parametrize("ending", READERS)
def test_a_full_disk_leaves_the_older_file(monkeypatch, tmp_path, ending):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / f"out{ending}"
    file.write_text("older")
    monkeypatch.setattr(os, "fsync", full)
    with told(
        f"cannot write {file}: No space left on device. Free some space or choose another "
        "place; nothing was left behind."
    ):
        write_frame(file, COLUMNS)
    assert os.listdir(tmp_path) == [file.name]
    assert file.read_text() == "older"


def test_a_text_file_is_a_key_on_each_line(tmp_path):
    file = tmp_path / "users.txt"
    file.write_bytes("ä 1\r\n\r\n  \n b\nlast".encode())
    assert read_keys(file, None) == ["ä 1", "b", "last"]


def test_a_tsv_is_split_at_tabs_and_numbers_stay_as_written(tmp_path):
    file = tmp_path / "users.tsv"
    file.write_text("n\tuser\n1\t007\n2\t1e3\n")
    assert read_keys(file, "user") == ["007", "1e3"]
    assert read_keys(file, None) == ["1", "2"]


def test_keys_that_are_not_there_are_told(tmp_path):
    file = tmp_path / "users.csv"
    file.write_text("who,when\na,1\n,2\n")
    with told(f"{file} has no column 'user'. It has: who, when."):
        read_keys(file, "user")
    with told(f"{file}, row 2: who is empty. Remove such rows.", DataError):
        read_keys(file, "who")


def test_a_damaged_or_empty_file_is_one_line(tmp_path):
    junk = b'PAR1 \xff\xfe { nothing "'
    cases = [("a.parquet", junk), ("a.jsonl", junk), ("a.txt", junk)]
    cases += [("a.parquet", b""), ("a.csv", b""), ("a.jsonl", b"")]
    for name, content in cases:
        (tmp_path / name).write_bytes(content)
        with told(f"{tmp_path / name} cannot be read: ", DataError) as error:
            read_keys(tmp_path / name, None)
        assert "\n" not in str(error.value)
