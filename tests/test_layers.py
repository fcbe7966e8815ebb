"""The map, enforced: imports point strictly down, and heavy libraries stay where they belong."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tapas

PACKAGE = Path(tapas.__file__).parent
EXPERIMENTS = Path(__file__).parents[1] / "experiments"
LAYERS = [
    {
        "cgroups",
        "durations",
        "errors",
        "forks",
        "peak_memory",
        "phrases",
        "shapes",
        "signals",
        "threads",
        "rng",
        "candidates",
        "schedule",
        "version",
        "torch_modes",
        "permutation",
        "ragged",
        "regular_file",
        "atomic_file",
        "checksums",
        "exact_state",
        "escapes",
        "extras",
        "json_toml",
        "native",
        "charts",
        "page",
    },
    {"proposals", "selection", "losses", "metrics", "encoders", "data"},
    {"optim"},
    {"tables"},
    {"mixture"},
    {"heads", "distributed", "checkpoints", "evaluation", "retrieval"},  # strangers to each other
    {"training"},
    {"servers", "comparison", "web"},
    {"cli"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
ONLY_IN = {  # library: the folders that may import it
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"comparison"},
    "ray": {"servers"},
    "starlette": {"web"},
    "uvicorn": {"web"},
    "msgspec": {"web"},
    "prometheus_client": {"web"},
    "polars": {"data", "comparison"},
}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name[0] != "_")


NODES = {  # every file is parsed once
    file: list(ast.walk(ast.parse(file.read_text())))
    for file in (*FILES, *EXPERIMENTS.rglob("*.py"))
}


def imports(file: Path) -> set[str]:
    """Dotted names of every module that `file` imports, wherever the statement stands."""
    found = set()
    for node in NODES[file]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} uses a relative import"
            found.add(node.module)
    return found


IMPORTS = {file: imports(file) for file in FILES}


def place(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def offenders(wrong: Callable[[str, str], bool]) -> list[str]:
    """Every import that is wrong: asked of the folder or file it stands in, and of its name."""
    return [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file, names in IMPORTS.items()
        for name in names
        if wrong(place(file), name)
    ]


def test_imports_point_down():
    def points_up(me: str, name: str) -> bool:
        if not name.startswith("tapas"):
            return False
        if name == "tapas":  # the package itself: import the part that is needed
            return True
        other = name.split(".")[1]
        below = other == me or RANK[other] < RANK[me] or {other, me} <= LAYERS[0]
        return not below

    assert offenders(points_up) == []


def test_libraries_stay_where_they_belong():
    """Heavy ones in their folders; torch.distributed where ranks meet; scripts nowhere."""
    outside = {"experiments", "benchmarks", "tests", "measuring"}
    assert offenders(lambda _, name: name.split(".")[0] in outside) == []
    assert offenders(lambda me, name: me not in ONLY_IN.get(name.split(".")[0], {me})) == []
    meetings = offenders(lambda _, name: name.startswith("torch.distributed"))
    elsewhere = {words.split()[0] for words in meetings if not words.startswith("distributed/")}
    assert elsewhere == {"tables/local.py"}  # which asks how many there are


@pytest.mark.slow
def test_importing_tapas_loads_nothing_heavy():
    script = (
        "import sys, tapas; assert 'torch' not in sys.modules; tapas.TapasSoftmax; "
        "print(*sorted(m for m in sys.modules if '.' not in m))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "torch" in loaded
    assert not {"typer", "rich", "matplotlib", "ray", "polars", "faiss", "click"} & set(loaded)


def test_names_say_something_and_user_facing_checks_are_never_assert():
    banned = {"utils", "helpers", "common", "manager", "misc", "new", "v2"}
    assert [file for file in NODES if banned & set(file.stem.split("_"))] == []
    asserting = [
        file for file, nodes in NODES.items() if any(isinstance(n, ast.Assert) for n in nodes)
    ]
    assert asserting == []
