"""Ranks that do not fit together: each is told what is wrong and with whom, and can go on."""

import re

import pytest
import torch
from distributed.telling import GOOD, TARGET, C, D, M, a_head, told
from ranks import run_ranks

from tapas import ShardedTable, UsageError, join_ranks
from tapas.optim import SGD, RowwiseAdagrad


def other_step(head):
    head.step = 5
    head(GOOD, TARGET)


def without_gradients(head):
    with torch.no_grad():
        head(GOOD, TARGET)


def with_frozen_rows(head):
    head.requires_grad_(False)
    try:
        head(GOOD, TARGET)
    finally:
        head.requires_grad_(True)


ALIKE = "Start all of them alike."
ORDER = "All ranks must make the same calls in the same order."

# what ranks 0 and 2 do, what rank 1 does, what it is told, what they are told
DISAGREEMENTS = {
    "another verb": (
        lambda head: head.table.rows(TARGET),
        lambda head: head.table.log_partition(GOOD),
        rf"ranks 0, 2 made another call than `log_partition`, where rank 1 is\. {ORDER}",
        rf"rank 1 made another call than `rows`, where rank [02] is\. {ORDER}",
    ),
    "another step": (
        lambda head: head(GOOD, TARGET),
        other_step,
        rf"the ranks disagree on `batch` \(rank 0: 0, rank 1: 5, rank 2: 0\)\. {ALIKE}",
        None,
    ),
    "another k": (
        lambda head: head.topk(GOOD, 3),
        lambda head: head.topk(GOOD, 4),
        rf"the ranks disagree on `topk` \(rank 0: 3, rank 1: 4, rank 2: 3\)\. {ALIKE}",
        None,
    ),
    "no gradients": (
        lambda head: head(GOOD, TARGET),
        without_gradients,
        r"the ranks disagree on gradients \(1\), context \(2\) and rows that are not frozen \(4\) "
        rf"\(rank 0: 5, rank 1: 0, rank 2: 5\)\. {ALIKE}",
        None,
    ),
    "context": (
        lambda head: head(GOOD, TARGET),
        lambda head: head(GOOD, TARGET, context=TARGET),
        r"the ranks disagree on gradients \(1\), context \(2\) and rows that are not frozen \(4\) "
        rf"\(rank 0: 5, rank 1: 7, rank 2: 5\)\. {ALIKE}",
        None,
    ),
    "frozen rows": (
        lambda head: head(GOOD, TARGET),
        with_frozen_rows,
        r"the ranks disagree on gradients \(1\), context \(2\) and rows that are not frozen \(4\) "
        rf"\(rank 0: 5, rank 1: 1, rank 2: 5\)\. {ALIKE}",
        None,
    ),
    **{
        f"a table with {name}": (
            lambda head: ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1)),
            lambda head, options=options: ShardedTable(**({"num_classes": C, "dim": D} | options)),
            r"the ranks disagree on the table, here by checksum \(rank 0: (\d+), rank 1: (?!\1,)"
            rf"\d+, rank 2: \1\)\. {ALIKE}",
            None,
        )
        for name, options in {
            "more classes": {"num_classes": C + 1},
            "more dimensions": {"dim": D + 1},
            "another seed": {"seed": 1},
            "another optimizer": {"row_optimizer": SGD.fused(lr=0.3)},
            "another placement": {"placement": "contiguous"},
            "another dtype": {"dtype": torch.bfloat16},
            "no bias": {"bias": False},
        }.items()
    },
}
ALL_ALIKE = {
    "no example": (
        lambda head: head(GOOD[:0], TARGET[:0]),
        "no rank has an example in this batch. Skip it on all of them.",
    ),
    "nothing but padding": (
        lambda head: head(GOOD, TARGET * 0 - 100),
        "no rank has an example in this batch. Skip it on all of them.",
    ),
    "no example for the full loss": (
        lambda head: head.full_loss(GOOD[:0], TARGET[:0]),
        "no rank has an example in this batch. Skip it on all of them.",
    ),
    "no query": (
        lambda head: head.sample(GOOD[:0]),
        "the batch is empty: there is no query to sample for.",
    ),
    "fewer classes than ranks": (
        lambda head: ShardedTable(2, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1)),
        "cannot spread 2 classes over 3 shards. Use at most 2.",
    ),
}


def on_ranks(ranks):
    head, answers = a_head(), {}
    for name, (good, bad, *_) in DISAGREEMENTS.items():
        answers[name] = told(bad if ranks.rank == 1 else good, head)
    for name, (call, _) in ALL_ALIKE.items():
        answers[name] = told(call, head)
    return answers


@pytest.fixture(scope="module")
def answers():
    return run_ranks(M, on_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_make_different_calls_hear_it_at_once(answers, name):
    _, _, own, others = DISAGREEMENTS[name]
    for rank in range(M):
        words, blamed, unchanged, works = answers[rank][name]
        pattern = own if rank == 1 or others is None else others
        assert re.fullmatch(f"PeerError: {pattern}", words), words
        assert blamed == (() if others is None else (0, 2) if rank == 1 else (1,))
        assert unchanged
        assert works


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_ALIKE)
def test_what_no_rank_can_do_is_the_error_of_all(answers, name):
    want = f"UsageError: {ALL_ALIKE[name][1]}", None, True, True
    assert [answer[name] for answer in answers] == [want] * M


def test_without_ranks_there_is_no_sharded_table():
    with pytest.raises(UsageError) as error:
        ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1))
    assert str(error.value) == (
        "there are no ranks to share a table: torch.distributed is not initialized. Start the "
        "program with torchrun, and call tapas.join_ranks() first."
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout_seconds": 0}, "timeout_seconds must be above 0, got 0."),
        (
            {},
            "RANK and WORLD_SIZE are not set: this process was not started as one of several. "
            "Start it with `torchrun --nproc-per-node 2 ...`.",
        ),
    ],
)
def test_ranks_that_cannot_be_joined_are_told_why(options, words, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError) as error, join_ranks(**options):
        pass
    assert str(error.value) == words
