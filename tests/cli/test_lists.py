"""`tapas recommend` and `tapas similar` for many, and the same by `tapas.load` in Python."""

import json
import signal

import polars as pl
import pytest
import torch
from error_text import raises_text
from oracle.command_line import TINY, chain, invoke, last_line, names, write_chain

import tapas
from tapas import UsageError
from tapas.retrieval import recommender
from tapas.training.run_evaluation import load_model
from tapas.training.run_folder import open_run


@pytest.fixture(scope="module")
def model(finished):
    return tapas.load(finished)


@pytest.fixture(scope="module")
def exact(finished):
    """Log-probabilities (10, 30) of all items after the history of each user, by key."""
    run = open_run(finished)
    sequence, _ = load_model(run)
    found = {}
    for user in range(run.log.num_users):
        items = torch.from_numpy(run.log.items[run.log.offsets[user] :][:200].copy())
        items = items[: int(run.log.offsets[user + 1] - run.log.offsets[user])][-50:][None].long()
        prediction = sequence.predict(items, torch.tensor([items.shape[1]]))
        log_prob = prediction.log_prob(torch.arange(30)[None])[0]
        best = log_prob.sort(descending=True, stable=True)
        found[run.log.user_keys.key(user)] = (
            run.log.item_keys.keys(best.indices.numpy()), best.values.exp().tolist()
        )  # fmt: skip
    return found


def written(path):
    """{user: (items, probabilities)} of a file of lists."""
    frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    assert frame.columns == ["user", "rank", "item", "probability"]
    found = {}
    for (user,), rows in frame.group_by("user", maintain_order=True):
        assert rows["rank"].to_list() == list(range(1, rows.height + 1))
        found[user] = (rows["item"].to_list(), rows["probability"].to_list())
    return found


def same(found, exact, k):
    assert set(found) == set(exact)
    for user, (items, probabilities) in found.items():
        assert items == exact[user][0][:k]
        assert probabilities == pytest.approx(exact[user][1][:k], rel=1e-4)


def test_all_users_get_the_items_with_the_highest_probabilities(run, at, exact, monkeypatch):
    monkeypatch.setattr(recommender, "BATCH_SIZE", 3)
    monkeypatch.setattr(recommender, "SORTED_TOGETHER", 2)
    done = invoke("recommend", "run", "--users", "all", "--top", 30, "--out", "a.parquet", "--json")
    assert json.loads(done.stdout) == {
        "users": 10, "rows": 300, "out": "a.parquet", "skipped": 0, "popular": 0
    }  # fmt: skip
    assert done.stderr == (
        "Recommending 30 of 30 items for 10 users.\n"
        "Wrote 300 recommendations for 10 users to a.parquet.\n"
    )
    found = written(at / "a.parquet")
    same(found, exact, 30)
    assert all(
        sum(probabilities) == pytest.approx(1, abs=1e-4) for _, probabilities in found.values()
    )
    assert names(at) == ["a.parquet", "run"]


def test_python_and_the_command_give_the_same_lists(model, exact):
    lists = model.recommend(list(exact), k=7)
    found = {
        user: (items.tolist(), scores.tolist())
        for user, items, scores in zip(lists.keys, lists.items, lists.scores, strict=True)
    }
    same(found, exact, 7)
    frame = model.recommend(pl.Series(["u3"]), k=2)
    assert frame["item"].to_list() == exact["u3"][0][:2]
    assert model.encode(["u3", "u4"]).shape == (2, 4)
    assert (len(model.users), len(model.items)) == (10, 30)
    assert repr(model).endswith(": 30 items, 10 users, probability)")


def test_a_history_file_with_the_whole_log_gives_what_the_run_knows(run, at, exact):
    frame = chain(num_users=10, num_items=30)
    one_a_basket = frame.unique(["user_id", "time"], keep="first")  # a basket has no order
    one_a_basket.write_csv(at / "new.csv")
    done = invoke("recommend", "run", "--history", "new.csv", "--out", "a.csv", "--top", 3)
    assert done.returncode == 0, done.stderr
    histories = one_a_basket.sort("time").group_by("user_id").agg("item_id")
    model = tapas.load(run)
    lists = model.recommend(histories["item_id"], k=3)
    want = dict(zip(histories["user_id"], lists["item"].to_list()[::3], strict=True))
    assert {user: items[0] for user, (items, _) in written(at / "a.csv").items()} == want


def test_new_users_and_events_are_served_and_what_is_left_out_is_counted(run, at):
    (at / "new.csv").write_text(
        "who,sku,when\nnew,1003,2024-01-01\nu1,1004,2024-01-02\nu1,7777,2024-01-03\n"
        ",1004,2024-01-03\nlost,8888,2024-01-03\n"
    )
    flags = ("--history", "new.csv", "--column", "who", "--column", "time=when", "--top", 3)
    done = invoke("recommend", "run", *flags, "--out", "a.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[2:5] == [
        "1 user skipped: 1 without a known item.",
        "1 row left out (first: new.csv, row 4: who is empty).",
        "2 events of unknown items left out (first: '8888').",
    ]
    assert json.loads(done.stdout)["skipped"] == 1
    assert set(written(at / "a.csv")) == {"new", "u1"}
    alone = invoke("recommend", "run", "--history", "1003", "--top", 3).stdout
    assert [line.split("\t")[1] for line in alone.splitlines()] == [
        str(item) for item in written(at / "a.csv")["new"][0]
    ]
    done = invoke("recommend", "run", *flags, "--out", "b.csv", "--cold", "popular")
    assert "The most popular items go to 1 user without a history.\n" in done.stderr
    assert set(written(at / "b.csv")) == {"new", "u1", "lost"}


def test_bad_users_in_a_file_are_skipped_and_counted(run, at):
    (at / "users.csv").write_text("n,user_id\n1,u3\n2,\n3,brandnew\n4,u3\n5,u4\n6,other\n")
    flags = ("--users", "users.csv", "--top", 2, "--out", "a.csv")
    done = invoke("recommend", "run", *flags)
    assert done.stderr.splitlines()[:2] == [
        "3 users skipped: 2 unknown, 1 without a key (first: row 2).",
        "1 repeated user left out: one list each.",
    ]
    assert list(written(at / "a.csv")) == ["u3", "u4"]
    assert last_line(invoke("recommend", "run", *flags)) == (
        "a.csv exists. Choose another --out or add --force."
    )
    done = invoke("recommend", "run", *flags, "--force", "--cold", "popular", "--json")
    assert json.loads(done.stdout) == {
        "users": 4, "rows": 8, "out": "a.csv", "skipped": 1, "popular": 2
    }  # fmt: skip
    found = written(at / "a.csv")
    counts = open_run(run).log.item_keys.counts
    assert found["brandnew"] == found["other"]
    assert found["other"][1][0] < counts.max() / counts.sum() * 2
    assert "2 rows" not in last_line(
        invoke("recommend", "run", *flags, "--force", "--cold", "error")
    )


def test_a_single_user_may_get_the_popular_items_or_none(run):
    done = invoke("recommend", "run", "--user", "nobody", "--cold", "popular", "--top", 2)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["1", "2"]
    done = invoke("recommend", "run", "--user", "nobody", "--cold", "skip")
    assert (done.returncode, done.stdout) == (0, "")


def test_unknown_items_of_one_history_are_left_out_with_a_word(run):
    want = invoke("recommend", "run", "--history", "1003,1004").stdout
    done = invoke("recommend", "run", "--history", "1003,103,9999,1004")
    assert done.stderr == "Left out unknown item '103' and 1 more. Did you mean '1023'?\n"
    assert done.stdout == want


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "stopped by Ctrl-C."), (signal.SIGTERM, 143, "stopped by SIGTERM.")],
)
def test_a_signal_leaves_no_file_and_says_so(run, at, monkeypatch, number, code, words):
    def stop(*_):
        signal.raise_signal(number)

    before = signal.getsignal(number)
    monkeypatch.setattr(recommender.Recommender, "_readable", stop)
    done = invoke("recommend", "run", "--users", "all", "--out", "a.parquet")
    assert last_line(done, code) == words
    assert signal.getsignal(number) == before
    assert done.stderr.splitlines()[-2] == "a.parquet was not written."
    assert names(at) == ["run"]


def cosines(model):
    vectors = model.class_vectors().double().numpy()
    vectors /= (vectors**2).sum(1, keepdims=True) ** 0.5
    return vectors @ vectors.T


def test_similar_items_are_those_with_the_highest_cosine(run, at, model):
    cosine = cosines(model)
    invoke("similar", "run", "--items", "all", "--top", 29, "--out", "s.parquet")
    frame = pl.read_parquet(at / "s.parquet")
    assert frame.columns == ["item", "rank", "similar", "cosine"]
    assert frame.height == 30 * 29
    row, column = (model.item_keys.ids(frame[name].to_list()) for name in ("item", "similar"))
    assert frame["cosine"].to_list() == pytest.approx(cosine[row, column].tolist(), abs=1e-5)
    assert not (frame["item"] == frame["similar"]).any()
    for _, rows in frame.group_by("item"):
        assert rows.sort("rank")["cosine"].is_sorted(descending=True)
        assert rows["similar"].n_unique() == 29
    done = invoke("similar", "run", "--item", 1003, "--top", 2, "--json")
    first = frame.filter(pl.col("item") == 1003).head(2)
    found = json.loads(done.stdout)
    assert found["item"] == "1003"
    assert [row["item"] for row in found["items"]] == first["similar"].to_list()
    assert model.similar(1003, 2).items[0].tolist() == first["similar"].to_list()


def test_a_file_of_items_may_have_unknown_ones(run, at):
    (at / "items.csv").write_text("sku\n1003\n7\n\n1003\n1004\n")
    done = invoke("similar", "run", "--items", "items.csv", "--top", 1, "--out", "s.csv")
    assert done.stderr.splitlines() == [
        "2 items skipped: 1 unknown, 1 without a key (first: '7', row 2).",
        "1 repeated item left out: one list each.",
        "Finding the 1 most similar of 30 items for 2 items.",
        "Wrote 2 similar items for 2 items to s.csv.",
    ]


def test_a_method_without_class_vectors_has_probabilities_but_no_similar_items(at):
    write_chain(at / "log.parquet", num_users=10, num_items=30)
    tree = ("--set", "head.method=huffman")
    done = invoke("train", "log.parquet", "--out", "run", "--cache", "cache", *TINY, *tree)
    assert done.returncode == 0, done.stderr
    assert last_line(invoke("similar", "run", "--item", 1003)) == (
        "the method 'huffman' has no table of class vectors, which shared inputs, exports and "
        "similar items need. `tapas recommend` works without it."
    )
    model = tapas.load("run")
    assert model.score == "probability"
    assert model.recommend("u1", 30).scores.sum() == pytest.approx(1, abs=1e-4)


def test_a_method_without_probabilities_says_score(at):
    write_chain(at / "log.parquet", num_users=10, num_items=30)
    flags = ("--out", "run", "--cache", "cache", *TINY, "--set", "head.method=warp")
    assert invoke("train", "log.parquet", *flags).returncode == 0
    invoke("recommend", "run", "--users", "all", "--out", "a.csv")
    assert pl.read_csv("a.csv").columns == ["user", "rank", "item", "score"]
    model = tapas.load("run")
    assert model.recommend("u1", 3).score == "score"


def test_the_step_and_the_device_can_be_chosen(finished):
    steps = open_run(finished).checkpoints.steps()
    assert f"step {steps[0]}" in repr(tapas.load(finished, step=steps[0], device="cpu"))
    with pytest.raises(UsageError, match="holds no run"):
        tapas.load(finished / "none")


def test_keys_with_tabs_and_line_breaks_stay_on_their_line(at):
    rows = [(f"u{u}", f"a\t{(u + t) % 5}\n\x1b[31m", t) for u in range(12) for t in range(6)]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet("log.parquet")
    flags = ("--out", "run", "--cache", "cache", *TINY)
    assert invoke("train", "log.parquet", *flags).returncode == 0
    done = invoke("recommend", "run", "--user", "u1", "--top", 2)
    for line in done.stdout.splitlines():
        assert line.split("\t")[1].startswith("a\\t")
        assert line.split("\t")[1].endswith("\\n\\x1b[31m")
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("name", ["head.table.weight", "input_table.weight", "encoder.out.bias"])
def test_a_model_with_nan_is_refused_by_name(run, monkeypatch, name):
    def load_diverged(folder, step=None, **options):
        model, step = load_model(folder, step, **options)
        model.state_dict()[name].view(-1)[-1] = torch.nan
        return model, step

    step = tapas.load("run").name.split()[-1]
    monkeypatch.setattr("tapas.training.load.load_model", load_diverged)
    words = (
        f"{name} of step {step} in run contains NaN or inf. The model has diverged: use an earlier "
        "step, or train with a lower learning rate."
    )
    for command in (("recommend", "run", "--user", "u1"), ("similar", "run", "--item", 1001)):
        assert last_line(invoke(*command)) == words
    with raises_text(words, tapas.DataError):
        tapas.load("run")
