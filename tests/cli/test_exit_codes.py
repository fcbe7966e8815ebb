"""Exit codes and error lines."""

import pytest
import typer

from tapas.cli.exit_codes import report_errors

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
