"""Data-parallel training: splitting a batch over ranks and averaging gradients."""

from collections.abc import Iterable

import torch
from torch import nn

from tapas.data.windows import SequenceBatch
from tapas.tables.ranks import Ranks


def local_batch(ranks: Ranks, batch: SequenceBatch) -> SequenceBatch:
    """The histories of `batch` for this rank, possibly none."""
    if not ranks.is_distributed:
        return batch
    width = batch.items.shape[1]
    first, last = ranks.local_range(len(batch.items))
    mine = (batch.query_index >= first * width) & (batch.query_index < last * width)
    return SequenceBatch(
        items=batch.items[first:last],
        lengths=batch.lengths[first:last],
        query_index=batch.query_index[mine] - first * width,
        target=batch.target[mine],
        weight=None if batch.weight is None else batch.weight[mine],
    )


def average_gradients(ranks: Ranks, parameters: Iterable[nn.Parameter], number: float) -> float:
    """Average gradients over ranks, in place, as DistributedDataParallel does.

    Returns the mean of `number` over ranks. Missing gradients count as 0.
    """
    if not ranks.is_distributed:
        return number
    learned = [p for p in parameters if p.requires_grad]
    for parameter in learned:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    grads = [p.grad for p in learned if p.grad is not None]
    last = grads[0].new_tensor([number])
    flat = torch.cat([*(grad.reshape(-1) for grad in grads), last])
    flat = ranks.sum(flat).div_(ranks.size)
    *averages, mean = torch.split(flat, [*(grad.numel() for grad in grads), 1])
    for grad, average in zip(grads, averages, strict=True):
        grad.copy_(average.view_as(grad))
    return float(mean)
