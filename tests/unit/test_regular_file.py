"""Only regular files of bounded size are read; anything else is named and not waited for."""

import os
import socket
from pathlib import Path

import pytest
from error_text import raises_text
from fuzz.readers import time_limit

from tapas import DataError
from tapas.data.source import LogSource
from tapas.regular_file import (
    MAX_TEXT_BYTES,
    check_given,
    check_stored,
    open_stored,
    read_given,
    read_stored,
)


def test_a_file_and_a_link_to_it_may_be_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to("a")
    for name in "ab":
        check_given(tmp_path / name)
        assert read_given(tmp_path / name) == b"abc"


@pytest.fixture
def odd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.csv")
    Path("folder.csv").mkdir()
    Path("gone.csv").symlink_to("nowhere/x")
    Path("loop.csv").symlink_to("loop.csv")
    Path("broken.csv").symlink_to("/proc/self/mem")  # EIO, as of a bad disk
    Path("zero.csv").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server, time_limit(30):  # a pipe that is opened waits
        server.bind("socket.csv")
        yield


CASES = {
    "pipe.csv": "pipe.csv is a pipe; expected a file. Write what comes out of it to a file, and "
    "name that.",
    "zero.csv": "zero.csv is a device; expected a file. Name a file.",
    "/dev/null": "/dev/null is a device; expected a file. Name a file.",
    "socket.csv": "socket.csv is a socket; expected a file. Name a file.",
    "gone.csv": "gone.csv is a link to nowhere/x, which does not exist.",
    "loop.csv": "cannot read 'loop.csv': Too many levels of symbolic links.",
    "broken.csv": "cannot read 'broken.csv': Input/output error.",
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_file_that_can_be_read_is_named(odd, name):
    for read in (check_given, read_given):
        with raises_text(CASES[name]):
            read(Path(name))
    with raises_text(CASES[name]):
        LogSource(files=(name,)).paths()


def test_folders_missing_files_and_impossible_names_are_named(odd):
    with raises_text("folder.csv is a folder; expected a file. Name a file in it."):
        check_given(Path("folder.csv"))
    for name in ("none", "none/none", "pipe.csv/none"):
        with raises_text(f"there is no file {name}."):
            check_given(Path(name))
    long = "x" * 300
    with raises_text(f"cannot read '{long}': File name too long."):
        check_given(Path(long))
    with raises_text(f"no file matches '{long}'. Check the path."):
        LogSource(files=(long,)).paths()
    with raises_text(r"cannot read 'a\x00b': embedded null byte."):
        check_given(Path("a\0b"))


def test_permission_is_named(tmp_path, monkeypatch):
    file = tmp_path / "secret.csv"
    file.write_text("x")

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "open", refused)  # the tests may run as root
    with raises_text(f"cannot read '{file}': Permission denied."):
        check_given(file)


def test_a_gigantic_text_is_refused_without_reading_it(tmp_path):
    file = tmp_path / "settings.toml"
    file.touch()
    os.truncate(file, 10 * 2**40)  # sparse
    with raises_text(f"{file} has more than 64 MB; expected a short file."):
        read_given(file)
    os.truncate(file, MAX_TEXT_BYTES)
    assert len(read_given(file)) == MAX_TEXT_BYTES


def test_one_file_under_several_names_counts_once(tmp_path):
    (tmp_path / "b.csv").write_text("user,item\n1,2\n")
    (tmp_path / "c.csv").write_text("user,item\n1,2\n")
    (tmp_path / "a.csv").symlink_to("b.csv")
    os.link(tmp_path / "b.csv", tmp_path / "d.csv")
    source = LogSource(files=(str(tmp_path / "*.csv"), str(tmp_path / "c.csv")))
    assert [path.name for path in source.paths()] == ["a.csv", "c.csv"]
    assert [path.name for path in source.repeated()] == ["b.csv", "d.csv"]


def test_a_stored_file_is_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"é": [1]}', encoding="utf-8")
    assert read_stored(check_stored(file)) == '{"é": [1]}'
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").symlink_to("elsewhere")
    (tmp_path / "elsewhere" / "a").write_bytes(b"x")
    assert read_stored(tmp_path / "linked" / "a") == "x"  # a folder may be on another disk


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
        tmp_path / "pipe": "is a pipe; expected a regular file, as tapas writes it.",
        tmp_path: "is a folder; expected a regular file, as tapas writes it.",
        Path("/dev/zero"): "is a device; expected a regular file, as tapas writes it.",
    }
    for path, words in kinds.items():
        for read in (check_stored, open_stored, read_stored):
            with raises_text(f"{path} {words}", DataError):
                read(path)


def test_what_is_exchanged_between_check_and_opening_is_not_followed(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    monkeypatch.setattr("tapas.regular_file.check_stored", lambda path: path)
    for name, words in (("pipe", "pipe is a pipe"), ("link", "link is a link")):
        with raises_text(words, DataError):
            open_stored(tmp_path / name)


def test_a_text_that_is_too_long_is_not_read(tmp_path):
    file = tmp_path / "a.json"
    file.touch()
    os.truncate(file, 10 * 2**40)  # sparse
    words = "a.json has more than 64 MB, the most that is read: tapas did not write it."
    with raises_text(words, DataError):
        read_stored(file)
    with raises_text(words, DataError):
        check_stored(file, most_bytes=64 * 2**20)
    file.write_bytes(b"\xff")
    for path, error in ((file, ValueError), (tmp_path / "nothing", FileNotFoundError)):
        with pytest.raises(error):
            read_stored(path)
