"""The folder of a run: whole or no run, refused before any work, read back as it was."""

import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from oracle.journeys import chain_log

from tapas import DataError, UsageError
from tapas.data.source import LogSource
from tapas.training.config import LoopConfig, TrainConfig
from tapas.training.run_folder import check_free, create_run, only_one, open_run
from tapas.version import __version__

CONFIG = TrainConfig(log=LogSource(files=('with "quotes".csv',)), loop=LoopConfig(keep=7))


class KilledError(BaseException):
    pass


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return chain_log(tmp_path_factory.mktemp("log"), num_users=3, num_items=9, num_baskets=3)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(path):
    with pytest.raises(UsageError) as error:
        check_free(path)
    return str(error.value)


def test_what_was_laid_out_is_read_back(log, tmp_path):
    run = create_run(tmp_path / "a" / "run", CONFIG, log)
    assert names(run.path) == ["config.toml", "log", "run.json"]
    again = open_run(run.path)
    assert again.config == CONFIG
    assert again.log.items.tolist() == log.items.tolist()
    assert again.log.item_keys.keys([0, 1]) == log.item_keys.keys([0, 1])
    assert again.checkpoints.keep == 7
    assert again.checkpoints.steps() == []
    assert again.num_threads == 1


def test_a_run_needs_neither_the_log_nor_the_cache_any_more(tmp_path):
    log = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    items = log.items.tolist()
    create_run(tmp_path / "run", CONFIG, log)
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "chain.parquet").unlink()
    assert open_run(tmp_path / "run").log.items.tolist() == items


def test_where_files_cannot_be_linked_they_are_copied(log, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    run = create_run(tmp_path / "run", CONFIG, log)
    assert run.log.items.tolist() == log.items.tolist()


def test_a_free_place_is_left_as_it_was(tmp_path):
    check_free(tmp_path / "a" / "b")
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")
    assert names(tmp_path) == ["empty"]
    assert names(tmp_path / "empty") == []


def test_a_folder_that_holds_a_run_is_refused(log, tmp_path):
    create_run(tmp_path / "run", CONFIG, log)
    assert refused(tmp_path / "run") == (
        f"{tmp_path / 'run'} holds a run already. Go on with it by --resume, or choose another "
        "--out."
    )


def test_a_file_and_a_full_folder_are_refused_and_untouched(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'} is a file. Choose another --out."
    assert refused(tmp_path) == f"{tmp_path} is not empty, and holds no run. Choose another --out."
    below = tmp_path / "file" / "run"
    assert refused(below) == (
        f"cannot write into {below}: Not a directory. Choose another folder with --out."
    )
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert refused(tmp_path / "run") == (
            f"cannot write into {tmp_path / 'run'}: Permission denied. Choose another folder with "
            "--out."
        )
    finally:
        tmp_path.chmod(stat.S_IRWXU)


MOVES = [1, 2, 3]  # log, config.toml, run.json


@pytest.mark.parametrize("move", MOVES)
def test_killed_while_it_is_laid_out_it_is_no_run_and_can_be_begun_again(
    log, tmp_path, monkeypatch, move
):
    """The kill comes just before the move; nothing can tidy up after it."""
    path, moves, rename = tmp_path / "run", iter(range(1, 9)), Path.rename

    def dying(self, target):
        if next(moves) == move:
            raise KilledError
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(KilledError):
            create_run(path, CONFIG, log)
    with pytest.raises(UsageError, match=r"holds no run \(run.json is missing\)"):
        open_run(path)
    check_free(path)
    assert create_run(path, CONFIG, log).log.num_events == log.num_events
    assert names(path) == ["config.toml", "log", "run.json"]


@pytest.mark.parametrize("move", MOVES)
def test_a_full_disk_leaves_nothing(log, tmp_path, monkeypatch, move):
    path, moves, rename = tmp_path / "run", iter(range(1, 9)), Path.rename

    def full(self, target):
        if next(moves) == move:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(UsageError) as error:
        create_run(path, CONFIG, log)
    assert str(error.value) == (
        f"cannot write into {path}: No space left on device. Choose another folder with --out."
    )
    assert names(tmp_path) == []


def test_no_run_is_told_how_to_make_one(tmp_path):
    for path, hint in ((tmp_path, ""), (tmp_path / "none", " There is no such folder.")):
        with pytest.raises(UsageError) as error:
            open_run(path)
        assert str(error.value) == (
            f"{path} holds no run (run.json is missing).{hint} `tapas train ... --out {path}` "
            "makes one."
        )


def test_a_run_of_a_newer_version_is_told_so(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log)
    record = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(record | {"format": 2, "tapas": "9.1"}))
    with pytest.raises(UsageError) as error:
        open_run(run.path)
    assert str(error.value) == (
        f"{run.path} was written by tapas 9.1 (run format 2); this is tapas {__version__}, which "
        "knows formats up to 1. Upgrade tapas-softmax."
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read: Expecting property name"),
        ("[1]", "has no format number: it was not written by tapas."),
        ('{"format": "one"}', "has no format number: it was not written by tapas."),
    ],
)
def test_a_damaged_record_is_named(log, tmp_path, content, words):
    run = create_run(tmp_path / "run", CONFIG, log)
    (run.path / "run.json").write_text(content)
    with pytest.raises(DataError) as error:
        open_run(run.path)
    assert str(error.value).startswith(f"{run.path / 'run.json'} {words}")


def test_a_misspelt_name_in_its_configuration_is_named(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log)
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace("history =", "hstory ="))
    with pytest.raises(UsageError, match=r"unknown name in \[model\] 'hstory'. Did you mean 'hist"):
        open_run(run.path)


def test_only_one_process_trains_in_a_run(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log)
    with only_one(run.path), pytest.raises(UsageError) as error, only_one(run.path):
        pass
    words = f"another process is training in {run.path}. Wait for it, or stop it."
    assert str(error.value) == words
    with only_one(run.path):
        pass
