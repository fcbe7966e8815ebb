"""Servers and workers that record what they do, and crash where a test plans it.

On Ray their process is killed; within one process the object is dropped and built again.
"""

import json
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from forked import tapas_main

from tapas.servers import run as server_run
from tapas.servers.peers import InProcess


class Fault(NamedTuple):
    """`process` crashes in `method` of step `at` (None: of any step), before or after the call."""

    process: str  # such as "server 1"; "worker" is the first worker that gets there
    method: str  # a method of the process, or a call that it makes: "push to server 0"
    at: int | None = None
    when: str = "before"


class Crash(BaseException):
    """The crash of a peer within this process."""


def kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


def raise_crash():
    raise Crash


STEP_OF = {  # the step of a call, from its arguments
    "push": lambda args: args[1],
    "step": lambda args: args[0],
    "save": lambda args: int(re.search(r"\.step-0*(\d+)", Path(args[0]).parent.name)[1]),
}


@dataclass
class CrashingPeer:
    """The object that `factory` builds; its calls are recorded in `folder`."""

    factory: Any
    name: str
    folder: Path
    faults: tuple[Fault, ...]
    crash: Any
    incarnation: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self):
        if self.name.startswith("worker"):
            path, number, *peers = self.factory.args
            watched = (WatchedPeers(each, self) for each in peers)
            self.factory = partial(self.factory.func, path, number, *watched)
        self.inner = self.factory()
        self.record("start", restored=getattr(self.inner, "restored", 0))

    def __getattr__(self, method):
        return partial(self.call, method)

    def call(self, method, *args):
        if method == "crash_now":
            return self.crash_if_planned(method, None, "before")
        at = STEP_OF.get(method, lambda _: None)(args)
        self.crash_if_planned(method, at, "before")
        answer = getattr(self.inner, method)(*args)
        self.crash_if_planned(method, at, "after")
        if method == "push":
            self.record(method, step=at, fresh=answer.fresh)
        elif method == "save":
            self.record(method, step=at, num_pushes=answer[1].num_pushes)
        elif method == "state":
            sums = {name: float(value.sum()) for name, value in answer[0].items()}
            self.record(method, sums=sums, num_pushes=answer[-2].num_pushes)
        return answer

    def crash_if_planned(self, method, at, when):
        """Crash if a fault says so and has not happened before."""
        for number, fault in enumerate(self.faults):
            planned = self.name.startswith(fault.process)
            planned &= (fault.method, fault.when) == (method, when)
            mark = self.folder / f"fault-{number}"
            if planned and fault.at in (None, at) and not mark.exists():
                mark.write_text(self.name)
                self.crash()

    def record(self, what, **numbers):
        with (self.folder / f"{self.name}.jsonl").open("a") as file:
            line = {"incarnation": self.incarnation, "what": what, **numbers}
            file.write(json.dumps(line) + "\n")


class WatchedPeers:
    """The peers of a worker; `owner`, the worker, may crash when it calls one of them."""

    def __init__(self, peers, owner):
        self.peers, self.owner, self.last = peers, owner, None
        self.kind, self.size = peers.kind, peers.size

    def call(self, number, method, *args):
        at = args[1] if method == "push" else None
        name = f"{method} to {self.kind} {number}"
        if self.last is not None and any(each.method == name for each in self.owner.faults):
            self.last.answer()  # earlier calls have been answered before the crash
        self.owner.crash_if_planned(name, at, "before")
        self.last = self.peers.call(number, method, *args)
        return self.last

    def __getattr__(self, name):
        return getattr(self.peers, name)


class RestartingPeers(InProcess):
    """Peers of this process; one that crashes is built again and called again."""

    def __init__(self, kind, factories, **options):
        super().__init__(kind, [factory() for factory in factories])
        self.factories, self.num_crashes = factories, [0] * len(factories)

    def call(self, number, method, *args):
        while True:
            try:
                return super().call(number, method, *args)
            except Crash:
                self.objects[number] = self.factories[number]()
                self.num_crashes[number] += 1

    def restarts(self):
        return list(self.num_crashes)


@dataclass
class CrashingJob:
    """A `StartPeers` whose peers crash by `faults`; `start` starts their processes."""

    start: Any
    crash: Any
    folder: Path
    faults: tuple[Fault, ...] = ()
    peers: dict[str, Any] = field(default_factory=dict)

    def __call__(self, kind, factories, **options):
        self.folder.mkdir(exist_ok=True)
        crashing = [
            partial(CrashingPeer, factory, f"{kind} {number}", self.folder, self.faults, self.crash)
            for number, factory in enumerate(factories)
        ]
        self.peers[kind] = self.start(kind, crashing, **options)
        return self.peers[kind]

    def crashed(self):
        """The process that crashed by each fault; None if the fault did not happen."""
        marks = [self.folder / f"fault-{number}" for number in range(len(self.faults))]
        return [mark.read_text() if mark.exists() else None for mark in marks]

    def records(self, name):
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


class ServerHistory(NamedTuple):
    """What the records of one server show."""

    restarts: dict[int, int]  # by step of the checkpoint that shows one: updates rolled back
    applied: dict[str, list[int]]  # the steps that each of its processes has applied, in order


def server_history(records, steps):
    """Of a server whose records name every checkpoint of `steps`; the last save of each counts."""
    began, applied, savers = {}, {}, {}
    for record in records:
        process = record["incarnation"]
        if record["what"] == "start":
            began[process], applied[process] = record["restored"], []
        elif record["what"] == "push" and record["fresh"]:
            assert record["step"] not in applied[process], "applied twice"
            assert record["step"] >= began[process], "applied again"
            applied[process].append(record["step"])
        elif record["what"] in ("save", "state"):
            assert record["num_pushes"] == len(applied[process])
            # the encoder's server does not know the step of the checkpoint
            savers[record.get("step", steps[len(savers)])] = process, list(applied[process])
    restarts, before, known = {}, next(iter(began)), {process: set() for process in began}
    assert list(savers) == list(steps)
    for step, (process, done) in savers.items():
        missing = set(range(began[process], step)) - set(done) - known[process]
        assert set(done) <= set(range(began[process], step)), "saved while a step was in flight"
        if process != before:
            restarts[step] = len(missing)
        else:
            assert not missing, "lost without a crash"
        known[process] |= missing
        before = process
    return ServerHistory(restarts, applied)


def processes_below(pid):
    """Ids of all descendants of process `pid`."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may have ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it has not happened in time"
        time.sleep(0.02)


def tapas_with_process_names(*arguments):
    """`tapas` that writes name and pid of each server into the file `processes`."""

    class Job(server_run.Job):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.servers.call(0, "status").answer()  # the pid is known after the first answer
            lines = [self.servers.describe(number) + "\n" for number in range(self.servers.size)]
            Path("processes").write_text("".join(lines))

    server_run.Job = Job
    tapas_main(*arguments)
