"""Contenders in separate processes that take turns, so that only one runs at a time.

They use different frameworks, and the memory of each is measured. Commands are sent through a
pipe. A contender that dies or hangs is reported in one line and left out.
"""

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from peers.environment import PEERS, LeftOutError, last_line

PATIENCE_SECONDS = 180  # for one answer
PAUSE_SECONDS = 0.02  # between turns, until the threads of the last one are idle
PEAK_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How to start a contender, and how often it has a turn.

    In each turn it runs one step to warm up the caches and `steps` that are timed; with
    `every` = 5 it has a turn in every fifth round only. A single step (`steps` = 1) is so long
    that it needs no warm-up.
    """

    module: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    framework: str = "torch"
    steps: int = 4
    every: int = 1


class ContenderProcess:
    """The process of one contender, as the parent sees it."""

    def __init__(self, entry: Entry, *, environment: Mapping[str, str] = {}, **settings: Any):
        """`environment` is added to ours."""
        self.entry = entry
        python = sys.executable if entry.framework == "torch" else str(PEERS.python())
        settings |= {"framework": entry.framework, "module": entry.module}
        settings |= {"kind": entry.kind, "options": entry.options}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, `close` closes it
        self.process = subprocess.Popen(
            [python, "-m", "peers.worker", json.dumps(settings)],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def answer(self) -> Any:
        """The next line from the contender."""
        if not select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise LeftOutError(f"did not answer for {PATIENCE_SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            if code < 0:
                raise LeftOutError(f"was killed by signal {-code} (9: perhaps out of memory)")
            self.errors.seek(0)
            raise LeftOutError(f"ended with code {code}: {last_line(self.errors.read())}")
        return json.loads(line)

    def tell(self, command: object) -> Any:
        """The answer to one command of `peers.worker`."""
        with suppress(BrokenPipeError):  # `answer` raises with the reason
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        return self.answer()

    def each_step(self, count: int) -> list[float]:
        """Seconds of each of `count` steps."""
        return self.tell(count)

    def steps(self, count: int) -> float:
        """Seconds of `count` steps."""
        return sum(self.each_step(count))

    def change(self, **sizes: int) -> None:
        """Steps of other sizes from now on, on the same table."""
        self.tell(sizes)

    def turn(self) -> float:
        """Seconds of one step."""
        if self.entry.steps > 1:
            self.steps(1)
        return self.steps(self.entry.steps) / self.entry.steps

    def peak_bytes(self) -> int:
        """Peak memory of the process during some steps, above its level before them (Linux).

        Code that is loaded from files during the first steps does not count.
        """
        folder = Path(f"/proc/{self.process.pid}")
        (folder / "clear_refs").write_text("5")  # forget the earlier peak
        before, code = self._status("VmRSS"), self._status("RssFile")
        self.steps(1 if self.entry.steps == 1 else PEAK_STEPS)
        return self._status("VmHWM") - before - (self._status("RssFile") - code)

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = re.search(rf"{name}:\s+(\d+) kB", text)
        return 1024 * int(line.group(1)) if line else 0  # no such line: the process has died

    def close(self) -> None:
        """End the process, in the middle of a step if necessary."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class ContenderPool:
    """Contenders by name; one that fails is reported on stderr and left out from then on."""

    def __init__(self) -> None:
        self.processes: dict[str, ContenderProcess] = {}
        self.about: dict[str, dict[str, Any]] = {}  # what each reported when it was ready
        self.left_out: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.close()

    def start(self, name: str, entry: Entry, **settings: Any) -> None:
        """Start a contender and wait until it has checked itself and is ready."""
        try:
            self.processes[name] = ContenderProcess(entry, **settings)
            self.about[name] = self.processes[name].answer()
        except LeftOutError as error:
            self.leave_out(name, error)

    def call(self, name: str, method: Callable[[ContenderProcess], float]) -> float | None:
        """The answer of one contender; None if it had to be left out."""
        try:
            return method(self.processes[name])
        except LeftOutError as error:
            self.leave_out(name, error)
            return None

    def call_all(self, method: Callable[[ContenderProcess], float]) -> dict[str, float]:
        answers = {name: self.call(name, method) for name in list(self.processes)}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def leave_out(self, name: str, error: LeftOutError) -> None:
        if name in self.processes:
            self.processes.pop(name).close()
        self.left_out[name] = str(error)
        print(f"left out: {name}: {error}", file=sys.stderr)

    def take_turns(self, rounds: int) -> dict[str, dict[int, float]]:
        """Seconds of a step, by contender and round. The first one changes from round to round."""
        seconds: dict[str, dict[int, float]] = {name: {} for name in self.processes}
        for number in range(rounds):
            names = list(self.processes)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if number % self.processes[name].entry.every:
                    continue
                time.sleep(PAUSE_SECONDS)
                answer = self.call(name, ContenderProcess.turn)
                if answer is not None:
                    seconds[name][number] = answer
        return {name: turns for name, turns in seconds.items() if name in self.processes}
