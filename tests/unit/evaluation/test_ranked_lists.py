"""Ranked lists and losses against plain loops over every class."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracle import mixture as oracle

from tapas import TapasSoftmax
from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints
from tapas.encoders import GRUEncoder
from tapas.evaluation import ranked_lists as module
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists, without_seen
from tapas.evaluation.scores import LIST_LENGTH
from tapas.mixture import CopyPart, FollowPart, Mixture, count_transitions
from tapas.tables import LocalTable
from tapas.training.model import SequenceModel

DIM, HISTORY = 5, 4
ITEMS = np.array([1, 2, 3, 1, 4, 5, 0, 0, 6, 7, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12], dtype=np.int32)
TIMES = np.arange(20) // 2  # baskets of two events
START = np.array([0, 0, 6, 6, 10])
POINT = np.array([2, 6, 7, 10, 20])
TARGET = np.array([[3, 1], [0, -1], [0, 6], [-1, -1], [2, 2]])
LOG = EventLog(
    Path(), {"items": ITEMS, "times": TIMES, "offsets": np.array([0, 6, 10, 20])}, {"items": 40}
)
POINTS = EvalPoints(np.array([0, 0, 1, 1, 2]), POINT, POINT)
OPTIONS = ListOptions(HISTORY)
COUNTED = np.array([4, 8, 18])  # ends of training
EXCLUDE_SEEN = ListOptions(HISTORY, exclude_seen=True)


def build(num_items, *, mixed=False):
    inputs = LocalTable(num_items, DIM, bias=False, seed=3)
    head = TapasSoftmax(num_items, DIM, num_samples=5, seed=2)
    with torch.no_grad():
        head.table.weight.copy_(
            torch.randn(num_items, DIM, generator=torch.Generator().manual_seed(1))
        )
        head.table.bias.copy_(torch.linspace(-1, 1, num_items))
    mixture = None
    if mixed:
        counted = count_transitions(ITEMS, TIMES, LOG.offsets, COUNTED, num_items)
        mixture = Mixture(copy=CopyPart(), follow=FollowPart(counted))
        mixture.scale.fill_(0.75)
    return SequenceModel(GRUEncoder(DIM, seed=1), head, inputs=inputs, mixture=mixture)


def scores(model, example, excluded=()):
    """Scores of all classes after the history of `example`, computed one at a time.

    With counting parts these are log-probabilities of the mixture.
    """
    mine = slice(max(START[example], POINT[example] - HISTORY), POINT[example])
    recent = ITEMS[mine].tolist()
    query = model.query(torch.tensor([recent]), torch.tensor([len(recent)]))[0]
    every = range(model.head.num_classes)
    weight, bias = model.head.table.rows(torch.tensor(every))
    logits = [float(query @ weight[c] + bias[c]) for c in every]
    if model.mixture is None:
        return logits
    times = sorted(set(TIMES[mine]), reverse=True)
    ages = [times.index(time) + 1 for time in TIMES[mine]]
    count = oracle.transitions(ITEMS, TIMES, LOG.offsets, COUNTED, len(every))
    return np.log(oracle.mixed(model.mixture, count, recent, ages, logits, excluded)[0]).tolist()


@pytest.fixture(params=["QUERIES_PER_CHUNK", "EXCLUDED_PER_CHUNK", None])
def chunk_size(request, monkeypatch):
    """Two points at a time; few excluded classes at a time; all at once."""
    if request.param:
        monkeypatch.setattr(module, request.param, {"Q": 2, "E": 12}[request.param[0]])


@pytest.mark.usefixtures("chunk_size")
@pytest.mark.parametrize("mixed", [False, True], ids=["softmax", "mixture"])
@pytest.mark.parametrize("exclude_seen", [False, True], ids=["keep", "exclude"])
@pytest.mark.parametrize("num_items", [13, 20, 40])
def test_lists_are_the_best_of_all_classes(num_items, exclude_seen, mixed):
    model = build(num_items, mixed=mixed)
    options = ListOptions(HISTORY, exclude_seen)
    ranked, _ = ranked_lists(model, LOG, POINTS, TARGET, options)
    assert ranked.shape == (len(POINT), LIST_LENGTH)
    for example in range(len(POINT)):
        seen = set(ITEMS[START[example] : POINT[example]].tolist()) if exclude_seen else set()
        score = scores(model, example, seen)
        best = sorted((c for c in range(num_items) if c not in seen), key=lambda c: -score[c])
        want = (best + [-1] * LIST_LENGTH)[:LIST_LENGTH]
        assert ranked[example].tolist() == want


@pytest.mark.usefixtures("chunk_size")
@pytest.mark.parametrize("mixed", [False, True], ids=["softmax", "mixture"])
def test_the_loss_is_the_mean_over_an_examples_targets_in_nats(mixed):
    model, done = build(13, mixed=mixed), []
    _, loss = ranked_lists(model, LOG, POINTS, TARGET, OPTIONS, on_progress=done.append)
    for example, targets in enumerate(TARGET.tolist()):
        score = scores(model, example)
        log_sum = math.log(sum(map(math.exp, score)))
        each = [log_sum - score[t] for t in targets if t >= 0]
        want = sum(each) / len(each) if each else math.nan
        assert float(loss[example]) == pytest.approx(want, rel=1e-4, nan_ok=True)
    assert done == ([2, 4, 5] if module.QUERIES_PER_CHUNK == 2 else [5])
    assert ranked_lists(model, LOG, POINTS, TARGET, OPTIONS, with_loss=False)[1] is None


def test_ranking_does_not_change_the_model():
    model = build(13)
    before = {k: v.clone() for k, v in model.state_dict().items() if torch.is_tensor(v)}
    ranked_lists(model, LOG, POINTS, TARGET, EXCLUDE_SEEN)
    assert model.head.step == 0
    assert all(torch.equal(before[name], model.state_dict()[name]) for name in before)


@pytest.mark.usefixtures("chunk_size")
@pytest.mark.parametrize("options", [OPTIONS, EXCLUDE_SEEN], ids=["keep", "exclude"])
def test_the_excluded_class_is_in_no_list(options):
    model = build(13)
    ranked, _ = ranked_lists(model, LOG, POINTS, TARGET, options)
    without, _ = ranked_lists(model, LOG, POINTS, TARGET, replace(options, excluded_class=12))
    for before, after in zip(ranked.tolist(), without.tolist(), strict=True):
        left = [item for item in before if item != 12]
        assert after == (left + [-1] * LIST_LENGTH)[:LIST_LENGTH]


@given(target=arrays(np.int64, TARGET.shape, elements=st.integers(-1, 12)), size=st.integers(1, 30))
def test_without_seen_is_a_loop_over_users(target, size):
    target[0, 0] = 12  # nobody but the last user had it
    want = target.copy()
    for row, start, point in zip(want, START, POINT, strict=True):
        row[np.isin(row, ITEMS[start:point])] = -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SEEN_PER_CHUNK", size)
        np.testing.assert_array_equal(without_seen(LOG, POINTS, target), want)


def test_items_of_the_history_are_removed_from_the_targets():
    left = without_seen(LOG, POINTS, TARGET)
    assert left.tolist() == [[3, -1], [0, -1], [-1, 6], [-1, -1], [-1, -1]]
    assert TARGET[0].tolist() == [3, 1]
