"""A run with `--copy` and `--follow`: train, evaluate, recommend and export."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from damage import flip, rewrite
from error_text import raises_text
from oracle import mixture as oracle
from oracle.command_line import TINY, invoke, last_line, names, write_chain

import tapas
from tapas import DataError
from tapas.data.baskets import baskets_ago
from tapas.data.splits import split_log
from tapas.training.journal import read_journal
from tapas.training.run_evaluation import load_model
from tapas.training.run_folder import open_run

HISTORY = 3  # of the encoder; the counting parts read more


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose rare items are folded into one class, which is never to be recommended."""
    folder = tmp_path_factory.mktemp("counting")
    file = write_chain(folder / "log.parquet", num_users=10, num_items=30)
    done = invoke(
        "train", file, "--out", folder / "run", "--cache", folder / "cache", *TINY, "--copy",
        "--follow", "--encoder", "gru", "--method", "tapas", "--min-count", 7, "--rare", "fold",
        "--set", f"model.history={HISTORY}", "--set", "loop.exclude_seen=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = invoke("export", folder / "run", "--to", folder / "shop", "--json")
    assert done.returncode == 0, done.stderr
    assert "part" not in json.loads(done.stdout)
    return folder


@pytest.fixture
def run(folder):
    return open_run(folder / "run")


def recommended(path, *options):
    done = invoke("recommend", path, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["items"]


def probabilities(run, user):
    """Probabilities (C,) after all events of `user`, by loops, if the whole log is counted."""
    log = run.log
    model, _ = load_model(run)
    mine = slice(int(log.offsets[user]), int(log.offsets[user + 1]))
    items = log.items[mine].tolist()
    ages = baskets_ago(log.times[mine][None], np.array([len(items)]))[0].tolist()
    query = model.query(torch.tensor([items]), torch.tensor([len(items)]))
    weight, bias = model.head.table.rows(torch.arange(log.num_items))
    logits = (query @ weight.t() + bias)[0].tolist()
    arrays = log.items, log.times, log.offsets, log.offsets[1:], log.num_items
    excluded = (log.item_keys.rare_id,)
    count = oracle.transitions(*arrays)
    return oracle.mixed(model.mixture, count, items, ages, logits, excluded)[0]


def test_lists_are_those_of_the_mixture_that_counts_the_whole_log(folder, run):
    """The encoder reads fewer events of a user than the counting parts."""
    keys, user = run.log.item_keys, 4
    prob = probabilities(run, user)
    best = oracle.best(prob, 27, (keys.rare_id,))
    found = recommended(folder / "run", "--user", run.log.user_keys.key(user), "--top", 27)
    assert [row["item"] for row in found] == keys.keys(best)
    assert [row["probability"] for row in found] == pytest.approx(prob[best].tolist(), abs=1e-4)
    assert sum(prob[best]) < 1, "the class of rare items has the rest"


def test_an_export_gives_the_lists_of_its_run(folder):
    ours, theirs = tapas.load(folder / "run"), tapas.load(folder / "shop")
    items = ours.items
    histories = [items[:1], items[3:9] * 3, [*items, *items[::2]], items[-7:]]
    events = pl.read_parquet(folder / "log.parquet")  # with baskets
    known = events.filter(pl.col("item_id").is_in(items))
    for exclude in (False, True):
        mine, other = (model.recommend(histories, 9, exclude) for model in (ours, theirs))
        assert mine.items.tolist() == other.items.tolist()
        np.testing.assert_allclose(mine.scores, other.scores, rtol=1e-6)
        frame, same = (model.recommend(known, 9, exclude) for model in (ours, theirs))
        assert frame["item"].to_list() == same["item"].to_list()
        np.testing.assert_allclose(frame["probability"], same["probability"], rtol=1e-6)
    np.testing.assert_array_equal(ours.encode(histories), theirs.encode(histories))
    assert ours.encode([]).shape == theirs.encode([]).shape == (0, 4)


def test_what_is_judged_counts_training_events_only(folder, run):
    """And the mean loss is that of the journal, on validation events."""
    end = split_log(run.log, run.config.split).train_end
    arrays = run.log.items, run.log.times, run.log.offsets
    for whole_log, counted in ((False, end), (True, run.log.offsets[1:])):
        model, step = load_model(run, whole_log=whole_log)
        want = oracle.transitions(*arrays, counted, run.log.num_items).sum()
        assert float(model.mixture.follow.transitions.counts.sum()) == pytest.approx(want)
    done = invoke("evaluate", folder / "run", "--on", "validation", "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]
    written = [line for line in read_journal(folder / "run" / "journal.jsonl") if "loss" in line]
    (line,) = [line for line in written if line["step"] == step]
    assert scores["model"]["metrics"]["loss"]["mean"] == pytest.approx(line["loss"], rel=1e-5)
    assert max(each["coverage"] for each in scores.values()) < run.log.num_items


def test_other_files_have_the_softmax_part_only(folder, at):
    done = invoke("export", folder / "run", "--to", "items.safetensors", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == (
        "items.safetensors has only the softmax part, not the counting parts (model.copy, "
        "model.follow): its lists differ from those of `tapas recommend`. A folder, a --to "
        "without an ending, has all parts."
    )
    assert json.loads(done.stdout)["part"] == "softmax"
    assert names(at) == ["items.safetensors"]
    readme = (folder / "shop" / "README.txt").read_text()
    assert "counting.safetensors    counts of items, which `tapas recommend` mixes into" in readme


@pytest.fixture
def shop(folder, tmp_path):
    """A copy of the export, which the test may damage."""
    return shutil.copytree(folder / "shop", tmp_path / "shop")


@pytest.mark.parametrize("reads", [0, -1, 1.5, True, "many", None])
def test_an_absurd_number_of_events_to_read_is_refused(shop, reads):
    rewrite(shop / "export.json", lambda record: record.update(reads=reads))
    words = (
        f"{shop}/export.json: reads is {reads!r}; expected how many events of a history the model "
        "reads. Export the run again."
    )
    with raises_text(words, DataError):
        tapas.load(shop)


def test_a_changed_file_of_counts_is_refused(shop):
    file = shop / "counting.safetensors"
    flip(file, -1)
    assert last_line(invoke("recommend", shop, "--history", "1001")) == (
        f"{file} is damaged: its checksum differs from the one it was saved with. Export the run "
        "again."
    )
    file.unlink()
    with raises_text(f"{file} ", DataError):
        tapas.load(shop)
