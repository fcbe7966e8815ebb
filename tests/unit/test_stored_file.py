"""Only regular files of bounded size are read, and nothing is waited for."""

import os
from pathlib import Path

import pytest
from error_text import raises_text

from tapas import DataError
from tapas.stored_file import checked, open_file, read_text


def test_a_regular_file_is_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"é": [1]}', encoding="utf-8")
    assert read_text(checked(file)) == '{"é": [1]}'
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").symlink_to("elsewhere")
    (tmp_path / "elsewhere" / "a").write_bytes(b"x")
    assert read_text(tmp_path / "linked" / "a") == "x"  # a folder may be on another disk


def test_links_pipes_devices_and_folders_are_named_and_not_opened(tmp_path):
    (tmp_path / "file").write_text("{}")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    link = "is a link; expected a regular file, as tapas writes it. Links are not followed; "
    kinds = {
        tmp_path / "link": f"{link}`cp -rL` copies a folder without.",
        tmp_path / "dangling": link,
        tmp_path / "zero": link,
        tmp_path / "pipe": "is a named pipe; expected a regular file, as tapas writes it.",
        tmp_path: "is a folder; expected a regular file, as tapas writes it.",
        Path("/dev/zero"): "is a device; expected a regular file, as tapas writes it.",
    }
    for path, words in kinds.items():
        for read in (checked, open_file, read_text):
            with raises_text(f"{path} {words}", DataError):
                read(path)


def test_what_is_exchanged_between_check_and_opening_is_not_followed(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    monkeypatch.setattr("tapas.stored_file.checked", lambda path: path)
    for name, words in (("pipe", "pipe is a named pipe"), ("link", "link is a link")):
        with raises_text(words, DataError):
            open_file(tmp_path / name)


def test_a_text_that_is_too_long_is_not_read(tmp_path):
    file = tmp_path / "a.json"
    file.touch()
    os.truncate(file, 10 * 2**40)  # sparse
    words = "a.json has more than 64 MB, the most that is read: tapas did not write it."
    with raises_text(words, DataError):
        read_text(file)
    with raises_text(words, DataError):
        checked(file, most_bytes=64 * 2**20)
    file.write_bytes(b"\xff")
    for path, error in ((file, ValueError), (tmp_path / "nothing", FileNotFoundError)):
        with pytest.raises(error):
            read_text(path)
