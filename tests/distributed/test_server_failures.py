"""Workers and servers that crash: the run continues, and the journal counts what was lost."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from distributed import crashing_peers
from distributed.crashing_peers import (
    CrashingJob,
    Fault,
    RestartingPeers,
    kill_process,
    raise_crash,
    server_history,
)
from oracle.command_line import invoke, last_line, write_chain

from tapas.checkpoints.folder import CheckpointFolder
from tapas.data.source import LogSource
from tapas.servers import job
from tapas.servers import run as server_run
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, ServiceConfig, TrainConfig
from tapas.training.journal import read_journal

STEPS, EVERY = 20, 5
SAVED = list(range(EVERY, STEPS + 1, EVERY))
LOOP = LoopConfig(
    steps=STEPS, evaluate_every=EVERY, batch=7, patience=99, checkpoint_seconds=1e9, keep=9
)
ENCODER = "encoder server 0"
PATIENCE = 4  # seconds


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    return write_chain(folder / "chain.parquet", num_users=19, num_items=53, num_baskets=6)


@pytest.fixture(scope="module")
def config(file):
    return TrainConfig(
        log=LogSource(files=(str(file),)),
        model=ModelConfig(dim=4, history=6, dropout=0.2),
        head=HeadConfig.of(num_samples=11, presample_factor=3, next_items=3),
        loop=LOOP,
        service=ServiceConfig(servers=2, workers=2, max_staleness=0),
    )


NEEDS_SERVERS = (
    "service.workers and service.max_staleness need servers, but service.servers is 0. Add "
    "--servers 2, for example."
)
REFUSED = [
    (("--workers", 2), NEEDS_SERVERS),
    (("--max-staleness", 0), NEEDS_SERVERS),
    (("--servers", -1), "service.servers must be at least 0, got -1."),
    (("--servers", 1, "--workers", 0), "service.workers must be at least 1, got 0."),
    (
        ("--ray-address", "127.0.0.1:1"),
        "--ray-address is for training with servers: add --servers, such as --servers 2.",
    ),
    (
        ("--servers", 2, "--ray-address", "127.0.0.1:1"),
        "no answer from the Ray address 127.0.0.1:1 ([Errno 111] Connection refused). Start the "
        "cluster with `RAY_AUTH_MODE=token ray start --head`, or leave the address out.",
    ),
    (("--servers", 54), "cannot spread 53 classes over 54 shards. Use at most 53."),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED)
def test_flags_that_are_refused(file, flags, words, tmp_path, monkeypatch):
    if "--ray-address" not in flags:
        monkeypatch.setattr(server_run, "on_ray", None)  # nothing may be started
    paths = ("--out", tmp_path / "run", "--cache", tmp_path / "cache")
    assert last_line(invoke("train", file, *paths, *flags)) == words


def test_servers_under_torchrun_are_refused(file, tmp_path, monkeypatch):
    rank = nullcontext(SimpleNamespace(rank=1, size=2, is_main=False, is_distributed=True))
    monkeypatch.setattr("tapas.cli.train.ranks_of_this_job", lambda *_: rank)
    told = invoke("train", file, "--out", tmp_path / "run", "--servers", 2)
    assert last_line(told) == (
        "torchrun and --servers are two ways to train on many processes: start `tapas train` "
        "without torchrun, or with --servers 0."
    )


@pytest.fixture(scope="module")
def on_ray():
    """Starts peers on one Ray session, which all tests of this file share."""
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(crashing_peers)  # its processes cannot import it
    with server_run.on_ray() as start_peers:
        yield start_peers
    ray.cloudpickle.unregister_pickle_by_value(crashing_peers)


@pytest.fixture(params=["here", pytest.param("Ray", marks=pytest.mark.slow)])
def crashing(request, tmp_path):
    """A function that takes faults and returns the job in which they happen."""
    if request.param == "here":
        start, crash = RestartingPeers, raise_crash
    else:
        start, crash = request.getfixturevalue("on_ray"), kill_process
    return lambda *faults: CrashingJob(start, crash, tmp_path / "records", faults)


def train(config, out, start_peers):
    return server_run.train(config, out, cache=out.parent / "cache", start_peers=start_peers)


def events(out, event):
    return [line for line in read_journal(out / "journal.jsonl") if line["event"] == event]


def checkpoints(out):
    return CheckpointFolder(out / "checkpoints")


def test_a_run_whose_worker_crashes_equals_an_undisturbed_run_bit_by_bit(
    config, crashing, tmp_path
):
    """The worker crashes before its step has moved any row."""
    start_peers = crashing(Fault("worker 0", f"push to {ENCODER}", 4))
    outcome = train(config, tmp_path / "broken", start_peers)
    assert start_peers.crashed() == ["worker 0"]
    whole = train(
        config, tmp_path / "whole", CrashingJob(RestartingPeers, raise_crash, tmp_path / "others")
    )
    assert outcome == whole
    (told,) = events(tmp_path / "broken", "restart")
    assert (told["step"], told["process"], told["rolled_back_updates"]) == (5, "worker 0", 0)
    evaluated = [
        [{k: v for k, v in line.items() if k != "time"} for line in events(out, "evaluate")]
        for out in (tmp_path / "broken", tmp_path / "whole")
    ]
    assert evaluated[0] == evaluated[1]
    for step in SAVED:
        one, other = (checkpoints(tmp_path / run).load(step) for run in ("broken", "whole"))
        assert one.state == other.state
        assert one.tensors.keys() == other.tensors.keys()
        for name, tensor in one.tensors.items():
            assert torch.equal(tensor, other.tensors[name]), name
    for name in ("server 0", "server 1", ENCODER):
        applied = server_history(start_peers.records(name), SAVED).applied
        assert list(applied.values()) == [list(range(STEPS))]  # one process, each step once


def test_crashed_servers_are_restarted_and_the_journal_says_what_was_lost(
    config, crashing, tmp_path, monkeypatch, request
):
    """Whether they crash before the first checkpoint, between two, or while one is saved."""
    faults = [
        Fault("worker", "push to server 1", 9),  # server 0 has applied its part of the push
        Fault("server 1", "save", 10, "after"),  # its rows are in an incomplete checkpoint
    ]
    is_here = request.node.callspec.params["crashing"] == "here"
    if is_here:  # each takes Ray five seconds
        faults += [
            Fault(ENCODER, "state"),  # the first checkpoint is being saved
            Fault("server 0", "crash_now"),  # restarts from the checkpoint before the newest
            Fault("server 1", "push", 0),  # nothing saved yet, nothing lost
            Fault("server 0", "push", 7, "after"),  # applied, but not acknowledged
            Fault(ENCODER, "push", 12),
        ]
    start_peers = crashing(*faults)
    inner = job.set_restore_point

    def set_restore_point(path, step):
        if step == 15:
            start_peers.peers["server"].call(0, "crash_now").answer()
        inner(path, step)

    monkeypatch.setattr(job, "set_restore_point", set_restore_point)
    service = replace(config.service, max_staleness=3)
    out = tmp_path / "run"
    outcome = train(replace(config, service=service), out, start_peers)
    crashed = start_peers.crashed()
    assert None not in crashed
    assert (outcome.reason, outcome.step) == ("finished", STEPS)
    assert checkpoints(out).steps() == SAVED

    told = {(line["process"], line["step"]): line for line in events(out, "restart")}
    assert len(told) == len(events(out, "restart")) == len(start_peers.faults)
    found = {place: line["rolled_back_updates"] for place, line in told.items()}
    expected = {(crashed[0], 10): 0}
    for name in ("server 0", "server 1", ENCODER):
        restarts = server_history(start_peers.records(name), SAVED).restarts
        expected |= {(name.removesuffix(" server 0"), step): n for step, n in restarts.items()}
    assert found == expected
    assert found["server 1", 10] == EVERY
    if is_here:
        assert found["encoder", 5] == found["server 0", 20] == EVERY

    states = [note for note in start_peers.records(ENCODER) if note["what"] == "state"]
    for step, note in zip(SAVED, states, strict=True):  # all tensors are of the same process
        tensors = checkpoints(out).load(step).tensors
        for name, value in note["sums"].items():
            assert float(tensors[f"model.{name}"].sum()) == pytest.approx(value, abs=1e-5)
