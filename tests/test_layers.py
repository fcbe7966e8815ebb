"""The map, enforced: imports point strictly down, and heavy libraries stay where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tapas

PACKAGE = Path(tapas.__file__).parent
LAYERS = [
    {
        "errors",
        "shapes",
        "rng",
        "candidates",
        "schedule",
        "version",
        "precision",
        "compiling",
        "permutation",
        "whole_file",
        "exact_state",
        "interruptions",
        "native",
    },
    {"proposals", "selection", "losses", "metrics", "encoders", "data", "drawing"},
    {"optim"},
    {"tables"},
    {"heads", "engines"},
    {"training", "retrieval"},
    {"paper"},
    {"comparison"},
    {"cli"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
ONLY_IN = {  # library: the folders that may import it
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"drawing", "training", "paper", "comparison"},
    "ray": {"engines"},
    "polars": {"data"},
}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__main__.py" and p.parent != PACKAGE)
FOUNDATIONS = sorted(p for p in PACKAGE.glob("*.py") if not p.name.startswith("__"))


def imports(file: Path) -> set[str]:
    """Dotted names of every module that `file` imports, wherever the statement stands."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} uses a relative import"
            found.add(node.module)
    return found


def place(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", FILES + FOUNDATIONS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(file):
    me = place(file)
    for name in imports(file):
        if not name.startswith("tapas"):
            continue
        assert name != "tapas", f"{file} imports the package itself; import the part it needs"
        other = name.split(".")[1]
        same_floor = me in LAYERS[0] and other in LAYERS[0]
        assert other == me or RANK[other] < RANK[me] or same_floor, (
            f"{file} ({me}) imports {other}, which is not below it"
        )


@pytest.mark.parametrize("file", FILES + FOUNDATIONS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_libraries_stay_where_they_belong(file):
    for name in imports(file):
        allowed = ONLY_IN.get(name.split(".")[0])
        assert allowed is None or place(file) in allowed, f"{file} imports {name}"


def test_ranks_meet_in_few_places():
    """torch.distributed is imported where ranks meet, and nowhere else."""
    found = {
        str(file.relative_to(PACKAGE))
        for file in FILES + FOUNDATIONS
        if any(name.startswith("torch.distributed") for name in imports(file))
    }
    assert {place for place in found if not place.startswith("engines/")} == {
        "tables/ranks.py",
        "tables/sharded.py",
    }


@pytest.mark.slow
def test_importing_tapas_loads_nothing_heavy():
    script = "import sys, tapas; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "torch" in loaded
    assert not {"typer", "rich", "matplotlib", "ray", "polars", "faiss", "click"} & set(loaded)


def test_no_file_has_a_name_that_says_nothing():
    banned = {"utils", "helpers", "common", "manager", "misc", "new", "v2"}
    named = {part for p in PACKAGE.rglob("*.py") for part in p.stem.split("_")}
    assert not banned & named


def test_user_facing_checks_are_never_assert():
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), file
