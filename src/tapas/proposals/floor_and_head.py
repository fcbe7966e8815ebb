"""Draws from a uniform floor over all classes and an alias table over the head, by counter.

Draw i of a sequence depends on its key and on i alone, so that threads, and other devices, can
draw parts of it. A draw takes one number in [0, 1). Below the floor's share it is stretched over
all classes, else over the buckets of the alias table, and what is left within a bucket chooses
between its two classes. A number has 52 bits: the chance of a class of the floor is right up to
C / (2^52 floor_share) of it, one in a thousand for 10^9 classes and a share of 2 * 10^-4.
"""

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.native import FloorAndHead
from tapas.proposals.alias import AliasTable
from tapas.proposals.base import Proposal, first_draws, most_draws
from tapas.rng import new_key, philox, uniform_numbers

NOTHING = torch.empty(0, dtype=torch.float64)
LEAST_SHARE = 1e-290  # of the floor, so that dividing by it does not overflow
MOST_HEADS = 1 << 31  # places in the head are int32


class FloorAndHeadProposal(Proposal):
    """A proposal that is a floor and a head."""

    _parts: FloorAndHead
    _every: Tensor | None = None  # probabilities of all classes, once they were needed

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        return draw_classes(self._parts, new_key(generator), k)

    def _draw_until_distinct(self, k: int, generator: torch.Generator) -> Candidates:
        if type(self).draw is not FloorAndHeadProposal.draw:  # a subclass draws otherwise
            return super()._draw_until_distinct(k, generator)
        key, count = new_key(generator), first_draws(k)
        if native.supports(self._parts.buckets):
            found = native.pool(self._parts, key, most_draws(k), k)
            if found is not None:
                return Candidates(*found, below=self.num_classes)
            count = most_draws(k)
        draws = draw_classes(self._parts, key, count)
        return self._first_of(
            draws,
            k,
            lambda draws: draw_classes(self._parts, key, min(2 * len(draws), most_draws(k))),
        )

    def _probabilities(self) -> Tensor:
        if self._every is None:
            self._every = super()._probabilities()
        return self._every


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
    buckets = torch.empty(0, 2, dtype=torch.int32, device="cpu")
    if len(weights) >= MOST_HEADS:
        raise UsageError(
            f"{len(weights):,} classes have counts above the floor; expected fewer than "
            f"{MOST_HEADS:,}. Raise beta."
        )
    if len(weights):
        alias = AliasTable(weights)
        threshold = (alias.threshold * 2.0**32).round_().clamp_(max=2.0**32 - 1).long()
        threshold -= (threshold >> 31) << 32  # the same bits in an int32
        buckets = torch.stack([threshold.int(), alias.partner.int()], dim=1)
    entries, shift = directory_size(num_classes, len(head_ids))
    starts = torch.arange(entries, device="cpu") << shift
    return FloorAndHead(
        num_classes,
        max(floor_share, LEAST_SHARE) if len(weights) else 1.0,
        _log_not(torch.tensor(floor_log_prob, dtype=torch.float64, device="cpu")).item(),
        buckets,
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
    if native.supports(given.buckets):
        return native.draw_classes(given, key, count)
    u = torch.from_numpy(uniform_numbers(philox(key, count)))
    size, floor = len(given.buckets), given.floor_share
    ids = (u * (given.num_classes / floor)).long().clamp_(max=given.num_classes - 1)
    if not size:
        return ids
    x = (u - floor) * (size / max(1.0 - floor, LEAST_SHARE))
    at = x.long().clamp_(0, size - 1)
    threshold, partner = given.buckets[at].unbind(dim=1)
    stays = (x - at) * 2.0**32 < (threshold.long() & 0xFFFFFFFF)
    return torch.where(u < floor, ids, given.head_ids[torch.where(stays, at, partner)])
