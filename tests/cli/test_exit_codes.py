"""Exit codes and error lines."""

import errno
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
import typer
from oracle.command_line import invoke

from tapas.cli.exit_codes import report_errors
from tapas.signals import exit_on_signals

OUT_OF_MEMORY = "tapas: out of memory. Use fewer classes, or see `tapas plan`.\n"
NO_THREADS = "could not spawn threads: ThreadPoolBuildError { kind: IOError(Os { code: 11 }) }"


def failing(function):
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        failing(lambda: torch.empty(10**15)),
        failing(lambda: torch.empty(10**12, 10**12)),
        failing(lambda: np.empty(10**16)),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        pl.exceptions.PanicException(NO_THREADS),
    ],
    ids=repr,
)
def test_running_out_of_memory_is_one_line(capsys, error):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise error
    assert ended.value.exit_code == 1
    assert capsys.readouterr() == ("", OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "a.csv"), "cannot open 'a.csv': Permission "),
        (OSError(errno.EIO, "Input/output error"), "reading or writing failed: Input/output "),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write the output: No space "),
        (
            OSError(errno.EMFILE, "Too many open files", "a.csv"),
            "Too many open files. Raise the limit, for example with `ulimit -n 1024`.",
        ),
    ],
)
def test_an_error_of_the_system_names_the_file_or_the_output(capfd, error, words):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise error
    assert ended.value.exit_code == 1
    assert capfd.readouterr().err.startswith(f"tapas: {words}")


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        (
            resource.RLIMIT_AS,
            1500 * 2**20,
            "the address space is limited to 1,500 MB; torch and polars need at least 2,048 MB. "
            "Raise the limit with `ulimit -v unlimited`.",
        ),
        (
            resource.RLIMIT_NOFILE,
            16,
            "open files are limited to 16; torch and polars need at least 64. Raise the limit "
            "with `ulimit -n 1024`.",
        ),
    ],
)
def test_limits_too_small_for_the_libraries_are_told_before_loading_them(limit, value, words):
    done = subprocess.run(
        [sys.executable, "-m", "tapas", "info"], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"tapas: {words}\n")


@pytest.mark.parametrize("bug", [RuntimeError("size mismatch"), ModuleNotFoundError(name="numpi")])
def test_a_bug_keeps_its_traceback(bug):
    with pytest.raises(type(bug)), report_errors():
        raise bug


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, typer.Exit), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_during_an_import_exits_without_raising(at, monkeypatch, number, error):
    """Because the import may swallow the exception, as numpy's does."""
    Path("swallowing.py").write_text(
        "import signal\n"
        "try:\n"
        f"    signal.raise_signal({int(number)})\n"
        "except BaseException as error:\n"
        "    raised = error\n"
    )
    monkeypatch.syspath_prepend(at)
    monkeypatch.delitem(sys.modules, "swallowing", raising=False)
    exits = []
    monkeypatch.setattr("tapas.signals.exit_at_once", exits.append)
    with report_errors():
        import swallowing  # type: ignore[import-not-found]  # noqa: F401
    assert exits == [number]
    with pytest.raises(error), report_errors():  # outside of an import it is raised
        signal.raise_signal(number)
    assert exits == [number]


def test_a_signal_that_the_shell_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with report_errors():
            signal.raise_signal(signal.SIGINT)
        exit_on_signals()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [0, -1, 1_025, 100_000, 2**31])
def test_an_absurd_number_of_threads_is_wrong_usage(at, number):
    done = invoke("train", "x.csv", "--out", "out", "--threads", number)
    assert done.returncode == 2
    bound = "greater than or equal to 1" if number < 1 else "less than or equal to 1024"
    assert f"Invalid value for '--threads': Input should be {bound}\n" in done.stderr
