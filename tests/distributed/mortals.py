"""Servers and workers that note what they do, and die where it was planned.

On Ray they are killed; within one process they are forgotten, and built again.
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

from tapas.servers import run as serving
from tapas.servers.peers import InProcess


class Fault(NamedTuple):
    """`process` dies at `verb` of step `at` (None: of any), before it or when it is done."""

    process: str  # such as "server 1"; "worker" is whichever of them gets there first
    verb: str  # one of its own, or such as "push to server 0"
    at: int | None = None
    when: str = "before"


class Death(BaseException):
    """Within one process."""


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def forgotten():
    raise Death


PLACES = {
    "push": lambda args: args[1],
    "step": lambda args: args[0],
    "save": lambda args: int(re.search(r"\.step-0*(\d+)", Path(args[0]).name)[1]),
}


@dataclass
class Mortal:
    """What `make` factories, under the eyes of whoever reads `folder`."""

    make: Any
    name: str
    folder: Path
    faults: tuple[Fault, ...]
    die: Any
    life: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self):
        if self.name.startswith("worker"):
            path, number, *peers = self.make.args
            self.make = partial(self.make.func, path, number, *(Seen(each, self) for each in peers))
        self.inner = self.make()
        self.note("born", restored=getattr(self.inner, "restored", 0))

    def __getattr__(self, verb):
        return partial(self.do, verb)

    def do(self, verb, *args):
        if verb == "perish":
            return self.face(verb, None, "before")
        at = PLACES.get(verb, lambda _: None)(args)
        self.face(verb, at, "before")
        answer = getattr(self.inner, verb)(*args)
        self.face(verb, at, "after")
        if verb == "push":
            self.note(verb, step=at, fresh=answer.fresh)
        elif verb == "save":
            self.note(verb, step=at, num_pushes=answer[1].num_pushes)
        elif verb == "state":
            sums = {name: float(value.sum()) for name, value in answer[0].items()}
            self.note(verb, sums=sums, num_pushes=answer[-2].num_pushes)
        return answer

    def face(self, verb, at, when):
        """Die, if that was planned, and has not happened before."""
        for number, fault in enumerate(self.faults):
            planned = self.name.startswith(fault.process)
            planned &= (fault.verb, fault.when) == (verb, when)
            mark = self.folder / f"fault-{number}"
            if planned and fault.at in (None, at) and not mark.exists():
                mark.write_text(self.name)
                self.die()

    def note(self, what, **numbers):
        with (self.folder / f"{self.name}.jsonl").open("a") as file:
            file.write(json.dumps({"life": self.life, "what": what, **numbers}) + "\n")


class Seen:
    """Peers as a worker sees them, who may die when it asks one of them."""

    def __init__(self, peers, owner):
        self.peers, self.owner, self.last = peers, owner, None
        self.kind, self.size = peers.kind, peers.size

    def call(self, number, verb, *args):
        at = args[1] if verb == "push" else None
        name = f"{verb} to {self.kind} {number}"
        if self.last is not None and any(each.verb == name for each in self.owner.faults):
            self.last.answer()  # what was asked before has been done, at least
        self.owner.face(name, at, "before")
        self.last = self.peers.call(number, verb, *args)
        return self.last

    def __getattr__(self, name):
        return getattr(self.peers, name)


class Here(InProcess):
    """Peers of this process; one that dies is built again and asked again."""

    def __init__(self, kind, factories, **options):
        super().__init__(kind, [make() for make in factories])
        self.factories, self.deaths = factories, [0] * len(factories)

    def call(self, number, verb, *args):
        while True:
            try:
                return super().call(number, verb, *args)
            except Death:
                self.objects[number] = self.factories[number]()
                self.deaths[number] += 1

    def restarts(self):
        return list(self.deaths)


@dataclass
class Stage:
    """An engine whose processes are mortal; `start` starts them."""

    start: Any
    die: Any
    folder: Path
    faults: tuple[Fault, ...] = ()
    peers: dict[str, Any] = field(default_factory=dict)

    def __call__(self, kind, factories, **options):
        self.folder.mkdir(exist_ok=True)
        mortal = [
            partial(Mortal, make, f"{kind} {number}", self.folder, self.faults, self.die)
            for number, make in enumerate(factories)
        ]
        self.peers[kind] = self.start(kind, mortal, **options)
        return self.peers[kind]

    def victims(self):
        """Who has died by each fault; None by one that did not happen."""
        marks = [self.folder / f"fault-{number}" for number in range(len(self.faults))]
        return [mark.read_text() if mark.exists() else None for mark in marks]

    def notes(self, name):
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


class Story(NamedTuple):
    """What the notes of one server amount to."""

    restarts: dict[int, int]  # updates rolled back, by the step of the checkpoint that shows it
    applied: dict[str, list[int]]  # the steps that each of its processes has applied, in order


def story(notes, steps):
    """Of a server that notes every checkpoint of `steps`; the last to save one made it."""
    began, applied, savers = {}, {}, {}
    for note in notes:
        life = note["life"]
        if note["what"] == "born":
            began[life], applied[life] = note["restored"], []
        elif note["what"] == "push" and note["fresh"]:
            assert note["step"] not in applied[life], "applied twice"
            assert note["step"] >= began[life], "applied again"
            applied[life].append(note["step"])
        elif note["what"] in ("save", "state"):
            assert note["num_pushes"] == len(applied[life])
            # the encoder's server is not told which checkpoint it is
            savers[note.get("step", steps[len(savers)])] = life, list(applied[life])
    restarts, before, known = {}, next(iter(began)), {life: set() for life in began}
    assert list(savers) == list(steps)
    for step, (life, done) in savers.items():
        missing = set(range(began[life], step)) - set(done) - known[life]
        assert set(done) <= set(range(began[life], step)), "saved while a step was under way"
        if life != before:
            restarts[step] = len(missing)
        else:
            assert not missing, "lost without a death"
        known[life] |= missing
        before = life
    return Story(restarts, applied)


def processes_below(pid):
    """Ids of all processes that `pid` has started, and that those have."""
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


def named_tapas(*arguments):
    """`tapas` that writes down who its servers are, a line for each, into `processes`."""

    class Job(serving.Job):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.servers.call(1, "status").answer()  # who has not been heard has no id yet
            lines = [self.servers.describe(number) + "\n" for number in range(self.servers.size)]
            Path("processes").write_text("".join(lines))

    serving.Job = Job
    tapas_main(*arguments)
