"""How tests of benchmarks/ get at its files, which are scripts and no package."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    """Modules of benchmarks/, found as a script there finds them; no words on its command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setattr(sys, "argv", ["bench_made_up.py"])
        yield importlib.import_module
