import dataclasses
import pickle
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapas import UsageError, candidates
from tapas.candidates import Candidates, find, first_mentions, mute

SOME = Candidates(torch.tensor([2, 5, 3_000_000_000]), torch.tensor([0.0, -1.5, -20.0]))


def test_ids_and_their_log_expected_counts_travel_together():
    assert len(SOME) == 3
    assert len(Candidates(torch.empty(0, dtype=torch.int64), torch.empty(0))) == 0


def test_neither_can_be_exchanged_for_another():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SOME.log_q = torch.zeros(3)


def test_a_pickled_copy_holds_the_same():
    copy = pickle.loads(pickle.dumps(SOME))
    assert torch.equal(copy.ids, SOME.ids)
    assert torch.equal(copy.log_q, SOME.log_q)


def test_both_move_to_a_device_and_nothing_is_copied_if_they_are_there():
    assert SOME.to(torch.device("cpu")) is SOME
    moved = SOME.to(torch.device("meta"))
    assert moved.ids.device.type == moved.log_q.device.type == "meta"
    assert moved.ids.shape == moved.log_q.shape == (3,)


@pytest.mark.parametrize(
    ("ids", "log_q"), [((3,), (4,)), ((2, 3), (2, 3)), ((3,), (3, 1)), ((), ())], ids=str
)
def test_shapes_that_do_not_match_are_refused(ids, log_q):
    words = f"candidates need ids and log_q of one shape (K,), got {ids} and {log_q}."
    with pytest.raises(UsageError, match=re.escape(words)):
        Candidates(torch.zeros(ids, dtype=torch.int64), torch.zeros(log_q))


ids = st.integers(0, 40) | st.integers(2**31 - 3, 2**31 + 3)


@given(st.sets(ids, min_size=1), st.lists(ids))
def test_find_gives_the_place_of_what_is_there_and_says_what_is_not(held, wanted):
    held = sorted(held)
    place, found = find(torch.tensor(held), torch.tensor(wanted, dtype=torch.int64))
    assert found.tolist() == [w in held for w in wanted]
    there = [(p, w) for p, w, f in zip(place.tolist(), wanted, found, strict=True) if f]
    assert all(held[p] == w for p, w in there)
    assert all(0 <= p < len(held) for p in place.tolist())


def test_find_keeps_the_shape_of_what_is_wanted():
    place, found = find(torch.tensor([2, 5, 9]), torch.tensor([[9, 4], [2, 99]]))
    assert found.tolist() == [[True, False], [True, False]]
    assert place[0, 0] == 2
    assert place[1, 0] == 0


@given(st.integers(0, 5), st.integers(0, 6), st.data())
def test_first_mentions_are_those_of_reading_each_row_from_the_left(rows, length, data):
    row = st.lists(st.integers(0, 4), min_size=length, max_size=length)
    table = data.draw(st.lists(row, min_size=rows, max_size=rows))
    got = first_mentions(torch.tensor(table, dtype=torch.int64).reshape(rows, length))
    assert got.tolist() == [[r[j] not in r[:j] for j in range(length)] for r in table]


def test_nothing_is_found_among_no_ids():
    place, found = find(torch.empty(0, dtype=torch.int64), torch.tensor([[3, 4]]))
    assert place.tolist() == [[0, 0]]
    assert found.tolist() == [[False, False]]


@given(
    st.sets(ids, max_size=8),
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(ids | st.just(-1), min_size=n, max_size=n), min_size=1, max_size=4
        )
    ),
    st.sampled_from([0, 1 << 14]),
)
def test_only_the_own_classes_of_a_row_are_muted_by_comparing_and_by_searching(held, own, limit):
    held = sorted(held)
    logit = torch.ones(len(own), len(held))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "COMPARED_AT_ONCE", limit)
        mute(logit, torch.tensor(held, dtype=torch.int64), torch.tensor(own))
    assert logit.tolist() == [[-torch.inf if h in row else 1.0 for h in held] for row in own]


def test_ids_and_counts_of_other_types_are_told_the_cure():
    with pytest.raises(UsageError) as error:
        Candidates(torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float64))
    assert str(error.value) == (
        "candidates need ids of torch.int64 and log_q of torch.float32, got torch.int32 and "
        "torch.float64. Convert with .long() and .float()."
    )
