"""A log is checked when it is opened, and errors name the damaged file."""

from contextlib import suppress

import numpy as np
import pytest
from damage import flip, rewrite, without_checksum
from error_text import raises_text

from tapas import DataError
from tapas.data import EventLog, LogSource, prepare_log
from tapas.data.event_log import FORMAT_VERSION
from tapas.version import __version__


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
    rewrite(log.folder / "log.json", lambda d: d.update(format_version=FORMAT_VERSION + 1))
    with raises_text(
        f"{log.folder} has log format {FORMAT_VERSION + 1}; this is tapas {__version__}, which "
        f"reads formats up to {FORMAT_VERSION}. Upgrade tapas-softmax to read it."
    ):
        EventLog.open(log.folder)


@pytest.mark.parametrize("version", [-3, 0, 1.5, True, None])
def test_a_format_version_that_no_tapas_has_is_damage(log, version):
    rewrite(log.folder / "log.json", lambda d: d.update(format_version=version))
    with raises_text(
        f"{log.folder / 'log.json'} is damaged: its format number is {version!r}.", DataError
    ):
        EventLog.open(log.folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": {"items": 3}},
        {"sizes": {"items": 3, "times": 3, "offsets": "3"}},
        {"report": {"items": "2"}},
        {"files": {}},
        {"files": []},
    ],
)
def test_a_description_without_what_is_read_later_is_damage(log, changes):
    rewrite(log.folder / "log.json", lambda d: d.update(changes))
    with raises_text("log.json is damaged: it is not the JSON that was saved.", DataError):
        EventLog.open(log.folder)


FILES = ["items.npy", "times.npy", "offsets.npy", "item_keys.parquet", "user_keys.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_of_a_file_is_found(log, name):
    file = log.folder / name
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        flip(file, place, place % 8)
        with raises_text(
            f"{file} is damaged: its checksum differs from the one it was saved with.", DataError
        ):
            EventLog.open(log.folder)
        file.write_bytes(content)
    file.write_bytes(content[:-1])
    with raises_text(
        f"{file} is damaged: {len(content) - 1:,} bytes; expected {len(content):,}.", DataError
    ):
        EventLog.open(log.folder)
    file.unlink()
    with raises_text(f"{file} cannot be read: No such file or directory.", DataError):
        EventLog.open(log.folder)


def test_a_log_of_an_earlier_version_opens_and_is_checked_as_far_as_possible(log):
    without_checksum(log.folder / "log.json")
    assert EventLog.open(log.folder).items.tolist() == [0, 0, 1]
    file = log.folder / "times.npy"
    content = file.read_bytes()
    for place in (*range(0, 128, 5), *range(6, 12)):  # the header
        flip(file, place, 6)
        with suppress(DataError):
            EventLog.open(log.folder)
        file.write_bytes(content)
    file.write_bytes(content[:-1])
    with raises_text(f"{file} is damaged or truncated.", DataError):
        EventLog.open(log.folder)
    np.save(file, np.zeros(9))
    with raises_text(f"{file} has shape (9,); expected (3,).", DataError):
        EventLog.open(log.folder)
    (log.folder / "user_keys.parquet").unlink()
    for name in ("times.npy", "user_keys.parquet"):
        (log.folder / name).unlink(missing_ok=True)
        with raises_text(f"{name} cannot be read: No such file or directory.", DataError):
            EventLog.open(log.folder)
        np.save(file, np.zeros(3, dtype=np.int64))


def test_a_folder_without_description_is_no_log(tmp_path):
    with raises_text("is not a prepared log: log.json is missing."):
        EventLog.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("items", np.zeros(3), "items.npy has dtype float64; expected int32 or int64."),
        ("times", np.array(["a"] * 3), "times.npy has dtype <U1; expected int64."),
        ("offsets", np.zeros((2, 2)), "offsets.npy has shape (2, 2); expected ("),
        ("items", np.array([object()] * 3), "items.npy is damaged or truncated."),
    ],
)
def test_arrays_of_another_type_or_shape_are_refused(log, name, array, words):
    without_checksum(log.folder / "log.json")
    np.save(log.folder / f"{name}.npy", array)
    with raises_text(words, DataError):
        EventLog.open(log.folder)


def test_an_array_larger_than_its_file_takes_no_memory(log):
    without_checksum(log.folder / "log.json")
    rewrite(log.folder / "log.json", lambda d: d["sizes"].update(items=2**50))
    with (log.folder / "items.npy").open("wb") as file:
        header = {"descr": "<i4", "fortran_order": False, "shape": (2**50,)}
        np.lib.format.write_array_header_1_0(file, header)
    with raises_text("items.npy is damaged or truncated.", DataError):
        EventLog.open(log.folder)


def test_numbers_out_of_range_are_refused_before_they_become_sizes(log):
    """Also if every checksum is right: a stranger can compute them."""
    log.check_values()
    log.items = np.array([0, 2**30, 1])
    with raises_text(
        "items.npy is damaged: it has the item 1073741824; expected 0 to 1.", DataError
    ):
        log.check_values()
    log.items = np.array([0, -1, 1])
    with raises_text("items.npy is damaged: it has the item -1; expected 0 to 1.", DataError):
        log.check_values()
    for offsets in ([0, 3, 3], [0, 5, 3], [1, 2, 3], [0, 1, 2], [3], [0, 1, 2**60]):
        log.offsets = np.array(offsets)
        with raises_text(
            "offsets.npy is damaged: expected rising numbers from 0 to 3, the number of events.",
            DataError,
        ):
            log.check_values()


def test_keys_that_are_not_as_many_as_recorded_are_refused(log):
    without_checksum(log.folder / "log.json")
    rewrite(log.folder / "log.json", lambda d: d["report"].update(items=10**15))
    with raises_text(
        "item_keys.parquet has 2 keys; expected 1,000,000,000,000,000, as log.json says.", DataError
    ):
        EventLog.open(log.folder)
