"""A log is checked when it is opened, and errors name the damaged file."""

import json

import numpy as np
import pytest
from error_text import raises_text

from tapas import DataError
from tapas.data import EventLog, LogSource, prepare_log
from tapas.data.event_log import FORMAT_VERSION


@pytest.fixture
def log(tmp_path) -> EventLog:
    file = tmp_path / "a.csv"
    file.write_text("user,item,time\n2,x,2024-01-02\n1,y,2024-01-01 10:30:00\n2,y,2024-01-01\n")
    return prepare_log(LogSource(files=(str(file),)), tmp_path / "cache")


def test_arrays_are_memory_mapped_and_small(log):
    assert isinstance(log.items, np.memmap)
    assert (log.items.dtype, log.times.dtype, log.offsets.dtype) == (np.int32, np.int64, np.int64)
    assert log.items.tolist() == [0, 0, 1]
    assert log.offsets.tolist() == [0, 1, 3]


def test_datetimes_are_formatted_as_iso_and_numbers_stay_numbers(log, tmp_path):
    written = ["2024-01-01 10:30:00", "2024-01-01", "2024-01-02"]
    assert [log.format_time(t) for t in log.times] == written
    assert log.format_time(2**62) == str(2**62)
    file = tmp_path / "numbers.csv"
    file.write_text("user,item,time\n1,1,7\n")
    log = prepare_log(LogSource(files=(str(file),)), tmp_path / "cache")
    assert log.format_time(log.times[0]) == "7"


def test_the_error_for_a_newer_format_names_both_versions(log):
    file = log.folder / "log.json"
    description = json.loads(file.read_text())
    file.write_text(json.dumps(description | {"format_version": FORMAT_VERSION + 1}))
    with raises_text(
        f"{log.folder} has format version {FORMAT_VERSION + 1}, but this tapas reads up to version "
        f"{FORMAT_VERSION}. Update tapas-softmax, or prepare the log again."
    ):
        EventLog.open(log.folder)


@pytest.mark.parametrize("name", ["items.npy", "times.npy", "offsets.npy"])
def test_a_missing_or_truncated_array_is_named(log, name):
    file = log.folder / name
    content = file.read_bytes()
    for size in (len(content) - 1, 5):
        file.write_bytes(content[:size])
        with raises_text(f"{file} is damaged or truncated", DataError):
            EventLog.open(log.folder)
    np.save(file, np.zeros(9))
    with raises_text(f"{file} has shape (9,); expected (3,)", DataError):
        EventLog.open(log.folder)
    file.unlink()
    with raises_text(f"{file} is missing. Delete the folder and", DataError):
        EventLog.open(log.folder)


def test_a_missing_vocabulary_or_description_is_named(log, tmp_path):
    (log.folder / "user_keys.parquet").unlink()
    with raises_text("user_keys.parquet is missing. Delete the folder", DataError):
        EventLog.open(log.folder)
    (log.folder / "log.json").write_text("{")
    with raises_text("log.json is damaged. Delete the folder", DataError):
        EventLog.open(log.folder)
    with raises_text("is not a prepared log: log.json is missing."):
        EventLog.open(tmp_path)
