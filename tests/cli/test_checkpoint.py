"""`tapas checkpoint`: describe one, and grow one."""

import json

import polars as pl
import pytest
from oracle.command_line import chain, invoke, last_line

from tapas.version import __version__

STEP = "step-00000004"


def run_checkpoint(*words) -> str:
    done = invoke("checkpoint", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_info_says_what_is_in_the_newest_checkpoint(run):
    size = sum(file.stat().st_size for file in (run / "checkpoints" / STEP).glob("*.safetensors"))
    assert run_checkpoint("info", "run").splitlines() == [
        f"run/checkpoints/{STEP}",
        f"step 4, the best so far; saved by 1 process with tapas {__version__}",
        f"{size:,} bytes, valid",
        "other checkpoints: step 2, valid",
        "",
        "table              classes  dim     type  updates  optimizer state",
        "─" * 66,
        "model.head.table        30    4  float32        4              sum",
        "model.input_table       30    4  float32        4              sum",
    ]


def test_grow_says_where_new_rows_start(run):
    done = invoke("checkpoint", "grow", "run", "--to", 37, "--out", "more", "--initial", "sum=0.5")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"Wrote more from run/checkpoints/{STEP}, with 37 classes. The optimizer state of new "
        "rows starts with sum at 0.5."
    )
    found = json.loads(run_checkpoint("info", "more", "--json"))
    assert [table["classes"] for table in found["tables"]] == [37, 37]
    assert found["tables"][0] == {
        "name": "model.head.table",
        "classes": 37,
        "dim": 4,
        "dtype": "float32",
        "order": "contiguous",
        "optimizer_state": ["sum"],
        "updates": 4,
    }


def test_a_run_grows_with_the_log_of_another_week(run):
    """Week 1 has items 1000 to 1029, week 2 from 1020 on."""
    week = chain(num_users=10, num_items=25, seed=8)
    week = week.with_columns(pl.col("item_id") + 20, pl.col("time") + 10**7)
    week.write_parquet("week2.parquet")
    grow = ("checkpoint", "grow", "run", "--log", "week2.parquet", "--out", "run2")
    done = invoke(*grow, "--cache", "cache")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-2:] == [
        f"Wrote run2 from run/checkpoints/{STEP}: 30 known items (20 not in the new log), 15 new "
        "items.",
        "Next: `tapas train --resume run2`, `tapas evaluate run2`.",
    ]
    assert json.loads(invoke("evaluate", "run2", "--json").stdout)["step"] == 0
    assert invoke("train", "--resume", "run2").returncode == 0
    output = invoke("recommend", "run2", "--history", "1000,1030", "--top", 45).stdout
    assert {int(line.split("\t")[1]) for line in output.splitlines()} == set(range(1000, 1045))


def test_a_damaged_checkpoint_is_described_with_exit_code_1(run):
    file = run / "checkpoints" / STEP / "rows-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    done = invoke("checkpoint", "info", "run")
    assert done.returncode == 1
    assert done.stdout.splitlines()[2].endswith(" bytes, damaged")
    words = f"run/checkpoints/{STEP}/rows-0.safetensors is damaged: its checksum differs"
    assert words in done.stderr
    assert words in last_line(invoke("checkpoint", "grow", "run", "--to", 31, "--out", "out"))
    assert not (run.parent / "out").exists()


def test_damage_to_another_checkpoint_is_told_too(run):
    """It may be the best."""
    file = run / "checkpoints" / "step-00000002" / "rows-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    done = invoke("checkpoint", "info", "run")
    assert done.returncode == 1
    assert done.stdout.splitlines()[3] == "other checkpoints: step 2, damaged"
    words = "tapas: run/checkpoints/step-00000002/rows-0.safetensors is damaged: its checksum"
    assert done.stderr.startswith(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("info", "elsewhere"), "there is no folder elsewhere."),
        (("grow", "run", "--to", 31, "--out", "run"), "run exists already. Choose another --out."),
        (("grow", "run", "--to", 30, "--out", "more"),
         f"run/checkpoints/{STEP} has 30 classes already; --to must be more, got 30."),
        (("grow", "run", "--to", 31, "--out", "more", "--initial", "sum"),
         "--initial must be a name and a number of at least 0, such as sum=0.1, got 'sum'."),
        (("grow", "run", "--out", "more"),
         "give either --to N, for a training loop of your own, or --log FILE, for a run of "
         "`tapas train`."),
        (("grow", "run", "--log", "x.csv", "--out", "more", "--initial", "sum=1"),
         "--initial can be used with --to only; --log uses the settings of the run."),
        (("grow", "run", "--log", "x.csv", "--out", "more"),
         "no file matches 'x.csv'. Check the path."),
        (("grow", "run", "--log", "x.csv", "--out", "run"),
         "run already holds a run. Continue it with --resume, or choose another --out."),
        (("grow", "run/checkpoints", "--log", "x.csv", "--out", "more"),
         "run/checkpoints holds no run (run.json is missing). Create one with `tapas train ... "
         "--out run/checkpoints`."),
        (("info", "run", "--step", 5),
         "there is no checkpoint of step 5 in run/checkpoints. Known steps: 2, 4."),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(run, words, message):
    assert last_line(invoke("checkpoint", *words)) == message
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]
