"""Batches of sequences against a loop over the events of the log."""

import numpy as np
import torch
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import DataError
from tapas.data.windows import IGNORED, Windows, predicting_events

# (item, time since the previous event) of each user, and the number of training events
users = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=12).flatmap(
        lambda steps: st.tuples(st.just(steps), st.integers(0, len(steps)))
    ),
    min_size=1,
    max_size=6,
)


def arrays_of(log):
    items, times, offsets, train_end = [], [], [0], []
    for steps, train in log:
        items += [item for item, _ in steps]
        times += np.cumsum([gap for _, gap in steps]).tolist()
        train_end.append(offsets[-1] + train)
        offsets.append(len(items))
    return tuple(np.array(x, dtype=np.int64) for x in (items, times, offsets, train_end))


def predictions(items, times, offsets, train_end, next_items):
    """The targets of every event that predicts, {event: targets}."""
    found = {}
    for u in range(len(train_end)):
        for i in range(offsets[u], train_end[u] - 1):
            if times[i + 1] != times[i]:
                stop = min(i + 1 + next_items, train_end[u])
                found[i] = items[i + 1 : stop].tolist()
    return found


@given(users, st.sampled_from(["all", "last"]), st.integers(1, 5), st.integers(1, 3))
def test_an_epoch_predicts_from_every_basket_once_and_only_from_earlier_events(
    log, positions, length, next_items
):
    items, times, offsets, train_end = arrays_of(log)
    items = np.arange(len(items))  # item ids are event numbers, so that batches can be traced
    want = predictions(items, times, offsets, train_end, next_items)
    assert np.flatnonzero(predicting_events(times, offsets, train_end)).tolist() == sorted(want)
    options = {"length": length, "next_items": next_items, "positions": positions, "seed": 3}
    if not want:
        with raises_text("no user has two baskets to train on", DataError):
            Windows(items, times, offsets, train_end, **options)
        return
    windows = Windows(items, times, offsets, train_end, batch_size=1, **options)
    seen = {}
    for number in range(windows.steps_per_epoch):
        batch = windows.batch(number)
        (count,) = batch.lengths.tolist()
        shown = batch.items[0, :count].tolist()
        assert shown == list(range(shown[0], shown[0] + count))  # events in order, no gap
        user = int(np.searchsorted(offsets, shown[0], side="right")) - 1
        assert offsets[user] <= shown[0]
        assert shown[-1] < train_end[user]
        assert batch.items[0, count:].tolist() == [0] * (length - count)
        for position, target in zip(batch.query_index.tolist(), batch.target.tolist(), strict=True):
            event = shown[position]
            assert event not in seen
            seen[event] = [t for t in target if t != IGNORED]
    assert seen == want


def test_epochs_have_different_orders_and_a_batch_depends_only_on_its_number():
    steps = [(n % 7, 1) for n in range(50)]
    arrays = arrays_of([(steps, 50)])
    first, second = (Windows(*arrays, positions="last", batch_size=7, seed=1) for _ in range(2))
    per_epoch = first.steps_per_epoch
    assert per_epoch == 7
    forward = [first.batch(i) for i in range(2 * per_epoch)]
    for i in reversed(range(2 * per_epoch)):
        assert torch.equal(second.batch(i).items, forward[i].items)
        assert torch.equal(second.batch(i).target, forward[i].target)
    orders = [torch.cat([b.lengths for b in forward[e * 7 : e * 7 + 7]]) for e in (0, 1)]
    assert not torch.equal(*orders)
    assert sorted(orders[0].tolist()) == sorted(set(orders[0].tolist()))


@given(users, st.sampled_from(["all", "last"]), st.integers(1, 3))
def test_targets_carry_the_weights_of_their_events_divided_by_the_mean(log, positions, next_items):
    items, times, offsets, train_end = arrays_of(log)
    items = np.arange(len(items))  # item ids are event numbers
    if not predictions(items, times, offsets, train_end, next_items):
        return
    weights = (1 + items % 4).astype(np.float32)
    training = [i for u, end in enumerate(train_end) for i in range(offsets[u], end)]
    mean = weights[training].mean()
    windows = Windows(
        items, times, offsets, train_end, length=3, next_items=next_items, positions=positions,
        batch_size=2, weights=weights,
    )  # fmt: skip
    for number in range(windows.steps_per_epoch):
        batch = windows.batch(number)
        want = torch.from_numpy(weights / mean)[batch.target.clamp(min=0)] * (batch.target >= 0)
        torch.testing.assert_close(batch.weight, want)
    equal = np.full(len(items), 0.1, dtype=np.float32)
    windows = Windows(items, times, offsets, train_end, next_items=next_items, weights=equal)
    batch = windows.batch(0)
    assert torch.equal(batch.weight, (batch.target >= 0).float())


def test_positions_other_than_all_and_last_are_refused():
    with raises_text("positions must be all or last, got 'first'."):
        Windows(*arrays_of([([(1, 1), (2, 1)], 2)]), positions="first")
