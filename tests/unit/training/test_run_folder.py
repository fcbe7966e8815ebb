"""The run folder: complete or no run, checked before any work, read back unchanged."""

import errno
import fcntl
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from damage import as_earlier_version, flip, flock_of_nfs, swap, without_checksum
from error_text import raises_text
from oracle.command_line import chain_log

from tapas import DataError, UsageError
from tapas.data.source import LogSource
from tapas.training.config import LoopConfig, TrainConfig
from tapas.training.run_folder import check_free, create_run, exclusive, open_run, write_config
from tapas.version import __version__

CONFIG = TrainConfig(log=LogSource(files=('with "quotes".csv',)), loop=LoopConfig(keep=7))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return chain_log(tmp_path_factory.mktemp("log"), num_users=3, num_items=9, num_baskets=3)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_run_is_read_back_without_log_and_cache(tmp_path):
    log = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    items, keys = log.items.tolist(), log.item_keys.keys(range(8))
    run = create_run(tmp_path / "a" / "run", CONFIG, log)
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "chain.parquet").unlink()
    assert names(run.path) == ["config.toml", "log", "run.json"]
    again = open_run(run.path)
    assert again.config == CONFIG
    assert again.log.items.tolist() == items
    assert again.log.item_keys.keys(range(8)) == keys
    assert again.checkpoints.keep == 7
    assert again.checkpoints.steps() == []
    assert again.num_threads == 1


def test_the_log_of_a_run_is_a_copy_that_damage_to_the_cache_does_not_reach(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log)
    for file in log.folder.iterdir():
        copy = run.log.folder / file.name
        assert copy.read_bytes() == file.read_bytes()
        assert copy.stat().st_ino != file.stat().st_ino


def test_a_log_that_was_damaged_since_it_was_opened_is_not_copied(tmp_path):
    log = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    flip(log.folder / "user_keys.parquet", -1)
    with raises_text(
        f"{log.folder / 'user_keys.parquet'} is damaged: its checksum differs from the one it "
        "was saved with. Remove it with `tapas cache --empty`; the next command prepares the log "
        "again.",
        DataError,
    ):
        create_run(tmp_path / "run", CONFIG, log)
    assert not (tmp_path / "run").exists()


def test_a_log_of_an_earlier_version_gets_checksums_in_a_run(tmp_path):
    log = chain_log(tmp_path, num_users=3, num_items=9, num_baskets=3)
    before = (log.folder / "log.json").read_text()
    without_checksum(log.folder / "log.json")
    run = create_run(tmp_path / "run", CONFIG, log)
    assert (run.log.folder / "log.json").read_text() == before


@pytest.mark.parametrize("name", ["items.npy", "item_keys.parquet", "log.json"])
def test_damage_to_the_log_of_a_run_is_named_with_what_to_do(log, tmp_path, name):
    run = create_run(tmp_path / "run", CONFIG, log).path
    flip(run / "log" / name, -3)
    with pytest.raises(DataError) as error:
        open_run(run)
    damage, cure = str(error.value).split(". ", 1)
    assert damage.startswith(f"{run}/log/{name} is damaged: it")
    assert cure == (
        f"Restore {run}/log from another copy of the run, or train again from the files of the "
        f"log, which are named in {run}/config.toml."
    )


def test_only_a_free_path_is_accepted_and_other_paths_are_unchanged(log, tmp_path):
    (tmp_path / "empty").mkdir()
    for free in (tmp_path / "a" / "b", tmp_path / "empty"):
        check_free(free)
    assert names(tmp_path) == ["empty"]
    assert names(tmp_path / "empty") == []
    run, file = create_run(tmp_path / "run", CONFIG, log).path, tmp_path / "file"
    file.write_text("mine")
    messages = {
        run: "{} already holds a run. Continue it with --resume, or choose another --out.",
        file: "{} is a file. Choose another --out.",
        tmp_path: "{} is not empty and holds no run. Choose another --out.",
        file / "run": "cannot write into {}: Not a directory. Choose another folder with --out.",
    }
    for path, words in messages.items():
        with pytest.raises(UsageError) as error:
            check_free(path)
        assert str(error.value) == words.format(path)
    assert file.read_text() == "mine"


def with_checkpoints(folder):
    (folder / "checkpoints").mkdir()


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk_leaves_nothing(log, tmp_path, monkeypatch, exists):
    """At every rename; the last one is that of run.json."""
    path, rename = tmp_path / "run", os.rename
    if exists:
        path.mkdir()
    for failing in range(4 if exists else 1):
        moves = iter(range(9))

        def rename_or_fail(*names, failing=failing, moves=moves):
            if next(moves) == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rename(*names)

        monkeypatch.setattr(os, "rename", rename_or_fail)
        with pytest.raises(UsageError) as error:
            create_run(path, CONFIG, log, fill=with_checkpoints)
        assert str(error.value) == (
            f"cannot write into {path}: No space left on device. Choose another folder with --out."
        )
        assert names(path if exists else tmp_path) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_run_that_another_process_has_just_created_is_not_touched(log, tmp_path, exists):
    path = tmp_path / "run"
    if exists:
        path.mkdir()

    def overtaken(folder):
        create_run(path, CONFIG, log)

    with pytest.raises(UsageError) as error:
        create_run(path, CONFIG, log, fill=overtaken)
    assert str(error.value) == (
        f"another command has just created a run in {path}. Choose another --out."
    )
    assert names(path) == ["config.toml", "log", "run.json"]
    assert names(tmp_path) == ["run"]
    assert open_run(path).log.num_events == log.num_events


def test_a_run_that_another_process_is_creating_is_refused_before_any_work(log, tmp_path):
    path = tmp_path / "run"
    path.mkdir()

    def look(folder):
        with pytest.raises(UsageError) as error:
            check_free(path)
        assert str(error.value) == (
            f"another command is creating a run in {path}. Wait for it, or choose another --out."
        )

    create_run(path, CONFIG, log, fill=look)


def test_a_run_is_created_in_the_working_directory_and_through_a_link(log, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(here)
    for place in (Path(), tmp_path / "link"):
        check_free(place)
        assert create_run(place, CONFIG, log).log.num_events == log.num_events
        assert sorted(os.listdir()) == names(here)  # the working directory is still this folder
        assert names(here) == ["config.toml", "log", "run.json"]
        assert names(tmp_path) == ["here", "link"]
        for name in names(here):
            shutil.rmtree(name) if name == "log" else (here / name).unlink()


def test_a_file_that_came_while_the_run_was_made_is_kept(log, tmp_path):
    def write(folder):
        (tmp_path / "config.toml").write_text("mine")

    with pytest.raises(UsageError) as error:
        create_run(tmp_path, CONFIG, log, fill=write)
    assert str(error.value) == (
        f"files came into {tmp_path} after this command began. Choose another --out."
    )
    assert names(tmp_path) == ["config.toml"]
    assert (tmp_path / "config.toml").read_text() == "mine"


NEWER = (
    f"{{run}} has run format 2, written by tapas 9.1; this is tapas {__version__}, which reads "
    "formats up to 1. Upgrade tapas-softmax to read it."
)


LOST = "Restore it from another copy of the run."
NO_JSON = f"{{run}}/run.json is damaged: it is not the JSON that was saved. {LOST}"


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        ('{"format": 2, "tapas": "9.1"}', UsageError, NEWER),
        ("{", DataError, NO_JSON),
        ("[1]", DataError, NO_JSON),
        ("", DataError, NO_JSON),
        ('{"format": 1}', DataError, NO_JSON),
        ('{"format": 1, "num_threads": 0}', DataError, NO_JSON),
        ('{"format": 1, "num_threads": 1, "id": "a"}', DataError, NO_JSON),
        (
            '{"format": 1, "num_threads": 1, "id": "a", "files": {"/etc/hosts": {}}}',
            DataError,
            NO_JSON,
        ),
        *(
            (
                f'{{"format": {odd}}}',
                DataError,
                f"{{run}}/run.json is damaged: its format number is {shown}. {LOST}",
            )
            for odd, shown in (
                ("-3", "-3"), ("0", "0"), ("1.5", "1.5"), ("true", "True"), ('"one"', "'one'"),
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_or_newer_record_is_an_error(log, tmp_path, content, kind, words):
    run = create_run(tmp_path / "run", CONFIG, log)
    (run.path / "run.json").write_text(content)
    with pytest.raises(kind) as error:
        open_run(run.path)
    assert str(error.value) == words.format(run=run.path)


def test_a_run_of_an_earlier_version_opens(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log).path
    as_earlier_version(run)
    assert open_run(run).config == CONFIG
    assert open_run(run).num_threads == 1
    write_config(open_run(run))
    assert open_run(run).config == CONFIG


@pytest.mark.slow
def test_every_flipped_byte_of_record_and_settings_is_found_or_changes_nothing(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log)
    for name in ("run.json", "config.toml"):
        content = (run.path / name).read_bytes()
        missed = []
        for place in range(len(content)):
            flip(run.path / name, place, place % 8)
            try:
                again = open_run(run.path)
            except DataError:
                (run.path / name).write_bytes(content)
                continue
            missed.append(content[place : place + 1])
            assert again.config == CONFIG
            assert again.num_threads == run.num_threads
            (run.path / name).write_bytes(content)
        assert set(missed) <= {b" ", b"\n"}  # between the fields of JSON
        for size in range(len(content) - 1):
            (run.path / name).write_bytes(content[:size])
            with pytest.raises(DataError):
                open_run(run.path)
        (run.path / name).write_bytes(content)


CHANGED = (
    "{} is damaged: its checksum differs from the one it was saved with. Restore it from another "
    "copy of the run; if you changed it yourself, delete its first line."
)


def test_changed_settings_are_refused_until_their_checksum_is_deleted(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log).path
    file = run / "config.toml"
    file.write_text(file.read_text().replace("keep = 7", "keep = 8"))
    with raises_text(CHANGED.format(file), DataError):
        open_run(run)
    first, rest = file.read_text().split("\n", 1)
    assert first.startswith("# checksum blake2b:")
    assert first.endswith(" of what follows: delete this line if you change it")
    assert len(first) < 110
    file.write_text(rest)
    assert open_run(run).config.loop.keep == 8
    file.unlink()
    with raises_text(f"{file} cannot be read: No such file or directory. {LOST}", DataError):
        open_run(run)
    file.write_text("")
    with raises_text(f"{file} is damaged: it names no log. {LOST}", DataError):
        open_run(run)


def test_files_of_another_run_are_not_taken_for_those_of_this_one(log, tmp_path):
    settings = (CONFIG, replace(CONFIG, loop=LoopConfig(keep=8)))
    runs = [create_run(tmp_path / str(c.loop.keep), c, log).path for c in settings]
    for name in ("config.toml", "run.json"):
        swap(*(run / name for run in runs))
        for run in runs:
            with raises_text(CHANGED.format(run / "config.toml"), DataError):
                open_run(run)
        swap(*(run / name for run in runs))
    (tmp_path / "other").mkdir()
    other = chain_log(tmp_path / "other", num_users=4, num_items=9, num_baskets=3)
    runs = [runs[0], create_run(tmp_path / "c", CONFIG, other).path]
    swap(*(run / "log" for run in runs))
    for run in runs:
        with pytest.raises(DataError, match=f"{run}/log/log.json is damaged: .* Restore {run}/log"):
            open_run(run)
    swap(*(run / "log" for run in runs))
    for run in runs:
        open_run(run)


def test_only_one_process_trains_in_a_run(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log)
    with exclusive(run.path), pytest.raises(UsageError) as error, exclusive(run.path):
        pass
    words = f"another process is training in {run.path}. Wait until it ends, or stop it."
    assert str(error.value) == words
    with exclusive(run.path):
        pass


def test_a_run_is_locked_on_nfs_and_refused_on_file_systems_without_locks(
    log, tmp_path, monkeypatch
):
    run = create_run(tmp_path / "run", CONFIG, log).path
    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    with exclusive(run):
        pass

    def without(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    words = (
        f"cannot lock {run}/run.json: No locks available. Train in a folder whose file system has "
        "locks, such as one on a local disk."
    )
    with raises_text(words, UsageError), exclusive(run):
        pass


def test_a_run_that_may_not_be_written_is_refused(tmp_path):
    (tmp_path / "run.json").mkdir()  # the tests may run as root, who may write everything else
    words = (
        f"cannot write {tmp_path}/run.json: Is a directory. Copy {tmp_path} to where you may "
        "write, and continue there."
    )
    with raises_text(words), exclusive(tmp_path):
        pass


def test_settings_of_another_version_are_an_error_that_names_their_file(log, tmp_path):
    run = create_run(tmp_path / "run", CONFIG, log).path
    file = run / "config.toml"
    settings = file.read_text().split("\n", 1)[1]
    file.write_text(settings.replace("\ncopy = ", "\nrepeats = "))
    with pytest.raises(UsageError) as error:
        open_run(run)
    assert str(error.value) == (
        f"the settings of the run in {run} cannot be used: unknown name in [model] 'repeats'. Did "
        "you mean 'copy'? Known: attention_heads, copy, dim, dropout, dtype, encoder, follow, "
        f"history, inputs, layers. Correct {file}, or use the version that wrote it, tapas "
        f"{__version__}."
    )


def test_a_file_is_no_run(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("user,item\n")
    with pytest.raises(UsageError) as error:
        open_run(file)
    assert str(error.value) == (
        f"{file} is a file; expected the folder of a run, which `tapas train` creates."
    )


@pytest.mark.parametrize("number", [0, 100_000, 2**31, "4", None, True, 1.5])
def test_an_absurd_number_of_threads_is_refused(log, tmp_path, number):
    run = create_run(tmp_path / "run", CONFIG, log)
    record = {"format": 1, "tapas": "0.1.0", "num_threads": number}  # without a checksum
    (run.path / "run.json").write_text(json.dumps(record))
    with raises_text("run.json is damaged: it is not the JSON that was saved. Restore", DataError):
        open_run(run.path)
