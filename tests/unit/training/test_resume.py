"""A run that is stopped or killed at any time and resumed gives bit-identical results."""

import json
import math
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from itertools import count

import pytest
import torch
from damage import rewrite
from forked import Forked
from oracle.command_line import ENVIRONMENT, tapas, untimed_journal, write_chain

from tapas import UsageError
from tapas.checkpoints.folder import CheckpointFolder
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.mixture import CopyPart, Mixture
from tapas.training import run as session
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, OptimizerConfig, TrainConfig
from tapas.training.journal import read_journal

STEPS = 11
LOOP = LoopConfig(steps=STEPS, evaluate_every=4, batch=3, patience=99, checkpoint_seconds=1e9)


class KilledError(BaseException):
    """Stands in for SIGKILL: nothing catches it."""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Few items, so that they repeat within a history."""
    folder = tmp_path_factory.mktemp("chain")
    return write_chain(folder / "chain.parquet", num_users=30, num_items=9, num_baskets=6)


@pytest.fixture
def config(file):
    return TrainConfig(
        log=LogSource(files=(str(file),)),
        split=SplitConfig(kind="time"),
        model=ModelConfig(dim=4, history=6, dropout=0.3),
        head=HeadConfig.of(num_samples=5, presample_factor=2, anneal_to=0.5),
        loop=LOOP,
    )


def begin(config, out, **options):
    return session.train(config, out, cache=out.parent / "cache", **options)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of an uninterrupted run of a configuration, trained once."""
    made = {}

    def uninterrupted(config):
        if config not in made:
            made[config] = tmp_path_factory.mktemp("uninterrupted") / "run"
            assert begin(config, made[config]).reason == "finished"
        return made[config]

    return uninterrupted


def stopping(every):
    """A `should_stop` that returns True at every `every`-th call."""
    steps = count(1)
    return lambda: next(steps) >= every


def killing(at):
    """Raises after step `at`, before that step can be saved by the clock."""
    steps = count(1)

    def ask():
        if next(steps) == at:
            raise KilledError
        return False

    return ask


def assert_same_end(one, other, steps=STEPS):
    mine, theirs = (CheckpointFolder(run / "checkpoints").load() for run in (one, other))
    assert mine.step == theirs.step == steps
    assert mine.state == theirs.state
    assert mine.tensors.keys() == theirs.tensors.keys()
    for name, tensor in mine.tensors.items():
        assert torch.equal(tensor, theirs.tensors[name]), name
    assert untimed_journal(one) == untimed_journal(other)
    assert (one / "config.toml").read_bytes() == (other / "config.toml").read_bytes()


VARIANTS = {  # encoder and its optimizer, that of rows and its tensors of state, positions, model
    "own inputs, copy part": (
        "transformer", "adamw", "lazy-adam", 2, "all", {"inputs": "own", "copy": True}
    ),
    "half precision": (
        "transformer", "adamw", "rowwise-adagrad", 1, "last",
        {"inputs": "own", "copy": True, "dtype": "bfloat16"},
    ),
    "shared inputs": (
        "gru", "adagrad", "adagrad", 1, "last", {"inputs": "shared", "copy": True}
    ),
    "no copy part": ("mean", "adamw", "sgd", 0, "all", {"inputs": "shared", "copy": False}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", VARIANTS)
def test_a_run_stopped_many_times_is_bit_identical(config, uninterrupted, tmp_path, case):
    encoder, optimizer, rows, num_states, positions, model = VARIANTS[case]
    config = replace(
        config,
        model=replace(config.model, encoder=encoder, layers=2, **model),
        head=replace(config.head, positions=positions, target_decay=0.7),
        optimizer=OptimizerConfig(encoder=optimizer, rows=rows, rows_lr=0.05, weight_decay=0.01),
        loop=replace(LOOP, precision="bfloat16" if case == "half precision" else "float32"),
    )
    expected = uninterrupted(config)
    broken = tmp_path / "broken"
    outcome = begin(config, broken, should_stop=stopping(1))
    reasons = [outcome.reason]
    for every in (2, 3, 99):
        outcome = session.resume(broken, should_stop=stopping(every))
        reasons.append(outcome.reason)
    assert reasons == ["interrupted", "interrupted", "interrupted", "finished"]
    assert_same_end(expected, broken)
    tensors = CheckpointFolder(expected / "checkpoints").load().tensors
    state = [name for name in tensors if name.startswith("model.head.table.weight_")]
    assert len(state) == num_states
    if model["copy"]:
        starts = Mixture(copy=CopyPart()).state_dict()
        for name, start in starts.items():
            assert not torch.equal(tensors[f"model.mixture.{name}"], start), f"{name} never moved"


@pytest.mark.parametrize("seconds", [0, 1e9], ids=["every step saved", "evaluations saved"])
@pytest.mark.parametrize(
    "at",
    [5, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 4, 9, STEPS))],
)
def test_a_run_killed_after_any_step_resumes_from_the_last_checkpoint(
    config, uninterrupted, tmp_path, at, seconds
):
    config = replace(config, loop=replace(LOOP, checkpoint_seconds=seconds))
    expected = uninterrupted(config)
    broken, said = tmp_path / "broken", []
    with pytest.raises(KilledError):
        begin(config, broken, should_stop=killing(at))
    session.resume(broken, status=said.append)
    evaluated = at if at == STEPS else at // 4 * 4
    saved = evaluated if seconds or evaluated == at else at - 1
    start = f"Continuing from step {saved}." if saved else (
        "There is no checkpoint yet: starting again from step 0."
    )  # fmt: skip
    assert said[0] == start
    assert_same_end(expected, broken)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 3])
def test_killed_between_journal_and_checkpoint_no_line_is_duplicated(
    config, uninterrupted, tmp_path, monkeypatch, times
):
    expected = uninterrupted(config)
    saves, save = count(1), CheckpointFolder.save

    def dying(*arguments, **options):
        if next(saves) == times:
            raise KilledError
        return save(*arguments, **options)

    monkeypatch.setattr(CheckpointFolder, "save", dying)
    with pytest.raises(KilledError):
        begin(config, tmp_path / "broken")
    session.resume(tmp_path / "broken")
    assert_same_end(expected, tmp_path / "broken")


def test_resuming_a_finished_run_changes_nothing_unless_at_an_earlier_step(
    config, uninterrupted, tmp_path
):
    expected, run = uninterrupted(config), tmp_path / "run"
    shutil.copytree(expected, run)
    outcome = session.resume(run)
    assert (outcome.reason, outcome.step) == ("finished", STEPS)
    files = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    assert all(
        path.read_bytes() == (expected / path.relative_to(run)).read_bytes() for path in files
    )
    first = CheckpointFolder(run / "checkpoints").steps()[0]
    assert first < STEPS
    session.resume(run, step=first)
    assert_same_end(expected, run)


@pytest.mark.slow
def test_a_run_resumes_with_its_number_of_threads(config, tmp_path, monkeypatch):
    """Another number of threads would change the order of sums."""
    begin(config, tmp_path / "run", should_stop=stopping(2))
    file = tmp_path / "run" / "run.json"
    assert json.loads(file.read_text())["num_threads"] == 1
    rewrite(file, lambda record: record.update(num_threads=3))
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    session.resume(tmp_path / "run")
    assert asked == [3]


@pytest.mark.slow
def test_patience_survives_a_resume(config, tmp_path):
    """A run that stopped early does not train on."""
    config = replace(config, loop=replace(LOOP, evaluate_every=1, patience=2, steps=60))
    outcome = begin(config, tmp_path / "run")
    assert outcome.reason == "no_improvement"
    again = session.resume(tmp_path / "run")
    assert again == outcome
    lines = read_journal(tmp_path / "run" / "journal.jsonl")
    steps = [line["step"] for line in lines if line["event"] == "evaluate"]
    assert steps == list(range(1, outcome.step + 1))
    (end,) = (line for line in lines if line["event"] == "end")  # the second time had no step
    assert (end["reason"], end["steps"]) == ("no_improvement", outcome.step)
    assert end["seconds"] > 0


def test_without_validation_data_no_run_is_created(config, tmp_path):
    config = replace(config, split=replace(config.split, validation=0))
    with pytest.raises(UsageError) as error:
        begin(config, tmp_path / "run")
    assert str(error.value) == (
        "split.validation is 0, but training chooses the best checkpoint on validation data. "
        "Set it above 0."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_sigkill_at_ten_random_moments_gives_the_same_model(file, tmp_path):
    """Half of the kills come at any time after the start, half during training."""
    num_steps, most = 240, 10  # steps of a life until it is killed, at most
    settings = [
        "--threads", 1, "--encoder", "transformer", "--dim", 8, "--steps", num_steps, "--batch", 4,
        "--num-samples", 5, "--split", "time", "--cache", tmp_path / "cache",
        *(part for s in ("loop.checkpoint_seconds=0", "loop.evaluate_every=20", "model.history=8",
                         "loop.patience=99", "model.dropout=0.2") for part in ("--set", s)),
    ]  # fmt: skip
    expected, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    done = tapas("train", file, "--out", expected, *settings)
    assert done.returncode == 0, done.stderr
    saved = CheckpointFolder(killed / "checkpoints")
    draw, started = random.Random(7), [0]
    for number in range(10):
        there = (killed / "run.json").exists()
        how = ("--resume", killed) if there else (file, "--out", killed, *settings)
        process = Forked("train", *how, env=ENVIRONMENT)
        seconds, steps = (math.inf, draw.randint(1, most)) if number % 2 else (
            draw.uniform(0.0, 0.5), most
        )  # fmt: skip
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and max([0, *saved.steps()]) < started[-1] + steps:
            assert process.is_alive(), "it ended before it was killed"
            time.sleep(0.002)
        time.sleep(draw.uniform(0.0, 0.03))  # anywhere in a step and its checkpoint
        process.send_signal(signal.SIGKILL)
        assert process.end().returncode == -signal.SIGKILL, "it ended before it was killed"
        started.append(max([0, *saved.steps()]))
    done = tapas("train", "--resume", killed, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reason"] == "finished"
    assert len(set(started)) > 5, "kills did not come after checkpoints"
    assert_same_end(expected, killed, num_steps)
    unfinished = [path.name for path in killed.rglob(".*")]
    assert not unfinished


def test_all_files_of_a_run_follow_the_umask(config, tmp_path):
    """Also if the prepared log in the cache was written under another umask."""
    before = os.umask(0o022)
    try:
        for umask in (0o077, 0o022, 0o002):
            os.umask(umask)
            out = tmp_path / f"{umask:o}" / "run"
            session.train(config, out, cache=tmp_path / "cache", should_stop=lambda: True)
            modes = {
                (path.is_dir(), path.stat().st_mode & 0o777)
                for path in (out, *out.rglob("*"), out.parent)
            }
            assert modes == {(True, 0o777 & ~umask), (False, 0o666 & ~umask)}
        (prepared,) = (tmp_path / "cache").iterdir()
        assert prepared.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
