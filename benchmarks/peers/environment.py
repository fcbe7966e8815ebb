"""Virtual environments of peers, each created when it is first needed."""

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


class LeftOutError(Exception):
    """A contender cannot run; the message says why in one line."""


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment `folder` with what the file `requirements` in benchmarks/ lists."""

    folder: Path
    requirements: Path

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    def python(self) -> Path:
        """The interpreter; installs what it needs the first time."""
        trouble = install(self)
        if trouble:
            raise LeftOutError(f"cannot be installed: {trouble}")
        return self.interpreter

    def installed(self) -> bool:
        """Whether the environment is there and up to date."""
        ready = self.folder / ".ready"
        return ready.exists() and ready.read_text() == self.requirements.read_text()


@cache  # one attempt for all contenders
def install(environment: Environment) -> str:
    """Create it if it is missing or outdated; returns an error message, if any."""
    if environment.installed():
        return ""
    folder, file = environment.folder, environment.requirements
    wanted = file.read_text()
    print(f"installing {', '.join(wanted.split())} into {folder.name}, once", file=sys.stderr)
    pip = ["-m", "pip", "install", "--quiet", "--requirement", str(file)]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(environment.interpreter), *pip],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return last_line(done.stderr + done.stdout)
    (folder / ".gitignore").write_text("*\n")
    (folder / ".ready").write_text(wanted)
    return ""


PEERS = Environment(ROOT / ".venv-peers", ROOT / "benchmarks" / "peers-requirements.txt")
RECOMMENDERS = Environment(
    ROOT / ".venv-recommenders", ROOT / "benchmarks" / "recommenders-requirements.txt"
)
