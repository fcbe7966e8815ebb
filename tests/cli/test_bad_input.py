"""Bad input is one line on stderr and exit code 1, and leaves no partial files."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from oracle.command_line import TINY, chain, invoke, last_line, names, write_chain

from tapas import UsageError
from tapas.cli import recommend


def events(**changed):
    """The lines of a good CSV file, with some rows replaced; row 1 follows the header."""
    rows = [f"{user},{item},{time}" for user, item, time in chain(num_users=11, num_items=9).rows()]
    for row, line in changed.items():
        rows[int(row.removeprefix("row")) - 1] = line
    return "\n".join(["user,item,time", *rows]) + "\n"


NUM_ROWS = chain(num_users=11, num_items=9).height
BASKETS = [(u, i, u if i < 3 else 50 + u + 30 * i) for u in range(30) for i in range(5)]
COLUMNS = {"user": ["a", "a"], "item": [1, 2], "time": [1, 2]}
BAD_LOGS = [  # what is in the log (text, or columns of Parquet), flags, and what is said of it
    (
        COLUMNS,
        ("--item", "itm"),
        "x.parquet has no column 'itm' for the item. Did you mean 'item'? Columns: user "
        "('a'), item ('1'), time ('1').",
    ),
    (
        {"a": [1], "b": [2]},
        (),
        "x.parquet: no column looks like the user or the item. Name them with --user "
        "and --item. Columns: a ('1'), b ('2').",
    ),
    (
        COLUMNS | {"item": [1.5, 2.0]},
        (),
        "x.parquet, row 1: item is 1.5, a number with a fraction or beyond 2^53; expected "
        "integers or text. Store the column as one of these.",
    ),
    ("", (), "x.csv is empty. Leave it out."),
    (
        "user,item,time\n",
        (),
        "no usable row in x.csv: 0 rows read, 0 of them bad. Check the file and the "
        "names of the columns.",
    ),
    (
        "user,item,time\na,1,x\na,2,y\n",
        ("--skip-bad-rows",),
        "x.csv, row 1: time is 'x', not a time, as in 2 of 2 rows, too many to skip. Name their "
        "format, as in --time-format '%m/%d/%Y %H:%M', or another column with --time. Read without "
        "a format are 2024-01-31, 2024-01-31 18:30:00 (also with T, Z or +01:00), 31.01.2024, "
        "1/31/2024, 31 Jan 2024, and numbers.",
    ),
    (
        events(row4="u1,2,3,4", row9="u1,2,3,4,5"),
        (),
        "x.csv, row 4: 4 values where the header names 3. Drop such rows with --skip-bad-rows (2 "
        f"broken among {NUM_ROWS} rows).",
    ),
    (
        events(row4="u1,2,yesterday", row7=",2,1700000000"),
        (),
        "x.csv, row 4: time is 'yesterday', not a time. Drop such rows with --skip-bad-rows (2 "
        f"found among {NUM_ROWS} rows).",
    ),
    (None, (), "no file matches 'x.csv'. Check the path."),
]
BAD_TO_TRAIN = [
    (
        {"user": range(30), "item": [i % 7 for i in range(30)], "time": range(30)},
        (),
        "every user has a single event, so there is no next item to learn. Check that the user "
        "column identifies users, not events.",
    ),
    (
        dict(zip(("user", "item", "time"), zip(*BASKETS, strict=True), strict=True)),
        ("--split", "last", "--set", "split.validation=1", "--set", "split.test=1"),
        "no user has two baskets to train on, so there is no next item to learn. Use a longer log "
        "or a later cut, or check that --time is the right column.",
    ),
]


def written(content):
    """The name of a file with that content."""
    if isinstance(content, dict):
        pl.DataFrame(content).write_parquet("x.parquet")
        return "x.parquet"
    if content is not None:
        Path("x.csv").write_text(content)
    return "x.csv"


@pytest.mark.parametrize(("content", "flags", "words"), BAD_LOGS + BAD_TO_TRAIN)
def test_a_log_that_cannot_be_read_or_learned_from_is_one_line(at, content, flags, words):
    file = written(content)
    done = invoke("train", file, "--out", "out", "--cache", "cache", *TINY, *flags)
    assert last_line(done) == words
    assert not (at / "out").exists()
    assert not (at / "cache").exists() or not any((at / "cache").glob(".*"))
    if (content, flags, words) in BAD_LOGS:
        assert last_line(invoke("inspect", file, "--cache", "cache", *flags)) == words


def test_skipped_rows_are_counted(at):
    (at / "x.csv").write_text(events(row4="u1,2,yesterday", row7=",2,soon", row9=",2,5"))
    done = invoke(
        "train", "x.csv", "--skip-bad-rows", "--split", "last", "--out", "out", "--cache", "cache",
        *TINY, "--encoder", "gru", "--set", "model.history=201", "--set", "model.layers=21",
    )  # fmt: skip
    assert done.returncode == 0
    slow = r"Slow: model\.history is 201, but no user has more than \d+ events\. A smaller one "
    assert re.search(f"{slow}reads as much and is faster\\.\n", done.stderr)
    assert "Slow: model.layers is 21. Most models have 1 to 4.\n" in done.stderr
    assert (
        "Skipped 3 rows, 1% of all: 2 without user, 1 without valid time (first: x.csv, row 4: time"
        in done.stderr
    )
    done = invoke("inspect", "x.csv", "--skip-bad-rows", "--json", "--cache", "cache")
    reading = json.loads(done.stdout)["reading"]
    assert (reading["rows"], reading["bad_rows"]) == (NUM_ROWS, 3)
    assert reading["bad_examples"] == [
        "x.csv, row 4: time is 'yesterday', not a time",
        "x.csv, row 7: user is empty",
        "x.csv, row 9: user is empty",
    ]


def test_a_single_user_is_pointed_out(at):
    write_chain(at / "one.parquet", num_users=1)
    done = invoke("inspect", "one.parquet", "--cache", "cache")
    assert done.returncode == 0
    assert "There is only one user: is --user the right column?\n" in done.stdout
    train = ("train", "one.parquet", "--cache", "cache", *TINY)
    done = invoke(*train, "--out", "out")
    assert done.returncode == 1
    assert "There is only one user; name another user column if that is wrong.\n" in done.stderr
    assert last_line(done) == (
        "the split by 'time' leaves 1 validation and 1 test user, too few to judge a model by; "
        "expected at least 10 of each. Use a larger log."
    )
    assert not (at / "out").exists()


ONE_OF = "give one of --user KEY, --users all|FILE or --history KEY,KEY|FILE."
NEEDS_OUT = "--users and --history FILE need --out FILE, and only they."


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--history", "9999"), "unknown item '9999'. The model knows 30 items."),
        (("--history", "103,9999"),
         "unknown item '103'. Did you mean '1023'? The model knows 30 items."),
        (("--history", "new.csv", "--out", "a.csv"), "there is no file new.csv."),
        (("--user", "u99"), "unknown user 'u99'. Did you mean 'u9'? The model knows 10 users. "
         "--cold popular lists the most popular items."),
        ((), ONE_OF),
        (("--user", "u1", "--history", "1003"), ONE_OF),
        (("--users", "all", "--history", "table.csv", "--out", "a.csv"), ONE_OF),
        (("--users", "users.txt"), NEEDS_OUT),
        (("--history", "table.csv"), NEEDS_OUT),
        (("--user", "u1", "--out", "a.csv"), NEEDS_OUT),
        (("--user", "u1", "--top", 31), "--top is 31, but the model can list only 30 items."),
        (("--user", "u1", "--cold", "hot"),
         "unknown value of --cold 'hot'. Known: error, popular, skip."),
        (("--user", "u1", "--column", "who"),
         "--column is for --users FILE and --history FILE. Leave it out."),
        (("--users", "all", "--out", "a.xls"), "a.xls must end in one of .parquet, .jsonl, .csv."),
        (("--users", "all", "--out", "table.csv"),
         "table.csv exists. Choose another --out or add --force."),
        (("--users", "none.csv", "--out", "a.csv"), "there is no file none.csv."),
        (("--users", "empty.txt", "--out", "a.csv"), "empty.txt has no users."),
        (("--users", "table.csv", "--out", "a.csv"),
         "table.csv: no column looks like the user. Name it with --column. Columns: who, what."),
        (("--users", "table.csv", "--column", "user", "--out", "a.csv"),
         "table.csv has no column 'user'. Columns: who, what."),
        (("--users", "table.csv", "--column", "item=what", "--out", "a.csv"),
         "unknown role in --column 'item'. Known: user."),
        (("--users", "users.txt", "--out", "a.csv", "--cold", "error"),
         "unknown user 'u77'. Did you mean 'u7'? The model knows 10 users. --cold skip leaves such "
         "users out, --cold popular gives them the most popular items."),
        (("--users", "strangers.txt", "--out", "a.csv"),
         "no user is left to recommend for. With --cold popular they get the most popular items."),
    ],
)  # fmt: skip
def test_recommend_explains_what_it_refuses(run, at, flags, words):
    (at / "users.txt").write_text("u1\nu77\n")
    (at / "empty.txt").write_text("\n\n")
    (at / "strangers.txt").write_text("u77\n")
    (at / "table.csv").write_text("who,what\nu1,1003\n")
    before = names(at)
    assert last_line(invoke("recommend", "run", *flags)) == words
    assert names(at) == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "give one of --item KEY or --items all|FILE."),
        (("--item", "1003", "--items", "all"), "give one of --item KEY or --items all|FILE."),
        (("--items", "all"), "--items needs --out FILE, and --out needs --items."),
        (("--items", "all", "--out", "run"), "run must end in one of .parquet, .jsonl, .csv."),
        (("--items", "all", "--out", "items.csv"),
         "items.csv exists. Choose another --out or add --force."),
        (("--items", "all", "--column", "n", "--out", "a.csv"),
         "--column is for --items FILE. Leave it out."),
        (("--item", "103"), "unknown item '103'. Did you mean '1023'? The model knows 30 items."),
        (("--item", "1003", "--top", 30), "--top is 30, but the model can list only 29 items."),
        (("--items", "items.csv", "--out", "a.csv"), "items.csv has no item that the model knows."),
    ],
)  # fmt: skip
def test_similar_explains_what_it_refuses(run, at, flags, words):
    (at / "items.csv").write_text("item\n7\n")
    assert last_line(invoke("similar", "run", *flags)) == words
    assert names(at) == ["items.csv", "run"]


def test_a_folder_that_holds_a_run_is_left_alone(run, at):
    write_chain(at / "log.parquet", num_users=3)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert last_line(invoke("train", "log.parquet", "--out", "run", "--cache", "c", *TINY)) == (
        "run already holds a run. Continue it with --resume, or choose another --out."
    )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert not (at / "c").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "no log given. Try `tapas train purchases.parquet --out run`, or --resume."),
        (("x.csv", "--step", 3), "--step can be used with --resume only."),
        (("x.csv", "--resume", "run", "--dim", 5, "--split", "last", "--set", "loop.seed=1",
          "--threads", 2, "--min-count", 1),
         "--resume continues a run with its saved settings; LOG, --min-count, --dim, --split, "
         "--out, --set, --threads cannot be changed."),
        (("x.csv", "--set", "loop.patience"),
         "--set 'loop.patience' is not SECTION.NAME=VALUE, as in head.alpha=0.5."),
        (("x.csv", "--set", "loop.patience=lots"),
         "loop.patience must be an integer, got 'lots'."),
        (("x.csv", "--set", "lopp.patience=1"),
         "unknown section 'lopp'. Did you mean 'loop'? Known: head, log, loop, model, optimizer, "
         "service, split."),
        (("x.csv", "--encoder", "grv"),
         "unknown model.encoder 'grv'. Did you mean 'gru'? Known: gru, mean, transformer."),
        (("x.csv", "--config", "none.toml"), "there is no file none.toml."),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_before_anything_is_read(at, flags, words):
    assert last_line(invoke("train", *flags, "--out", "out")) == words
    assert names(at) == []


def test_a_damaged_checkpoint_is_named_and_the_previous_one_offered(run):
    file = run / "checkpoints" / "step-00000004" / "dense.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    words = last_line(invoke("train", "--resume", "run"))
    assert words.startswith(f"{file.relative_to(run.parent)} ")
    assert words.endswith(" Step 2 is valid: use it with --step 2.")
    done = invoke("train", "--resume", "run", "--step", 2)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == content, "continued from step 2, the same bits are written again"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("train", "--resume", "none"),
         "none holds no run (run.json is missing). There is no such folder. Create one with "
         "`tapas train ... --out none`."),
        (("evaluate", "run", "--step", 77),
         "there is no checkpoint of step 77 in run/checkpoints. Known steps: 2, 4."),
        (("export", "run", "--to", "a.xyz"),
         "cannot tell what to write to a.xyz: its name must end in .faiss, .safetensors, .parquet, "
         ".pt2, or have no ending for a folder."),
        (("export", "run", "--to", "a.faiss", "--index", "flat"),
         "unknown index kind 'flat'. Known: exact, hnsw, ivf."),
        (("export", "run", "--to", "run"),
         "run exists and is not an exported folder, nor empty. Choose another --to."),
        (("export", "run", "--to", "run", "--force"),
         "run exists and is not an exported folder, nor empty. Choose another --to."),
        (("export", "run", "--to", "a.faiss", "--index", "ivf", "--recall", "1.5"),
         "--recall must be above 0 and at most 1, got 1.5."),
        (("export", "run", "--to", "a.faiss", "--recall", "0.9"),
         "--recall is for --index hnsw or ivf: an exact index finds everything."),
        (("export", "run", "--to", "a.pt2", "--index", "ivf"),
         "--index is for a .faiss file or a folder; a.pt2 has no index."),
        (("export", "run", "--to", "none/a.safetensors"),
         "cannot write none/a.safetensors: there is no folder none. Make it first."),
    ],
)  # fmt: skip
def test_other_commands_explain_what_they_refuse(run, at, flags, words):
    assert last_line(invoke(*flags)) == words
    assert names(at) == ["run"]


def test_keys_that_hold_commas_go_into_a_json_list():
    keys = {"a, b,": ["a", "b"], '["a,b", 7]': ["a,b", "7"], " [3]": ["3"]}
    assert {history: recommend._split_keys(history) for history in keys} == keys
    with pytest.raises(UsageError, match=re.escape("--history '[3' is not a JSON list: ")):
        recommend._split_keys("[3")


def test_a_learning_rate_that_could_be_two_is_refused_with_both_names(at):
    assert last_line(invoke("train", "log.csv", "--out", "out", "--lr", 0.01)) == (
        "--lr 0.01: there are two learning rates. Use --set optimizer.rows_lr=0.01 for the class "
        "vectors (default 0.1) or --set optimizer.encoder_lr=0.01 for the encoder (default 0.002)."
    )
    assert names(at) == []


def test_a_device_that_is_not_there_is_refused(at):
    file = write_chain(at / "log.csv", num_users=10, num_items=30)
    done = invoke("train", file, "--out", "out", "--cache", "cache", "--device", "cuda:99")
    assert "loop.device" in last_line(done)
    assert names(at) == ["log.csv"]  # before it is read
