"""What README.md and docs/ tell people to type is typed here, and their links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forked import Forked

from tapas.data.source import LogSource
from tapas.training.config import TrainConfig, as_tables

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = {str(page.relative_to(ROOT)): page.read_text() for page in (ROOT / "README.md", *DOCS)}
RUN_IN_ORDER = ("README.md", "docs/start.md", "docs/training.md", "docs/serving.md")
SERVED = "http://127.0.0.1:8321"
SHORTER = {  # what makes a command quick enough for a test
    "train": ["--steps", "3", "--set", "model.dim=8"],
    "compare": shlex.split(
        "--methods sampled,tapas --budget 1s --trials 1 --seeds 1 --num-samples 20 --workers 1"
    ),
}


def blocks(page, kind):
    """Fenced blocks of a kind of a page; one that is marked "continued" belongs to the last."""
    found = []
    fences = re.findall(rf"```{kind}( continued)?\n(.*?)```", PAGES[page], flags=re.DOTALL)
    for continued, text in fences:
        found.append(found.pop() + text if continued else text)
    return found


PYTHON = {
    f"{page} {place}": text
    for page in PAGES
    for place, text in enumerate(blocks(page, "python"), start=1)
}


@pytest.mark.slow
@pytest.mark.parametrize("text", PYTHON.values(), ids=PYTHON.keys())
def test_python_blocks_run(text, purchases):
    """Each in its own process, with no name defined: a reader has none, either."""
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    if 'load("run")' in text:  # the run of the commands on that page
        train = ("train", "purchases.parquet", "--out", "run", "--cache", "cache")
        assert Forked(*train, *SHORTER["train"], cwd=purchases).end().returncode == 0
    done = Forked(text, work=run_text, cwd=purchases, env=environment).end()
    assert done.returncode == 0, done.stderr


def run_text(text):
    exec(compile(text, "<block>", "exec"), {"__name__": "__main__"})


@pytest.fixture
def purchases(tmp_path):
    """A folder with the two logs that the pages speak of."""
    draw = np.random.default_rng(0)
    for name in ("purchases", "week2"):
        users, items, times = (draw.integers(n, size=4_000) for n in (60, 300, 200))
        columns = {"household_id": users + 880, "product_id": items, "time": times}
        pl.DataFrame(columns).write_parquet(tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_IN_ORDER)
def test_commands_run(page, purchases):
    """One after the other, as they stand but for sizes: their own take minutes."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(purchases / "cache")}
    lines = "\n".join(blocks(page, "console")).splitlines()
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("$ ")]
    if page in ("docs/training.md", "docs/serving.md"):  # which speak of a run that is there
        commands.insert(0, ["tapas", "train", "purchases.parquet", "--out", "run"])
    assert commands
    server, address = None, ""
    for program, *arguments in commands:
        if not {"--resume", "--like"} & {*arguments}:  # which have the sizes of their run
            arguments += next((SHORTER[word] for word in arguments if word in SHORTER), [])
        if program == "torchrun":
            start = [sys.executable, "-m", "torch.distributed.run", *arguments]
            subprocess.run(start, check=True, cwd=purchases, env=environment)
        elif arguments[0] == "serve":
            server, address = start_server(arguments, purchases, environment)
        elif program == "curl":
            words = [word.replace(SERVED, address) for word in arguments]
            done = subprocess.run(["curl", *words], check=True, capture_output=True, text=True)
            assert "error" not in json.loads(done.stdout), done.stdout
        elif program == "tapas":
            done = Forked(*arguments, cwd=purchases, env=environment).end()
            assert done.returncode == 0, f"{arguments}: {done.stderr}"
        else:
            assert program == "pip"  # tests/test_wheel.py installs the package
    if server is not None:
        server.terminate()
        server.communicate(timeout=60)
        assert server.returncode == 0


def start_server(arguments, folder, environment):
    """The process of `tapas serve` on a free port, and its address."""
    command = [sys.executable, "-m", "tapas", *arguments, "--port", "0"]
    server = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    return server, server.stdout.readline().strip()


def test_the_settings_page_shows_all_defaults():
    """Names and values; settings without a default are named in a comment."""
    (text,) = blocks("docs/training.md", "toml")
    defaults = as_tables(TrainConfig(log=LogSource(files=("a.csv",))))
    shown = tomllib.loads(text)
    options = TrainConfig(log=LogSource(files=("a.csv",))).head.options
    wanted = {
        section: {name: value for name, value in table.items() if name not in options}
        for section, table in defaults.items()
        if section != "log"
    }
    assert shown == wanted
    for name in ("validation", "test", "steps", "evaluate_every", "max_staleness"):
        assert name in text


def heading_anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_local_links_lead_somewhere():
    pages = (*ROOT.glob("*.md"), *DOCS, *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md"))
    broken, num_links = [], 0
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if link.startswith(("http:", "https:")):
                continue
            num_links += 1
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in heading_anchors(target)):
                broken.append(f"{page.relative_to(ROOT)} links to {link}")
    assert num_links > 100
    assert broken == []


def test_the_map_of_the_documentation_names_every_page():
    for page in DOCS:
        assert page.name == "README.md" or f"({page.name})" in PAGES["docs/README.md"], page.name


def test_the_make_targets_that_documents_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    text = PAGES["README.md"] + (ROOT / "CONTRIBUTING.md").read_text()
    for name in re.findall(r"`?make ([a-z]+)", text):
        assert re.search(rf"^{name}:", makefile, flags=re.MULTILINE), f"make {name}"


def test_the_citation_file_names_the_software_its_version_and_the_paper():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, field in (("title", "name"), ("version", "version"), ("license", "license")):
        assert citation[name] == project[field]
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    paper = citation["preferred-citation"]
    assert paper["title"] == "TAPAS: Two-pass Approximate Adaptive Sampling for Softmax"
    assert [author["family-names"] for author in paper["authors"]] == ["Bai", "Goldman", "Zhang"]
    assert paper["identifiers"] == [{"type": "other", "value": "arXiv:1707.03073"}]
