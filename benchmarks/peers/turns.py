"""Contenders in processes of their own that take turns, so that only one works at a time.

Each needs its own framework and, to have its memory read, its own process; a pipe tells it when
it is its turn. Whoever dies or falls silent is named in one line and left out.
"""

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from peers.environment import LeftOutError, last_line, peer_python

PATIENCE_SECONDS = 180  # for one answer
PAUSE_SECONDS = 0.02  # between turns, for the threads of the last one to fall asleep
PEAK_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How to start a contender, and how often it works.

    In each of its turns it takes one step to warm the caches and `steps` on the clock; with
    `every` = 5 it has a turn in every fifth round only. A lone step (`steps` = 1) is so long
    that it needs no warming.
    """

    module: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    framework: str = "torch"
    steps: int = 4
    every: int = 1


class Worker:
    """The parent's end of one contender process."""

    def __init__(self, entry: Entry, **order: Any):
        self.entry = entry
        python = sys.executable if entry.framework == "torch" else str(peer_python())
        order |= {"framework": entry.framework, "module": entry.module}
        order |= {"kind": entry.kind, "options": entry.options}
        self.talk = tempfile.TemporaryFile("w+")  # noqa: SIM115, `close` closes it
        self.process = subprocess.Popen(
            [python, "-m", "peers.worker", json.dumps(order)],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.talk,
            text=True,
        )

    def answer(self) -> Any:
        """The next line of the contender."""
        if not select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise LeftOutError(f"has not answered for {PATIENCE_SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            if code < 0:
                raise LeftOutError(f"was ended by signal {-code} (9: perhaps for want of memory)")
            self.talk.seek(0)
            raise LeftOutError(f"ended with code {code}: {last_line(self.talk.read())}")
        return json.loads(line)

    def steps(self, count: int) -> float:
        """Seconds of `count` steps."""
        with suppress(BrokenPipeError):  # `answer` says why
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
        return self.answer()

    def turn(self) -> float:
        """Seconds of one step."""
        if self.entry.steps > 1:
            self.steps(1)
        return self.steps(self.entry.steps) / self.entry.steps

    def peak_bytes(self) -> int:
        """How far the process's memory rises in its steps above its level before them (Linux).

        Code that steps are the first to run is read from files; it is no memory of theirs.
        """
        folder = Path(f"/proc/{self.process.pid}")
        (folder / "clear_refs").write_text("5")  # forget the earlier peak
        before, code = self._status("VmRSS"), self._status("RssFile")
        self.steps(1 if self.entry.steps == 1 else PEAK_STEPS)
        return self._status("VmHWM") - before - (self._status("RssFile") - code)

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = re.search(rf"{name}:\s+(\d+) kB", text)
        return 1024 * int(line.group(1)) if line else 0  # no such line: it has died

    def close(self) -> None:
        """End the process, in the middle of a step if need be."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.talk.close()


class Crew:
    """Contenders by name; one that fails is named on stderr and asked no more."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.about: dict[str, dict[str, Any]] = {}  # what each said of itself when it was ready
        self.left_out: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.close()

    def start(self, name: str, entry: Entry, **order: Any) -> None:
        """Start a contender and wait until it has checked itself and is ready."""
        try:
            self.workers[name] = Worker(entry, **order)
            self.about[name] = self.workers[name].answer()
        except LeftOutError as error:
            self.leave_out(name, error)

    def ask(self, name: str, question: Callable[[Worker], float]) -> float | None:
        """The answer of one contender; None if it had to be left out."""
        try:
            return question(self.workers[name])
        except LeftOutError as error:
            self.leave_out(name, error)
            return None

    def ask_all(self, question: Callable[[Worker], float]) -> dict[str, float]:
        answers = {name: self.ask(name, question) for name in list(self.workers)}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def leave_out(self, name: str, error: LeftOutError) -> None:
        if name in self.workers:
            self.workers.pop(name).close()
        self.left_out[name] = str(error)
        print(f"left out: {name}: {error}", file=sys.stderr)

    def take_turns(self, rounds: int) -> dict[str, dict[int, float]]:
        """Seconds of a step, by contender and round. Who begins changes from round to round."""
        seconds: dict[str, dict[int, float]] = {name: {} for name in self.workers}
        for number in range(rounds):
            names = list(self.workers)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if number % self.workers[name].entry.every:
                    continue
                time.sleep(PAUSE_SECONDS)
                answer = self.ask(name, Worker.turn)
                if answer is not None:
                    seconds[name][number] = answer
        return {name: turns for name, turns in seconds.items() if name in self.workers}
