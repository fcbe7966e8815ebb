"""Exit codes and error lines."""

import signal
import sys
from pathlib import Path

import pytest
import typer

from tapas.cli import exit_codes
from tapas.cli.exit_codes import report_errors
from tapas.early_exit import exit_on_signals

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(NO_MEMORY)])
def test_running_out_of_memory_is_one_line(capsys, error):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise error
    assert ended.value.exit_code == 1
    assert capsys.readouterr() == (
        "",
        "tapas: out of memory. Use fewer classes, or see `tapas plan`.\n",
    )


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
    monkeypatch.setattr(exit_codes, "exit_at_once", exits.append)
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
