"""Bad input on one rank: its own error there, and the others hear who refused."""

import pytest
import torch
from distributed.telling import GOOD, TARGET, C, D, M, a_head, draw, told
from ranks import run_ranks

from tapas import ShardedTable
from tapas.optim import RowwiseAdagrad


def nan_at(row):
    query = draw(2, D)
    query[row] = torch.nan
    return query


GRAD = torch.ones(2, D)
OUT_OF_RANGE = "holds class 31; expected ids from 0 to 30 (num_classes=31)."
BAD_GRADIENT = (
    "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning rate, "
    "clip gradients, or use a torch.amp.GradScaler, which leaves out such a step."
)
BAD_ROW = (
    "query row 1 holds NaN or inf. The encoder has diverged or its input is bad: look at that "
    "row's input, lower the learning rate or clip gradients."
)

# what the others do, what the rank at fault does, its own error, the call the others are at
REFUSALS = {
    "a query of another width": (
        lambda head: head(GOOD, TARGET),
        lambda head: head(draw(2, 4), TARGET),
        "UsageError: query has shape (2, 4); expected (..., D=3), the dim of the table.",
        "batch",
    ),
    "a query that is not finite": (
        lambda head: head(GOOD, TARGET),
        lambda head: head(nan_at(1), TARGET),
        f"DataError: {BAD_ROW}",
        "batch",
    ),
    "an unknown target": (
        lambda head: head(GOOD, TARGET),
        lambda head: head(GOOD, TARGET + 1),
        f"UsageError: target {OUT_OF_RANGE} Padding is ignore_index=-100.",
        "batch",
    ),
    "classes before that are no ids": (
        lambda head: head(GOOD, TARGET, context=TARGET),
        lambda head: head(GOOD, TARGET, context=TARGET.float()),
        "UsageError: context has dtype torch.float32; expected int64 class ids. Convert before the "
        "ids ever pass through a float.",
        "batch",
    ),
    "a query that is not finite to sample for": (
        lambda head: head.sample(GOOD),
        lambda head: head.sample(nan_at(1)),
        f"DataError: {BAD_ROW}",
        "batch",
    ),
    "an unknown target of the full loss": (
        lambda head: head.full_loss(GOOD, TARGET),
        lambda head: head.full_loss(GOOD, TARGET + 1),
        f"UsageError: target {OUT_OF_RANGE} Padding is ignore_index=-100.",
        "mean",
    ),
    "an unknown class to weigh": (
        lambda head: head.log_prob(GOOD, TARGET[:, None]),
        lambda head: head.log_prob(GOOD, TARGET[:, None] + 1),
        f"UsageError: ids {OUT_OF_RANGE}",
        "rows",
    ),
    "a query that cannot be ranked": (
        lambda head: head.topk(GOOD, 3),
        lambda head: head.topk(nan_at(1), 3),
        f"DataError: {BAD_ROW}",
        "topk",
    ),
    "too many of the best": (
        lambda head: head.table.topk(GOOD, 3),
        lambda head: head.table.topk(GOOD, 32),
        "UsageError: k is 32, but there are only 31 classes.",
        "topk",
    ),
    "a query without a partition sum": (
        lambda head: head.table.log_partition(GOOD),
        lambda head: head.table.log_partition(nan_at(1)),
        f"DataError: {BAD_ROW}",
        "log_partition",
    ),
    "unknown ids to read": (
        lambda head: head.table.rows(TARGET),
        lambda head: head.table.rows(TARGET + 1),
        f"UsageError: ids {OUT_OF_RANGE}",
        "rows",
    ),
    "unknown ids to look up": (
        lambda head: head.table.lookup(TARGET),
        lambda head: head.table.lookup(TARGET + 1),
        f"UsageError: ids {OUT_OF_RANGE}",
        "lookup",
    ),
    "unknown ids to move": (
        lambda head: head.table.update(TARGET, GRAD, GRAD[:, 0]),
        lambda head: head.table.update(TARGET + 1, GRAD, GRAD[:, 0]),
        f"UsageError: ids {OUT_OF_RANGE}",
        "update",
    ),
    "a gradient that is not finite": (
        lambda head: head.table.update(TARGET, GRAD, GRAD[:, 0]),
        lambda head: head.table.update(TARGET, GRAD * torch.inf, GRAD[:, 0]),
        f"UsageError: {BAD_GRADIENT}",
        "update",
    ),
    "no row optimizer": (
        lambda head: ShardedTable(C, D),
        lambda head: ShardedTable(C, D, row_optimizer=0.1),
        "UsageError: row_optimizer must be a fused one, such as "
        "tapas.optim.RowwiseAdagrad.fused(lr=0.1), or None for rows that an optimizer of "
        "tapas.optim moves, got 0.1.",
        "compare the table",
    ),
    "an unknown placement": (
        lambda head: ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1)),
        lambda head: ShardedTable(C, D, placement="x", row_optimizer=RowwiseAdagrad.fused(lr=0.1)),
        "UsageError: placement must be random or contiguous, got 'x'.",
        "compare the table",
    ),
}


def on_ranks(ranks):
    head, answers = a_head(), {}
    for victim, (name, (good, bad, *_)) in enumerate(REFUSALS.items()):
        answers[name] = told(bad if ranks.rank == victim % M else good, head)
    answers["two"] = told(lambda head: head.table.rows(TARGET + (ranks.rank != 1)), head)
    return answers


@pytest.fixture(scope="module")
def answers():
    return run_ranks(M, on_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSALS)
def test_bad_input_is_the_error_of_one_rank_and_the_others_hear_whose(answers, name):
    victim = list(REFUSALS).index(name) % M
    *_, words, verb = REFUSALS[name]
    for rank in range(M):
        want = words, None
        if rank != victim:
            want = (
                f"PeerError: rank {victim} refused the input of `{verb}`; the error there says "
                "why. Nothing was changed here.",
                (victim,),
            )
        assert answers[rank][name] == (*want, True, True)


@pytest.mark.slow
def test_all_who_refuse_are_named(answers):
    assert answers[1]["two"] == (
        "PeerError: ranks 0, 2 refused the input of `rows`; the error there says why. Nothing was "
        "changed here.",
        (0, 2),
        True,
        True,
    )
    assert answers[0]["two"][0] == f"UsageError: ids {OUT_OF_RANGE}"
