"""The map, enforced: imports point strictly down, and heavy libraries stay where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tapas

PACKAGE = Path(tapas.__file__).parent
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
LAYERS = [
    {
        "errors",
        "shapes",
        "rng",
        "candidates",
        "schedule",
        "version",
        "torch_modes",
        "permutation",
        "atomic_file",
        "exact_state",
        "extras",
        "interruptions",
        "native",
    },
    {"proposals", "selection", "losses", "metrics", "encoders", "data"},
    {"optim"},
    {"tables"},
    {"heads", "distributed", "checkpoints", "evaluation", "retrieval"},  # strangers to each other
    {"training"},
    {"servers", "comparison"},
    {"cli"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
ONLY_IN = {  # library: the folders that may import it
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"comparison"},
    "ray": {"servers"},
    "polars": {"data", "comparison"},
}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name[0] != "_")


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


IMPORTS = {file: imports(file) for file in FILES}


def place(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_below(name: str, me: str) -> bool:
    """Whether module `name` of the package may be imported in the folder or file `me`."""
    if name == "tapas":  # the package itself: import the part that is needed
        return False
    other = name.split(".")[1]
    return other == me or RANK[other] < RANK[me] or {other, me} <= LAYERS[0]


def test_imports_point_down():
    offenders = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file, names in IMPORTS.items()
        for name in names
        if name.split(".")[0] == "tapas" and not is_below(name, place(file))
    ]
    assert offenders == []


def test_the_package_knows_nothing_of_experiments_and_benchmarks():
    outside = {"experiments", "benchmarks", "tests", "measuring"}
    offenders = [
        file for file, names in IMPORTS.items() for n in names if n.split(".")[0] in outside
    ]
    assert offenders == []


def test_heavy_libraries_stay_where_they_belong():
    offenders = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file, names in IMPORTS.items()
        for name in names
        if place(file) not in ONLY_IN.get(name.split(".")[0], {place(file)})
    ]
    assert offenders == []


def test_ranks_meet_in_few_places():
    """torch.distributed is imported where ranks meet, and nowhere else."""
    found = {
        str(file.relative_to(PACKAGE))
        for file, names in IMPORTS.items()
        if any(name.startswith("torch.distributed") for name in names)
    }
    assert {place for place in found if not place.startswith("distributed/")} == {
        "tables/local.py",  # which asks how many there are
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
    files = [*FILES, *EXPERIMENTS.rglob("*.py")]
    assert not banned & {part for file in files for part in file.stem.split("_")}


def test_user_facing_checks_are_never_assert():
    offenders = [
        file
        for file in (*FILES, *EXPERIMENTS.rglob("*.py"))
        if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(file.read_text())))
    ]
    assert offenders == []
