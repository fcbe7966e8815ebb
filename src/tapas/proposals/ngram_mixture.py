"""A mixture of uniform, unigram and bigram that adapts to an observed distribution.

    Q(y | x) = (1 - v) (u / C + (1 - u) U(y)) + v Bi(y | x)

`observe` takes estimates p of the distribution to follow, for a few classes at a time. U and the
rows of Bi move towards them by interpolation, the shares u and v by a step of expectation
maximisation. For a previous class x without a row, v is 0.

Draws are made from a copy of Q that changes only in `refresh`, which takes O(C + pairs);
`observe` takes time in proportion to the estimates.
"""

from copy import copy
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from tapas.candidates import index_of
from tapas.errors import UsageError
from tapas.exact_state import ExactState
from tapas.proposals.base import Proposal
from tapas.proposals.bigram import Bigram
from tapas.proposals.squashed import Squashed
from tapas.proposals.uniform import Uniform

LEAST_UNIFORM = 0.05  # of u: classes that unigram and bigram miss must be drawn, too
LEAST_PAIRS = 0.001  # of v: at 0 it could never grow again
LEAST_MASS = 1e-12  # of a pair, before its row is scaled to sum to 1


class NgramMixture(ExactState):
    """The mixture over `num_classes` classes, as buffers: O(C + pairs) numbers.

    Args:
        counts: (C,) how often each class was seen: the initial unigram; uniform if left out.
        pairs: (previous, following, counts), (N,) each, as for `Bigram`: the initial bigram. No
            other pairs are added later. There is no bigram if left out.
        rate: learning rate: of a bigram row for each example, of all else for each step.
    """

    unigram: Tensor  # (C,) U
    unigram_heard: Tensor  # (C,) sum of the estimates since the last refresh
    pair_mass: Tensor  # (N,) Bi, up to a factor for each row
    pair_heard: Tensor  # (N,)
    row_heard: Tensor  # (rows,) number of estimates for each context
    shares: Tensor  # (2,) u and v
    shares_heard: Tensor  # (4,) mass explained by uniform, by bigram, and the total of each
    num_heard: Tensor  # () steps since the last refresh

    def __init__(
        self,
        num_classes: int,
        *,
        counts: Tensor | None = None,
        pairs: tuple[Tensor, Tensor, Tensor] | None = None,
        rate: float = 0.01,
        device: torch.device | None = None,
    ):
        super().__init__()
        self.num_classes, self.rate = num_classes, rate
        start: Proposal = Uniform(num_classes)
        if counts is not None:
            start = Squashed(counts, alpha=1.0, num_classes=num_classes)
        self._bigram = None if pairs is None else _pairs(pairs, start)
        self._frozen: tuple[Squashed, Bigram | None] | None = None
        unigram = start.log_prob(torch.arange(num_classes, device="cpu")).exp().float()
        mass, num_rows = torch.zeros(0, device="cpu"), 0
        if self._bigram is not None:
            mass, num_rows = _rows_of_one(self._bigram).float(), len(self._bigram.contexts)
        for name, value in (
            ("unigram", unigram),
            ("unigram_heard", torch.zeros_like(unigram)),
            ("pair_mass", mass),
            ("pair_heard", torch.zeros_like(mass)),
            ("row_heard", torch.zeros(num_rows, device="cpu")),
            ("shares", torch.tensor([0.5, 0.5], dtype=torch.float64, device="cpu")),
            ("shares_heard", torch.zeros(4, dtype=torch.float64, device="cpu")),
            ("num_heard", torch.zeros((), dtype=torch.int64, device="cpu")),
        ):
            self.register_buffer(name, value.to(device))

    @property
    def wants_context(self) -> bool:
        """Whether there is a bigram, so that `conditioned_on` uses the previous classes."""
        return self._bigram is not None

    def conditioned_on(self, context: Tensor | None) -> Proposal:
        """Q for a batch with these previous classes (B,); negative is none."""
        base, bigram = self._freeze()
        return base if bigram is None or context is None else bigram.conditioned_on(context)

    @torch.no_grad()
    def observe(self, ids: Tensor, share: Tensor, context: Tensor | None) -> None:
        """Add estimates `share` (A, K) of the probabilities of `ids` (K,), ascending.

        `context` (A,) are the previous classes of the A examples. Q changes in `refresh`.
        """
        ids, share = ids.cpu(), share.cpu().double()
        base, bigram = self._freeze()
        base_prob = base.log_prob(ids).exp()
        total = share.sum(dim=0)
        _add(self.unigram_heard, ids, total / len(share))
        if bigram is not None and context is not None:
            total = total - self._observe_pairs(bigram, ids, share, context.cpu().long(), base_prob)
        by_uniform = float(self.shares[0]) / self.num_classes / base_prob
        self.shares_heard[0] += float((total * by_uniform).sum())
        self.shares_heard[2] += float(total.sum())
        self.num_heard += 1

    def _observe_pairs(
        self, bigram: Bigram, ids: Tensor, share: Tensor, context: Tensor, base_prob: Tensor
    ) -> Tensor:
        """(K,) how much of the summed `share` the present bigram explains."""
        row, known = index_of(bigram.contexts, context)
        row, example = row[known], known.nonzero()[:, 0]
        start, length = bigram.starts[row], bigram.starts[row + 1] - bigram.starts[row]
        # all pairs of the examples' rows, concatenated
        owner = torch.repeat_interleave(length)
        offset = torch.arange(len(owner), device="cpu") - (length.cumsum(0) - length)[owner]
        pair = start[owner] + offset
        position, there = index_of(ids, bigram.following[pair])
        owner, pair, position = owner[there], pair[there], position[there]
        estimate = share[example[owner], position]
        _add(self.pair_heard, pair, estimate)
        _add(self.row_heard, row, torch.ones(len(row), device="cpu"))
        v = float(self.shares[1])
        paired = v * bigram.counts[pair]
        estimate *= paired / (paired + (1 - v) * base_prob[position])
        self.shares_heard[1] += float(estimate.sum())
        self.shares_heard[3] += float(share[example].sum())
        return share.new_zeros(len(ids)).index_add_(0, position, estimate)

    @torch.no_grad()
    def refresh(self) -> None:
        """Move Q towards the estimates observed since the last refresh."""
        pace = 1 - (1 - self.rate) ** int(self.num_heard)
        if float(total := self.unigram_heard.sum()) > 0:
            self.unigram.lerp_(self.unigram_heard / total, pace)
        if self._bigram is not None:
            times = self.row_heard[_row_of_pair(self._bigram).to(self.row_heard.device)]
            mean = self.pair_heard / times.clamp(min=1)
            self.pair_mass += (1 - (1 - self.rate) ** times) * (mean - self.pair_mass)
        for part, least in enumerate((LEAST_UNIFORM, LEAST_PAIRS)):
            if float(self.shares_heard[part + 2]) > 0:
                likeliest = self.shares_heard[part] / self.shares_heard[part + 2]
                self.shares[part].lerp_(likeliest, pace).clamp_(least, 1 - least)
        for heard in (self.unigram_heard, self.pair_heard, self.row_heard, self.shares_heard):
            heard.zero_()
        self.num_heard.zero_()
        self._frozen = None

    def checksum(self) -> int:
        """CRC-32 of all numbers that define Q."""
        sums = [crc32(x.cpu().numpy().tobytes()) for x in (self.unigram, self.pair_mass)]
        return crc32(repr((sums, self.shares.tolist())).encode())

    def _freeze(self) -> tuple[Squashed, Bigram | None]:
        """Q as of the last refresh: without previous classes, and with them."""
        if self._frozen is None:
            u, v = self.shares.tolist()
            prob = (1 - u) * self.unigram.cpu().double()
            prob += (1 - float(prob.sum())) / self.num_classes  # u / C, and the rounding error
            base, bigram = Squashed(prob, alpha=1.0), None
            if self._bigram is not None:
                bigram = copy(self._bigram)
                bigram.counts = self.pair_mass.cpu().double()
                bigram.counts = _rows_of_one(bigram)
                # the share of a row that sums to 1 is 1 / (1 + kappa) = v
                bigram.unigram, bigram.kappa = base, (1 - v) / v
            self._frozen = base, bigram
        return self._frozen

    def state_numbers(self) -> dict[str, int | float]:
        return {
            "pairs": 0
            if self._bigram is None
            else crc32(repr(_pair_checksums(self._bigram)).encode())
        }

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        self._frozen = None
        if numbers != self.state_numbers():
            raise UsageError(
                "the saved state has other pairs than this mixture. Build it with the pairs that "
                "the state was saved with."
            )


def _pairs(pairs: tuple[Tensor, Tensor, Tensor], unigram: Proposal) -> Bigram | None:
    if not isinstance(pairs, tuple) or len(pairs) != 3:
        raise UsageError(
            f"pairs must be a tuple (previous, following, counts), got {type(pairs).__name__} of "
            f"length {len(pairs)}. Pass three tensors of one shape, (N,)."
        )
    bigram = Bigram(*pairs, unigram=unigram)
    if not len(bigram.counts):
        return None
    # an estimate belongs to one pair: merge pairs that are listed twice
    row, num_classes = _row_of_pair(bigram), unigram.num_classes
    key, slot = torch.unique(
        bigram.contexts[row] * num_classes + bigram.following, return_inverse=True
    )
    counts = bigram.counts.new_zeros(len(key)).index_add_(0, slot, bigram.counts)
    return Bigram(key // num_classes, key % num_classes, counts, unigram=unigram)


def _row_of_pair(bigram: Bigram) -> Tensor:
    """(N,) the row of each pair."""
    return torch.repeat_interleave(bigram.starts.diff())


def _rows_of_one(bigram: Bigram) -> Tensor:
    """(N,) counts, each row divided by its sum."""
    row, count = _row_of_pair(bigram), bigram.counts.clamp(min=LEAST_MASS)
    return count / count.new_zeros(len(bigram.contexts)).index_add_(0, row, count)[row]


def _pair_checksums(bigram: Bigram) -> list[int]:
    """Checksums of the pairs, without their counts."""
    parts = (bigram.contexts, bigram.starts, bigram.following)
    return [crc32(part.numpy().tobytes()) for part in parts]


def _add(total: Tensor, positions: Tensor, values: Tensor) -> None:
    total.index_add_(0, positions.to(total.device), values.to(total))
