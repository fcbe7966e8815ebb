"""A small log with a learnable pattern, and helpers that run the command line."""

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from forked import Forked
from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

from experiments.__main__ import app as experiments
from tapas.cli.main import app
from tapas.data.event_log import EventLog
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.training.journal import END, SETTING, read_journal

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")},
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONIOENCODING": "utf-8",
}
DAY = 86_400
TINY = ("--threads", 1, "--steps", 4, "--dim", 4, "--batch", 4, "--set", "loop.evaluate_every=2")
# settings that `tapas train` would choose from the log, for tests that look at parts of the model
PLAIN = (
    "--encoder", "gru", "--no-copy", "--no-follow", "--method", "tapas", "--presample-factor", 8,
    *(word for setting in (
        "model.inputs=own", "model.layers=1", "optimizer.rows=rowwise-adagrad",
        "optimizer.rows_lr=0.1", "optimizer.warmup=0", "optimizer.schedule=constant",
        "loop.exclude_seen=false",
    ) for word in ("--set", setting)),
)  # fmt: skip


def commands(group: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group`, by its words."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*name, word))
        else:
            yield (*name, word), command


COMMANDS = dict(commands(get_command(app)))


def chain(
    num_users: int = 60, num_items: int = 200, num_baskets: int = 12, seed: int = 3
) -> pl.DataFrame:
    """Baskets of one to three neighbours on a ring of items; the next basket is 7 items ahead."""
    draw = random.Random(seed)
    rows = []
    for user in range(num_users):
        position, day = draw.randrange(num_items), 0
        for _ in range(num_baskets):
            day += draw.randrange(1, 4)
            moment = 1_700_000_000 + DAY * day + user
            for neighbour in range(draw.randrange(1, 4)):
                rows.append((f"u{user}", 1000 + (position + neighbour) % num_items, moment))
            position = (position + 7) % num_items
    return pl.DataFrame(rows, schema=["user_id", "item_id", "time"], orient="row")


def write_chain(path: Path, **options: int) -> Path:
    frame = chain(**options)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
    return path


def with_quantities(file: Path) -> Path:
    """`file` with a column of weights from 1 to 5."""
    frame = pl.read_parquet(file).with_row_index("quantity")
    frame.with_columns(pl.col("quantity") % 5 + 1).write_parquet(file)
    return file


def chain_log(folder: Path, **options: int) -> EventLog:
    """The log of `chain`, prepared, under `folder`."""
    file = write_chain(folder / "chain.parquet", **options)
    return prepare_log(LogSource(files=(str(file),)), folder / "cache")


def installed_tapas(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m tapas` in a new interpreter, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "tapas", *map(str, arguments)], cwd=cwd, env=ENVIRONMENT, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def tapas(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `tapas` in a forked process, capturing stdout and stderr; `options` go to `Forked`."""
    return Forked(*arguments, env=ENVIRONMENT, **options).end()


def experiment(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m experiments` in a forked process."""
    return Forked(*arguments, work=experiments_main, env=ENVIRONMENT, **options).end()


def experiments_main(*arguments: object) -> None:
    sys.argv = ["experiments", *map(str, arguments)]
    experiments(prog_name="python -m experiments")


def invoke_experiment(*arguments: object) -> subprocess.CompletedProcess[str]:
    return invoke(*arguments, app=experiments)


def invoke(*arguments: object, app: Typer = app) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    ended = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return subprocess.CompletedProcess(arguments, ended.exit_code, ended.stdout, ended.stderr)


def last_line(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The error message of a command that failed without printing data."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("tapas: ")
    return line.removeprefix("tapas: ")


def untimed_journal(run: Path) -> list[dict[str, Any]]:
    """The journal of a run without what depends on the time of day or on how it was started."""
    lines = read_journal(run / "journal.jsonl")
    lines = [line for line in lines if line["event"] not in (SETTING, END)]
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def file_size_limit(num_bytes: int):
    """Simulate a full disk: writing beyond `num_bytes` fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
