"""Every option that is a number, of every command, with absurd values: done, or one sentence."""

import pytest
from oracle.command_line import COMMANDS, TINY, invoke, write_chain

from tapas.comparison import demo, stages
from tapas.errors import UsageError
from tapas.servers import run as servers
from tapas.training.trainer import Trainer
from tapas.web import server as web_server

pytestmark = pytest.mark.slow

TRAIN = ("log.csv", "--cache", "cache", "--out", "new", *TINY)
CALLS = {  # what makes a call of a command complete, beside the option
    "inspect": ("log.csv", "--cache", "cache"),
    "train": TRAIN,
    "evaluate": ("run",),
    "recommend": ("run", "--user", "u1"),
    "similar": ("run", "--item", "1001"),
    "serve": ("run",),
    "export": ("run", "--to", "new.parquet", "--force"),
    "compare": ("log.csv", "--cache", "cache", "--budget", "1s", "--methods", "sampled"),
    "plan": ("--classes", 1000, "--dim", 8),
    "demo": ("--out", "new"),
    "checkpoint info": ("run",),
    "checkpoint grow": ("run", "--out", "new"),
}
MORE = {  # what an option needs beside it
    ("train", "--step"): ("--resume", "run"),
    ("export", "--recall"): ("--to", "new.faiss", "--index", "ivf"),
    ("checkpoint grow", "--step"): ("--to", 40),
}
NUMBERS = {"int": ("-1", "0", str(10**18)), "float": ("-1", "0", "1e18", "nan", "inf")}


def options():
    for words, command in COMMANDS.items():
        for option in command.params:
            kind = str(option.bare_type())
            if kind in NUMBERS:
                yield " ".join(words), option.opts[0], kind


@pytest.fixture(autouse=True)
def _nothing_long(monkeypatch):
    def stop(*arguments, **options):
        raise UsageError("the work would begin here.")

    monkeypatch.setattr(Trainer, "run", stop)
    replaced = (
        (servers, "train"),
        (stages, "compare"),
        (demo, "train_variant"),
        (web_server, "serve"),
    )
    for module, name in replaced:
        monkeypatch.setattr(module, name, stop)


@pytest.mark.parametrize(("command", "option", "kind"), list(options()))
def test_absurd_numbers(run, at, command, option, kind):
    write_chain(at / "log.csv", num_users=10, num_items=30)
    given = [*CALLS[command], *MORE.get((command, option), ())]
    if (command, option) == ("train", "--step"):
        given = ["--resume", "run"]
    for number in NUMBERS[kind]:
        done = invoke(*command.split(), *given, option, number)
        assert done.returncode in (0, 1, 2), done.stderr
        assert "Traceback" not in done.stderr
        if done.returncode == 1:
            assert done.stderr.splitlines()[-1].startswith("tapas: ")


def test_options_that_are_numbers_are_found():
    assert len(list(options())) > 40


@pytest.mark.parametrize("command", CALLS)
def test_the_calls_are_complete_without_the_option(run, at, command):
    write_chain(at / "log.csv", num_users=10, num_items=30)
    more = MORE.get((command, "--step"), ()) if command == "checkpoint grow" else ()
    done = invoke(*command.split(), *CALLS[command], *more)
    assert done.returncode == 0 or "the work would begin here" in done.stderr, done.stderr
