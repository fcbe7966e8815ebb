"""`tapas train --servers` as a process: a server hangs; Ctrl-C stops the run."""

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from distributed.crashing_peers import (
    CrashingJob,
    RestartingPeers,
    is_alive,
    processes_below,
    raise_crash,
    tapas_with_process_names,
    wait_until,
)
from forked import Forked
from oracle.command_line import ENVIRONMENT, write_chain

from tapas.checkpoints.folder import CheckpointFolder
from tapas.servers import run as server_run
from tapas.training.journal import read_journal

PATIENCE = 4  # seconds


@pytest.fixture
def file(tmp_path):
    return write_chain(tmp_path / "chain.parquet", num_users=19, num_items=53, num_baskets=6)


def events(out, event):
    return [line for line in read_journal(out / "journal.jsonl") if line["event"] == event]


def checkpoints(out):
    return CheckpointFolder(out / "checkpoints")


class Driver:
    """`tapas` with `arguments`, run in `folder`; entered once it has saved a checkpoint."""

    def __init__(self, folder, *arguments):
        environment = {k: v for k, v in ENVIRONMENT.items() if k != "PYTHONWARNINGS"}
        self.names = folder / "processes"
        self.names.unlink(missing_ok=True)
        self.found = checkpoints(folder / "run").steps()
        self.process = Forked(
            *arguments,
            work=tapas_with_process_names,
            cwd=folder,
            env=environment,
            before=os.setpgrp,
        )
        self.folder, self.done = folder, None

    def __enter__(self):
        with ExitStack() as stack:
            stack.push(self)
            wait_until(self._has_saved, 120)
            stack.pop_all()
        self.everyone = processes_below(self.process.pid)
        assert len(self.everyone) > 5  # Ray's own beside a server, an encoder's, and a worker
        return self

    def __exit__(self, *_):
        if self.done is None:
            self.process.process.kill()
            self.process.end(60)

    def _has_saved(self):
        assert self.process.is_alive(), self.process.err.read_text()
        return checkpoints(self.folder / "run").steps()[-1:] > self.found[-1:]

    def pid_of(self, name):
        return int(re.search(rf"^{name} \(pid (\d+) ", self.names.read_text(), re.M)[1])

    def end(self, code):
        """Its lines on stderr but those of evaluations, after all its processes have ended."""
        self.done = self.process.end(60)
        assert self.done.returncode == code, self.done.stderr
        assert "Traceback" not in self.done.stderr
        wait_until(lambda: not any(map(is_alive, self.everyone)), 30)
        return [line for line in self.done.stderr.splitlines() if not line.startswith("step ")]


@pytest.mark.slow
def test_a_run_can_be_resumed_after_a_hanging_server_and_after_ctrl_c(file, tmp_path):
    pytest.importorskip("ray")
    settings = ("loop.evaluate_every=10", "loop.patience=99999", f"loop.peer_seconds={PATIENCE}")
    begin = (
        *("train", file, "--out", "run", "--cache", "cache", "--threads", 1, "--steps", 100_000),
        *("--dim", 4, "--batch", 5, "--num-samples", 9, "--servers", 1),
        *(part for setting in settings for part in ("--set", setting)),
    )
    with Driver(tmp_path, *begin) as driver:
        pid = driver.pid_of("server 0")
        assert Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::tapas_server_0")  # in ps
        os.kill(pid, signal.SIGSTOP)
        said = driver.end(code=1)[-1]
        step = checkpoints(tmp_path / "run").steps()[-1]
        assert said == (
            f"tapas: server 0 (pid {pid} on host 127.0.0.1) has not answered for {PATIENCE} s: it "
            f"hangs or is unreachable. The last checkpoint is step {step:,}. Continue with "
            "--resume."
        )

    with Driver(tmp_path, "train", "--resume", "run") as driver:
        os.killpg(driver.process.pid, signal.SIGINT)
        going_on, training, stopping, stopped, go_on = driver.end(code=130)
        assert going_on == f"Continuing from step {driver.found[-1]:,}."
        assert training.endswith("1 worker, 1 server, staleness at most 1.")
        assert stopping == "Stopping after this step; saving a checkpoint."
        step = checkpoints(tmp_path / "run").steps()[-1]
        assert stopped.startswith(
            f"Interrupted at step {step:,}; a checkpoint is saved. Best MAP@20: "
        )
        assert go_on == "Continue with `tapas train --resume run`."

    asked = iter([False, True])
    start_peers = CrashingJob(RestartingPeers, raise_crash, tmp_path / "records")
    outcome = server_run.resume(
        tmp_path / "run", start_peers=start_peers, should_stop=lambda: next(asked)
    )
    assert outcome.step > step
    evaluated = [line["step"] for line in events(tmp_path / "run", "evaluate")]
    assert evaluated == sorted(set(evaluated))
