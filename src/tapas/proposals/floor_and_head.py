"""Draws from a uniform floor over all classes and an alias table over the head, by counter.

Draw i of a sequence depends on its key and on i alone, so that threads, and other devices, can
draw parts of it. Every draw takes two numbers of 64 bits: the first chooses the part of the
proposal, the second the class or the bucket of the alias table.
"""

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.native import FloorAndHead
from tapas.proposals.alias import AliasTable
from tapas.rng import philox, scale_words, uniform_numbers

NOTHING = torch.empty(0, dtype=torch.float64)


def floor_and_head(
    num_classes: int,
    head_ids: Tensor,
    weights: Tensor,
    *,
    floor_share: float,
    floor_log_prob: float,
    head_log_prob: Tensor,
) -> FloorAndHead:
    """The uniform part with chance `floor_share`, else `head_ids` (H,) by `weights` (H,).

    `floor_log_prob` and `head_log_prob` (H,) are the log-probabilities of classes outside and
    inside of the head.
    """
    alias = AliasTable(weights) if len(weights) else None
    entries, shift = directory_size(num_classes, len(head_ids))
    starts = torch.arange(entries, device="cpu") << shift
    return FloorAndHead(
        num_classes,
        floor_share if alias is not None else 1.0,
        _log_not(torch.tensor(floor_log_prob, dtype=torch.float64, device="cpu")).item(),
        NOTHING if alias is None else alias.threshold,
        NOTHING.long() if alias is None else alias.partner,
        head_ids,
        _log_not(head_log_prob),
        torch.searchsorted(head_ids, starts).int(),
        shift,
    )


def directory_size(num_classes: int, size: int) -> tuple[int, int]:
    """Entries and shift of the directory of a head of `size` classes: one or two for each."""
    if not size:
        return 2, num_classes.bit_length()
    shift = max(0, (num_classes // size).bit_length() - 1)
    return (num_classes - 1 >> shift) + 2, shift


def log_drawn(not_drawn: Tensor) -> Tensor:
    """The log-probabilities, given log(1 - Q)."""
    return torch.log(-torch.expm1(not_drawn))


def _log_not(log_prob: Tensor) -> Tensor:
    """log(1 - exp(log_prob)); a log_prob of 0 may have been rounded to 1e-16."""
    return torch.log1p(-log_prob.exp().clamp_(max=1.0))


def draw_classes(given: FloorAndHead, key: int, count: int) -> Tensor:
    """`count` independent draws, (count,) int64."""
    if native.supports(given.head_ids):
        return native.draw_classes(given, key, count)
    high, low = philox(key, count)
    ids = torch.from_numpy(scale_words(low, given.num_classes)[0])
    if not len(given.head_ids):
        return ids
    from_head = torch.from_numpy(uniform_numbers(high) >= given.floor_share)
    bucket, fraction = scale_words(low, len(given.head_ids))
    at = torch.from_numpy(bucket)
    stays = torch.from_numpy(uniform_numbers(fraction)) < given.threshold[at]
    return torch.where(from_head, given.head_ids[torch.where(stays, at, given.partner[at])], ids)


def sample_classes(given: FloorAndHead, key: int, count: int, k: int) -> Candidates | None:
    """The first k distinct of `count` draws with their log expected counts, in one native call.

    None without native kernels, or if there are too few distinct ones.
    """
    if not native.supports(given.head_ids):
        return None
    found = native.pool(given, key, count, k)
    return None if found is None else Candidates(*found, below=given.num_classes)
