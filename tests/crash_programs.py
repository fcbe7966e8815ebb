"""Programs for `try_all` and `race`: everything that tapas writes in several steps."""

import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from crash_points import Program, forked, race, try_all
from oracle.command_line import chain_log

from tapas import atomic_file
from tapas.atomic_file import OutputFolder, atomic_pair, atomic_write
from tapas.checkpoints.folder import CheckpointFolder
from tapas.comparison.ledger import Ledger
from tapas.data import prepare as prepare_module
from tapas.data.cache import prepared_logs, remove
from tapas.data.event_log import EventLog, write_log
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.errors import UsageError
from tapas.retrieval import export_embeddings, load_embeddings
from tapas.training.config import LoopConfig, TrainConfig
from tapas.training.export import unfinished_export
from tapas.training.journal import Journal, read_journal
from tapas.training.run_folder import RECORD, check_free, create_run, exclusive, open_run

CONFIG = TrainConfig(log=LogSource(files=("log.csv",)), loop=LoopConfig(keep=7))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def make_log(at: Path) -> None:
    chain_log(at, num_users=3, num_items=9, num_baskets=3)


def make_log_and_folder(at: Path) -> None:
    make_log(at)
    (at / "run").mkdir()


def the_log(at: Path) -> EventLog:
    (folder,) = (path for path in (at / "cache").iterdir() if not path.name.startswith("."))
    return EventLog.open(folder)


def create(at: Path) -> None:
    def fill(folder: Path) -> None:
        save(CheckpointFolder(folder / "checkpoints"), 0)

    check_free(at / "run")
    create_run(at / "run", CONFIG, the_log(at), fill=fill)


def check_run(at: Path, succeeded: bool) -> None:
    if succeeded or (at / "run" / RECORD).exists():
        with pytest.raises(UsageError, match="already holds a run"):
            check_free(at / "run")
    else:
        with pytest.raises(UsageError, match=r"holds no run \(run.json is missing\)"):
            open_run(at / "run")
        create(at)
    with exclusive(at / "run"):  # as --resume
        run = open_run(at / "run")
    assert run.config == CONFIG
    assert run.log.items.tolist() == the_log(at).items.tolist()
    assert is_right(run.checkpoints, 0)
    assert names(at / "run") == ["checkpoints", "config.toml", "log", "run.json"]
    assert names(at) == ["cache", "chain.parquet", "run"]


def save(folder: CheckpointFolder, *steps: int, version: int = 0) -> None:
    for step in steps:
        row = torch.full((5,), float(step + version))
        folder.save(step, {"row": row}, {"version": version}, best=step % 3 == 0)


def is_right(folder: CheckpointFolder, step: int) -> bool:
    found = folder.load(step)
    return found.tensors["row"].tolist() == [step + found.state["version"]] * 5


def save_three(at: Path) -> None:
    save(CheckpointFolder(at / "checkpoints", keep=3), 3, 5, 6)


def save_again(at: Path) -> None:
    """Go back to step 5: replaces it, removes step 6, then prunes."""
    folder = CheckpointFolder(at / "checkpoints", keep=1)
    save(folder, 5, 8, version=1)


def check_checkpoints(at: Path, succeeded: bool) -> None:
    folder = CheckpointFolder(at / "checkpoints", keep=1)
    steps = folder.steps()
    assert all(is_right(folder, step) for step in steps)
    assert folder.best() == (6 if 6 in steps else 3)
    assert 8 in steps or not succeeded
    again = folder.load(5).state["version"] if 5 in steps else 1
    assert again or 8 not in steps
    save(folder, 9, version=2)
    assert names(folder.folder) == ["step-00000009"]


def write_lines(at: Path) -> None:
    with Journal(at, tensorboard=False) as journal:
        for step in (1, 2, 3):
            journal.write(step, "evaluate", loss=float(step))


def resume_lines(at: Path) -> None:
    """Continue at step 2."""
    with (
        exclusive(at, "journal.jsonl"),
        Journal(at, resume_at=2, tensorboard=False) as journal,
    ):
        for step in (4, 5):
            journal.write(step, "evaluate", loss=float(step))


def check_lines(at: Path, succeeded: bool) -> None:
    steps = [line["step"] for line in read_journal(at / "journal.jsonl")]
    assert steps in ([[1, 2, 4, 5]] if succeeded else [[1, 2, 3], [1, 2], [1, 2, 4], [1, 2, 4, 5]])
    resume_lines(at)
    assert [line["step"] for line in read_journal(at / "journal.jsonl")] == [1, 2, 4, 5]
    assert names(at) == ["journal.jsonl"]


def first_lines(at: Path) -> None:
    write_lines(at / "new")


def check_first_lines(at: Path, succeeded: bool) -> None:
    if succeeded:
        check_lines_of(at, [1, 2, 3])
    write_lines(at / "new")
    steps = [line["step"] for line in read_journal(at / "new" / "journal.jsonl")]
    assert steps[-3:] == [1, 2, 3]
    assert steps[:-3] == [1, 2, 3][: len(steps) - 3]


def check_lines_of(at: Path, want: list[int]) -> None:
    assert [line["step"] for line in read_journal(at / "new" / "journal.jsonl")] == want


def export(at: Path, version: int = 0) -> None:
    with unfinished_export(at / "out" / "export", force=True) as folder:
        row = torch.full((2, 3), float(version))
        export_embeddings(folder / "rows.safetensors", row, row[:, 0], ["a", "b"])
        (folder / "export.json").write_text(json.dumps({"version": version}))


def export_again(at: Path) -> None:
    export(at, 1)


def export_in_two_renames(at: Path) -> None:
    """As on a file system on which two folders cannot be exchanged."""
    atomic_file.EXCHANGE = 1 << 30
    export(at, 1)


def check_export(at: Path, succeeded: bool) -> None:
    folder = at / "out" / "export"
    version = json.loads((folder / "export.json").read_text())["version"]
    assert version == 1 or not succeeded
    assert load_embeddings(folder / "rows.safetensors").weight.tolist() == [[version] * 3] * 2
    export(at, 2)
    assert names(folder) == ["export.json", "rows.safetensors"]
    assert names(at / "out") == ["export"]


def check_export_in_two_renames(at: Path, succeeded: bool) -> None:
    """Between both renames the old one has no name, and gets it back from the next command."""
    folder = at / "out" / "export"
    if not folder.exists():
        with pytest.raises(RuntimeError), unfinished_export(folder, force=True):
            raise RuntimeError("the next export fails")
        assert json.loads((folder / "export.json").read_text()) == {"version": 0}
    check_export(at, succeeded)


def write_pair(at: Path, version: int = 0) -> None:
    with atomic_pair(at / "a.faiss", at / "a.keys.json") as made:
        for unfinished in made:
            unfinished.write_text(str(version))


def write_pair_again(at: Path) -> None:
    write_pair(at, 1)


def check_pair(at: Path, succeeded: bool) -> None:
    """Keys are never those of another index, but may be missing."""
    index, keys = at / "a.faiss", at / "a.keys.json"
    assert index.read_text() == "1" or not succeeded
    assert keys.exists() or not succeeded
    assert not keys.exists() or keys.read_text() == index.read_text()
    write_pair(at, 2)
    assert names(at) == ["a.faiss", "a.keys.json"]


def write_csv(at: Path) -> None:
    (at / "log.csv").write_text("user,item,time\n1,a,1\n1,b,2\n2,a,3\n")


def prepare(at: Path) -> None:
    prepare_log(LogSource(files=(str(at / "log.csv"),)), at / "deep" / "cache")


def write_csv_and_prepare(at: Path) -> None:
    write_csv(at)
    prepare(at)


def check_prepared(at: Path, succeeded: bool) -> None:
    cache = at / "deep" / "cache"
    found = prepared_logs(cache)
    assert len(found) == 1 or not succeeded
    for log in found:
        assert EventLog.open(log.folder).num_events == 3
    prepare(at)
    (name,) = (path for path in names(cache) if not path.startswith("."))
    assert EventLog.open(cache / name).item_keys.keys(range(2)) == ["a", "b"]
    assert names(cache) == [name]


def empty_cache(at: Path) -> None:
    for log in prepared_logs(at / "deep" / "cache"):
        assert remove(log)


def check_emptied(at: Path, succeeded: bool) -> None:
    found = prepared_logs(at / "deep" / "cache")
    assert not (found and succeeded)
    check_prepared(at, succeeded=False)


def write_files(at: Path, version: int = 0) -> None:
    OutputFolder(at / "results").write({"a": b"%d" % version, "b": b"%d" % version})
    with atomic_write(at / "results" / "c.txt") as unfinished:
        unfinished.write_text(str(version))


def write_files_again(at: Path) -> None:
    write_files(at, 1)


def check_files(at: Path, succeeded: bool) -> None:
    contents = [(at / "results" / name).read_text() for name in ("a", "b", "c.txt")]
    assert contents == ["1"] * 3 or not succeeded
    assert contents == sorted(contents, reverse=True)  # written in this order, each whole
    write_files(at, 2)
    assert names(at / "results") == ["a", "b", "c.txt"]


def add_result(at: Path) -> None:
    try:
        Ledger(at / "study" / "results.jsonl").add({"key": "a", "run": {}})
    except OSError as error:  # reported by the command
        raise UsageError(f"{error}.") from None


def check_result(at: Path, succeeded: bool) -> None:
    """A line cut short is skipped, and its run repeated."""
    file = at / "study" / "results.jsonl"
    assert list(Ledger(file).results) == ["a"] or not succeeded
    Ledger(file).add({"key": "b", "run": {}})
    assert "b" in Ledger(file).results


PROGRAMS = {
    "replace an index and its keys": Program(write_pair, write_pair_again, check_pair),
    "add a result": Program(lambda at: None, add_result, check_result),
    "create a run": Program(make_log, create, check_run),
    "create a run in an empty folder": Program(make_log_and_folder, create, check_run),
    "save checkpoints": Program(save_three, save_again, check_checkpoints),
    "begin a journal": Program(lambda at: None, first_lines, check_first_lines),
    "continue a journal": Program(write_lines, resume_lines, check_lines),
    "export": Program(export, export_again, check_export),
    "export in two renames": Program(export, export_in_two_renames, check_export_in_two_renames),
    "prepare a log": Program(write_csv, prepare, check_prepared),
    "empty the cache": Program(write_csv_and_prepare, empty_cache, check_emptied),
    "write results": Program(write_files, write_files_again, check_files),
}


def run(name: str, root: str) -> None:
    try_all(PROGRAMS[name], Path(root))


def race_to_create(at: Path, num: int) -> None:
    def create_at_once(wait) -> None:
        create_run(at / "run", CONFIG, the_log(at), fill=lambda folder: wait())

    refused = f"another command has just created a run in {at / 'run'}. Choose another --out."
    assert race(num, create_at_once) == ["None"] + [refused] * (num - 1)
    assert names(at / "run") == ["config.toml", "log", "run.json"]
    forked(lambda: open_run(at / "run"))


def race_to_export(at: Path, num: int, *, force: bool = False) -> None:
    def export_at_once(wait) -> None:
        with unfinished_export(at / "export", force) as folder:
            (folder / "export.json").write_text("{}")
            wait()

    refused = (
        f"another command has just written {at / 'export'}. Choose another --to or add --force."
    )
    assert race(num, export_at_once) == sorted(
        ["None"] + ["None" if force else refused] * (num - 1)
    )
    assert names(at / "export") == ["export.json"]


def race_to_replace(at: Path, num: int) -> None:
    (at / "export").mkdir()
    (at / "export" / "export.json").touch()
    race_to_export(at, num, force=True)


def race_to_prepare(at: Path, num: int) -> None:
    def prepare_at_once(wait) -> str:
        prepare_module.write_log = lambda *args: (write_log(*args), wait())
        source = LogSource(files=(str(at / "log.csv"),))
        return prepare_log(source, at / "cache").folder.name

    assert race(num, prepare_at_once) == names(at / "cache") * num


def race_to_write(at: Path, num: int) -> None:
    def write_at_once(wait) -> None:
        with atomic_write(at / "results.txt") as unfinished:
            unfinished.write_text("whole")
            wait()

    assert race(num, write_at_once) == ["None"] * num
    assert (at / "results.txt").read_text() == "whole"


RACES = {  # what is there before, the race, what is there after
    "create a run": (make_log, race_to_create, ["cache", "chain.parquet", "run"]),
    "create a run in an empty folder": (
        make_log_and_folder,
        race_to_create,
        ["cache", "chain.parquet", "run"],
    ),
    "export": (lambda at: None, race_to_export, ["export"]),
    "replace an export": (lambda at: None, race_to_replace, ["export"]),
    "prepare a log": (write_csv, race_to_prepare, ["cache", "log.csv"]),
    "write results": (lambda at: None, race_to_write, ["results.txt"]),
}


def run_race(name: str, root: str) -> None:
    """By two and by four processes, with what a killed one left in the way."""
    start, run_one, want = RACES[name]
    for num in (2, 4, 4):
        at = Path(tempfile.mkdtemp(dir=root))
        forked(lambda at=at: start(at))
        for target in want:
            left = at / f".{target}.0123456789abcdef.unfinished"
            (left / "folder").mkdir(parents=True)
            (left / ".lock").touch()
        run_one(at, num)
        left = set(names(at)) - set(want)
        assert all(name.startswith((".cache", ".chain", ".log")) for name in left), left
