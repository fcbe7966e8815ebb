"""Proposal from pair counts: what follows the previous class, backing off to a unigram.

    Q(y | x) = (n(x, y) + kappa * U(y)) / (n(x) + kappa)

A batch shares one pool, so a batch with the previous classes x_1 .. x_B has the mean of
their rows as its proposal, Q(y) = 1/B sum_b Q(y | x_b).
"""

import torch
from torch import Tensor

from tapas.candidates import index_of
from tapas.errors import DataError, UsageError
from tapas.proposals.base import Proposal
from tapas.shapes import check_ids, check_integer


class Bigram(Proposal):
    """Draws classes that followed the previous classes of the batch in training.

    Args:
        previous, following, counts: (N,) each: how often `following` came after `previous`.
            Pairs that are not listed have count 0, counts of repeated pairs are added.
        unigram: the proposal to back off to, with a positive probability for every class.
        kappa: the unigram counts as much as so many observations; rows of previous classes
            with fewer are mostly unigram.

    Heads call `bigram.conditioned_on(context)` with the `context` of the batch, which returns an
    ordinary proposal. A negative previous class means "none" and uses the unigram.
    """

    wants_context = True

    def __init__(
        self,
        previous: Tensor,
        following: Tensor,
        counts: Tensor,
        *,
        unigram: Proposal,
        kappa: float = 1.0,
    ):
        self.num_classes, self.unigram, self.kappa = unigram.num_classes, unigram, float(kappa)
        previous, following, counts = (
            torch.as_tensor(x).cpu() for x in (previous, following, counts)
        )
        if not 0 < self.kappa < float("inf"):
            raise UsageError(f"kappa must be a finite number above 0, got {kappa!r}.")
        check_ids("previous", previous, self.num_classes)
        check_ids("following", following, self.num_classes)
        if not previous.shape == following.shape == counts.shape or previous.dim() != 1:
            raise UsageError(
                "previous, following and counts must share one shape (N,), got "
                f"{tuple(previous.shape)}, {tuple(following.shape)}, {tuple(counts.shape)}."
            )
        counts = counts.double()
        if not bool((counts.isfinite() & (counts > 0)).all()):
            raise DataError("bigram counts must be finite and above 0; leave the other pairs out.")
        order = torch.argsort(following.long(), stable=True)
        order = order[torch.argsort(previous.long()[order], stable=True)]
        self.following = following.long()[order]
        self.contexts, lengths = torch.unique_consecutive(
            previous.long()[order], return_counts=True
        )
        zero = lengths.new_zeros(1)
        self.starts = torch.cat([zero, lengths.cumsum(0)])
        self.counts = counts[order]

    def conditioned_on(self, context: Tensor | None) -> Proposal:
        if context is None:
            raise UsageError(
                "a Bigram proposal needs the previous class of every example: pass "
                "context=previous to the head, or call bigram.conditioned_on(previous)."
            )
        context = check_integer("context", context).reshape(-1).cpu()
        check_ids("context", context.clamp(min=0), self.num_classes)
        return _BatchBigram(self, context)

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        return self.conditioned_on(None).draw(k, generator=generator)

    def log_prob(self, ids: Tensor) -> Tensor:
        return self.conditioned_on(None).log_prob(ids)

    def __repr__(self) -> str:
        return f"Bigram({len(self.following)} pairs, kappa={self.kappa:g}, {self.unigram!r})"


class _BatchBigram(Proposal):
    """The mean of the rows of a bigram over the previous classes of one batch."""

    def __init__(self, bigram: Bigram, context: Tensor):
        if not len(context):
            raise UsageError("context is empty; expected the previous class of every example.")
        self.num_classes, self.unigram = bigram.num_classes, bigram.unigram
        distinct, repeats = torch.unique(context, return_counts=True)
        if len(bigram.contexts):
            row, known = index_of(bigram.contexts, distinct)
            row, repeats = row[known], repeats[known]
        else:
            row, repeats = distinct[:0], repeats[:0]
        start, end = bigram.starts[row], bigram.starts[row + 1]
        # all pairs of these rows, concatenated
        length = end - start
        owner = torch.repeat_interleave(length)
        offset = torch.arange(len(owner), device="cpu") - (length.cumsum(0) - length)[owner]
        pair = start[owner] + offset
        count = bigram.counts[pair]
        seen = count.new_zeros(len(row)).index_add_(0, owner, count)
        share = repeats.double() / len(context) * (seen / (seen + bigram.kappa))
        mass = count / seen[owner] * share[owner]
        self.ids, slot = torch.unique(bigram.following[pair], return_inverse=True)
        self.mass = mass.new_zeros(len(self.ids)).index_add_(0, slot, mass)
        self.cumulative = self.mass.cumsum(0)
        self.pair_share = float(share.sum())
        # not 1 - pair_share, which rounds to 0 if counts are much larger than kappa
        unknown = 1 - int(repeats.sum()) / len(context)
        backed_off = repeats.double() / len(context) * (bigram.kappa / (seen + bigram.kappa))
        self.unigram_share = unknown + float(backed_off.sum())

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        ids = self.unigram.draw(k, generator=generator)
        u = torch.rand(k, generator=generator, dtype=torch.float64, device="cpu")
        paired = (u < self.pair_share).nonzero()[:, 0]
        position = torch.searchsorted(self.cumulative, u[paired], right=True)
        ids[paired] = self.ids[position.clamp_(max=max(len(self.ids) - 1, 0))]
        return ids

    def log_prob(self, ids: Tensor) -> Tensor:
        prob = self.unigram.log_prob(ids).exp() * self.unigram_share
        if len(self.ids):
            position, found = index_of(self.ids, check_ids("ids", ids, self.num_classes))
            prob = prob + torch.where(found, self.mass[position], 0.0)
        return prob.log()

    def __repr__(self) -> str:
        return f"Bigram of a batch ({len(self.ids)} classes in its rows, {self.unigram!r})"
