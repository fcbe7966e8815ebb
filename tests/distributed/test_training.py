"""`tapas train` on ranks: the same model as of one process, also after failures."""

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed.crashing_peers import processes_below
from distributed.faulty_tapas import faulty_tapas
from forked import torchrun
from oracle.command_line import ENVIRONMENT, invoke, with_quantities, write_chain
from ranks import run_ranks

from tapas import TapasError, UsageError, join_ranks
from tapas.checkpoints.folder import CheckpointFolder
from tapas.cli import torchrun as cli_ranks
from tapas.data.source import LogSource
from tapas.distributed.torchrun import started_by_torchrun
from tapas.tables.placement import Placement
from tapas.training import run as session
from tapas.training.build import build_training
from tapas.training.config import (
    HeadConfig,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    build_config,
    read_toml,
)
from tapas.training.journal import read_journal
from tapas.training.run_evaluation import evaluate_run
from tapas.training.run_folder import open_run

pytestmark = pytest.mark.slow
STEPS = 12
LOOP = LoopConfig(steps=STEPS, evaluate_every=5, batch=7, patience=99, checkpoint_seconds=1e9)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    file = write_chain(folder / "chain.parquet", num_users=19, num_items=53, num_baskets=6)
    return with_quantities(file)


def configs(file):
    plain = TrainConfig(
        log=LogSource(files=(str(file),), weight="quantity"),
        model=ModelConfig(dim=4, history=6),
        head=HeadConfig.of(num_samples=11, presample_factor=3, next_items=3),
        loop=LOOP,
    )
    return {
        "own inputs": plain,
        "shared inputs, one example": replace(
            plain,
            model=replace(plain.model, inputs="shared", encoder="mean"),
            optimizer=OptimizerConfig(rows="lazy-adam", rows_lr=0.01),
            loop=replace(LOOP, batch=1),  # all ranks but one have no examples
        ),
        "counting parts": replace(plain, model=replace(plain.model, copy=True, follow=True)),
    }


def train_on_ranks(ranks, file, folder):
    """Train a model and evaluate it."""
    found = {}
    for name, config in configs(file).items():
        out = folder / name
        session.train(config, out, cache=folder / "cache", ranks=ranks)
        found[name] = evaluate_run(open_run(out), ranks=ranks)[0].scores["model"].metrics
    return found


def refuse_the_folder(ranks, file, folder):
    """The error on each rank if rank 0 finds that the folder is in use."""
    with pytest.raises(TapasError) as error:
        session.train(configs(file)["counting parts"], folder, cache=folder / "cache", ranks=ranks)
    return f"{type(error.value).__name__}: {error.value}"


def test_a_folder_in_use_is_an_error_on_every_rank(file, tmp_path):
    """Otherwise the others would wait for ever for rank 0."""
    (tmp_path / "mine.txt").write_text("not a run")
    zero, one = run_ranks(2, refuse_the_folder, file, tmp_path)
    assert zero.startswith(f"UsageError: {tmp_path}")
    assert one == zero


def train_alone(config, folder, num_shards, monkeypatch):
    """One process whose tables emulate `num_shards` shards."""

    def built(*args):
        parts = build_training(*args)
        table = parts.model.head.table
        table.placement = Placement(table.num_classes, num_shards, seed=table.seed)
        return parts

    monkeypatch.setattr(session, "build_training", built)
    session.train(config, folder / "alone", cache=folder / "cache")


def test_ranks_train_the_model_that_one_process_trains(file, tmp_path, monkeypatch):
    num_ranks = 3
    evaluated = run_ranks(num_ranks, train_on_ranks, file, tmp_path)
    for name, config in configs(file).items():
        alone = evaluate_run(open_run(tmp_path / name))[0].scores["model"].metrics
        for metrics in evaluated:
            for metric, interval in metrics[name].items():
                assert interval.mean == pytest.approx(alone[metric].mean, rel=1e-5), metric
        folder = tmp_path / f"{name}, alone"
        train_alone(config, folder, num_ranks, monkeypatch)
        one = CheckpointFolder(folder / "alone" / "checkpoints")
        many = CheckpointFolder(tmp_path / name / "checkpoints")
        assert many.steps() == one.steps()
        a, b = one.load(), many.load()
        assert a.tensors.keys() == b.tensors.keys()
        for key, tensor in a.tensors.items():
            torch.testing.assert_close(
                b.tensors[key], tensor, rtol=3e-3, atol=3e-5, msg=lambda m, key=key: f"{key}: {m}"
            )
        for mine, theirs in zip(
            read_journal(folder / "alone" / "journal.jsonl"),
            read_journal(tmp_path / name / "journal.jsonl"),
            strict=True,
        ):
            assert mine.keys() == theirs.keys()
            if mine["event"] != "evaluate":
                assert theirs["step"] == mine["step"]
                continue
            for key in ("step", "train_loss", "map@20", "loss"):
                assert theirs[key] == pytest.approx(mine[key], rel=1e-4, abs=1e-5), key


def start(folder, *arguments, faults="", restarts=0):
    """`tapas` on two ranks."""
    environment = {**ENVIRONMENT, "FAULTS": faults, "GLOO_SOCKET_IFNAME": "lo"}
    environment.pop("PYTHONWARNINGS")  # torchrun emits warnings
    return torchrun(
        2, *arguments, work=faulty_tapas, restarts=restarts, cwd=folder, env=environment
    )


def training(file, out, peer_seconds=3):
    settings = ("loop.evaluate_every=4", "loop.patience=99", f"loop.peer_seconds={peer_seconds}")
    return (
        *("train", file, "--out", out, "--cache", "cache", "--steps", 14, "--dim", 4),
        *("--batch", 5, "--num-samples", 9, "--presample-factor", 3),
        *(part for setting in settings for part in ("--set", setting)),
    )


def begin_whole(ranks, folder):
    """The run of `training` without failures."""
    config = build_config(read_toml(folder / "broken" / "config.toml"))
    session.train(config, folder / "whole", cache=folder / "cache", ranks=ranks)
    return


def test_a_job_restarts_by_itself_after_a_failure(file, tmp_path):
    """Killed before the first checkpoint, then hanging; it ends bit by bit as without failures."""
    faults = "kill@1:3 hang@0:6"
    done = start(tmp_path, *training(file, "broken"), faults=faults, restarts=2).end(240)
    words = done.stderr
    assert done.returncode == 0, words
    assert "rank 1 died or hangs: no answer" in words
    assert "No checkpoint was saved." in words
    assert "There is no checkpoint yet: starting again from step 0." in words
    assert "rank 0 hangs or is lost: no answer" in words
    assert "The last checkpoint is step 4 in broken/checkpoints." in words
    assert "stopped: the step of rank 0 did not end within 2 s." in words
    assert words.count("Continuing from step 4.") == 1
    for number in (1, 2):
        line = f"Warning: torchrun has restarted all ranks (restart {number})."
        assert words.count(line) == 1
    restarts = [
        (line["step"], line["process"], line["restarts"])
        for line in read_journal(tmp_path / "broken" / "journal.jsonl")
        if line["event"] == "restart"
    ]
    assert restarts == [(0, "all ranks", 1), (4, "all ranks", 2)]
    run_ranks(2, begin_whole, tmp_path)
    a, b = (CheckpointFolder(tmp_path / run / "checkpoints").load() for run in ("whole", "broken"))
    assert (a.step, b.step) == (14, 14)
    assert a.state == b.state
    for key, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[key]), key
    report = tmp_path / "broken" / "report.html"
    assert "Not known yet: tapas evaluate adds it" in report.read_text()
    assert invoke("evaluate", tmp_path / "broken").returncode == 0  # as on any run
    assert "Judged by events that no training has seen" in report.read_text()


def test_a_mistake_in_the_command_is_one_sentence(file, tmp_path):
    """torchrun restarts the ranks, which have nothing more to say."""
    # on a busy machine ranks may need more than 3 s to find each other, which is another error
    arguments = training(file, "run", peer_seconds=60)
    done = start(tmp_path, *arguments, "--user", "nope", restarts=1).end(120)
    assert done.returncode != 0
    spoken = [line for line in done.stderr.splitlines() if line.startswith("tapas: ")]
    assert len(spoken) == 1, done.stderr
    words = spoken[0]
    assert words.startswith(f"tapas: {file} has no column 'nope' for the user. Columns: ")
    assert done.stderr.count("Reading ") == 1
    assert f"traceback : {words.removeprefix('tapas: ')}" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_stopped_job_saves_and_resumes_with_other_ranks(file, tmp_path):
    arguments = (*training(file, "run"), "--steps", 100_000)
    job = start(tmp_path, *arguments)
    checkpoints = CheckpointFolder(tmp_path / "run" / "checkpoints")
    deadline = time.monotonic() + 60
    while not checkpoints.steps() and time.monotonic() < deadline:
        time.sleep(0.05)
    names = [Path(f"/proc/{pid}/comm") for pid in processes_below(job.pid)]
    in_ps = sorted(name.read_text().strip() for name in names if name.exists())
    assert [name for name in in_ps if name.startswith("tapas")] == ["tapas rank 0", "tapas rank 1"]
    job.send_signal(signal.SIGTERM)
    done = job.end(60)
    assert done.returncode != 0
    words = done.stderr
    assert "Stopping after this step; saving a checkpoint." in words
    assert "; a checkpoint is saved." in words
    stopped = checkpoints.load()
    assert stopped.step % 4 or stopped.step == checkpoints.steps()[-1]

    def soon():
        return True

    outcome = session.resume(tmp_path / "run", should_stop=soon)  # alone
    assert outcome.step == stopped.step + 1
    assert run_ranks(3, go_on, tmp_path / "run") == [outcome.step + 1] * 3


def go_on(ranks, folder):
    return session.resume(folder, should_stop=lambda: True, ranks=ranks).step


@pytest.mark.parametrize("has_flag", [True, False])
def test_a_restart_resumes_only_a_run_of_the_same_job(tmp_path, monkeypatch, has_flag):
    """A folder with an earlier run is refused by all attempts."""
    monkeypatch.setattr(cli_ranks, "started_by_torchrun", lambda: True)
    monkeypatch.setattr(cli_ranks, "num_restarts", lambda: 1)
    flags = []
    monkeypatch.setattr(cli_ranks, "has_job_flag", lambda flag: flags.append(flag) or has_flag)
    assert cli_ranks.restarts_of(tmp_path) == 0
    (tmp_path / "run.json").touch()
    assert cli_ranks.restarts_of(tmp_path) == int(has_flag)
    assert flags == [f"run {tmp_path.resolve()}"]
    monkeypatch.setattr(cli_ranks, "num_restarts", lambda: 0)
    assert cli_ranks.restarts_of(tmp_path) == 0


def test_a_process_is_a_rank_if_its_environment_says_so(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert not started_by_torchrun()
    monkeypatch.setenv("RANK", "1")
    assert not started_by_torchrun()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not started_by_torchrun()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert started_by_torchrun()
    words = r"must be set for torch\.distributed: .*MASTER_ADDR.*torchrun"
    with pytest.raises(UsageError, match=words), join_ranks(timeout_seconds=1):
        pass
