"""A model behind an approximate index: its lists, its probabilities, and what it refuses."""

import numpy as np
import pytest
from error_text import raises_text
from web.small_runs import Served, items_of

from tapas.web.indexed_model import IndexedModel
from tapas.web.models import open_folder

HISTORIES = [[1001], [1004, 1002, 1003], [1010] * 4]


@pytest.fixture(scope="module", params=["hnsw", "ivf"])
def kind(request):
    return request.param


@pytest.mark.parametrize("model", ["mixture", "network", "export", "half", "rare"])
def test_lists_and_probabilities_are_nearly_the_exact_ones(runs, served, kind, model):
    """With 45 items the index finds them all, and no others are left to be estimated."""
    indexed = Served(runs[model], index=kind)
    assert indexed.models.first.recall == 1
    asked = {"histories": HISTORIES, "k": 7}
    found, exact = indexed.recommend(**asked), served.recommend(model=model, **asked)
    assert items_of(found) == items_of(exact)
    for one, other in zip(found, exact, strict=True):
        pairs = zip(one["items"], other["items"], strict=True)
        for mine, true in pairs:
            assert mine["probability"] == pytest.approx(true["probability"], rel=1e-3)


def test_answers_say_that_they_are_approximate_unless_items_are_allowed(runs):
    indexed = Served(runs["mixture"], index="ivf")
    answer = indexed.post("/recommend", histories=[[1001]]).json()
    assert answer["approximate"] is True
    exact = indexed.post("/recommend", histories=[[1001]], allow=[1002, 1003]).json()
    assert "approximate" not in exact


def test_items_that_are_excluded_are_not_listed(runs):
    indexed = Served(runs["mixture"], index="ivf")
    (first,) = indexed.recommend(histories=[[1001]], k=5)
    banned = [each["item"] for each in first["items"]]
    (found,) = indexed.recommend(histories=[[1001]], k=5, deny=banned)
    assert not {*banned} & {each["item"] for each in found["items"]}


@pytest.mark.parametrize("sample", [5, 20])
def test_the_sum_over_items_that_are_not_found_is_estimated(runs, monkeypatch, sample):
    """Few are found, the others estimated from a sample: a sum is wrong by tens of percent."""
    monkeypatch.setattr("tapas.web.indexed_model.FOUND", 8)
    monkeypatch.setattr("tapas.web.indexed_model.SAMPLE", sample)
    served = open_folder(runs["network"], "network")
    model = IndexedModel(served, "ivf")
    queries = model._some_histories()
    exact = served.rank(queries, 5)
    found = model.rank(queries, 5)
    ratio = [a.scores[:1] / b.scores[:1] for a, b in zip(found, exact, strict=True)]
    assert 0.7 < np.exp(np.mean(np.log(ratio))) < 1.4


@pytest.mark.parametrize("model", ["warp", "huffman"])
def test_models_without_a_softmax_over_vectors_are_refused(runs, model):
    words = (
        "--index ivf needs a softmax with a vector for each item. Leave it out."
        if model == "warp"
        else "the method 'huffman' has no table of class vectors, which shared inputs, exports and "
        "similar items need. `tapas recommend` works without it."
    )
    with raises_text(words):
        open_folder(runs[model], model, index="ivf")
