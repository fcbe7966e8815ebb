"""Only regular files of bounded size are read, and nothing is waited for."""

import os

import pytest
from error_text import raises_text

from tapas import DataError
from tapas.stored_file import file_bytes, open_file, read_bytes, read_json

END = "or leave it alone if you do not know who made it."


def test_a_regular_file_is_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"é": [1]}', encoding="utf-8")
    assert read_json(file) == {"é": [1]}
    assert file_bytes(file) == len(file.read_bytes()) == 11
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").symlink_to("elsewhere")
    (tmp_path / "elsewhere" / "a").write_bytes(b"x")
    assert read_bytes(tmp_path / "linked" / "a") == b"x"  # a folder may be on another disk


def test_links_pipes_devices_and_folders_are_named_and_not_opened(tmp_path):
    (tmp_path / "file").write_text("{}")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    cases = {
        tmp_path / "link": f"link is a link, which is not read; expected a file. Copy the folder "
        f"with `cp -rL`, {END}",
        tmp_path / "dangling": "dangling is a link, which is not read; expected a file. ",
        tmp_path / "zero": "zero is a link, which is not read; expected a file. ",
        tmp_path / "pipe": "pipe is a named pipe, which is not read; expected a file. Get the "
        f"folder again, {END}",
        tmp_path: "is a folder, which is not read; expected a file. ",
        type(tmp_path)("/dev/zero"): "/dev/zero is a device, which is not read; expected a file. ",
    }
    for path, words in cases.items():
        for read in (file_bytes, open_file, read_bytes, read_json):
            with raises_text(words, DataError):
                read(path)


def test_what_is_exchanged_between_check_and_opening_is_not_followed(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    monkeypatch.setattr("tapas.stored_file.file_bytes", lambda path: 0)
    for name, words in (("pipe", "pipe is a named pipe"), ("link", "link is a link")):
        with raises_text(words, DataError):
            open_file(tmp_path / name)


def test_a_text_that_is_too_long_or_too_deep_is_refused(tmp_path):
    file = tmp_path / "a.json"
    file.touch()
    os.truncate(file, 10 * 2**40)  # sparse
    with raises_text(
        "a.json has more than 64 MB, the most that is read: tapas did not write it.", DataError
    ):
        read_json(file)
    file.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(file)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nothing")
