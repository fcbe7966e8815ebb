"""What `import tapas` offers is decided on purpose, documented, and typed."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
import torch

import tapas

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(tapas.__path__, "tapas.")
    if not m.name.endswith(("__main__", "._kernels"))  # the latter is no Python
)


def test_all_is_exactly_the_public_names():
    public = {
        name
        for name, value in vars(tapas).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    } | {"optim"}
    assert set(tapas.__all__) == public
    assert len(tapas.__all__) == len(set(tapas.__all__))


@pytest.mark.parametrize("name", sorted(tapas.__all__))
def test_every_public_name_says_what_it_is(name):
    assert inspect.getdoc(getattr(tapas, name))


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_computes_and_its_examples_hold(name):
    module = importlib.import_module(name)
    assert module.__doc__
    results = doctest.testmod(module, extraglobs={"torch": torch})
    assert results.failed == 0


def test_the_package_is_typed_and_versioned():
    assert (Path(tapas.__file__).parent / "py.typed").exists()
    assert tapas.__version__ != "0+unknown"
