"""Given files are regular and readable; anything else is named, and nothing is waited for."""

import os
import socket
from pathlib import Path

import pytest
from error_text import raises_text

from tapas.data.source import LogSource
from tapas.given_file import MAX_TEXT_BYTES, check_given, read_given


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
    with socket.socket(socket.AF_UNIX) as server:
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
