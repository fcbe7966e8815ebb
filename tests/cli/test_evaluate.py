"""`tapas evaluate` with several runs, lists from files, and points for other systems."""

import json
import shutil

import polars as pl
import pytest
from oracle.command_line import TINY, chain, invoke, last_line, names, write_chain

FEW = ("--set", "split.kind=last", "--set", "split.validation=2", "--set", "split.test=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs on one log, and lists of one of them."""
    folder = tmp_path_factory.mktemp("trained")
    file = write_chain(folder / "log.parquet", num_users=23, num_items=37)
    for name, dim in (("run-a", 4), ("run-b", 6)):
        done = invoke("train", file, "--out", folder / name, "--cache", folder / "cache", *TINY,
                      *FEW, "--set", f"model.dim={dim}")  # fmt: skip
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def runs(trained, at, monkeypatch):
    for name in ("run-a", "run-b"):
        shutil.copytree(trained / name, at / name)
    monkeypatch.setenv("COLUMNS", "80")
    return at


def popular_lists(known, out):
    """What a stranger would write first: the 20 most frequent items for each judged user."""
    top = known["item"].value_counts(sort=True).head(20).select("item")
    judged = known.filter("judged").select("user").unique(maintain_order=True)
    judged.join(top, how="cross").write_csv(out)


def test_points_are_written_and_lists_made_from_them_are_judged(runs):
    done = invoke("evaluate", "run-a", "--points", "known.parquet")
    known = pl.read_parquet("known.parquet")
    assert known.columns == ["user", "item", "time", "judged"]
    assert done.stderr == (
        f"Wrote the {known.height} events before the cut to known.parquet. Make lists of 20 items "
        "for\nthe 23 users whose column judged is true, as a file with columns user, item and "
        "rank,\nand judge them with `tapas evaluate run-a --against FILE`.\n"
    ).replace("\n", " ", 2)
    assert done.stdout == ""
    popular_lists(known, "mine.csv")
    done = invoke("evaluate", "run-a", "run-b", "--against", "mine.csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        "mine.csv, columns user, item, rows in order: all 23 users have a list.\n"
    )
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(("run-a is better", "mine.csv is better", "No significant diff"))
    text = " ".join(done.stdout.split())
    assert "23 users, one point each; the next 4 items of each are to be found among" in text
    assert "Checkpoints: run-a, step " in text
    rows = [line.split("  ")[0] for line in lines if " ±0." in line]
    assert rows == ["run-a", "run-b", "mine.csv", "most popular", "own most frequent",
                    "co-occurrence"]  # fmt: skip
    differences = text.partition("run-a minus ")[2]
    assert differences.count(" to ") == 5
    wide = invoke("evaluate", "run-a", "run-b", "--against", "mine.csv", "--all")
    assert max(map(len, wide.stdout.splitlines())) <= 80


def test_json_has_todays_fields_and_what_was_found(runs):
    known = ("evaluate", "run-a", "--points", "known.csv", "--json", "--users", 12)
    found = json.loads(invoke(*known).stdout)
    assert found == {"events": found["events"], "users": 12, "out": "known.csv"}
    frame = pl.read_csv("known.csv")
    assert frame.filter("judged")["user"].n_unique() == 12
    popular_lists(frame, "mine.csv")
    done = invoke("evaluate", "run-a", "--json", "--users", 12, "--against", "mine.csv")
    found = json.loads(done.stdout)
    assert list(found) == ["step", "part", "exclude_seen", "num_targets", "scores", "lead", "split",
                           "steps", "lists", "verdict", "advice"]  # fmt: skip
    assert list(found["scores"])[-1] == list(found["lead"])[-1] == "mine.csv"
    assert found["lists"]["mine.csv"]["num_lists"] == 12
    assert found["steps"] == {"run-a": found["step"]}
    assert len(found["verdict"]) >= 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run-a", "x/../run-a"), "x/../run-a is given twice. Name each once."),
        (("run-a", "--against", "x", "--against", "x"), "x is given twice. Name each once."),
        (("run-a", "run-b", "--step", 2), "--step can be used with one RUN only."),
        (("run-a", "run-b", "--points", "x.csv"),
         "--points can be used with one RUN and without --against only."),
        (("run-a", "--points", "x.xls"), "x.xls must end in one of .parquet, .jsonl, .csv."),
        (("run-a", "--points", "old.csv"), "old.csv exists. Remove it, or choose another file."),
        (("run-a", "--against", "no.csv"), "there is no file no.csv."),
        (("run-a", "run-c"), "run-c holds no run (run.json is missing). There is no such folder."),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_leave_no_file(runs, arguments, words):
    (runs / "old.csv").write_text("mine")
    assert words in last_line(invoke("evaluate", *arguments))
    assert names(runs) == ["old.csv", "run-a", "run-b"]
    assert (runs / "old.csv").read_text() == "mine"


def test_a_split_with_fewer_than_ten_users_is_refused_with_a_cure_that_works(at):
    frame = chain(num_users=14, num_items=9)
    late = pl.col("user_id").is_in(["u1", "u2"])
    times = pl.when(late).then(pl.col("time") + 10**8).otherwise(pl.col("time"))
    frame.with_columns(times).write_csv(at / "log.csv")
    train = ("train", "log.csv", "--out", "run", "--cache", "cache", *TINY)
    done = invoke(*train, "--split", "time")
    assert done.returncode == 1
    assert last_line(done) == (
        "the split by 'time' leaves 6 validation and 2 test users, too few to judge a model by; "
        "expected at least 10 of each. Use --split last, which leaves 14."
    )
    assert not (at / "run").exists()
    done = invoke(*train, "--split", "last")
    assert done.returncode == 0, done.stderr
    assert "14 users, one point each" in invoke("evaluate", "run").stdout
    done = invoke("evaluate", "run", "--users", 2)
    assert done.stdout.startswith("2 users are too few to say who is better: at least 10 are need")
    for word in ("±", "inf", "nan", "significant"):
        assert word not in done.stdout


def test_where_nothing_new_is_left_to_find_no_run_is_made_and_none_is_judged(at):
    """Everybody takes the same three things again and again."""
    rows = [f"u{u},{u + t % 3},{u + 10 * t}\n" for u in range(12) for t in range(9)]
    (at / "log.csv").write_text("user,item,time\n" + "".join(rows))
    train = ("train", "log.csv", "--out", "run", "--cache", "cache", *TINY, "--split", "last")
    words = (
        "none of the next items of the 12 users to judge by is new to its user, and items that a "
        "user had are excluded. Allow them with loop.exclude_seen = false, or with --keep-seen "
        "when you evaluate a run."
    )
    assert last_line(invoke(*train, "--set", "loop.exclude_seen=true")) == words
    assert not (at / "run").exists()
    assert invoke(*train).returncode == 0
    assert last_line(invoke("evaluate", "run", "--exclude-seen")) == words
