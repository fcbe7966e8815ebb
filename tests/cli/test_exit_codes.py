"""How a command ends when it cannot do what was asked."""

import pytest
import typer

from tapas import UsageError
from tapas.cli.exit_codes import one_line_endings

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C."),
        (UsageError("dim must be at least 1, got 0."), 1, "dim must be at least 1, got 0."),
        (MemoryError(), 1, "out of memory. Ask for fewer classes."),
        (RuntimeError(NO_MEMORY), 1, "out of memory. Ask for fewer classes."),
    ],
)
def test_what_can_go_wrong_outside_the_code_is_one_line(capsys, error, code, words):
    with pytest.raises(typer.Exit) as ended, one_line_endings():
        raise error
    assert ended.value.exit_code == code
    assert capsys.readouterr() == ("", f"tapas: {words}\n")


@pytest.mark.parametrize("bug", [RuntimeError("size mismatch"), ModuleNotFoundError(name="numpi")])
def test_a_bug_keeps_its_traceback(bug):
    with pytest.raises(type(bug)), one_line_endings():
        raise bug
