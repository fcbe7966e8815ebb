"""Checksums: equal to those of plain hashlib, and no damage within their reach is missed."""

import hashlib
import json
import math
import os
import shutil

import numpy as np
import pytest
from error_text import raises_text

from tapas import DataError, checksums
from tapas.checksums import (
    check_files,
    checksum,
    copy_with_checksum,
    find_damage,
    has_checksum,
    is_checksum,
    parse_record,
    read_json,
    with_checksum,
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Files of more than 100 bytes are large, and their blocks have 10 bytes."""
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 10)
    monkeypatch.setattr(checksums, "SMALL_BYTES", 100)


def write(path, size):
    content = np.random.default_rng(size).bytes(size)
    path.write_bytes(content)
    return content


def expected(content):
    """The oracle: everything at once, in plain hashlib."""
    found = {"bytes": len(content), "blake2b": hashlib.blake2b(content).hexdigest()}
    if len(content) > 100:
        parts = [content[start : start + 10] for start in range(0, len(content), 10)]
        found["blocks"] = "".join(hashlib.blake2b(p, digest_size=8).hexdigest() for p in parts)
    return found


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 110, 257])
def test_checksums_are_those_of_hashlib_also_of_a_copy(tmp_path, size):
    content = write(tmp_path / "a", size)
    assert checksum(tmp_path / "a") == expected(content)
    assert is_checksum(expected(content))
    assert copy_with_checksum(tmp_path / "a", tmp_path / "b") == expected(content)
    assert (tmp_path / "b").read_bytes() == content
    assert (tmp_path / "a").stat().st_ino != (tmp_path / "b").stat().st_ino
    with pytest.raises(FileExistsError):
        copy_with_checksum(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
@pytest.mark.parametrize("size", [57, 257])
def test_every_flipped_byte_is_found_when_everything_is_checked(tmp_path, size):
    path = tmp_path / "file"
    content = write(path, size)
    saved = {path: expected(content)}
    assert find_damage(saved, everything=True) == {}
    for place in range(size):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        words = f"{path} is damaged: its checksum differs from the one it was saved with."
        assert find_damage(saved, everything=True) == {path: words}


def test_a_small_file_is_always_checked_in_full_and_of_a_large_one_ends_and_a_sample(tmp_path):
    small, large, read = tmp_path / "small", tmp_path / "large", []
    saved = {path: expected(write(path, size)) for path, size in ((small, 100), (large, 1_003))}
    assert find_damage(saved, on_bytes=read.append) == {}
    assert read == [100, *[10] * 9, 3]
    read.clear()
    assert find_damage(saved, everything=True, on_bytes=read.append) == {}
    assert sum(read) == 1_103
    for place in (5, 1_001):
        content = write(large, 1_003)
        large.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert [*find_damage(saved)] == [large]


def test_a_damaged_block_in_between_is_met_as_often_as_the_sample_says(tmp_path):
    """8 of the 18 blocks between the ends: 60 looks meet it 26.7 times, standard deviation 3.85."""
    content = write(tmp_path / "file", 200)
    saved = {tmp_path / "file": expected(content)}
    (tmp_path / "file").write_bytes(content[:55] + b"?" + content[56:])
    met = sum(bool(find_damage(saved)) for _ in range(60))
    assert abs(met - 60 * 8 / 18) < 5 * math.sqrt(60 * 8 / 18 * 10 / 18)  # fails once in a million


def test_what_cannot_be_read_is_named_and_never_waited_for(tmp_path):
    write(path := tmp_path / "file", 57)
    saved = {path: checksum(path)}
    os.truncate(path, 30)
    with raises_text(f"{path} is damaged: 30 bytes; expected 57.", DataError):
        check_files(saved)
    path.unlink()
    with raises_text(f"{path} cannot be read: No such file or directory.", DataError):
        check_files(saved)
    for odd in (lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        odd()
        with raises_text("; expected a regular file, as tapas writes it", DataError):
            check_files({path: {"bytes": 0, "blake2b": "00"}})
        path.unlink()


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        {},
        {"bytes": True, "blake2b": "00"},
        {"bytes": -1, "blake2b": "00"},
        {"bytes": 1.5, "blake2b": "00"},
        {"bytes": 5, "blake2b": 0},
        {"bytes": 5, "blake2b": "00", "blocks": []},
        {"bytes": 205, "blake2b": "00", "blocks": "ab" * 8 * 20},
    ],
)
def test_what_is_no_checksum_is_told_apart(odd):
    assert not is_checksum(odd)


RECORD = {"format": 1, "name": "é\n", "nested": {"b": [1.5e-7, math.inf], "a": None}, "2": True}


@pytest.mark.slow
def test_a_record_is_read_back_and_every_flipped_bit_is_found_or_changes_nothing(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(with_checksum(RECORD), indent=1) + "\n")
    assert read_json(path) == RECORD
    assert has_checksum(path)
    content = path.read_bytes()
    found = 0
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            assert read_json(path) == RECORD  # a space that became a tab
        except DataError:
            found += 1
    assert found > 0.9 * 8 * len(content)
    for size in range(len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match="it is not the JSON that was saved"):
            read_json(path)


def test_a_record_of_an_earlier_version_is_read_without_checksum(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(RECORD))
    assert read_json(path) == RECORD
    assert not has_checksum(path)


def test_numbers_as_names_and_tuples_are_saved_as_json_has_them():
    record = {"sizes": {10: (1, 2), 9: ()}}
    assert parse_record(json.dumps(with_checksum(record))) == {"sizes": {"10": [1, 2], "9": []}}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 10_000 + "}", "[1]", "null", ""])
def test_what_is_no_json_object_is_damage(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with raises_text(f"{path} is damaged: it is not the JSON that was saved.", DataError):
        read_json(path)
    shutil.rmtree(tmp_path)
    with raises_text(f"{path} cannot be read: No such file or directory.", DataError):
        read_json(path)
