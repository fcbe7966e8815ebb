"""Runs with workers and servers, all in this process, against runs of one process."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from oracle.command_line import with_quantities, write_chain

from tapas import DataError, PeerError, UsageError
from tapas.data.source import LogSource
from tapas.servers import run as server_run
from tapas.servers.peers import InProcess
from tapas.servers.training_server import restore_point, set_restore_point
from tapas.tables.placement import Placement
from tapas.training import memory_plan
from tapas.training import run as local_run
from tapas.training.build import build_training
from tapas.training.config import (
    HeadConfig,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    ServiceConfig,
    TrainConfig,
)
from tapas.training.journal import read_journal
from tapas.training.run_evaluation import load_model
from tapas.training.run_folder import open_run

LOOP = LoopConfig(steps=12, evaluate_every=5, batch=7, patience=99, checkpoint_seconds=1e9)


def start_peers(kind, factories, **options):
    return InProcess(kind, [make() for make in factories])


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
        "shared inputs, the paper's rule": replace(
            plain,
            model=replace(plain.model, inputs="shared", encoder="mean"),
            head=plain.head.with_options(selection="top", presample_factor=2),
            optimizer=OptimizerConfig(rows="lazy-adam", rows_lr=0.01),
        ),
        "counting parts": replace(
            plain, model=replace(plain.model, copy=True, follow=True, dropout=0.2)
        ),
    }


def on_servers(file, name="own inputs", *, loop=LOOP, **service):
    return replace(configs(file)[name], service=ServiceConfig(**service), loop=loop)


def after(num_steps):
    """A `should_stop` that is true after `num_steps` steps."""
    asked = iter([False] * (num_steps - 1) + [True])
    return lambda: next(asked)


def train(config, out, **options):
    module = server_run if config.service.servers else local_run
    return module.train(config, out, cache=out.parent / "cache", **options)


@pytest.mark.parametrize(
    ("name", "servers", "workers"),
    [("own inputs", 3, 1), ("shared inputs, the paper's rule", 2, 3), ("counting parts", 1, 2)],
)
def test_at_staleness_0_a_run_equals_one_process_with_as_many_shards(
    file, name, servers, workers, tmp_path, monkeypatch
):
    """With any number of workers: at staleness 0 each step sees all updates before it."""

    def build_with_shards(*args):
        parts = build_training(*args)
        for table in parts.model.modules():
            if hasattr(table, "placement"):
                table.placement = Placement(table.num_classes, servers, seed=table.seed)
        return parts

    config = on_servers(file, name, servers=servers, workers=workers, max_staleness=0)
    served = train(config, tmp_path / "served", start_peers=start_peers)
    monkeypatch.setattr(local_run, "build_training", build_with_shards)
    alone = train(configs(file)[name], tmp_path / "alone")
    assert served.step == alone.step == 12
    assert served.best == pytest.approx(alone.best)
    states = []
    for name in ("served", "alone"):
        model, step = load_model(open_run(tmp_path / name), 12)
        assert step == 12
        state = model.state_dict()
        states.append({k: v for k, v in state.items() if isinstance(v, torch.Tensor)})
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-5)
    lines = [read_journal(tmp_path / name / "journal.jsonl") for name in ("served", "alone")]
    evaluated = [[e["train_loss"] for e in each if e["event"] == "evaluate"] for each in lines]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-4)


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_end(file, tmp_path):
    config = on_servers(file, servers=2, workers=2, max_staleness=0)
    outcome = train(config, tmp_path / "stopped", start_peers=start_peers, should_stop=after(7))
    assert (outcome.reason, outcome.step) == ("interrupted", 7)
    said = []
    server_run.resume(tmp_path / "stopped", status=said.append, start_peers=start_peers)
    assert said[0] == "Continuing from step 7."
    train(config, tmp_path / "whole", start_peers=start_peers)
    one, other = (
        load_model(open_run(tmp_path / name), 12)[0].state_dict() for name in ("stopped", "whole")
    )
    tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
    assert all(torch.equal(one[name], other[name]) for name in tensors)


def test_a_resumed_run_saves_the_numbers_of_its_last_evaluation(file, tmp_path):
    """The mixture is in this process, which starts anew; the next evaluation is at step 10."""
    config = on_servers(file, "counting parts", servers=2, max_staleness=0)
    train(config, tmp_path / "run", start_peers=start_peers, should_stop=after(6))
    server_run.resume(tmp_path / "run", start_peers=start_peers, should_stop=after(1))
    one, other = (
        load_model(open_run(tmp_path / "run"), step)[0].mixture.state_dict() for step in (5, 7)
    )
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert float(one["scale"]) != 1


def test_steps_ahead_end_at_an_evaluation_and_are_finished_before_a_stop(file, tmp_path):
    """Stopped after the first step while four more are in flight: those count, too."""
    config = on_servers(file, servers=2, workers=2, max_staleness=8)
    outcome = train(config, tmp_path / "run", start_peers=start_peers, should_stop=lambda: True)
    assert (outcome.reason, outcome.step) == ("interrupted", 5)
    events = [(e["step"], e["event"]) for e in read_journal(tmp_path / "run" / "journal.jsonl")]
    assert events == [(5, "evaluate"), (5, "service"), (5, "end")]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"step": "x"}'])
def test_a_damaged_restore_point_is_named(tmp_path, content):
    (tmp_path / "restore.json").write_text(content)
    with pytest.raises(DataError, match=r"restore\.json is damaged: .* Continue with --resume\.$"):
        restore_point(tmp_path)


@pytest.mark.parametrize("step", [None, 0, 40])
def test_a_restore_point_is_what_was_set_last(tmp_path, step):
    assert restore_point(tmp_path) is None
    for each in (7, step):
        set_restore_point(tmp_path, each)
    assert restore_point(tmp_path) == step


def test_one_process_refuses_to_train_what_is_for_servers(file, tmp_path):
    config = on_servers(file, servers=2)
    words = (
        r"^service\.servers is 2; expected 0 for a run without servers\. `tapas\.servers\.run` "
        r"trains with servers\.$"
    )
    with pytest.raises(UsageError, match=words):
        local_run.train(config, tmp_path / "run", cache=tmp_path / "cache")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_goes_on_with_other_numbers_of_servers_and_without_any(file, tmp_path):
    config = replace(
        on_servers(file, servers=3, workers=1, max_staleness=0),
        # all classes: no shares to differ
        head=HeadConfig.of(num_samples=53, presample_factor=1, next_items=3),
    )
    train(config, tmp_path / "whole", start_peers=start_peers)
    train(config, tmp_path / "run", start_peers=start_peers, should_stop=after(4))
    two = ServiceConfig(servers=2, max_staleness=0)
    server_run.resume(tmp_path / "run", start_peers=start_peers, service=two, should_stop=after(4))
    assert open_run(tmp_path / "run").config.service == two
    assert open_run(tmp_path / "run").checkpoints.steps()[-1] == 8
    local_run.resume(tmp_path / "run", service=ServiceConfig())
    one, other = (
        load_model(open_run(tmp_path / name), 12)[0].state_dict() for name in ("run", "whole")
    )
    tensors = [name for name, value in one.items() if isinstance(value, torch.Tensor)]
    for name in tensors:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)


def test_processes_get_absolute_paths(file, tmp_path, monkeypatch):
    """Their working directory may differ."""
    seen = []

    def noting(kind, factories, **options):
        seen.extend(make.args[0] for make in factories)
        return start_peers(kind, factories)

    monkeypatch.chdir(tmp_path)
    train(on_servers(file, servers=2), Path("run"), start_peers=noting)
    assert set(seen) == {tmp_path / "run"}


def test_a_refused_run_creates_and_changes_no_file(file, tmp_path):
    too_many = r"^cannot spread 53 classes over 54 shards\. Use at most 53\.$"
    with pytest.raises(UsageError, match=too_many):
        train(on_servers(file, servers=54), tmp_path / "run", start_peers=start_peers)
    assert not (tmp_path / "run").exists()
    train(
        on_servers(file, servers=2), tmp_path / "run", start_peers=start_peers, should_stop=after(3)
    )
    before = (tmp_path / "run" / "config.toml").read_bytes()
    for servers, step, words in (
        (54, None, too_many),
        (3, 41, r"^there is no checkpoint of step 41 in "),
        (0, 41, r"^there is no checkpoint of step 41 in "),
    ):
        service = ServiceConfig(servers=servers)
        resume = (
            partial(server_run.resume, start_peers=start_peers) if servers else local_run.resume
        )
        with pytest.raises(UsageError, match=words):
            resume(tmp_path / "run", step=step, service=service)
        assert (tmp_path / "run" / "config.toml").read_bytes() == before


def test_a_run_that_does_not_fit_on_this_machine_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setattr(server_run, "import_ray", lambda: None)
    monkeypatch.setattr(memory_plan, "available_memory", lambda ranks_per_host: 10**9)
    words = r"^53 classes of 4 dimensions need 2\.4 GB on this machine, but only 1 GB are free\. "
    with pytest.raises(UsageError, match=words):
        train(on_servers(file, servers=2, workers=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Later:
    """Peers whose calls are made when they are waited for, the last one first."""

    def __init__(self, kind, factories):
        self.inner = InProcess(kind, [make() for make in factories])
        self.size, self.calls, self.most = len(factories), [], 0

    def call(self, number, method, *args):
        self.calls.append(Waiting(self.inner, number, method, args))
        self.most = max(self.most, sum(not call.done() for call in self.calls))
        return self.calls[-1]

    def any_done(self, calls, seconds):
        calls[-1].answer()
        return [calls[-1]]

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Waiting:
    def __init__(self, inner, number, method, args):
        self.number, self.make, self.made = number, partial(inner.call, number, method, *args), None

    def done(self):
        return self.made is not None

    def answer(self):
        self.made = self.made or self.make()
        return self.made.answer()


@pytest.mark.parametrize(("workers", "staleness"), [(1, 0), (2, 3), (3, 5)])
def test_no_more_steps_are_in_flight_than_staleness_allows(file, tmp_path, workers, staleness):
    """And the load is even: no worker gets two steps more than another."""
    started = {}

    def lazily(kind, factories, **options):
        started[kind] = Later(kind, factories) if kind == "worker" else start_peers(kind, factories)
        return started[kind]

    loop = replace(LOOP, evaluate_every=12)
    config = on_servers(file, loop=loop, servers=2, workers=workers, max_staleness=staleness)
    outcome = train(config, tmp_path / "run", start_peers=lazily)
    assert outcome.step == 12
    assert started["worker"].most == staleness + 1
    steps = Counter(call.number for call in started["worker"].calls)
    assert sum(steps.values()) == 12
    assert max(steps.values()) - min(steps.values()) <= 1
    versions = [server.status()["num_pushes"] for server in started["server"].objects]
    assert versions == [12, 12]


def test_rolled_back_updates_are_reported_even_if_a_server_hangs_afterwards(file, tmp_path):
    """The journal's restart lines are written before the servers are asked for their load."""
    started = {}

    def start(kind, factories, **options):
        started[kind] = start_peers(kind, factories)
        started[f"{kind} factories"] = factories
        return started[kind]

    def kill_then_hang():
        server = started["server"]
        if server.objects[1].num_pushes == 3:
            server.objects[1] = started["server factories"][1]()  # as after a SIGKILL
        if server.objects[0].num_pushes == 4:
            server.objects[0].status = lambda: (_ for _ in ()).throw(PeerError("server 0 hangs."))
        return False

    config = on_servers(file, servers=2, workers=1, max_staleness=0)
    words = r"^server 0 hangs\. The last checkpoint is step 5\. Continue with --resume\.$"
    said = []

    def status(words):
        if words.startswith("Warning"):
            said.append((started["server"].objects[0].num_pushes, words))

    with pytest.raises(PeerError, match=words):
        train(
            config, tmp_path / "run", start_peers=start, should_stop=kill_then_hang, status=status
        )
    events = [
        (e["event"], e.get("process"), e.get("rolled_back_updates"))
        for e in read_journal(tmp_path / "run" / "journal.jsonl")
    ]
    assert ("restart", "server 1", 3) in events
    died = "Warning: server 1 died and was restarted from the last checkpoint; "
    assert said == [
        (4, f"{died}the next one tells how many updates were lost."),
        (5, f"{died}3 updates were lost."),
    ]
