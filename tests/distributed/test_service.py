"""Workers and servers that die, hang, or are asked to stop: nothing is lost that is not told."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from distributed import mortals
from distributed.mortals import (
    Fault,
    Here,
    Stage,
    forgotten,
    killed,
    story,
)
from oracle.journeys import invoke, last_line, write_chain

from tapas.checkpoints.folder import CheckpointFolder
from tapas.data.source import LogSource
from tapas.servers import job
from tapas.servers import run as serving
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


ASKED_FOR_TOO_MUCH = [
    (("--workers", 2), "workers need servers to keep the rows: add --servers 2, say."),
    (("--max-staleness", 0), "workers need servers to keep the rows: add --servers 2, say."),
    (("--servers", -1), "service.servers must be at least 0, got -1."),
    (("--servers", 1, "--workers", 0), "service.workers must be at least 1, got 0."),
    (
        ("--ray-address", "127.0.0.1:1"),
        "--ray-address is for workers and servers: add --servers 2, say.",
    ),
    (
        ("--servers", 2, "--ray-address", "127.0.0.1:1"),
        "nothing answers at the Ray address 127.0.0.1:1 ([Errno 111] Connection refused). Start "
        "the cluster with `RAY_AUTH_MODE=token ray start --head`, or leave the address out.",
    ),
    (("--servers", 54), "cannot spread 53 classes over 54 shards. Use at most 53."),
]


@pytest.mark.parametrize(("flags", "words"), ASKED_FOR_TOO_MUCH)
def test_what_cannot_be_asked_for(file, flags, words, tmp_path, monkeypatch):
    if "--ray-address" not in flags:
        monkeypatch.setattr(serving, "on_ray", None)  # nothing may be started
    paths = ("--out", tmp_path / "run", "--cache", tmp_path / "cache")
    assert last_line(invoke("train", file, *paths, *flags)) == words


def test_servers_under_torchrun_are_refused(file, tmp_path, monkeypatch):
    rank = nullcontext(SimpleNamespace(rank=1, size=2, is_main=False))
    monkeypatch.setattr("tapas.cli.train.ranks_of_this_job", lambda *_: rank)
    told = invoke("train", file, "--out", tmp_path / "run", "--servers", 2)
    assert last_line(told) == (
        "torchrun and --servers are two ways to train on many processes: start `tapas train` "
        "without torchrun, or with --servers 0."
    )


@pytest.fixture(scope="module")
def ray_engine():
    """One session of Ray for all runs whose driver is this process."""
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(mortals)  # its processes cannot import it
    with serving.on_ray() as start_peers:
        yield start_peers
    ray.cloudpickle.unregister_pickle_by_value(mortals)


@pytest.fixture(params=["here", pytest.param("Ray", marks=pytest.mark.slow)])
def stage(request, tmp_path):
    """A function of faults: the start_peers under which they happen."""
    if request.param == "here":
        start, die = Here, forgotten
    else:
        start, die = request.getfixturevalue("ray_engine"), killed
    return lambda *faults: Stage(start, die, tmp_path / "notes", faults)


def train(config, out, start_peers):
    return serving.train(config, out, cache=out.parent / "cache", start_peers=start_peers)


def events(out, event):
    return [line for line in read_journal(out / "journal.jsonl") if line["event"] == event]


def checkpoints(out):
    return CheckpointFolder(out / "checkpoints")


def test_a_run_whose_worker_dies_is_the_undisturbed_one_bit_by_bit(config, stage, tmp_path):
    """Before its step has moved anything; on Ray or in this process alike."""
    start_peers = stage(Fault("worker 0", f"push to {ENCODER}", 4))
    outcome = train(config, tmp_path / "broken", start_peers)
    assert start_peers.victims() == ["worker 0"]
    whole = train(config, tmp_path / "whole", Stage(Here, forgotten, tmp_path / "others"))
    assert outcome == whole
    (told,) = events(tmp_path / "broken", "restart")
    assert (told["step"], told["process"], told["rolled_back_updates"]) == (5, "worker 0", 0)
    judged = [
        [{k: v for k, v in line.items() if "seconds" not in k} for line in events(out, "evaluate")]
        for out in (tmp_path / "broken", tmp_path / "whole")
    ]
    assert judged[0] == judged[1]
    for step in SAVED:
        one, other = (checkpoints(tmp_path / run).load(step) for run in ("broken", "whole"))
        assert one.state == other.state
        assert one.tensors.keys() == other.tensors.keys()
        for name, tensor in one.tensors.items():
            assert torch.equal(tensor, other.tensors[name]), name
    for name in ("server 0", "server 1", ENCODER):
        applied = story(start_peers.notes(name), SAVED).applied
        assert list(applied.values()) == [list(range(STEPS))]  # one process, each step once


def test_servers_that_die_come_back_and_the_journal_says_what_was_lost(
    config, stage, tmp_path, monkeypatch, request
):
    """Whenever it happens: before there is a checkpoint, and while one is saved."""
    faults = [
        Fault(ENCODER, "state"),  # the first checkpoint is being saved
        Fault("worker", "push to server 1", 9),  # server 0 has been told
        Fault("server 1", "save", 10, "after"),  # its rows are in a checkpoint that is not whole
        Fault("server 0", "perish"),  # has begun again from the last but one, see below
    ]
    if request.node.callspec.params["stage"] == "here":  # each takes Ray five seconds
        faults += [
            Fault("server 1", "push", 0),  # nothing is saved yet, and nothing lost
            Fault("server 0", "push", 7, "after"),  # nobody has heard of it
            Fault(ENCODER, "push", 12),
        ]
    start_peers = stage(*faults)
    inner = job.set_restore_point

    def set_restore_point(path, step):
        if step == 15:
            start_peers.peers["server"].call(0, "perish").answer()
        inner(path, step)

    monkeypatch.setattr(job, "set_restore_point", set_restore_point)
    service = replace(config.service, max_staleness=3)
    out = tmp_path / "run"
    outcome = train(replace(config, service=service), out, start_peers)
    victims = start_peers.victims()
    assert None not in victims
    assert (outcome.reason, outcome.step) == ("finished", STEPS)
    assert checkpoints(out).steps() == SAVED

    told = {(line["process"], line["step"]): line for line in events(out, "restart")}
    assert len(told) == len(events(out, "restart")) == len(start_peers.faults)
    found = {place: line["rolled_back_updates"] for place, line in told.items()}
    expected = {(victims[1], 10): 0}
    for name in ("server 0", "server 1", ENCODER):
        restarts = story(start_peers.notes(name), SAVED).restarts
        expected |= {(name.removesuffix(" server 0"), step): n for step, n in restarts.items()}
    assert found == expected
    assert found["encoder", 5] == found["server 1", 10] == found["server 0", 20] == EVERY

    states = [note for note in start_peers.notes(ENCODER) if note["what"] == "state"]
    for step, note in zip(SAVED, states, strict=True):  # what was saved is of the same process
        tensors = checkpoints(out).load(step).tensors
        for name, value in note["sums"].items():
            assert float(tensors[f"model.{name}"].sum()) == pytest.approx(value, abs=1e-5)
