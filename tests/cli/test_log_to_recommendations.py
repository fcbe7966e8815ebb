"""From a log to recommendations, with the commands in the order of `tapas --help`."""

import json
import os
import pty
import re
import shutil
import threading
from contextlib import suppress

import polars as pl
import pytest
from damage import without_checksum
from error_text import raises_text
from forked import Forked
from oracle.command_line import (
    ENVIRONMENT,
    TINY,
    chain,
    installed_tapas,
    invoke,
    tapas,
    untimed_journal,
    write_chain,
)

from tapas.data.splits import SplitConfig
from tapas.training.config import build_config, read_toml
from tapas.training.load import load

pytestmark = pytest.mark.slow

QUICK = (
    "--threads", 1, "--dim", 16, "--steps", 80, "--batch", 16, "--num-samples", 25,
    "--set", "optimizer.encoder_lr=0.01", "--set", "model.history=8",
)  # fmt: skip


def stderr_of(done):
    """Stderr of a command that succeeded."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return done.stderr


def parsed(done):
    """The JSON object on stdout."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    stderr_of(done)
    return json.loads(done.stdout, parse_constant=refuse)


def lines(done):
    """(rank, key, score) of each line of a recommendation."""
    stderr_of(done)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(int(rank), key, float(score)) for rank, key, score in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("journey")
    write_chain(folder / "log.parquet")
    return folder


@pytest.fixture(scope="module")
def training(folder):
    return installed_tapas(
        "train", "log.parquet", "--out", "run", *QUICK, "--cache", "cache", "--json", cwd=folder
    )


@pytest.fixture(scope="module")
def run(folder, training):
    stderr_of(training)
    return folder / "run"


def test_inspect_describes_a_log_in_words_and_in_json(folder):
    done = tapas("inspect", "log.parquet", "--cache", "cache", cwd=folder)
    frame = chain()
    baskets = frame.select("user_id", "time").n_unique()
    assert done.stdout.splitlines()[0] == (
        f"{frame.height:,} events · 60 users · {frame['item_id'].n_unique()} items · "
        f"{baskets} baskets"
    )
    assert done.stdout.endswith("\nNext: tapas train log.parquet --out run\n")
    assert "Columns: user_id (user, guessed), item_id (item, guessed), time (time, guessed)." in (
        stderr_of(done)
    )
    csv = write_chain(folder / "log.csv")
    found = parsed(invoke("inspect", csv, "--item", "item_id", "--json", "--cache", folder / "c"))
    assert (found["num_events"], found["num_users"]) == (frame.height, 60)
    assert found["reading"]["guessed"] == ["user", "time"]


def test_train_leaves_a_run_and_says_how_it_went(training, run):
    outcome = parsed(training)
    assert outcome["reason"] in ("finished", "no_improvement")
    assert outcome["run"] == "run"
    assert 0 < outcome["best"] <= 1
    output = stderr_of(training)
    assert "Split by time at " in output
    assert (
        " and 200 classes: 80 steps of 16 histories; TAPAS (priority), 200 drawn, 25 kept; row "
        "optimizer lazy-adam.\n"
    ) in output
    evaluations = re.findall(r"^(step \d+ of 80 · loss [\d.]+ · validation .*)$", output, re.M)
    assert len(evaluations) == len(untimed_journal(run))
    assert re.search(r"^step 8 of .* MAP@20 0\.\d{4} \(best\) · \d+ s left$", output, re.M)
    assert "Chosen: loop.exclude_seen = true: 0.0 % of events repeat an item " in output
    assert output.endswith(
        "Report: run/report.html\nNext: `tapas evaluate run`, `tapas recommend run --user ...`, "
        "or look into it: `tapas serve run`.\n"
        "To learn from the held-out events, too: `tapas train --like run --out run-whole`.\n"
    )
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints", "config.toml", "journal.jsonl", "log", "report.html", "run.json",
        "tensorboard",
    ]  # fmt: skip


def test_evaluate_shows_the_model_next_to_the_baselines(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = invoke("evaluate", run)
    report, after = stderr_of(done).splitlines()[:2]
    assert report == f"Report: {run / 'report.html'}"
    assert after.startswith(("Next: tapas recommend ", "Try: tapas "))
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(done.stdout.split())
    assert re.match(r"(The model|Co-occurrence|No significant difference) .*MAP@20 [+-]", text)
    assert re.search(
        r"\. (\d+) users, one point each; the next 5 items of each are to be found among all 200\. "
        r"Items that a user had before are left out of lists and targets \(0 targets\)\. "
        r"Checkpoint: .*run, step \d+\. "
        "MAP@20 recall@20 NDCG@20 precision@1",
        text,
    )
    for name in ("model", "most popular", "own most frequent", "co-occurrence"):
        rows = [line for line in lines if line.startswith(f"{name} ")]
        assert re.fullmatch(rf"{name} +0\.\d{{4}} ±0\.\d{{4}}( +0\.\d{{4}}){{3}}", rows[0])
    for bucket in ("head", "middle", "tail", "unseen"):
        assert re.search(rf"^{bucket} +\d", done.stdout, re.MULTILINE)
    assert re.search(
        r"^most popular +\+0\.\d{4} \([+-]0\.\d{4} to \+0\.\d{4}\) +better$",
        done.stdout, re.MULTILINE,
    )  # fmt: skip
    assert "MRR@20" not in text


def test_evaluate_shows_all_metrics_when_asked(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = invoke("evaluate", run, "--all", "--users", 1)
    stderr_of(done)
    assert max(map(len, done.stdout.splitlines())) <= 80
    for metric in ("MAP@20", "MAP@20 ÷ hits", "MRR@20", "precision@5", "softmax loss"):
        assert re.search(rf"^{metric} +\d", done.stdout, re.MULTILINE)
    assert "MAP@20 ÷ hits: divided by the hits instead of the targets" in done.stdout
    assert done.stdout.startswith("1 user is too few to say who is better: at least 10 are needed.")
    for word in ("inf", "nan", "±", "significant"):
        assert word not in done.stdout, "one user has no interval"
    assert done.stderr == f"Report: {run / 'report.html'}\n", (
        "a sample that is too small says no more"
    )


def test_evaluate_in_json_has_every_number_and_the_model_has_learned(folder, run):
    found = parsed(tapas("evaluate", "run", "--json", "--exclude-seen", cwd=folder))
    assert found["exclude_seen"] is True
    assert list(found["scores"]) == ["model", "most popular", "own most frequent", "co-occurrence"]
    model, popular = (found["scores"][name]["metrics"]["map@20"] for name in
                      ("model", "most popular"))  # fmt: skip
    assert model["low"] > popular["high"], "a chain that is learned beats the most popular"
    few = parsed(invoke("evaluate", run, "--json", "--users", 1, "--on", "validation"))
    assert few["part"] == "validation"
    assert few["scores"]["model"]["num_examples"] == 1
    assert few["scores"]["model"]["metrics"]["map@20"]["high"] is None
    assert few["verdict"] == ["1 user is too few to say who is better: at least 10 are needed."]


def test_a_file_of_users_gets_a_file_of_recommendations_of_any_kind(folder, run):
    (folder / "users.csv").write_text("n,who\n1,u3\n2,u59\n3,u3\n")
    (folder / "users.txt").write_text("u3\nu59\n")
    output = {}
    for name, num_users, options in (
        ("out.parquet", 2, ("--users", folder / "users.csv", "--column", "who", "--exclude-seen")),
        ("out.jsonl", 2, ("--users", folder / "users.txt", "--json")),
        ("out.csv", 2, ("--users", folder / "users.txt")),
    ):
        out = folder / name
        output[name] = invoke("recommend", run, *options, "--top", 4, "--out", out)
        rows = 4 * num_users
        assert stderr_of(output[name]).endswith(
            f"Recommending 4 of 200 items for 2 users.\n"
            f"Wrote {rows} recommendations for {num_users} users to {out}.\n"
        )
    assert output["out.parquet"].stderr.startswith("1 repeated user left out: one list each.\n")
    assert parsed(output["out.jsonl"]) == {
        "users": 2, "rows": 8, "out": str(folder / "out.jsonl"), "skipped": 0, "popular": 0
    }  # fmt: skip
    assert output["out.csv"].stdout == ""
    frame = pl.read_ndjson(folder / "out.jsonl")
    assert frame.columns == ["user", "rank", "item", "probability"]
    assert frame["user"].to_list() == ["u3"] * 4 + ["u59"] * 4
    assert frame["rank"].to_list() == [1, 2, 3, 4] * 2
    assert frame.drop("probability").equals(pl.read_csv(folder / "out.csv").drop("probability"))
    alone = lines(tapas("recommend", "run", "--user", "u3", "--top", 4, cwd=folder))
    assert [rank for rank, _, _ in alone] == [1, 2, 3, 4]
    assert {key for _, key, _ in alone} <= {str(key) for key in chain()["item_id"].to_list()}
    assert sorted([score for _, _, score in alone], reverse=True) == [s for _, _, s in alone]
    assert frame["item"].cast(pl.String).to_list()[:4] == [key for _, key, _ in alone]
    assert frame["probability"].to_list()[:4] == pytest.approx([s for _, _, s in alone], abs=1e-4)
    unseen = pl.read_parquet(folder / "out.parquet")
    assert unseen["user"].to_list() == ["u3"] * 4 + ["u59"] * 4
    for user in ("u3", "u59"):
        taken = chain().filter(pl.col("user_id") == user)["item_id"].to_list()
        assert not set(taken) & set(unseen.filter(pl.col("user") == user)["item"].to_list())


def test_an_export_recommends_what_the_run_recommends(folder, run):
    done = tapas("export", "run", "--to", "shop", cwd=folder)
    assert stderr_of(done).startswith("Wrote shop from checkpoint step ")
    assert done.stdout == ""
    assert sorted(path.name for path in (folder / "shop").iterdir()) == [
        "README.txt", "counting.safetensors", "embeddings.safetensors", "encoder.pt2",
        "encoder.safetensors", "export.json", "items.parquet",
    ]  # fmt: skip
    asked = ("--history", "1003,1004,1010", "--top", 9, "--json", "--exclude-seen")
    mine, theirs = (
        parsed(tapas("recommend", source, *asked, cwd=folder)) for source in ("run", "shop")
    )
    assert mine == theirs
    assert not {1003, 1004, 1010} & {i["item"] for i in mine["items"]}
    model, shop = load(run), load(folder / "shop")
    assert repr(shop).endswith("shop: 200 items, no users, probability)")
    histories = [[1003, 1004], [1010]]
    assert (model.encode(histories) == shop.encode(histories)).all()
    assert (model.similar(1003, 5).items == shop.similar(1003, 5).items).all()
    assert shop.recommend([[]], 2, cold="popular").items.tolist() == [shop.items[:2]]
    older = shutil.copytree(folder / "shop", folder / "older")
    without_checksum(older / "export.json")
    refused = tapas("recommend", "older", "--history", "1003", cwd=folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "tapas: older was exported by an earlier version of tapas, with its encoder only as a "
        "program (encoder.pt2), which could do anything that you can. Export the run again, or "
        "add --trust (in Python trust=True) if you know who made the folder.\n"
    )
    trusted = parsed(tapas("recommend", "older", *asked, "--trust", cwd=folder))
    assert [i["item"] for i in trusted["items"]] == [i["item"] for i in mine["items"]]
    program = load(older, trust=True)
    assert program.encode(histories) == pytest.approx(shop.encode(histories), rel=1e-3, abs=1e-5)
    with raises_text("shop is an export, which has one checkpoint only. Leave step out."):
        load(folder / "shop", step=3)
    assert load(run, device="meta").class_vectors().is_meta
    for path in (run, folder / "shop"):
        with raises_text("device is 'gpu', which torch cannot use here: "):
            load(path, device="gpu")
    refused = tapas("recommend", "shop", "--user", "u3", cwd=folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "tapas: an export has items but no users. Give --history, or the folder of the run.\n"
    )


@pytest.mark.parametrize(
    "to", ["exact.faiss", "hnsw.faiss", "embeddings.safetensors", "embeddings.parquet", "e.pt2"]
)
def test_every_kind_of_export_is_written_and_measured(folder, run, to):
    kind = ("--index", "hnsw") if to == "hnsw.faiss" else ()
    done = invoke("export", run, "--to", folder / to, *kind, "--json")
    found = parsed(done)
    assert found["path"] == str(folder / to)
    assert (folder / to).stat().st_size > 0
    last = stderr_of(done).splitlines()[-1]
    start = f"Wrote {folder / to} and {to.replace('.faiss', '.keys.json')} from checkpoint step "
    if to == "exact.faiss":
        assert last == f"{start}{found['step']}: exact index of 200 items."
        assert found["recall@20"] == 1
    elif to == "hnsw.faiss":
        assert 0.95 <= found["recall@20"] <= 1
        assert last == (
            f"{start}{found['step']}: HNSW index of 200 items, recall@20 "
            f"{found['recall@20']:.3f} at efSearch {found['efSearch']}, measured with 30 histories."
        )
    elif to == "e.pt2":
        assert found["history"] == 8
    else:
        assert (found["items"], found["dim"]) == (200, 16)
    if to == "embeddings.parquet":
        frame = pl.read_parquet(folder / to)
        assert frame.columns == ["key", "vector", "bias"]
        assert frame["key"].to_list() == pl.read_parquet(
            run / "log" / "item_keys.parquet"
        )["key"].to_list()  # fmt: skip


def test_a_text_is_read_as_documents_of_words(tmp_path):
    words = [f"w{i}" for i in range(30)]
    rows = [
        {"doc": d, "body": " ".join(words[(d + j) % 30] for j in range(part, part + 8))}
        for d in range(200)
        for part in (0, 8)
    ]
    pl.DataFrame(rows).write_ndjson(tmp_path / "corpus.jsonl")
    done = tapas(
        "train", "corpus.jsonl", "--text", "body", "--group", "doc", "--out", "run", *QUICK,
        "--split", "group",
        "--steps", 60, "--set", "head.next_items=1", "--cache", "cache", cwd=tmp_path,
    )  # fmt: skip
    assert "Split by user; training: " in stderr_of(done)
    assert 'kind = "group"' in (tmp_path / "run" / "config.toml").read_text()
    rows = lines(tapas("recommend", "run", "--history", "w3,w4,w5", "--top", 3, cwd=tmp_path))
    assert rows[0][1] == "w6"


def test_a_log_without_times_is_split_by_the_last_events(tmp_path):
    """Orders as a shop exports them, by customer: the end of the file is a few customers."""
    chain(num_users=120).sort("user_id").drop("time").write_csv(tmp_path / "orders.csv")
    out, cache = tmp_path / "run", tmp_path / "cache"
    done = invoke("train", tmp_path / "orders.csv", "--out", out, "--cache", cache, *TINY)
    told = stderr_of(done).splitlines()
    assert "No time column: events are taken in the order of the file." in told
    words = (
        "Split by the last 2 events of each user, because the log has no times; training: {} "
        "events; validation: 120 users; test: 120 users."
    )
    assert words.format(f"{chain(num_users=120).height - 240:,}") in told
    written = build_config(read_toml(out / "config.toml")).split
    assert written == SplitConfig(kind="last", validation=1, test=1)


def test_settings_come_from_a_file_and_flags_win(folder, tmp_path):
    shutil.copy(folder / "log.parquet", tmp_path)
    (tmp_path / "quick.toml").write_text(
        "[log]\n"
        'files = ["*.parquet"]\n'
        "min_count = 2\n"
        "[model]\nencoder = 'mean'\ndim = 8\nhistory = 6\n"
        "[loop]\nsteps = 4\nbatch = 8\n[split]\nkind = 'last'\n"
    )
    done = tapas(
        "train", "--config", "quick.toml", "--dim", 12, "--set", "head.num_samples=9", "--set",
        "model.encoder=transformer", "--set", "loop.exclude_seen=true", "--min-count", 1,
        "--threads", 1, "--cache", "cache", "--out", "run", cwd=tmp_path,
    )  # fmt: skip
    assert "Split by the last 2 events of each user; training: " in stderr_of(done)
    written = (tmp_path / "run" / "config.toml").read_text()
    for line in ('encoder = "transformer"', "dim = 12", "history = 6", "num_samples = 9",
                 "steps = 4", "exclude_seen = true", "min_count = 1", 'kind = "last"',
                 f'files = ["{tmp_path / "log.parquet"}"]', 'user = "user_id"',
                 'item = "item_id"', 'time = "time"'):  # fmt: skip
        assert f"\n{line}\n" in written, line
    (tmp_path / "elsewhere").mkdir()
    again = tapas(
        "train", "--config", "../run/config.toml", "--threads", 1, "--cache", "cache", "--out",
        "../again", "--quiet", cwd=tmp_path / "elsewhere",
    )  # fmt: skip
    assert stderr_of(again) == ""
    settings = (tmp_path / "again" / "config.toml").read_text()
    assert settings.split("\n", 1)[1] == written.split("\n", 1)[1]  # the first is the checksum
    step = "checkpoints/step-00000004"
    for name in (f"{step}/dense.safetensors", f"{step}/rows-0.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert untimed_journal(tmp_path / "again") == untimed_journal(tmp_path / "run")
    found = parsed(invoke("evaluate", tmp_path / "again", "--json"))
    assert found["exclude_seen"] is True
    invoke("train", "--config", tmp_path / "run" / "config.toml", "--epochs", 1, "--threads", 1,
           "--cache", tmp_path / "cache", "--out", tmp_path / "epochs", "--quiet")  # fmt: skip
    settings = (tmp_path / "epochs" / "config.toml").read_text()
    assert "\nepochs = 1.0\nsteps = 25\n" in settings, "--epochs wins over the steps of the file"


def test_merged_rare_items_have_a_name_and_are_never_recommended(folder, tmp_path):
    seldom = pl.DataFrame(
        {"user_id": [f"u{n}" for n in range(9)], "item_id": [2**63 + n for n in range(9)],
         "time": [1_700_200_000] * 9},
        schema_overrides={"item_id": pl.UInt64},
    )  # fmt: skip
    log = chain().with_columns(pl.col("item_id").cast(pl.UInt64))
    pl.concat([log, seldom]).write_parquet(tmp_path / "log.parquet")
    stderr_of(
        invoke("train", tmp_path / "log.parquet", "--min-count", 2, "--rare", "fold", "--out",
               tmp_path / "run", *QUICK, "--steps", 4, "--cache", tmp_path / "cache",
               "--set", "loop.exclude_seen=false")
    )  # fmt: skip
    run = tmp_path / "run"
    stderr_of(invoke("export", run, "--to", tmp_path / "all.parquet"))
    assert "(rare)" in pl.read_parquet(tmp_path / "all.parquet")["key"].to_list()
    others = pl.read_parquet(tmp_path / "all.parquet").height - 1
    (tmp_path / "users.txt").write_text("u1\n")
    stderr_of(
        invoke("recommend", run, "--users", tmp_path / "users.txt", "--top", others, "--out",
               tmp_path / "all.jsonl")
    )  # fmt: skip
    everything = pl.read_ndjson(tmp_path / "all.jsonl")["item"].to_list()
    assert "(rare)" not in everything  # no item to recommend
    assert len(everything) == len(set(everything)) == others
    rows = lines(invoke("recommend", run, "--history", "(rare),1003", "--top", 2))
    assert len(rows) == 2


def test_a_terminal_sees_a_bar_with_a_rate_and_the_time_left(folder):
    terminal, far_end = pty.openpty()
    output = []

    def listen():
        with suppress(OSError):  # how a pty says that its far end was closed
            while heard := os.read(terminal, 4096):
                output.append(heard)

    listener = threading.Thread(target=listen)
    listener.start()
    done = Forked(
        "train", "log.parquet", "--out", "watched", *QUICK, "--steps", 400, "--set",
        "loop.patience=99", "--cache", "cache", "--json",
        cwd=folder, env=ENVIRONMENT, terminal=os.ttyname(far_end),
    ).end()  # fmt: skip
    os.close(far_end)
    listener.join()
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(output).decode())
    assert done.returncode == 0, text
    assert json.loads(done.stdout)["step"] == 400
    assert re.search(r"training .*\d+/400 .*steps/s .*\d:\d\d:\d\d .*loss [1-9]", text)


def test_help_names_every_command_and_mistakes_have_code_2():
    text = stderr_of(done := invoke("--help")) + done.stdout
    for name in ("inspect", "train", "evaluate", "recommend", "export", "demo"):
        assert re.search(rf"^  {name} ", text, re.MULTILINE)
    mistaken = invoke("train", "--epocs", 3)
    assert (mistaken.returncode, mistaken.stdout) == (2, "")
    assert "No such option: --epocs" in mistaken.stderr


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (("train", "--repeats"), "--repeats. Use --copy."),
        (("plan", "--samples", 5), "--samples. Use --num-samples."),
        (("train", "--learning-rate", 0.1), "--learning-rate. Use --lr."),
        (("train", "--gpu"), "--gpu. Use --device cuda."),
        (("evaluate", "--most=3"), "--most. Use --users."),
        (("info", "--repeats"), "--repeats"),  # it has no --copy
    ],
)
def test_a_flag_with_another_name_elsewhere_is_refused_with_ours(arguments, end):
    done = invoke(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{end}\n")
