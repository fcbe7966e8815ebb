"""The virtual environment of peers from other frameworks, created if it is missing."""

import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "benchmarks" / "peers-requirements.txt"
FOLDER = ROOT / ".venv-peers"
PYTHON = FOLDER / "bin" / "python"


class LeftOutError(Exception):
    """A contender cannot run; the message says why in one line."""


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def peer_python() -> Path:
    """The interpreter of the peers' environment; installs what it needs the first time."""
    trouble = install()
    if trouble:
        raise LeftOutError(f"cannot be installed: {trouble}")
    return PYTHON


def installed() -> bool:
    """Whether the environment is there and up to date."""
    ready = FOLDER / ".ready"
    return ready.exists() and ready.read_text() == REQUIREMENTS.read_text()


@cache  # one attempt for all contenders
def install() -> str:
    """Create the environment if it is missing or outdated; returns an error message, if any."""
    if installed():
        return ""
    wanted = REQUIREMENTS.read_text()
    print(f"installing {', '.join(wanted.split())} into {FOLDER.name}, once", file=sys.stderr)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)]
    for command in ([sys.executable, "-m", "venv", str(FOLDER)], pip):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return last_line(done.stderr + done.stdout)
    (FOLDER / ".gitignore").write_text("*\n")
    (FOLDER / ".ready").write_text(wanted)
    return ""
