"""The batch of all ranks, on every rank, and the way of its answers home.

Forward, queries are gathered and each example's two or three numbers go back to its rank;
backward, gradients take the same two roads the other way round. What each rank computes from
its own examples is averaged over ranks, as DistributedDataParallel averages the gradients of
an encoder: rows move by the gradient of that average, and a query is handed the gradient of
its own rank's loss.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tapas.errors import PeerError
from tapas.tables.gradients import ANCHOR
from tapas.tables.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Meeting:
    """Examples that are looked at together: those of this process, or of all ranks in turn."""

    query: Tensor  # (G, D) float32
    target: Tensor  # (G, L) int64; negative is padding
    context: Tensor | None  # (G,) previous class of each example
    sizes: tuple[int, ...]  # examples of each rank; they sum to G

    @property
    def mean_size(self) -> float:
        """Divide a rank's summed loss by it: the mean over ranks is that over all examples."""
        return sum(self.sizes) / len(self.sizes)


class Gathered(torch.autograd.Function):
    """(G, D) queries of all ranks in turn, of (B, D) here; padding between them is left out."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, query: Tensor, whole: Tensor, sizes: Any, ranks: Ranks):  # type: ignore[no-untyped-def]
        ctx.sizes, ctx.ranks = sizes, ranks
        return whole.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # the sum over shards of what each found for each example, times the number of ranks
        # by which `SentHome` has divided
        received = ctx.ranks.exchange(pad(grad, ctx.sizes))
        mine = received[:, : ctx.sizes[ctx.ranks.rank]].sum(dim=0).mul_(ctx.ranks.size)
        return None, mine, None, None, None


class SentHome(torch.autograd.Function):
    """(m, B, W) what every shard found for the examples here, of (G, W) found here for all."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, sizes: Any, ranks: Ranks):  # type: ignore[no-untyped-def]
        ctx.sizes, ctx.ranks = sizes, ranks
        return ranks.exchange(pad(found, sizes))[:, : sizes[ranks.rank]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        most = max(ctx.sizes)
        parts = grad.new_zeros(ctx.ranks.size, most, grad.shape[2])
        parts[:, : grad.shape[1]] = grad
        received = unpad(ctx.ranks.exchange(parts), ctx.sizes)
        return received.div_(ctx.ranks.size), None, None


def meet(
    ranks: Ranks,
    verb: str,
    query: Tensor,
    target: Tensor | None = None,
    context: Tensor | None = None,
    *,
    agreed: int = 0,
) -> Meeting:
    """The examples of all ranks, of `query` (B, D), `target` (B, L) and `context` (B,) here.

    B and L may differ from rank to rank; `agreed` may not.
    """
    if target is None:
        target = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
    flags = int(query.requires_grad) + 2 * int(torch.is_grad_enabled()) + 4 * (context is not None)
    heard = ranks.announce(verb, len(query), target.shape[1] * 8 + flags, agreed)
    check_agreement(f"`{verb}`", [row[2] for row in heard])
    check_agreement("gradients (1) and context (2)", [row[1] // 2 % 4 for row in heard])
    sizes = tuple(row[0] for row in heard)
    width = max(row[1] // 8 for row in heard)
    num_columns = query.shape[1] + 2 * width + (2 if context is not None else 0)
    # one message of 32-bit words: a query, its targets and its context
    packed = query.new_zeros(max(sizes), num_columns, dtype=torch.float32)
    own = target.new_full((len(target), width), -1)
    own[:, : target.shape[1]] = target
    columns = [query.detach(), own.view(torch.float32)]
    if context is not None:
        columns.append(context[:, None].long().view(torch.float32))
    packed[: len(query)] = torch.cat(columns, dim=1)
    whole = unpad(ranks.gather(packed), sizes)
    dim = query.shape[1]
    everyone = whole[:, :dim].contiguous()
    ids = whole[:, dim:].contiguous().view(torch.int64)
    if any(row[1] % 2 for row in heard) and torch.is_grad_enabled():
        everyone = Gathered.apply(ANCHOR, query, everyone, sizes, ranks)  # type: ignore[no-untyped-call]
    return Meeting(
        everyone,
        ids[:, :width].contiguous(),
        ids[:, width].contiguous() if context is not None else None,
        sizes,
    )


def combine(found: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """Own logits (B, L) and log of the kept sum (B,), of what every shard has `found` (m, B, L+1).

    `owner` (B, L) is the shard of each target.
    """
    positive = found[:, :, :-1].gather(0, owner[None])[0]
    log_sum: Tensor = LogOfSums.apply(found[:, :, -1])  # type: ignore[no-untyped-call]
    return positive, log_sum


class LogOfSums(torch.autograd.Function):
    """log sum_j exp(part_jb), (B,), of `part` (m, B); all -inf stays so, without a gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.logsumexp(dim=0)
        ctx.save_for_backward((part - total).exp().masked_fill_(total.isneginf(), 0.0))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (share,) = ctx.saved_tensors
        result: Tensor = share * grad
        return result


def pad(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """(m, most, W) of `rows` (G, W), sizes[r] of which belong to rank r."""
    most = max(sizes)
    if min(sizes) == most:
        return rows.view(len(sizes), most, *rows.shape[1:])
    parts = rows.new_zeros(len(sizes), most, *rows.shape[1:])
    for part, mine in zip(parts, torch.split(rows, list(sizes)), strict=True):
        part[: len(mine)] = mine
    return parts


def unpad(parts: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """(G, W) of `parts` (m, most, W)."""
    if min(sizes) == parts.shape[1]:
        return parts.flatten(0, 1)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def check_agreement(name: str, values: list[int]) -> None:
    if any(value != values[0] for value in values):
        told = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
        raise PeerError(f"the ranks disagree on {name} ({told}). Start all of them alike.")
