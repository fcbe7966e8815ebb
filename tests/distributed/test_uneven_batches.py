"""Ranks with different numbers of targets, a single example, or contexts."""

import pytest
import torch
from ranks import run_ranks

from tapas import LocalTable, ShardedTable, TapasSoftmax, Uniform
from tapas.optim import RowwiseAdagrad
from tapas.proposals import Bigram
from tapas.rng import stream

C, D, M = 31, 3, 2

# shape of the targets on each rank
SHAPES = {
    "two and three targets": [(4, 2), (3, 3)],
    "one target without a dimension of its own, and three": [(4,), (3, 3)],
    "none of several, and one": [(0, 3), (3,)],
    "none, and several": [(0,), (3, 2)],
    "a single example": [(1,), (0,)],
    "a single example of the last rank, with several targets": [(0,), (1, 3)],
    "time steps": [(2, 3), (4,)],
}


def examples(name, rank):
    shape = SHAPES[name][rank]
    steps = name == "time steps"
    generator = stream(0, name, rank)
    leading = shape if steps else shape[:1]
    query = torch.randn(*leading, D, generator=generator)
    target = torch.randint(0, C, shape, generator=generator)
    previous = torch.randint(0, C, (*leading, 2), generator=generator)[..., 1]  # not contiguous
    return query, target, previous


def head_on(table, with_context):
    proposal = Uniform(C)
    if with_context:  # each class is mostly followed by one of two
        before = torch.arange(C).repeat(2)
        after = torch.cat([torch.arange(C) * 7 % C, torch.arange(C) * 11 % C])
        proposal = Bigram(before, after, torch.full((2 * C,), 20), unigram=proposal)
    return TapasSoftmax(table=table, num_samples=5, presample_factor=2, proposal=proposal)


def on_ranks(ranks):
    answers = {}
    for name in SHAPES:
        for with_context in (False, True):
            head = head_on(
                ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1)), with_context
            )
            query, target, previous = examples(name, ranks.rank)
            query.requires_grad_()
            loss = head(query, target, context=previous if with_context else None)
            loss.backward()
            rows = head.table.rows(torch.arange(C))
            answers[name, with_context] = loss.detach(), rows, query.grad
    return answers


def global_batch(name):
    """The examples of all ranks in one batch, with padded targets and weights."""
    query, target, weight, previous = [], [], [], []
    for rank in range(M):
        x, ids, before = examples(name, rank)
        query.append(x.reshape(-1, D))
        ids = ids.reshape(len(query[-1]), -1) if ids.numel() else torch.empty(0, 1).long()
        width = ids.shape[1]
        share = torch.full(ids.shape, 1 / width)
        target.append(torch.nn.functional.pad(ids, (0, 3 - width), value=-100))
        weight.append(torch.nn.functional.pad(share, (0, 3 - width)))
        previous.append(before.reshape(-1))
    return [torch.cat(parts) for parts in (query, target, weight, previous)]


@pytest.fixture(scope="module")
def answers():
    return run_ranks(M, on_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("with_context", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_examples_of_all_ranks_are_one_batch(answers, name, with_context):
    table = LocalTable(C, D, num_shards=M, row_optimizer=RowwiseAdagrad.fused(lr=0.1))
    head = head_on(table, with_context)
    query, target, weight, previous = global_batch(name)
    query.requires_grad_()
    loss = head(query, target, weight, context=previous if with_context else None)
    loss.backward()
    got = [answer[name, with_context] for answer in answers]
    torch.testing.assert_close(sum(one[0] for one in got) / M, loss.detach())
    for one in got:
        torch.testing.assert_close(one[1], table.rows(torch.arange(C)), rtol=1e-4, atol=1e-5)
    # a query gets the gradient of its own rank's loss; encoders average over ranks
    own = torch.cat([one[2].reshape(-1, D) for one in got]) / M
    torch.testing.assert_close(own, query.grad, rtol=1e-4, atol=1e-6)
