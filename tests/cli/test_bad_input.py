"""What goes wrong is one line that says so, with exit code 1, and nothing half-written."""

import json
import re

import polars as pl
import pytest
from oracle.journeys import TINY, chain, invoke, last_line, names, write_chain

from tapas import UsageError
from tapas.cli import recommend
from tapas.version import __version__


def refused(at, file, *flags):
    """What `train` says of a log; that it left nothing behind, and `inspect` says the same."""
    done = invoke("train", file, "--out", "out", "--cache", "cache", *TINY, *flags)
    words = last_line(done)
    assert not (at / "out").exists()
    assert not (at / "cache").exists() or not any((at / "cache").glob(".*"))
    return words


def inspected(file, *flags):
    return last_line(invoke("inspect", file, "--cache", "cache", *flags))


def events(**changed):
    """The lines of a good CSV file, with some rows replaced; row 1 follows the header."""
    rows = [f"{user},{item},{time}" for user, item, time in chain(num_users=6, num_items=9).rows()]
    for row, line in changed.items():
        rows[int(row.removeprefix("row")) - 1] = line
    return "\n".join(["user,item,time", *rows]) + "\n"


def test_a_missing_column_lists_what_is_there(at):
    write_chain(at / "log.parquet", num_users=3)
    words = (
        "log.parquet has no column 'itm' for the item. Did you mean 'item_id'? Columns: user_id, "
        "item_id, time."
    )
    assert refused(at, "log.parquet", "--item", "itm") == words
    assert inspected("log.parquet", "--item", "itm") == words


def test_columns_that_nobody_can_guess_are_asked_for(at):
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet("ab.parquet")
    assert refused(at, "ab.parquet") == (
        "ab.parquet: no column looks like the user. Name it with --user. Columns: a, b."
    )


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("item", [[1], [2]],
         "x.parquet: column 'item' has type List(Int64); expected whole numbers or text."),
        ("item", [1.5, 2.0],
         "x.parquet, row 1: item is 1.5, a number with a fraction or beyond 2^53. Expected whole "
         "numbers or text: write the column as such."),
        ("time", [True, False],
         "x.parquet: column 'time' has type Boolean; expected a date, a datetime, a number or text "
         "for the time."),
    ],
)  # fmt: skip
def test_a_wrong_type_is_named_with_its_column(at, column, values, words):
    columns = {"user": ["a", "a"], "item": [1, 2], "time": [1, 2], column: values}
    pl.DataFrame(columns).write_parquet("x.parquet")
    assert refused(at, "x.parquet") == words
    assert inspected("x.parquet") == words


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.jsonl"])
def test_an_empty_file_is_named(at, name):
    (at / name).touch()
    assert refused(at, name) == f"{name} is empty: it has no rows and no columns. Leave it out."


def test_a_header_without_rows_is_nothing_to_learn_from(at):
    (at / "x.csv").write_text("user,item,time\n")
    assert refused(at, "x.csv") == (
        "no usable row in x.csv: 0 rows read, 0 of them bad. There is nothing to learn from."
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_parquet_file_is_named(at, share):
    whole = write_chain(at / "log.parquet", num_users=30).read_bytes()
    (at / "cut.parquet").write_bytes(whole[: int(share * len(whole))])
    words = refused(at, "cut.parquet")
    assert words.startswith("cut.parquet cannot be read: ")
    assert words.endswith(" It may be damaged or cut short; fetch it again.")


def test_a_file_that_is_not_there_is_named(at):
    assert refused(at, "none.parquet") == "no file matches 'none.parquet'. Check the path."


def test_a_broken_row_is_named_and_can_be_skipped(at):
    (at / "x.csv").write_text(events(row4="u1,2,3,4", row9="u1,2,3,4,5"))
    num_rows = chain(num_users=6, num_items=9).height
    assert refused(at, "x.csv") == (
        "x.csv, row 4: 4 values where the header names 3. Drop such rows with --skip-bad-rows "
        f"(2 broken among {num_rows} rows)."
    )
    done = invoke("train", "x.csv", "--skip-bad-rows", "--out", "out", "--cache", "cache", *TINY)
    assert done.returncode == 0
    assert (
        "2 bad rows were skipped: x.csv, row 4: 4 values where the header names 3\n" in done.stderr
    )


def test_a_time_that_is_none_is_named_and_can_be_skipped(at):
    (at / "x.csv").write_text(events(row4="u1,2,yesterday", row7=",2,1700000000"))
    num_rows = chain(num_users=6, num_items=9).height
    assert refused(at, "x.csv") == (
        "x.csv, row 4: time is 'yesterday', not a time. Drop such rows with --skip-bad-rows "
        f"(2 found among {num_rows} rows)."
    )
    done = invoke("inspect", "x.csv", "--skip-bad-rows", "--json", "--cache", "cache")
    reading = json.loads(done.stdout)["reading"]
    assert (reading["rows"], reading["bad_rows"]) == (num_rows, 2)
    assert reading["bad_examples"] == [
        "x.csv, row 4: time is 'yesterday', not a time",
        "x.csv, row 7: user is empty",
    ]


def test_times_of_which_none_is_one_leave_nothing(at):
    (at / "x.csv").write_text("user,item,time\na,1,x\na,2,y\n")
    assert refused(at, "x.csv", "--skip-bad-rows") == (
        "no usable row in x.csv: 2 rows read, 2 of them bad. There is nothing to learn from."
    )


def test_one_user_only_is_remarked_upon(at):
    write_chain(at / "one.parquet", num_users=1)
    done = invoke("inspect", "one.parquet", "--cache", "cache")
    assert done.returncode == 0
    assert "There is one user only: is --user the right column?\n" in done.stdout
    done = invoke("train", "one.parquet", "--out", "out", "--cache", "cache", *TINY)
    assert done.returncode == 0
    assert "There is only one user: name another user column if that is not meant.\n" in done.stderr
    assert refused_again(at, "one.parquet", "--split", "group").startswith("the split by 'group' ")


def refused_again(at, file, *flags):
    """`refused` beside an older run."""
    done = invoke("train", file, "--out", "other", "--cache", "cache", *TINY, *flags)
    assert not (at / "other").exists()
    return last_line(done)


def test_sequences_of_length_one_are_nothing_to_learn_from(at):
    rows = {"user": range(30), "item": [i % 7 for i in range(30)], "time": range(30)}
    pl.DataFrame(rows).write_parquet("x.parquet")
    assert refused(at, "x.parquet") == (
        "every user has a single event: there is no next item to learn. Check that the user column "
        "names who took the items, not the event."
    )


def test_baskets_without_another_are_nothing_to_learn_from(at):
    rows = [(u, i, u if i < 3 else 50 + u + 30 * i) for u in range(30) for i in range(5)]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet("x.parquet")
    assert refused(at, "x.parquet", "--split", "last", "--set", "split.validation=1",
                   "--set", "split.test=1") == (
        "no user has two baskets to train on: there is no next item to learn. Use a longer log, a "
        "later cut, or check that --time is the right column."
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--history", "1003,9999"), "unknown item '9999'. The model knows 30 items."),
        (("--history", "1003,103"),
         "unknown item '103'. Did you mean '1023'? The model knows 30 items."),
        (("--user", "u99"), "unknown user 'u99'. Did you mean 'u9'? The model knows 10 users."),
        ((), "say for whom: one of --user KEY, --history KEY,KEY or --users FILE."),
        (("--user", "u1", "--history", "1003"),
         "say for whom: one of --user KEY, --history KEY,KEY or --users FILE."),
        (("--users", "users.txt"), "--users FILE and --out FILE go together."),
        (("--users", "users.txt", "--out", "a.xls"),
         "a.xls must end in one of .parquet, .jsonl, .csv."),
        (("--users", "none.csv", "--out", "a.csv"), "there is no file none.csv."),
        (("--users", "users.txt", "--out", "a.csv"),
         "users.txt: unknown user 'u77'. Did you mean 'u7'? The model knows 10 users."),
        (("--users", "empty.txt", "--out", "a.csv"), "empty.txt holds no user."),
    ],
)  # fmt: skip
def test_recommend_says_what_it_cannot_do(run, at, flags, words):
    (at / "users.txt").write_text("u1\nu77\n")
    (at / "empty.txt").write_text("\n\n")
    assert last_line(invoke("recommend", "run", *flags)) == words
    assert names(at) == ["empty.txt", "run", "users.txt"]


@pytest.mark.parametrize("what", [("evaluate",), ("recommend", "--user", "u1"), ("train",)])
def test_a_run_of_a_newer_version_is_refused(run, what):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"format": 99, "tapas": "9.0"}))
    name, *flags = what
    done = invoke(name, *(("--resume",) if name == "train" else ()), "run", *flags)
    assert last_line(done) == (
        f"run was written by tapas 9.0 (run format 99); this is tapas {__version__}, which knows "
        "formats up to 1. Upgrade tapas-softmax."
    )


def test_a_folder_that_holds_a_run_is_left_alone(run, at):
    write_chain(at / "log.parquet", num_users=3)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert last_line(invoke("train", "log.parquet", "--out", "run", "--cache", "c", *TINY)) == (
        "run holds a run already. Go on with it by --resume, or choose another --out."
    )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert not (at / "c").exists()


def test_there_is_nothing_to_resume(at):
    assert last_line(invoke("train", "--resume", "none")) == (
        "none holds no run (run.json is missing). There is no such folder. `tapas train ... --out "
        "none` makes one."
    )
    assert names(at) == []


def test_a_run_goes_on_as_it_began_or_not_at_all(run):
    done = invoke("train", "log.parquet", "--resume", "run", "--dim", 5, "--split", "last",
                  "--set", "loop.seed=1", "--threads", 2, "--min-count", 1)  # fmt: skip
    assert last_line(done) == (
        "--resume goes on with a run as it began; LOG, --min-count, --dim, --split, --set, "
        "--threads cannot be changed."
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "no log given. Try `tapas train purchases.parquet --out run`, or --resume."),
        (("x.csv", "--step", 3), "--step goes with --resume FOLDER."),
        (("x.csv", "--set", "loop.patience"),
         "--set 'loop.patience' is not SECTION.NAME=VALUE, as in head.alpha=0.5."),
        (("x.csv", "--set", "loop.patience=lots"),
         "loop.patience must be a whole number, got 'lots'."),
        (("x.csv", "--set", "lopp.patience=1"),
         "unknown section 'lopp'. Did you mean 'loop'? Known: head, log, loop, model, optimizer, "
         "service, split."),
        (("x.csv", "--encoder", "grv"),
         "unknown model.encoder 'grv'. Did you mean 'gru'? Known: gru, mean, transformer."),
        (("x.csv", "--config", "none.toml"), "cannot read none.toml: No such file or directory."),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_told_before_anything_is_read(at, flags, words):
    assert last_line(invoke("train", *flags, "--out", "out")) == words
    assert names(at) == []


@pytest.mark.parametrize("damage", ["cut", "altered", "gone", "state"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_offered(run, damage):
    newest = run / "checkpoints" / "step-00000004"
    file = newest / ("state.json" if damage == "state" else "dense.safetensors")
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        place = len(content) // 2
        altered = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        file.write_bytes(altered if damage == "altered" else content[:place])
    words = last_line(invoke("train", "--resume", "run"))
    assert words.startswith(f"{file.relative_to(run.parent)} ")
    assert words.endswith(" Step 2 is whole: take it with --step 2.")
    done = invoke("train", "--resume", "run", "--step", 2)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == content, "gone on from step 2, the same bits are there again"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("evaluate", "run", "--step", 77),
         "no checkpoint of step 77 in run/checkpoints. There are: 2, 4."),
        (("export", "run", "--to", "a.xyz"),
         "cannot tell what a.xyz shall be: its name must end in .faiss, .safetensors, .parquet, "
         ".pt2, or have no ending for a folder."),
        (("export", "run", "--to", "a.faiss", "--index", "flat"),
         "unknown index kind 'flat'. Known: exact, hnsw, ivf."),
        (("export", "run", "--to", "run"),
         "run exists and is not an empty folder. Choose another --to."),
        (("export", "run", "--to", "none/a.safetensors"),
         "cannot write none/a.safetensors: there is no folder none. Make it first."),
    ],
)  # fmt: skip
def test_evaluate_and_export_say_what_they_cannot_do(run, at, flags, words):
    assert last_line(invoke(*flags)) == words
    assert names(at) == ["run"]


@pytest.mark.parametrize(
    ("history", "keys"),
    [("a, b,", ["a", "b"]), ('["a,b", 7]', ["a,b", "7"]), (" [3]", ["3"])],
)
def test_keys_that_hold_commas_go_into_a_json_list(history, keys):
    assert recommend._split_keys(history) == keys


def test_a_broken_json_list_is_told():
    with pytest.raises(UsageError, match=re.escape("--history '[3' is no JSON list: ")):
        recommend._split_keys("[3")
