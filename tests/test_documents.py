"""The README is run, Python blocks in order and commands as they stand; so are two other pages."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forked import Forked

from tapas.comparison import demo as showcase
from tapas.comparison.synthetic_log import SyntheticLogConfig

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [(ROOT / "docs" / name).read_text() for name in ("pytorch.md", "methods.md")]
PYTHON = re.findall(r"```python\n(.*?)```", "".join([README, *PAGES]), flags=re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith(("$ tapas ", "$ torchrun "))
]
SIZES = {  # what makes a command of the README quick enough for a test
    "demo": ["--synthetic", "--steps", "2"],
    "train": ["--steps", "3", "--set", "model.dim=8"],
    "compare": shlex.split(
        "--methods sampled,tapas --budget 1s --trials 1 --seeds 1 --num-samples 20 --workers 1"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(PYTHON)))
def test_the_readme_runs(place, tmp_path):
    """In a process of its own: a reader starts with an empty interpreter, too."""
    subprocess.run([sys.executable, "-W", "error", "-c", PYTHON[place]], check=True, cwd=tmp_path)


@pytest.fixture
def purchases(tmp_path):
    """A folder with the log that the README speaks of."""
    draw = np.random.default_rng(0)
    users, items, times = (draw.integers(n, size=4_000) for n in (60, 300, 200))
    columns = {"household_id": users + 880, "product_id": items, "time": times}
    pl.DataFrame(columns).write_parquet(tmp_path / "purchases.parquet")
    return tmp_path


def small_log():
    """The log that `tapas demo` makes up, of a size for tests."""
    showcase.SyntheticLogConfig = lambda: SyntheticLogConfig(num_users=60, num_items=300)


@pytest.mark.slow
def test_the_commands_of_the_readme_run(purchases):
    """One after the other, as they stand but for sizes: their own take minutes."""
    assert COMMANDS
    assert PYTHON
    environment = {**os.environ, "XDG_CACHE_HOME": str(purchases / "cache")}
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        arguments += next((SIZES[word] for word in arguments if word in SIZES), [])
        if program == "torchrun":
            start = [sys.executable, "-m", "torch.distributed.run", *arguments]
            subprocess.run(start, check=True, cwd=purchases, env=environment)
        else:
            done = Forked(*arguments, cwd=purchases, env=environment, before=small_log).end()
            assert done.returncode == 0, f"{command}: {done.stderr}"


def test_local_links_lead_somewhere():
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"))
    links = [(p, link) for p in pages for link in re.findall(r"\]\(([^)#]+)\)", p.read_text())]
    local = [(page, link) for page, link in links if not link.startswith(("http:", "https:"))]
    assert local
    assert [
        f"{page} links to {link}" for page, link in local if not (page.parent / link).exists()
    ] == []


def test_the_make_targets_that_documents_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    for name in re.findall(r"`?make ([a-z]+)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{name}:", makefile, flags=re.MULTILINE), f"make {name}"
