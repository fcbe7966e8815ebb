"""Values of a million characters: errors and other lines on stderr stay readable."""

import pytest
from oracle.command_line import invoke

pytestmark = pytest.mark.slow

LONG = "x" * 1_000_000
SPACED = 'it\'s "x" ' * 100_000  # no part of it is long, and quotes end early
ROWS = "user,item,time,weight\n1,2,3,1\n1,3,4,1\n2,3,4,1\n"

TRAIN = ("train", "a.csv", "--out", "new", "--cache", "cache")
INSPECT = ("inspect", "a.csv", "--cache", "cache")
RECOMMEND = ("recommend", "run")
ARGUMENTS = {
    "--user of a log": (*INSPECT, "--user", LONG),
    "--weight": (*INSPECT, "--weight", LONG),
    "--time-format": (*INSPECT, "--time-format", LONG),
    "--where": (*INSPECT, "--where", LONG),
    "value of --where": (*INSPECT, "--where", f"item>{LONG}"),
    "column of --where": (*INSPECT, "--where", f"{LONG}=3"),
    "--separator": (*INSPECT, "--separator", LONG),
    "--cache": ("inspect", "a.csv", "--cache", LONG),
    "log": ("inspect", LONG),
    "--user": (*RECOMMEND, "--user", LONG),
    "--history": (*RECOMMEND, "--history", LONG),
    "item of --history": (*RECOMMEND, "--history", f'["{LONG}"]'),
    "item that is none": (*RECOMMEND, "--history", f'[{{"a": "{LONG}"}}]'),
    "--item": ("similar", "run", "--item", LONG),
    "value of --set": (*TRAIN, "--set", f"model.encoder={LONG}"),
    "value of --set, spaced": (*TRAIN, "--set", f"model.encoder={SPACED}"),
    "number of --set": (*TRAIN, "--set", f"model.dim={LONG}"),
    "name of --set": (*TRAIN, "--set", f"model.{LONG}=1"),
    "section of --set": (*TRAIN, "--set", f"{LONG}.dim=1"),
    "--set": (*TRAIN, "--set", LONG),
    "--method": (*TRAIN, "--method", LONG),
    "module of --method": (*TRAIN, "--method", f"{LONG}:Head"),
    "--device": (*TRAIN, "--device", LONG),
    "--out": ("train", "a.csv", "--out", LONG),
    "--to": ("export", "run", "--to", LONG),
    "--index": ("export", "run", "--to", "a.faiss", "--index", LONG),
    "--methods": ("compare", "a.csv", "--methods", LONG),
    "--budget": ("compare", "a.csv", "--budget", LONG),
    "run": ("evaluate", LONG),
    "number": ("train", "a.csv", "--steps", LONG),
    "option": ("inspect", f"--{LONG}"),
    "command": (LONG,),
}


def check(done):
    assert done.returncode in (0, 1, 2)
    assert max(map(len, done.stderr.splitlines())) <= 500


@pytest.mark.parametrize("place", ARGUMENTS)
def test_in_an_argument(run, at, place):
    (at / "a.csv").write_text(ROWS)
    done = invoke(*ARGUMENTS[place])
    assert done.returncode
    check(done)


CELLS = {
    "time": ("inspect", "a.csv", "--cache", "cache"),
    "item": ("inspect", "a.csv", "--cache", "cache", "--where", "item>3"),
    "weight": ("inspect", "a.csv", "--cache", "cache", "--weight", "weight"),
}


@pytest.mark.parametrize("long", [LONG, '"it\'s x "' * 10_000], ids=["one word", "quotes"])
@pytest.mark.parametrize("column", CELLS)
def test_in_a_cell_of_a_log(at, column, long):
    quoted = '"' + long.replace('"', '""') + '"'
    row = [quoted if name == column else "5" for name in ("user", "item", "time", "weight")]
    (at / "a.csv").write_text(ROWS + ",".join(row) + "\n")
    done = invoke(*CELLS[column])
    assert done.returncode == 1
    check(done)
    if column == "time":
        check(invoke(*CELLS[column], "--skip-bad-rows"))


def test_in_a_header_a_json_line_and_settings(at):
    (at / "a.csv").write_text(ROWS.replace("user", LONG))
    check(invoke(*INSPECT))
    check(invoke(*INSPECT, "--user", "buyer"))
    (at / "b.jsonl").write_text(f'{{"user": {{"a": "{LONG}"}}, "item": 2, "time": 4}}\n')
    check(invoke("inspect", "b.jsonl", "--cache", "cache"))
    for text in (f'[model]\nencoder = "{LONG}"', f"[model]\n{LONG} = 1", f"[{LONG}]\na = 1"):
        (at / "c.toml").write_text(text)
        check(invoke(*TRAIN, "--config", "c.toml"))


def test_the_problem_and_the_cure_stay(at):
    (at / "a.csv").write_text(ROWS + f"1,2,{LONG},1\n")
    assert invoke(*INSPECT).stderr.splitlines()[-1] == (
        f"tapas: a.csv, row 4: time is '{LONG[:80]}…' (1,000,000 characters), not a time. Drop "
        "such rows with --skip-bad-rows (1 found among 4 rows)."
    )
