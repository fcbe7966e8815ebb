"""The README is run: its Python blocks in order, its commands as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ tapas ")
]


SMALL = {"four-ways": ["--classes", "300", "--steps", "3"]}


def test_the_readme_has_code_to_run():
    assert PYTHON
    assert COMMANDS


@pytest.mark.parametrize("place", range(len(PYTHON)))
def test_the_readme_runs(place, tmp_path):
    """In a process of its own: a reader starts with an empty interpreter, too."""
    subprocess.run([sys.executable, "-W", "error", "-c", PYTHON[place]], check=True, cwd=tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_readme_run(command, tmp_path):
    """As they stand, but for sizes: its own take more than a minute."""
    program, *arguments = shlex.split(command)
    arguments += SMALL.get(arguments[0], [])
    subprocess.run([sys.executable, "-m", program, *arguments], check=True, cwd=tmp_path)


@pytest.mark.parametrize(
    "file",
    sorted(
        str(p.relative_to(ROOT))
        for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"))
    ),
)
def test_local_links_lead_somewhere(file):
    text = (ROOT / file).read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if not link.startswith(("http:", "https:")):
            assert ((ROOT / file).parent / link).exists(), f"{file} links to {link}"


def test_the_make_targets_that_documents_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    for name in re.findall(r"`?make ([a-z]+)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{name}:", makefile, flags=re.MULTILINE), f"make {name}"
