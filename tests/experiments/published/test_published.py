"""`published`: public files become logs, runs are judged as tables are, and the page shows them."""

import pickle
import random

import numpy as np
import polars
import pytest
from oracle.command_line import invoke_experiment, last_line

from experiments.published.page import page
from experiments.published.published_rows import ROWS
from experiments.published.runs import DEFAULT, SOFTMAX, PublishedRun, count_histories, execute
from experiments.published.sets import SETS, find_sets, read_pickle
from experiments.trained_runs import Place, run_study
from tapas import DataError, UsageError
from tapas.comparison.ledger import Ledger
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig, split_log

TINY = ("bert4rec-beauty", "tmall")


def sequences(users=240, items=30, length=9):
    """Each item is followed by the next one, from a random start."""
    draw = random.Random(0)
    starts = [draw.randrange(items) for _ in range(users)]
    return [[1 + (start + i) % items for i in range(length)] for start in starts]


@pytest.fixture
def data(tmp_path):
    """A folder with small files in the formats of the public ones."""
    files = {
        "ICLRec/data/Beauty.txt": "".join(
            f"{user} {' '.join(map(str, items))}\n" for user, items in enumerate(sequences())
        ),
        "BERT4Rec/data/beauty.txt": "".join(
            f"{user} {item}\n" for user, items in enumerate(sequences()) for item in items
        ),
        "GCE-GNN/datasets/Tmall/all_train_seq.txt": pickle.dumps(sequences()),
        "GCE-GNN/datasets/Tmall/test.txt": pickle.dumps(
            ([[1, 2, 3], [29, 30], [7], [99, 4]], [4, 1, 8, 5])
        ),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


@pytest.mark.parametrize("name", ["beauty", "bert4rec-beauty", "tmall"])
def test_all_formats_become_the_same_log(name, data, tmp_path):
    log = polars.read_parquet(SETS[name].log(data, tmp_path / "cache"))
    want = [(user, item) for user, items in enumerate(sequences()) for item in items]
    assert log.rows() == want
    assert log.columns == ["user", "item"]


def test_a_missing_file_is_named_with_its_repository(tmp_path):
    words = (
        r"toys needs the file .*Toys_and_Games.txt, which is not there. Clone ICLRec into .*, "
        r"name another folder with --data, or leave the set out with --sets\."
    )
    with pytest.raises(UsageError, match=words):
        SETS["toys"].log(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [(pickle.dumps(print), "it names builtins.print"), (b"", "Ran out of input"), (b"x", "")],
)
def test_a_pickle_of_anything_but_numbers_is_refused(content, words, tmp_path):
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(DataError, match=rf"p is not a pickle of lists of numbers: .*{words}"):
        read_pickle(tmp_path / "p")


def test_a_line_that_is_not_numbers_is_named(data, tmp_path):
    (data / "ICLRec/data/Beauty.txt").write_text("1 2 3\n2 x\n")
    with pytest.raises(DataError, match=r"Beauty.txt, line 2: '2 x\\n' is not numbers\."):
        SETS["beauty"].log(data, tmp_path / "cache")


def test_an_unknown_set_is_told_its_name():
    with pytest.raises(UsageError, match=r"unknown set 'beuty'. Did you mean 'beauty'\?"):
        find_sets("tmall,beuty")


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_run_is_judged_with_and_without_counting(name, data, tmp_path):
    """The next item is certain, and counting alone finds it."""
    place = Place(data, tmp_path / "cache", tmp_path / "runs")
    run = PublishedRun(set=name, method=DEFAULT, seed=0, recipe=1)
    result = execute(run, place)
    assert result["scores"][DEFAULT]["recall@10"][0] > 0.9
    assert SOFTMAX in result["scores"]
    assert result["scores"]["co-occurrence"]["recall@10"][0] > 0.9
    assert result["points"] == (240 if name != "tmall" else 4)
    ledger = Ledger(tmp_path / "results.jsonl")
    ledger.add(result)
    shown = page(ledger, 1, (0,))
    assert SETS[name].title in shown
    assert all(row.model in shown for row in ROWS[name])
    assert "softmax without counting" in shown
    assert "counting: co-occurrence" in shown


def test_counting_reads_a_session_of_the_test_file_and_does_not_count_it(data, tmp_path):
    source = LogSource(files=(str(SETS["tmall"].log(data, tmp_path / "sets")),))
    log = prepare_log(source, tmp_path / "cache")
    split = split_log(log, SplitConfig(kind="group", validation=0.05, test=0.0))
    ids = {key: number for number, key in enumerate(log.item_keys.keys(np.arange(30)))}
    histories = [[ids[3], ids[9], ids[3]], [ids[30]]]
    counted = count_histories(histories, log, split)
    found = {name: lists.tolist() for name, (lists, _) in counted.items()}
    assert found["own most frequent"][0][:2] == [ids[3], ids[9]]
    assert found["own most frequent"][1][0] == ids[30]
    assert set(found["co-occurrence"][0][:5]) == {ids[n] for n in (4, 5, 6, 7, 8)}
    assert set(found["co-occurrence"][1][:5]) == {ids[n] for n in (1, 2, 3, 4, 5)}
    assert found["most popular"][0] == found["most popular"][1]


def test_methods_other_than_the_default_are_a_softmax_alone(data, tmp_path, monkeypatch):
    told = {}

    def train(config, folder, *, cache, given):
        told.update(config=config, given=given)
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.trained_runs.train", train)
    place = Place(data, tmp_path / "cache", tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        execute(PublishedRun(set="tmall", method="tapas", seed=5, recipe=1), place)
    config = told["config"]
    assert (config.head.method, config.head.options["num_samples"]) == ("tapas", 256)
    assert not config.model.copy
    assert not config.model.follow
    assert {"model.copy", "model.follow", "head.method", "loop.seed"} <= told["given"]
    assert "model.encoder" not in told["given"]
    assert (config.loop.seed, config.split.kind, config.head.next_items) == (5, "group", 1)


def test_the_command_says_what_is_unknown_or_missing(tmp_path):
    options = ("--out", tmp_path, "--data", tmp_path, "--cache", tmp_path / "cache")
    done = invoke_experiment("published", *options, "--methods", "ful")
    assert "unknown method 'ful'. Did you mean 'full'?" in last_line(done)
    done = invoke_experiment("published", *options, "--sets", "yelp")
    assert "yelp needs the file" in last_line(done)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_its_folder_goes_once_it_has_a_result(
    data, tmp_path, monkeypatch
):
    place = Place(data, tmp_path / "cache", tmp_path / "runs")
    run = PublishedRun(set="tmall", method="full", seed=0, recipe=1)
    ledger = Ledger(tmp_path / "results.jsonl")

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("experiments.published.runs.judge_sessions", killed)
        with pytest.raises(KeyboardInterrupt):
            run_study("published", [run], execute, ledger, place, workers=1)
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == [run.key()]
    run_study("published", [run], execute, ledger, place, workers=1)
    assert ledger[run]["seconds"] is None  # what it took in all is not known
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("points", [([[1, 2]], [77]), ([[77, 78]], [1])], ids=str)
def test_test_files_of_other_sessions_are_refused_before_training(points, data, tmp_path):
    (data / "GCE-GNN/datasets/Tmall/test.txt").write_bytes(pickle.dumps(points))
    place = Place(data, tmp_path / "cache", tmp_path / "runs")
    with pytest.raises(DataError, match=r"test point 1 of tmall has items that are not in GCE-GNN"):
        execute(PublishedRun(set="tmall", method="default", seed=0, recipe=1), place)


@pytest.mark.slow
def test_a_test_item_that_its_user_had_before_is_a_miss(data, tmp_path):
    """As in published tables, which rank all items but those of the history."""
    users = sequences()
    for items in users[:24]:
        items[-1] = items[0]
    lines = "".join(f"{u} {' '.join(map(str, items))}\n" for u, items in enumerate(users))
    (data / "ICLRec/data/Beauty.txt").write_text(lines)
    place = Place(data, tmp_path / "cache", tmp_path / "runs")
    result = execute(PublishedRun(set="beauty", method=DEFAULT, seed=0, recipe=1), place)
    assert result["points"] == 240
    assert 0.8 < result["scores"][DEFAULT]["recall@10"][0] <= 0.9
