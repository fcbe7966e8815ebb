"""Names are names: in every path and key that a command takes, nothing is a pattern or markup."""

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from oracle.command_line import TINY, chain, invoke, last_line

from tapas.data.log_options import quoted_value
from tapas.escapes import UNSAFE, printable

MIXED = "a[1]*? '`\n\t\x1b[2J😀:smile:\u202e[red]%s{}$HOME\\b"
NAMES = [MIXED, "x[1]", "-dash", "~", "é" * 127]
KEYS = [MIXED, "x[1]", "-dash", "~", "é" * 127, '"', "a,b", "a\u2028b", "[1]", "{}", "all", "x1"]
USER, ITEM, TIME = (f"{role} {MIXED}" for role in ("user", "item", "time"))
COLUMNS = ("--user", USER, "--item", ITEM, "--time", TIME)


def write(frame: pl.DataFrame, path: str) -> str:
    with open(path, "wb") as file:
        kind = {".csv": "csv", ".jsonl": "ndjson", ".parquet": "parquet"}[Path(path).suffix]
        getattr(frame, f"write_{kind}")(file)
    return path


def read(path: str) -> list[dict[str, str]]:
    """The rows of a table, read without polars where that is possible."""
    if path.endswith(".csv"):
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.endswith(".jsonl"):
        return [json.loads(line) for line in Path(path).read_text().split("\n")[:-1]]
    with open(path, "rb") as file:
        return pl.read_parquet(file).to_dicts()


def key(number: int) -> str:
    return KEYS[number] if number < len(KEYS) else f"{KEYS[number % len(KEYS)]} {number}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run whose users, items and columns have such names, and another with other items."""
    at = tmp_path_factory.mktemp("made")
    plain = chain(num_users=12, num_items=30)
    hostile = pl.DataFrame(
        {
            USER: [key(int(user[1:])) for user in plain["user_id"]],
            ITEM: [key(item - 1000) for item in plain["item_id"]],
            TIME: plain["time"],
        }
    )
    for name, frame, columns in (("run", hostile, COLUMNS), ("other", plain, ())):
        log = write(frame, str(at / f"{name}.parquet"))
        options = (*columns, "--cache", at / "cache", *TINY, "--quiet")
        assert invoke("train", log, "--out", at / name, *options).stderr == ""
    lists = answer("recommend", at / "run", "--user", MIXED, "--json", "--top", 5)
    return SimpleNamespace(
        run=at / "run",
        other=at / "other",
        frame=hostile,
        plain=plain,
        first_list=[each["item"] for each in lists["items"]],
    )


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, and print no control character but line ends and tabs."""
    done = invoke(*arguments)
    assert done.returncode == 0, done.stderr
    for line in (done.stdout + done.stderr).replace("\t", " ").split("\n"):
        assert not UNSAFE.search(line), repr(line)
    return done


def answer(*arguments: object):
    return json.loads(call(*arguments).stdout)


def pasted(text: str, folder: Path) -> list[list[str]]:
    """The arguments of the commands in `text`, as a shell gives them to `tapas`."""
    stub = folder / "bin" / "tapas"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    stub.chmod(0o755)
    commands = re.findall("`(tapas [^`]*)`|^(?:Next|Try): (tapas .*)$", text, re.MULTILINE)
    found = []
    for command in map("".join, commands):
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, check=True,
            env={**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"},
        )  # fmt: skip
        found.append([os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]])
    return found


@pytest.mark.parametrize(
    "name",
    [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])],
    ids=["mixed", "pattern", "dash", "home", "long"],
)
def test_a_name_is_a_name_in_every_path(made, at, name):
    def path(end: str, name: str = name) -> str:
        """`name` with `end`, of at most 255 bytes, and with a folder if it could be an option."""
        short = name.encode()[: 255 - len(end)].decode(errors="ignore")
        return f"./{short}{end}" if name.startswith("-") else f"{short}{end}"

    run, cache = path("run"), path("cache")
    shutil.copytree(made.run, run)
    for end in (".csv", ".jsonl", ".parquet"):
        if name == "x[1]":  # what it would match as a pattern
            write(made.plain, path(end, "x1"))
        log = write(made.frame, path(end))
        told = answer("inspect", log, *COLUMNS, "--cache", cache, "--json")
        assert (told["num_users"], told["num_items"]) == (12, 30)
        assert told["reading"]["columns"]["item"] == ITEM
    if name == "x[1]":
        shutil.copytree(made.other, "x1run")

    one = ("recommend", run, "--top", 5)
    found = answer(*one, "--user", MIXED, "--json")
    assert [each["item"] for each in found["items"]] == made.first_list
    assert found["user"] == MIXED
    rows = [line.split("\t") for line in call(*one, "--user", MIXED).stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        [str(rank), printable(item)] for rank, item in enumerate(made.first_list, start=1)
    ]
    for end in (".csv", ".jsonl", ".parquet"):
        users, lists = path(f"u{end}"), path(f"o{end}")
        write(pl.DataFrame({USER: KEYS}), users)
        call(*one, "--users", users, "--out", lists)
        written = read(lists)
        assert [row["user"] for row in written] == [each for each in KEYS for _ in range(5)]
        assert [row["item"] for row in written[:5]] == made.first_list
        call(*one, "--history", path(end), "--out", lists, "--force")
        assert {row["user"] for row in read(lists)} == set(KEYS)
    items = write(pl.DataFrame({ITEM: KEYS}), path("i.csv"))
    call("similar", run, "--items", items, "--out", path("s.csv"), "--top", 1)
    assert [row["item"] for row in read(path("s.csv"))] == KEYS
    similar = answer("similar", run, "--item", MIXED, "--top", 1, "--json")["items"][0]["item"]
    assert similar == read(path("s.csv"))[0]["similar"]

    call("evaluate", run, "--points", path("p.parquet"))
    judged = call("evaluate", run, "--against", path("o.parquet"))
    assert path("o.parquet").removeprefix("./")[:9] in judged.stdout or name == MIXED
    for end in (".parquet", ".safetensors"):
        assert answer("export", run, "--to", path(end, f"e{name}"), "--json")["items"] == 30
    call("cite", run)
    assert call("checkpoint", "info", run).stdout.startswith(printable(Path(run)))
    assert len(answer("cache", "--cache", cache, "--json")["logs"]) == 3
    call("cache", "--cache", cache, "--empty", "--yes")

    config, settings = Path(run, "config.toml").read_text(), path(".toml")
    files = f"files = {json.dumps([log], ensure_ascii=False)}"
    Path(settings).write_text(re.sub("(?m)^files = .*$", lambda _: files, config))
    told = call("train", "--config", settings, "--out", path("2"), "--cache", cache, "--threads", 1)
    commands = pasted(told.stderr, at)
    assert [words[0] for words in commands] == ["evaluate", "recommend", "serve", "train"]
    assert Path(commands.pop(2)[1]).samefile(path("2"))  # a server goes on until it is stopped
    for words in commands:
        call(*(MIXED if word == "..." else word for word in words))


@pytest.mark.slow
def test_a_key_is_a_key_in_every_option(made, at):
    log = write(made.frame, "log.parquet")
    for number, each in enumerate(KEYS):
        condition = f"{ITEM}={quoted_value(each)}"
        options = ("--where", condition, "--cache", "cache", "--json")
        told = answer("inspect", log, *COLUMNS, *options)
        assert told["num_items"] == 1
        assert told["num_events"] == made.frame.filter(pl.col(ITEM) == each).height
        one = ("recommend", made.run, "--top", 1, "--json")
        assert answer(*one, "--user", each)["user"] == each
        history = json.dumps([each], ensure_ascii=bool(number % 2))
        assert answer(*one, "--history", history)["history"] == history
        assert answer("similar", made.run, "--item", each, "--top", 1, "--json")["item"] == each
        done = invoke("recommend", made.run, "--user", f"{each}?")
        assert last_line(done).startswith(f"unknown user '{printable(each)}?'.")
    Path("users.txt").write_text("a\u2028b\n\n[1]\n~")
    call("recommend", made.run, "--users", "users.txt", "--out", "users.csv", "--top", 1)
    assert [row["user"] for row in read("users.csv")] == ["a\u2028b", "[1]", "~"]
    text = pl.DataFrame({MIXED: ["one two one", "two [one]"]})
    told = answer("inspect", write(text, "text.csv"), "--text", MIXED, "--cache", "cache", "--json")
    assert told["num_items"] == 2


BYTES = os.fsdecode(b"r\xfcn")
REFUSED = r"'r\xfcn{}' is not UTF-8. Rename the file or folder."


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", BYTES + ".csv"),
        ("train", "log.csv", "--out", BYTES),
        ("train", "log.csv", "--out", "run", "--cache", BYTES),
        ("train", "--config", BYTES + ".toml", "--out", "run"),
        ("train", "--resume", BYTES),
        ("recommend", BYTES, "--user", "1"),
        ("recommend", "run", "--user", BYTES),
        ("recommend", "run", "--users", BYTES, "--out", "a.csv"),
        ("recommend", "run", "--users", "all", "--out", BYTES + ".csv"),
        ("similar", "run", "--items", BYTES, "--out", "a.csv"),
        ("evaluate", "run", "--against", BYTES + ".csv"),
        ("evaluate", "run", "--points", BYTES + ".csv"),
        ("export", "run", "--to", BYTES + ".parquet"),
        ("compare", "log.csv", "--out", BYTES),
        ("cache", "--cache", BYTES),
        ("checkpoint", "info", BYTES),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused_at_once(at, arguments):
    done = invoke(*arguments)
    assert done.returncode == 2
    end = next(word for word in arguments if word.startswith(BYTES)).removeprefix(BYTES)
    assert REFUSED.format(end) in done.stderr
    assert not list(at.iterdir())


LONG = "x" * 256


@pytest.mark.parametrize(
    "arguments",
    [
        ("recommend", "RUN", "--users", "all", "--out", LONG + ".csv"),
        ("recommend", "RUN", "--users", LONG, "--out", "a.csv"),
        ("recommend", LONG, "--user", "1"),
        ("similar", "RUN", "--items", "all", "--out", LONG + ".jsonl"),
        ("evaluate", "RUN", "--points", LONG + ".csv"),
        ("evaluate", "RUN", "--against", LONG + ".csv"),
        ("export", "RUN", "--to", LONG + ".parquet"),
        ("export", "RUN", "--to", LONG),
        ("train", "--config", LONG, "--out", "run"),
        ("train", "--resume", LONG),
        ("cache", "--cache", LONG),
        ("checkpoint", "info", LONG),
    ],
)
def test_a_name_that_is_too_long_is_named(made, at, arguments):
    done = invoke(*(made.run if word == "RUN" else word for word in arguments))
    words = last_line(done)
    assert "File name too long." in words
    assert LONG in words
    assert not list(at.iterdir())


def test_a_file_or_folder_that_is_not_utf8_is_named(made, at, monkeypatch):
    words = r"{}: the name is not UTF-8. Rename the file or folder."
    write(made.plain, BYTES + ".csv")
    done = invoke("inspect", "*.csv", "--cache", "cache")
    assert last_line(done) == words.format(r"r\xfcn.csv")
    os.mkdir(BYTES)
    shutil.copytree(made.run, os.path.join(BYTES, "run"))
    monkeypatch.chdir(BYTES)
    assert answer("recommend", "run", "--user", MIXED, "--json", "--top", 5)["items"]
    write(made.plain, "log.csv")
    done = invoke("train", "log.csv", "--out", "new", "--cache", "cache", *TINY)
    assert last_line(done).endswith(words.format(""))
    assert not os.path.exists("new")


def test_half_a_character_in_json_is_named(made, at):
    done = invoke("recommend", made.run, "--history", r'["\ud800"]')
    half = r"a text has half a character, such as \ud83d without \ude00"
    assert last_line(done) == rf"""--history '["\\ud800"]' is not a JSON list: {half}."""
    Path("log.jsonl").write_text('{"user": "a\\ud800b", "item": 1}\n{"user": "b", "item": 2}\n')
    done = invoke("inspect", "log.jsonl", "--cache", "cache")
    assert last_line(done) == (
        f"log.jsonl, row 1: not valid JSON ({half}). Drop such rows with --skip-bad-rows (1 broken "
        "among 2 rows)."
    )
    done = call("inspect", "log.jsonl", "--cache", "cache", "--skip-bad-rows", "--json")
    assert json.loads(done.stdout)["num_events"] == 1
    Path("log.jsonl").write_text('{"user": "a\\u0000", "item": 1}\n')
    assert answer("inspect", "log.jsonl", "--cache", "cache", "--json")["num_events"] == 1
