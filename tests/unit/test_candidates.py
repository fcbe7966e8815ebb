"""Candidates: construction, lookup of ids, accidental hits, first occurrences."""

import dataclasses
import pickle

import pytest
import torch
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas import candidates
from tapas.candidates import Candidates, first_occurrences, index_of, mask_hits

SOME = Candidates(torch.tensor([2, 5, 3_000_000_000]), torch.tensor([0.0, -1.5, -20.0]))


def test_candidates_are_frozen_picklable_and_movable():
    assert len(SOME) == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        SOME.log_q = torch.zeros(3)
    copy = pickle.loads(pickle.dumps(SOME))
    assert torch.equal(copy.ids, SOME.ids)
    assert torch.equal(copy.log_q, SOME.log_q)
    assert SOME.to(torch.device("cpu")) is SOME
    moved = SOME.to(torch.device("meta"))
    assert moved.ids.device.type == moved.log_q.device.type == "meta"


def test_shapes_and_types_that_do_not_match_are_refused():
    for ids, log_q in (((3,), (4,)), ((2, 3), (2, 3)), ((3,), (3, 1)), ((), ())):
        with raises_text(
            f"candidates need ids and log_q of one shape (K,), got {ids} and {log_q}."
        ):
            Candidates(torch.zeros(ids, dtype=torch.int64), torch.zeros(log_q))
    with raises_text(
        "candidates need ids of torch.int64 and log_q of torch.float32, got torch.int32 and "
        "torch.float64. Convert with .long() and .float()."
    ):
        Candidates(torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float64))


ids = st.integers(0, 40) | st.integers(2**31 - 3, 2**31 + 3)


@given(st.sets(ids), st.lists(ids))
def test_index_of_gives_the_index_of_each_id_and_whether_it_was_found(held, wanted):
    held = sorted(held)
    place, found = index_of(
        torch.tensor(held, dtype=torch.int64), torch.tensor([wanted], dtype=torch.int64)
    )
    assert place.shape == found.shape == (1, len(wanted))
    assert found[0].tolist() == [w in held for w in wanted]
    there = [(p, w) for p, w, f in zip(place[0].tolist(), wanted, found[0], strict=True) if f]
    assert all(held[p] == w for p, w in there)
    assert all(0 <= p < max(len(held), 1) for p in place[0].tolist())


@given(st.integers(0, 5), st.integers(0, 6), st.data())
def test_first_occurrences_are_those_of_a_loop_over_each_row(rows, length, data):
    row = st.lists(st.integers(0, 4), min_size=length, max_size=length)
    table = data.draw(st.lists(row, min_size=rows, max_size=rows))
    got = first_occurrences(torch.tensor(table, dtype=torch.int64).reshape(rows, length))
    assert got.tolist() == [[r[j] not in r[:j] for j in range(length)] for r in table]


@given(
    st.sets(ids, max_size=8),
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(ids | st.just(-1), min_size=n, max_size=n), min_size=1, max_size=4
        )
    ),
    st.sampled_from([0, 1 << 14]),
)
def test_only_targets_of_a_row_are_masked_by_comparing_and_by_searching(held, target, limit):
    held = sorted(held)
    logit = torch.ones(len(target), len(held))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "COMPARED_AT_ONCE", limit)
        mask_hits(logit, torch.tensor(held, dtype=torch.int64), torch.tensor(target))
    assert logit.tolist() == [[-torch.inf if h in row else 1.0 for h in held] for row in target]
