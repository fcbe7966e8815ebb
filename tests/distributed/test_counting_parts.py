"""Counting parts on two ranks: the fitted numbers and the lists are those of one process."""

from pathlib import Path

import numpy as np
import torch
from ranks import run_ranks

from tapas import LocalTable, ShardedTable, TapasSoftmax
from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints
from tapas.encoders import MeanEncoder
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists
from tapas.mixture import CopyPart, FollowPart, Mixture, count_transitions
from tapas.rng import stream
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.mixture_fit import MixtureFit
from tapas.training.model import SequenceModel

C, D, USERS, EVENTS = 37, 4, 11, 9
ITEMS = torch.randint(0, C, (USERS * EVENTS,), generator=stream(0, "items")).numpy()
OFFSETS = np.arange(0, USERS * EVENTS + 1, EVENTS)
LOG = EventLog(
    Path(),
    {"items": ITEMS, "times": np.arange(len(ITEMS)) // 2, "offsets": OFFSETS},
    {"items": C},
)


def fitted_and_ranked(ranks, num_points):
    """Losses, numbers, lists and losses again; with one point, a rank has none."""
    kind = LocalTable if ranks is ONE_PROCESS else ShardedTable
    table = kind(C, D, bias=torch.linspace(-9, 9, C), seed=1)
    train_end = OFFSETS[1:] - 3
    counted = count_transitions(ITEMS, LOG.times, OFFSETS, train_end, C)
    mixture = Mixture(copy=CopyPart(), follow=FollowPart(counted))
    head = TapasSoftmax(table=table, num_samples=5, seed=2)
    model = SequenceModel(MeanEncoder(D, window=9, seed=1), head, mixture=mixture)
    points = EvalPoints(np.arange(num_points), train_end[:num_points], OFFSETS[1:][:num_points])
    target = ITEMS[points.point[:, None] + np.arange(2)]
    counts = np.bincount(ITEMS, minlength=C)
    found = []
    for options in (ListOptions(9), ListOptions(9, exclude_seen=True, excluded_class=36)):
        given = LOG, points, target, options
        loss = MixtureFit(*given, train_counts=counts, ranks=ranks).fit(model)
        lists, losses = ranked_lists(model, *given, ranks=ranks)
        numbers = {name: x.clone() for name, x in mixture.state_dict().items()}
        found.append([loss, lists, losses, numbers])
    return found


def on_ranks(ranks):
    return [fitted_and_ranked(ranks, size) for size in (1, 7)]


def test_two_ranks_fit_and_rank_as_one_process():
    """The softmax is so sure that on some ranks no counted class has hope, and on others one."""
    want = [fitted_and_ranked(ONE_PROCESS, size) for size in (1, 7)]
    for found in run_ranks(2, on_ranks):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
