"""Imports files of benchmarks/, which are scripts and not a package."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    """Imports a module of benchmarks/ by name, as its scripts do, without arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setattr(sys, "argv", ["bench_made_up.py"])
        yield importlib.import_module
