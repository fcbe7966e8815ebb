"""How a rank hears that something is wrong, and whether all can go on after that."""

import torch

from tapas import ShardedTable, TapasError, TapasSoftmax
from tapas.optim import RowwiseAdagrad
from tapas.rng import stream

C, D, M = 31, 3, 3


def draw(*shape, name="query"):
    return torch.randn(*shape, generator=stream(0, name))


GOOD, TARGET = draw(2, D), torch.tensor([4, 30])


def a_head():
    return TapasSoftmax(
        table=ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1)),
        num_samples=7,
        presample_factor=2,
    )


def told(call, head):
    """The error of `call`: its kind, its words, whom it blames; then all is as it was before."""
    before = {k: v.clone() for k, v in head.table.row_tensors().items()}
    step = head.step
    try:
        call(head)
    except TapasError as error:
        answer = f"{type(error).__name__}: {error}", getattr(error, "ranks", None)
    else:
        answer = "no error", None
    head.step = step
    after = head.table.row_tensors()
    answer += (all(torch.equal(before[name], after[name]) for name in before),)
    weight, _ = head.table.rows(torch.arange(C))  # the group works, and nobody is ahead of others
    return (*answer, weight.shape == (C, D))
