"""Processes of a pool have the methods of their parent, and end with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import os, sys, time
from pathlib import Path

from tapas.comparison.process_pool import run_missing
from tapas.comparison.ledger import Ledger
from tapas.heads import FullSoftmax, import_method, method_class


class Mine(FullSoftmax):
    pass


class Run:
    def __init__(self, name):
        self.name = name

    def key(self):
        return self.name


def execute(run):
    method_class("parent:Mine")  # imported here, too
    Path(sys.argv[1], f"{os.getpid()}").touch()
    while len(list(Path(sys.argv[1]).iterdir())) < 2:  # each of the two has begun one
        time.sleep(0.05)
    time.sleep(0.2 if run.name == "short" else 60)
    return {"key": run.key(), "run": {}}


if __name__ == "__main__":
    import_method("parent:Mine")
    runs = [Run("short"), Run("long")]
    run_missing(Ledger(Path(sys.argv[1]) / "x"), runs, execute, lambda *_: None, workers=2)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell of a parent's death")
def test_idle_and_busy_processes_end_when_the_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    folder = tmp_path / "pids"
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder)])
    children = []
    while len(children) < 2 or not (folder / "x").exists():  # one is idle, one at work
        assert parent.poll() is None
        time.sleep(0.1)
        children = [int(file.name) for file in folder.iterdir() if file.name != "x"]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, children))
