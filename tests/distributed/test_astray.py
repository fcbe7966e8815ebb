"""Ranks that do not do the same: told, never mixed up."""

import copy
import pickle

import pytest
import torch
from ranks import run_ranks

import tapas
from tapas import LocalTable, PeerError, ShardedTable, TapasSoftmax, UsageError
from tapas.optim import RowwiseAdagrad
from tapas.rng import stream

pytestmark = pytest.mark.slow
C, D = 61, 6


def a_head(**options):
    table = ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1), **options)
    return TapasSoftmax(table=table, num_samples=8, presample_factor=3)


def a_loss(head, rank, num_examples):
    query = torch.randn(num_examples, D, generator=stream(0, "query", rank)).requires_grad_()
    return head(query, torch.randint(0, C, (num_examples,), generator=stream(0, "t", rank)))


def told(work):
    try:
        work()
    except (PeerError, UsageError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def astray(ranks):
    heard = {}
    head = a_head()
    rows = head.table.row_tensors()["weight"].clone()

    def skip_backward():  # as a loop that continues at a loss it does not like
        for step in range(2):
            loss = a_loss(head, ranks.rank, 7)
            if not (ranks.rank == 1 and step == 0):
                loss.backward()

    heard["skips backward"] = told(skip_backward)
    heard["nothing moved"] = torch.equal(rows, head.table.row_tensors()["weight"])

    table = ShardedTable(C, D, bias=False, row_optimizer=RowwiseAdagrad.fused(lr=0.1))
    rows = table.row_tensors()["weight"].clone()

    def bad_gradient():
        found = table.lookup(torch.arange(5) + ranks.rank)
        (found * (float("nan") if ranks.rank == 0 else 1.0)).sum().backward()

    heard["NaN on its way back"] = told(bad_gradient)
    heard["no row moved"] = torch.equal(rows, table.row_tensors()["weight"])
    heard["rows may be read"] = table.rows(torch.arange(3))[0].shape
    heard["another head"] = told(lambda: TapasSoftmax(table=table, num_samples=8, seed=ranks.rank))
    mine = [copy.deepcopy(head.state_dict())]
    heard["its own state"] = told(lambda: head.load_state_dict(mine[0]))
    torch.distributed.broadcast_object_list(mine, src=0)
    heard["state of rank 0"] = told(lambda: head.load_state_dict(mine[0]))
    other = a_head(seed=9)
    heard["state of another seed"] = told(lambda: other.load_state_dict(head.state_dict()))
    heard["pickled"] = pickle.loads(pickle.dumps(head)).table.ranks is ranks_of_table(head)
    part = torch.distributed.new_group([0, 1])
    heard["of a group"] = told(lambda: pickle.dumps(ShardedTable(C, D, group=part)))
    return heard


def ranks_of_table(head):
    return head.table.ranks


def test_what_one_rank_does_alone_is_told_to_all():
    zero, one = run_ranks(2, astray)
    order = "All ranks must make the same calls in the same order."
    assert zero["skips backward"] == (
        f"PeerError: rank 1 made another call than `backward`, where rank 0 is. {order}"
    )
    assert one["skips backward"] == (
        f"PeerError: rank 0 made another call than `batch`, where rank 1 is. {order}"
    )
    assert "the gradient of the class rows holds NaN or inf" in zero["NaN on its way back"]
    assert one["NaN on its way back"].startswith(
        "PeerError: rank 0 refused the input of `gradients of lookup`"
    )
    for heard in (zero, one):
        assert heard["nothing moved"]
        assert heard["no row moved"]
        assert heard["rows may be read"] == (3, D)
        assert "the ranks disagree on the head, here by checksum" in heard["another head"]
        assert heard["its own state"] is None
        assert "another rank or layout" in heard["state of another seed"]
        assert heard["pickled"]
        assert "a table of some of the ranks cannot be pickled" in heard["of a group"]
    assert zero["state of rank 0"] is None
    assert "these rows are those of another rank or layout" in one["state of rank 0"]


def test_one_process_has_nobody_to_agree_with():
    ranks = LocalTable(C, D).ranks
    ranks.check_equal("anything", 1)
    assert ranks.mean(3) == 3
    with (
        pytest.raises(UsageError, match="this process was not started as one of several"),
        tapas.join_ranks(),
    ):
        pass
