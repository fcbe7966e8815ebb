"""A head with a row for each class gives the same losses and rows on ranks and servers."""

import pytest
import torch
from contracts.heads import FLAT, C, D
from contracts.tables import on_servers
from ranks import run_ranks

from tapas import LocalTable, ShardedTable
from tapas.optim import SGD
from tapas.rng import stream
from tapas.tables.shard import TableSpec

OPTIMIZER = SGD.fused(lr=0.3)
SIZES = ((5, 2), (3, 4), (7, 0))  # examples of each rank, step by step; one may have none
B = 7
# what a rank draws for its examples is not what one process draws for all
OWN_DRAWS = {"warp", "sce", "self-normalised"}


def example(step):
    generator = stream(step, "examples")
    query = torch.randn(B, D, generator=generator)
    target = torch.randint(C, (B, 2), generator=generator)
    target[1, 1] = -100
    return query, target


def train(head, rank=None):
    """Losses of some steps, and all rows after them; of all examples, or of those of a rank."""
    losses = []
    for step, (first, _) in enumerate(SIZES):
        part = slice(None) if rank is None else slice(first) if rank == 0 else slice(first, None)
        query, target = (each[part] for each in example(step))
        loss = head(query, target)
        loss.backward()
        losses.append(float(loss.detach()))
    head.table.flush()
    return losses, *head.table.rows(torch.arange(C))


def of_one_process(method, num_shards=1):
    return FLAT[method](LocalTable(C, D, row_optimizer=OPTIMIZER, num_shards=num_shards), seed=2)


@pytest.mark.parametrize("method", FLAT)
def test_on_servers(method):
    table = on_servers(TableSpec(C, D, 3, OPTIMIZER))
    torch.testing.assert_close(
        train(FLAT[method](table, seed=2)), train(of_one_process(method, 3)), rtol=1e-4, atol=1e-5
    )
    table.close()


def on_ranks(ranks):
    """For each method, what this rank computes for its examples."""
    found = {}
    for method, build in FLAT.items():
        table = ShardedTable(C, D, row_optimizer=OPTIMIZER, group=ranks)
        found[method] = train(build(table, seed=2), ranks.rank)
    return found


@pytest.mark.slow
def test_on_ranks():
    mine, others = run_ranks(2, on_ranks)
    for method in FLAT:
        assert torch.equal(mine[method][1], others[method][1]), method
        want = train(of_one_process(method, 2))
        losses = torch.tensor([mine[method][0], others[method][0]]).mean(dim=0)
        assert bool(losses.isfinite().all())
        if method in OWN_DRAWS:
            assert not torch.equal(mine[method][1], of_one_process(method, 2).table.weight)
            continue
        torch.testing.assert_close(
            losses, torch.tensor(want[0]), rtol=1e-4, atol=1e-5, msg=f"losses of {method}"
        )
        torch.testing.assert_close(
            mine[method][1:], want[1:], rtol=1e-4, atol=1e-5, msg=f"rows of {method}"
        )
