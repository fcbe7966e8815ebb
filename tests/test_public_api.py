"""What `import tapas` offers is decided on purpose, documented, and typed."""

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import torch

import experiments
import tapas

MODULES = sorted(
    m.name
    for package in (tapas, experiments)
    for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not m.name.endswith(("__main__", "._kernels"))  # the latter is no Python
)


def test_all_is_exactly_the_public_names():
    """Those that type checkers see in the package, which imports them on first use."""
    tree = ast.parse(Path(tapas.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    public = {alias.name for node in block.body for alias in node.names} - {"__version__"}
    assert set(tapas.__all__) == public
    assert len(tapas.__all__) == len(set(tapas.__all__))
    assert [name for name in public if getattr(tapas, name, None) is None] == []
    assert tapas.losses.__name__ == "tapas.losses"
    assert not hasattr(tapas, "softmax")
    assert set(dir(tapas)) == {*tapas.__all__, "__version__"}


def test_every_public_name_says_what_it_is():
    assert [name for name in tapas.__all__ if not inspect.getdoc(getattr(tapas, name))] == []


def test_every_module_says_what_it_computes_and_its_examples_hold():
    silent, failed = [], []
    for name in MODULES:
        module = importlib.import_module(name)
        if not module.__doc__:
            silent.append(name)
        if doctest.testmod(module, extraglobs={"torch": torch}).failed:
            failed.append(name)
    assert (silent, failed) == ([], [])


def test_the_package_is_typed_and_versioned():
    assert (Path(tapas.__file__).parent / "py.typed").exists()
    assert tapas.__version__ != "0+unknown"
