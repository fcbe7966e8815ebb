"""Every example runs as it stands, and does what its first lines promise."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from forked import torchrun

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.slow


def output_of(name, *arguments, cwd):
    """What the example prints, started as a reader would start it; warnings are errors."""
    command = [sys.executable, "-W", "error", EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def number_after(words, text):
    """The number that follows `words` in `text`."""
    found = re.search(rf"{re.escape(words)}\s*(-?[\d.,]+\d|\d)", text)
    assert found, f"no {words!r} in {text!r}"
    return float(found[1].replace(",", ""))


def run_here(script, *arguments):
    sys.argv = [str(script), *map(str, arguments)]
    runpy.run_path(str(script), run_name="__main__")


def test_many_ranks_train_the_same_model_as_one(tmp_path):
    """And one rank continues from the checkpoint of two."""
    script, words = EXAMPLES / "many_ranks.py", "full softmax loss:"
    short = ("--steps", 100)
    alone = output_of("many_ranks.py", *short, cwd=tmp_path)
    done = torchrun(2, script, *short, "--folder", "run", work=run_here, cwd=tmp_path).end()
    assert done.returncode == 0, done.stderr
    assert "ranks: 2" in done.stdout
    assert number_after(words, done.stdout) == pytest.approx(number_after(words, alone), rel=0.05)
    assert number_after(words, alone) < 4  # of 11.5 before the first step
    resumed = output_of("many_ranks.py", *short, "--folder", "run", cwd=tmp_path)
    assert resumed == done.stdout.replace("ranks: 2", "ranks: 1")
