"""Gathering the batch of all ranks on every rank, and returning the answers to their ranks.

In the forward pass queries are gathered, and the few numbers found for each example go back to
its rank; in the backward pass gradients go the other way. Losses are averaged over ranks, as
DistributedDataParallel averages the gradients of an encoder: rows get the gradient of the
average, and a query the gradient of the loss of its rank.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import PeerError
from tapas.shapes import check_integer
from tapas.tables.exhaustive import merge_topk
from tapas.tables.ranks import GlobalBatch
from tapas.torch_modes import first_derivative

if TYPE_CHECKING:
    from tapas.distributed.collectives import GroupRanks

# a rank whose queries need no gradient must still return the gradients of the others
ANCHOR = torch.zeros((), device="cpu", requires_grad=True)


class GatherQueries(torch.autograd.Function):
    """(B, D) queries of this rank -> (G, D) queries of all ranks, without padding."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, query: Tensor, gathered: Tensor, sizes: Any, ranks: "GroupRanks"
    ) -> Tensor:
        ctx.sizes, ctx.ranks = sizes, ranks
        return gathered.clone()

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # the sum of the gradients of all shards, times the number of ranks by which
        # `ReturnAnswers` has divided
        received = ctx.ranks.exchange("query gradients", pad(grad, ctx.sizes))
        mine = received[:, : ctx.sizes[ctx.ranks.rank]].sum(dim=0).mul_(ctx.ranks.size)
        return None, mine, None, None, None


class ReturnAnswers(torch.autograd.Function):
    """(G, W) answers of this shard to all ranks -> (m, B, W) answers of all shards to this rank."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, sizes: Any, ranks: "GroupRanks") -> Tensor:
        ctx.sizes, ctx.ranks = sizes, ranks
        return return_answers(ranks, found, sizes)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        most = max(ctx.sizes)
        parts = grad.new_zeros(ctx.ranks.size, most, grad.shape[2])
        parts[:, : grad.shape[1]] = grad
        ctx.ranks.gather_numbers("backward")
        received = unpad(ctx.ranks.exchange("gradients of answers", parts), ctx.sizes)
        return received.div_(ctx.ranks.size), None, None


def gather_batch(
    ranks: "GroupRanks",
    operation: str,
    query: Tensor,
    target: Tensor | None = None,
    context: Tensor | None = None,
    *,
    agreed: int = 0,
    trains: bool = False,
) -> GlobalBatch:
    """The examples of all ranks, given those of this rank.

    `query` is (B, D), `target` (B, L) and `context` (B,). B and L may differ between ranks;
    `agreed` and `trains` must be equal.
    """
    if target is None:
        target = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
    target = check_integer("target", target)
    if context is not None:
        context = check_integer("context", context)
    has_context = context is not None
    flags = int(query.requires_grad) + 2 * torch.is_grad_enabled() + 4 * has_context + 8 * trains
    gathered = ranks.gather_numbers(operation, len(query), target.shape[1] * 16 + flags, agreed)
    check_equal(f"`{operation}`", [row[2] for row in gathered])
    flags_sum = "the sum of gradients enabled (1), context given (2) and rows trained (4)"
    check_equal(flags_sum, [row[1] // 2 % 8 for row in gathered])
    sizes = tuple(row[0] for row in gathered)
    width = max(row[1] // 16 for row in gathered)
    # one message of 32-bit words: query, targets and context
    padded = target.new_full((len(target), width), -1)
    padded[:, : target.shape[1]] = target
    columns = [query.detach(), padded.view(torch.float32)]
    if context is not None:
        columns.append(context[:, None].view(torch.float32))
    packed = ranks.gather_rows(torch.cat(columns, dim=1), sizes)
    dim = query.shape[1]
    everyone = packed[:, :dim].contiguous()
    ids = unpack_int64(packed[:, dim:])
    if any(row[1] % 2 for row in gathered) and torch.is_grad_enabled():
        everyone = GatherQueries.apply(ANCHOR, query, everyone, sizes, ranks)  # type: ignore[no-untyped-call]
    return GlobalBatch(
        everyone,
        ids[:, :width].contiguous(),
        ids[:, width].contiguous() if context is not None else None,
        sizes,
        target.shape[1],
    )


def combine(found: Tensor, owner: Tensor, num_targets: int) -> tuple[Tensor, Tensor]:
    """Combine the answers `found` (m, B, L+1) of all shards.

    Returns the logits of the targets (B, num_targets) and the log of the kept sum (B,). `owner`
    (B, L) is the shard of each target.
    """
    positive = found[:, :, :-1].gather(0, owner[None])[0, :, :num_targets]
    log_sum: Tensor = AddLogSums.apply(found[:, :, -1])  # type: ignore[no-untyped-call]
    return positive, log_sum


class AddLogSums(torch.autograd.Function):
    """log sum_j exp(part_jb), (B,), of `part` (m, B); -inf without a gradient if all are -inf."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.logsumexp(dim=0)
        ctx.save_for_backward((part - total).exp().masked_fill_(total.isneginf(), 0.0))
        return total

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (share,) = ctx.saved_tensors
        result: Tensor = share * grad
        return result


def return_answers(ranks: "GroupRanks", found: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Send answers `found` (G, W) to the ranks of their examples; returns (m, B, W)."""
    return ranks.exchange("answers", pad(found, sizes))[:, : sizes[ranks.rank]]


def merge_topk_of_ranks(
    ranks: "GroupRanks", value: Tensor, ids: Tensor, k: int, sizes: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The k best classes of all shards for the examples of this rank: scores and ids, (B, k).

    `value` and `ids` (G, K) are the best of this shard for all examples, K <= k; -inf and -1
    stand for no class.
    """
    fill = (0, k - value.shape[1])
    value = torch.nn.functional.pad(value, fill, value=-torch.inf)
    ids = torch.nn.functional.pad(ids, fill, value=-1)
    packed = torch.cat([value[:, :, None], ids.view(torch.float32).view(*ids.shape, 2)], dim=2)
    found = return_answers(ranks, packed.flatten(1), sizes).transpose(0, 1)  # (B, m, 3k)
    found = found.reshape(found.shape[0], ranks.size * k, 3)
    found_ids = unpack_int64(found[:, :, 1:])[:, :, 0]
    last = torch.iinfo(torch.int64).max  # -1 stands for no class and is sorted last
    value, ids = merge_topk(found[:, :, 0], found_ids.masked_fill(found_ids < 0, last), k)
    return value, ids.masked_fill(value == -torch.inf, -1)


def gather_candidates(ranks: "GroupRanks", here: Candidates, sizes: Sequence[int]) -> Candidates:
    """The candidates of all ranks by ascending id; rank r has sizes[r], this one `here`."""
    packed = torch.cat([here.ids.view(torch.float32).view(-1, 2), here.log_q[:, None]], dim=1)
    gathered = ranks.gather_rows(packed, sizes)
    ids, order = unpack_int64(gathered[:, :2])[:, 0].sort()
    return Candidates(ids, gathered[:, 2][order])


def pad(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """`rows` (G, W), of which sizes[r] belong to rank r, as (m, max(sizes), W)."""
    most = max(sizes)
    if min(sizes) == most:
        return rows.view(len(sizes), most, *rows.shape[1:])
    parts = rows.new_zeros(len(sizes), most, *rows.shape[1:])
    for part, mine in zip(parts, torch.split(rows, list(sizes)), strict=True):
        part[: len(mine)] = mine
    return parts


def unpad(parts: Tensor, sizes: Sequence[int]) -> Tensor:
    """The inverse of `pad`: (G, W) of `parts` (m, max(sizes), W)."""
    if min(sizes) == parts.shape[1]:
        return parts.flatten(0, 1)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def unpack_int64(words: Tensor) -> Tensor:
    """The int64 numbers (..., W) that were sent as float32 `words` (..., 2W)."""
    # `words.view(int64)` fails if a slice starts at an odd word or is empty
    numbers = words.new_empty(*words.shape[:-1], words.shape[-1] // 2, dtype=torch.int64)
    numbers.view(torch.float32).copy_(words)
    return numbers


def check_equal(name: str, values: list[int]) -> None:
    """Raise PeerError if `values`, one of each rank, differ."""
    if any(value != values[0] for value in values):
        found = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
        raise PeerError(
            f"the ranks differ in {name} ({found}). Start all ranks with the same settings."
        )
