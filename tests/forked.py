"""`Forked("train", ...)` runs `tapas` in its own process, without the time of its imports.

The process is forked from one that has imported everything. To test the imports themselves,
a few tests run `python -m tapas`.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from ranks import CONTEXT, PRELOAD, quick_process


class Forked:
    """`work(*args)` in its own process, by default `tapas` with `args`.

    Standard error goes to the device `terminal`, if given; `before()` is called first.
    """

    def __init__(self, *args, work=None, cwd=None, env=None, terminal=None, before=None):
        self.args, self._folder = args, tempfile.TemporaryDirectory()
        out, err = (Path(self._folder.name, name) for name in ("out", "err"))
        for path in (out, err):
            path.touch()
        self.out, self.err = out, err
        work = tapas_main if work is None else work
        place = str(Path.cwd() if cwd is None else cwd)
        env = dict(os.environ) if env is None else env
        streams = (str(out), str(err) if terminal is None else terminal)
        self.process = CONTEXT.Process(target=_run, args=(work, args, place, env, streams, before))
        self.process.start()
        self.pid = self.process.pid

    def wait_for(self, words: str) -> None:
        """Wait until its standard error contains `words`."""
        while words not in self.err.read_text():
            assert self.process.is_alive(), self.err.read_text()
            time.sleep(0.01)

    def is_alive(self) -> bool:
        return self.process.is_alive()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Wait for its end and return its output; after `timeout` seconds it is killed."""
        self.process.join(timeout)
        late = self.process.is_alive()
        if late:
            self.process.kill()
            self.process.join()
        said, talk = self.out.read_text(), self.err.read_text()
        self._folder.cleanup()
        assert not late, f"still running after {timeout} s: {said}{talk}"
        return subprocess.CompletedProcess(self.args, self.process.exitcode, said, talk)


def torchrun(num_ranks: int, *args, work, restarts: int = 0, **options) -> Forked:
    """`work(*args)` on `num_ranks` ranks, started as by torchrun, but forked.

    `work` must be in a module that ranks can import.
    """
    return Forked(num_ranks, restarts, work, *args, work=_launch, **options)


def _launch(num_ranks, restarts, work, *args):
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    multiprocessing.set_forkserver_preload(PRELOAD)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id="a job of tests",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=restarts,
        start_method="forkserver",
    )
    elastic_launch(config, _rank)(work, *args)


def _rank(work, *args):
    """Return instead of exiting with 0, which torchrun takes for a failure."""
    quick_process()
    try:
        work(*args)
    except SystemExit as end:
        if end.code:
            raise


def tapas_main(*arguments: object) -> None:
    from tapas.__main__ import main

    sys.argv = ["tapas", *map(str, arguments)]
    main()


def _run(work, args, place, env, streams, before):
    quick_process()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(place)
    for number, path in enumerate(streams, start=1):
        file = os.open(path, os.O_WRONLY | os.O_NOCTTY)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if env.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    if before is not None:
        before()
    work(*args)
