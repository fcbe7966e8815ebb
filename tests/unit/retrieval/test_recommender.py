"""Recommendations of a model whose answers are obvious, for every kind of input."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from error_text import raises_text

from tapas import DataError, UsageError
from tapas.data.histories import key_column
from tapas.data.prepare import prepare_log
from tapas.data.python_histories import parse_given
from tapas.data.source import LogSource
from tapas.data.vocabulary import Vocabulary
from tapas.retrieval import Recommender, recommender

C, T = 31, 4
KEYS = Vocabulary(pl.Series([100 + id for id in range(C)]), np.arange(C)[::-1])


class Obvious(Recommender):
    """The best classes are the lowest that are not excluded, with probability 1/2, 1/4, ..."""

    def __init__(self, *, keys=KEYS, log=None, exclude_seen=False, fixed_width=False):
        self.seen, self.excluded, self.ages = [], [], []
        super().__init__(
            name="obvious", item_keys=keys, log=log, history_length=T, score="probability",
            exclude_seen=exclude_seen, fixed_width=fixed_width,
        )  # fmt: skip

    def predict(self, items, lengths, age=None):
        assert items.dtype == lengths.dtype == torch.int64
        self.seen.append((items, lengths))
        self.ages.append(None if age is None else age.tolist())

        def topk_log_prob(k, exclude):
            self.excluded.append(exclude)
            excluded = [[]] * len(items) if exclude is None else exclude.tolist()
            ids = [[c for c in range(C) if c not in row][:k] for row in excluded]
            ids = torch.tensor([row + [-1] * (k - len(row)) for row in ids])
            score = torch.full(ids.shape, 0.5).cumprod(1).log().masked_fill(ids < 0, -torch.inf)
            return score, ids

        return SimpleNamespace(topk_log_prob=topk_log_prob)

    output_table = None

    def queries(self, items, lengths):
        return torch.stack([items.sum(dim=1), lengths], dim=1).float()

    def class_vectors(self):
        angle = torch.arange(C) * torch.pi / C
        return torch.stack([angle.cos(), angle.sin()], dim=1) * torch.arange(C)[:, None]

    def training_counts(self):
        return np.arange(C)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    rows = [("u1", 100, 1), ("u1", 101, 2), ("u2", 105, 1), ("u3", 130, 9)]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_csv(folder / "log.csv")
    log = prepare_log(LogSource(files=(str(folder / "log.csv"),)), folder / "cache")
    log.items = KEYS.ids(log.item_keys.keys(log.items))  # ids of KEYS, not those of the log
    return log


def test_the_model_sees_the_last_items_without_needless_padding():
    model = Obvious()
    lists = model.recommend([[109, 101, 102, 103, 104, 105], [107], [103, 102]], 3)
    ((items, lengths),) = model.seen
    assert items.tolist() == [[7, 0, 0, 0], [3, 2, 0, 0], [2, 3, 4, 5]]  # sorted by length
    assert lengths.tolist() == [1, 2, 4]
    assert lists.items.tolist() == [[100, 101, 102]] * 3
    assert lists.scores.tolist() == [[0.5, 0.25, 0.125]] * 3
    assert model.excluded == [None]
    model.recommend([[107]], 3)
    assert model.seen[-1][0].tolist() == [[7]]
    fixed = Obvious(fixed_width=True)
    fixed.recommend([[107]], 3)
    assert fixed.seen[0][0].tolist() == [[7, 0, 0, 0]]


def test_the_model_is_told_how_many_baskets_ago_items_were_if_times_are_known(log):
    model = Obvious(log=log)
    model.recommend(["u1", "u2"], 1)
    assert model.ages[-1] == [[1, 0], [2, 1]]
    rows = [("a", 109, 0), ("a", 101, 1), ("a", 102, 2), ("a", 103, 2), ("a", 104, 3)]
    frame = pl.DataFrame([*rows, ("a", 999, 4)], schema=["user", "item", "time"], orient="row")
    with pytest.warns(UserWarning, match="unknown items of histories are left out: 1"):
        model.recommend(frame, 1)
    assert model.ages[-1] == [[3, 2, 2, 1]]  # of the baskets with known items
    model.recommend([[109, 101]], 1)
    assert model.ages[-1] is None


def test_the_full_history_is_excluded_not_only_what_the_model_sees():
    model = Obvious()
    histories = [[100, 100, 101, 105, 106, 107, 108], [102, 102]]
    lists = model.recommend(histories, 3, exclude_seen=True)
    assert lists.items.tolist() == [[102, 103, 104], [100, 101, 103]]
    assert model.excluded[0].tolist() == [[2, -1, -1, -1, -1, -1], [0, 1, 5, 6, 7, 8]]
    assert Obvious(exclude_seen=True).recommend(histories, 1).items.tolist() == [[102], [100]]
    kept = Obvious(exclude_seen=True).recommend(histories, 1, exclude_seen=False)
    assert kept.items.tolist() == [[100], [100]]


def test_the_class_of_rare_items_is_never_listed():
    keys = Vocabulary(pl.Series([100 + c if c else None for c in range(C)]), np.arange(C))
    model = Obvious(keys=keys)
    assert model.recommend([[105, "(rare)"]], 2).items.tolist() == [[101, 102]]
    assert model.recommend([[105]], 30, exclude_seen=True).items[0, -1] is None
    assert 100 not in model.items
    assert len(model.items) == model.num_items == 30
    model.training_counts = lambda: np.where(np.arange(C) == 0, 535, np.arange(C))
    popular = model.recommend([[]], 2, cold="popular")  # shares of all 1,000 events
    assert popular.items.tolist() == [[130, 129]]
    assert popular.scores[0].tolist() == pytest.approx([0.03, 0.029])
    everything = model.similar(101, 29).items.tolist()[0]
    assert sorted(everything) == list(range(102, 131))
    with raises_text("k is 31, but the model can list only 30 items."):
        model.recommend([[101]], 31)


@pytest.mark.parametrize("number", [0, 1, 6, 7, 15])
def test_many_histories_are_ranked_in_batches_and_returned_in_order(monkeypatch, number):
    monkeypatch.setattr(recommender, "BATCH_SIZE", 3)
    monkeypatch.setattr(recommender, "SORTED_TOGETHER", 2)
    model = Obvious()
    histories = [[100 + (7 * i) % C] * (1 + i % 5) for i in range(number)]
    lists = model.recommend(histories, 2, exclude_seen=True)
    assert lists.items.shape == lists.scores.shape == (number, 2)
    want = [[c for c in (100, 101, 102) if c != history[0]][:2] for history in histories]
    assert lists.items.tolist() == want
    assert all(len(items) <= 3 for items, _ in model.seen)
    want = [[(h[0] - 100) * min(len(h), T), min(len(h), T)] for h in histories]
    assert model.encode(histories).tolist() == want
    assert model.encode(histories).shape == (number, 2)


def test_a_list_has_20_items_or_all_if_there_are_fewer():
    few = Vocabulary(KEYS.gather(np.arange(5)), np.arange(5))
    assert Obvious().recommend([[105]]).items.shape == Obvious().similar([105]).items.shape
    assert Obvious().recommend([[105]]).items.shape == (1, 20)
    assert Obvious(keys=few).recommend([[101]]).items.shape == (1, 5)
    assert Obvious(keys=few).check_k(None, others=True) == 4
    one = Vocabulary(KEYS.gather(np.arange(1)), np.arange(1))
    with raises_text("k is 20, but the model can list only 0 items."):
        Obvious(keys=one).check_k(None, others=True)


def test_a_short_list_ends_in_none_and_has_fewer_rows():
    lists = Obvious().recommend([[100], list(range(100, 129))], 3, exclude_seen=True)
    assert lists.items.tolist() == [[101, 102, 103], [129, 130, None]]
    assert lists.scores[1].tolist() == [0.5, 0.25, 0]
    frame = lists.to_frame()
    assert frame.columns == ["history", "rank", "item", "probability"]
    assert frame.rows() == [
        (0, 1, 101, 0.5), (0, 2, 102, 0.25), (0, 3, 103, 0.125), (1, 1, 129, 0.5), (1, 2, 130, 0.25)
    ]  # fmt: skip


def users_in_every_form():
    yield "u2"
    yield ["u2"]
    yield ("u2",)
    yield np.array(["u2"])
    yield np.array(["u2"], dtype=object)
    yield (user for user in ["u2"])
    yield pl.Series(["u2"])
    yield pl.DataFrame({"anything": ["u2"]})
    yield pl.DataFrame({"n": [1], "customer": ["u2"]})


@pytest.mark.parametrize("given", [*users_in_every_form()], ids=lambda given: type(given).__name__)
def test_users_may_come_in_any_form(log, given):
    model = Obvious(log=log, exclude_seen=True)
    found = model.recommend(given, 2)
    if isinstance(given, pl.DataFrame | pl.Series):
        assert found.rows() == [("u2", 1, 100, 0.5), ("u2", 2, 101, 0.25)]
    else:
        assert found.items.tolist() == [[100, 101]]
        assert (found.keys.tolist(), found.kind, len(found)) == (["u2"], "user", 1)
    assert model.excluded[0].tolist() == [[5]]


def histories_in_every_form():
    yield [[100, 101], [105, 105]]
    yield [("100", "101"), ["105", 105]]
    yield np.array([[100, 101], [105, 105]])
    yield torch.tensor([[100, 101], [105, 105]])
    yield [np.array([100, 101]), pl.Series([105])]
    yield [range(100, 102), torch.tensor([105])]
    yield pl.Series([[100, 101], [105]])
    yield pl.DataFrame({"user": [0, 1, 0], "item": [101, 105, 100], "time": [2, 1, 1]})
    yield pl.DataFrame({"sku": ["100", "105", "101"], "visitor": [0, 1, 0]})


@pytest.mark.parametrize(
    "given", [*histories_in_every_form()], ids=lambda given: type(given).__name__
)
def test_histories_may_come_in_any_form(given):
    model = Obvious()
    found = model.recommend(given, 2, exclude_seen=True)
    if isinstance(given, pl.DataFrame | pl.Series):
        assert found.columns == ["user", "rank", "item", "probability"]
        assert found["user"].to_list() == [0, 0, 1, 1]
        found = found["item"].to_list()
    else:
        assert found.kind == "history"
        found = found.items.reshape(-1).tolist()
    assert found == [102, 103, 100, 101]


class FakePandas(ModuleType):
    """As much of pandas as is used, as it is not installed here."""

    class Series:
        def __init__(self, values, index=range(0), name=None):
            self.values, self.index, self.name = list(values), index, name

        def tolist(self):
            return self.values

        def isna(self):
            return FakePandas.Series([v is None or v != v for v in self.values])

    class Index:
        def __init__(self, levels):
            self.levels, self.names = dict(levels), list(levels)

        def tolist(self):
            return next(iter(self.levels.values()))

        def get_level_values(self, name):
            return FakePandas.Series(self.levels[name])

    class DataFrame:
        def __init__(self, columns, index=range(0)):
            self.data, self.columns, self.index = dict(columns), list(columns), index

        def __getitem__(self, name):
            return FakePandas.Series(self.data[name], self.index, name)


FakePandas.Series.__module__ = FakePandas.DataFrame.__module__ = "pandas.core"


def test_pandas_gets_pandas_back(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", FakePandas("pandas"))
    model = Obvious(log=log)
    for given in (FakePandas.Series(["u2"]), FakePandas.DataFrame({"customer": ["u2"]})):
        found = model.recommend(given, 2)
        assert isinstance(found, FakePandas.DataFrame)
        assert {name: list(values) for name, values in found.data.items()} == {
            "user": ["u2"] * 2, "rank": [1, 2], "item": [100, 101], "probability": [0.5, 0.25]
        }  # fmt: skip
    events = {"user": [7.0, 7.0, float("nan")], "item": [101, 100, 1], "time": [2, 1, 1]}
    found = model.recommend(FakePandas.DataFrame(events), 1, exclude_seen=True)
    assert (list(found.data["user"]), list(found.data["item"])) == ([7], [102])
    by_user = FakePandas.Series([[101], [100]], index=FakePandas.Series(["x", "y"]))
    assert list(model.recommend(by_user, 1).data["user"]) == ["x", "y"]
    assert list(model.similar(FakePandas.Series([101]), 1).data) == [
        "item", "rank", "similar", "cosine"
    ]  # fmt: skip
    lists = model.recommend(["u2"], 2)
    assert isinstance(lists.to_frame("pandas"), FakePandas.DataFrame)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises_text("pandas is not installed. Use to_frame() for polars."):
        lists.to_frame("pandas")
    with raises_text("unknown library 'panda'. Did you mean 'pandas'? Known: pandas, polars."):
        lists.to_frame("panda")


INDEXED = [  # levels of the index, columns; users, and items of the first one if there is a log
    ({"customer": ["u2", "u1"]}, {"n": [3, 4], "price": [1, 2]}, ["u2", "u1"], None),
    ({"customer": ["u2", "u1"]}, {"n": [3, 4]}, ["u2", "u1"], None),
    ({"x": ["u2", "u1"]}, {"n": [3, 4], "price": [1, 2]}, ["u2", "u1"], None),
    ({"x": [3, 4]}, {"n": ["u2", "u1"]}, ["u2", "u1"], None),
    ({"row": [3, 4]}, {"n": [1, 2], "customer": ["u2", "u1"]}, ["u2", "u1"], None),
    ({"customer": ["x", "x"]}, {"item": [101, 100]}, ["x"], [101, 100]),
    ({"time": [2, 1]}, {"customer": ["x", "x"], "item": [101, 100]}, ["x"], [100, 101]),
    ({"customer": ["x", "x"], "time": [2, 1]}, {"item": [101, 100]}, ["x"], [100, 101]),
    ({"customer": ["y", "x"]}, {"item": [[101, 100], [105]]}, ["y", "x"], [101, 100]),
    ({"customer": ["y", None]}, {"n": [1, 2], "item": [[101, 100], [105]]}, ["y"], [101, 100]),
]  # fmt: skip


@pytest.mark.parametrize(("levels", "columns", "users", "items"), INDEXED)
def test_a_named_index_of_pandas_is_a_column(levels, columns, users, items):
    index = FakePandas.Index(levels)
    given = [FakePandas.DataFrame(columns, index)]
    if len(columns) == 1:
        given.append(FakePandas.Series(*columns.values(), index, *columns))
    for each in given:
        found = parse_given(each, KEYS)
        assert found.library == "pandas"
        if items is None:
            assert found.users.to_list() == users
        else:
            assert found.histories.keys.to_list() == users
            start, end = found.histories.start[0], found.histories.end[0]
            assert KEYS.keys(found.histories.items[start:end]) == items


def test_an_index_without_a_name_is_not_taken_for_users():
    frame = FakePandas.DataFrame({"item": [100], "n": [1]}, FakePandas.Index({None: ["u1"]}))
    with raises_text(
        "the DataFrame: no column looks like the user. Rename it, or the index, to 'user'. "
        "Columns: item, n."
    ):
        Obvious().recommend(frame)


def test_a_column_of_lists_has_the_history_of_each_user():
    frame = pl.DataFrame({"customer": ["y", "x"], "item": [[101, 100], [105]]})
    found = Obvious().recommend(frame, 1, exclude_seen=True)
    assert found.rows() == [("y", 1, 102, 0.5), ("x", 1, 100, 0.5)]


def test_columns_of_a_frame_that_are_those_of_the_log_need_no_guess(log):
    model = Obvious(log=log)
    frame = pl.DataFrame({"a": ["x", "x"], "b": [101, 100], "c": ["02/01/2024", "01/02/2024"]})
    with raises_text(
        "the DataFrame: no column looks like the user. Rename it to 'user'. Columns: a, b, c."
    ):
        model.recommend(frame)
    model.source = LogSource(files=("old.csv",), user="a", item="b", time="c",
                             time_format="%d/%m/%Y")  # fmt: skip
    found = parse_given(frame, model.item_keys, model.source).histories
    assert model.item_keys.keys(found.items) == [101, 100]
    assert model.recommend(frame, 1)["user"].to_list() == ["x"]
    assert model.recommend(pl.DataFrame({"a": ["u1"], "n": [1]}), 1)["user"].to_list() == ["u1"]


def test_cold_users_are_refused_skipped_or_get_the_popular_items(log):
    model = Obvious(log=log)
    cure = 'cold="skip" leaves such users out, cold="popular" gives them the most popular items.'
    for given, words in (
        (["u1", "u22"], f"unknown user 'u22'. Did you mean 'u2'? The model knows 3 users. {cure}"),
        ([103], "unknown user '103'. It is an item: for a history, pass a list of lists of items. "
         f"The model knows 3 users. {cure}"),
        (["u1", None], f"rows without a user: 1 (first: row 2). {cure}"),
        ([[100], []], "the history of '1' has no item that the model knows, so there is nothing to "
         f"predict from. {cure}"),
    ):  # fmt: skip
        with raises_text(words):
            model.recommend(given, 2)
        with raises_text(words.replace(cure, "Leave them out.")):
            model.encode(given)
    skipped = model.recommend(["u2", "new", None, "u1", "u2"], 2, cold="skip")
    assert skipped.keys.tolist() == ["u2", "u1", "u2"]
    popular = model.recommend(["u2", "new"], 2, cold="popular")
    assert popular.items.tolist() == [[100, 101], [130, 129]]
    assert popular.scores[1].tolist() == pytest.approx([30 / 465, 29 / 465])
    with raises_text("unknown value of cold 'hot'. Known: error, popular, skip."):
        model.recommend(["u2"], cold="hot")


def test_unknown_items_are_left_out_of_a_history_with_a_warning():
    model = Obvious()
    with pytest.warns(UserWarning, match=r"^unknown items .* left out: 2 \(first: 7\)\.$"):
        lists = model.recommend([[100, 7], [8], [101]], 1, exclude_seen=True, cold="skip")
    assert (lists.keys.tolist(), lists.items.tolist()) == ([0, 2], [[101], [100]])


def test_similar_items_have_the_highest_cosine_and_exclude_the_item_itself(monkeypatch):
    monkeypatch.setattr(recommender, "BATCH_SIZE", 2)
    model = Obvious()
    lists = model.similar([105, 130, 110], 2)
    assert sorted(lists.items[0].tolist()) == [104, 106]
    assert lists.items[1].tolist() == [129, 128]
    assert lists.scores[1].tolist() == pytest.approx(np.cos(np.pi / C * np.array([1, 2])))
    assert (lists.keys.tolist(), lists.score) == ([105, 130, 110], "cosine")
    everything = model.similar("105", 30)
    assert sorted(everything.items[0].tolist()) == [key for key in model.items if key != 105]
    assert everything.scores[0].min() >= -1
    assert everything.items[0, -1] != 100 or everything.scores[0, -1] == 0  # whose vector is 0
    frame = model.similar(pl.DataFrame({"n": [1], "sku": [105]}), 1)
    assert frame.columns == ["item", "rank", "similar", "cosine"]
    for given in (105.0, {105}, (key for key in [105]), np.array([[105]])):
        assert model.similar(given, 2).items.tolist() == lists.items[:1].tolist()
    with raises_text("unknown item '99'. The model knows 31 items."):
        model.similar([105, 99])
    with raises_text(
        "got a dict; expected items: a key, or a list, array, Series or DataFrame of keys."
    ):
        model.similar({105: 1})
    with raises_text("k is 31, but the model can list only 30 items."):
        model.similar(105, 31)


def test_a_model_that_has_diverged_is_refused(monkeypatch):
    model = Obvious()
    nan = torch.full((1, 2), torch.nan)
    monkeypatch.setattr(model, "ranked", lambda *_: (nan, torch.zeros(1, 2, dtype=torch.int64)))
    with raises_text("the scores of the model are NaN: it has diverged. ", DataError):
        model.recommend([[101]], 2)
    monkeypatch.setattr(model, "class_vectors", lambda: torch.full((C, 2), torch.inf))
    with raises_text("the class vectors contain NaN or inf: the model has diverged. ", DataError):
        model.similar(101, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"user": [1]}, "got a dict; expected users (a list of keys), histories "),
        (None, "got a NoneType; expected users "),
        (b"u2", "a key is b'u2', a bytes; expected a string or an integer."),
        (np.zeros((1, 1, 1), int), "the array has shape (1, 1, 1) and dtype int64; expected users"),
        (np.array([True]), "the array has shape (1,) and dtype bool; expected users (B,)"),
        ([[100], 100], "element 0 is a list, a history, but element 1 is not. Pass only users, or "
         "only histories."),
        ([True], "a key is True, a bool; expected a string or an integer."),
        ([[1.5, "a", b"c"]], "a key is b'c', a bytes; expected a string or an integer."),
        (pl.DataFrame({"x": [1], "y": [2]}), "the DataFrame: no column looks like the user. "),
        (["u1"], "an export has items but no users. Pass histories, a list of lists of items, or "
         "load the folder of the run."),
    ],
)  # fmt: skip
def test_what_is_neither_users_nor_histories_is_refused(given, words):
    with raises_text(words, UsageError):
        Obvious().recommend(given)


def test_the_model_and_its_lists_say_what_they_are(log):
    model = Obvious(log=log)
    assert repr(model) == "Recommender(obvious: 31 items, 3 users, probability)"
    assert repr(Obvious()) == "Recommender(obvious: 31 items, no users, probability)"
    assert (model.users, Obvious().users, model.items[:2]) == (["u1", "u2", "u3"], [], [100, 101])
    assert repr(model.recommend(["u1", "u2"], 2)) == (
        "Lists of 2 items for 2 users:\n  u1: 100 0.5, 101 0.25\n  u2: 100 0.5, 101 0.25"
    )
    long = repr(Obvious().recommend([[100]] * 6, 6)).splitlines()
    assert long[0] == "Lists of 6 items for 6 histories:"
    assert (long[1][-5:], long[-1], len(long)) == (", ...", "  ...", 7)
    with raises_text("k must be at least 1, got 0."):
        model.recommend("u1", 0)
    assert key_column([]).len() == len(model.recommend([], 2)) == 0
