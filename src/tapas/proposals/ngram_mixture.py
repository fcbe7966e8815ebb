"""A mixture of uniform, unigram and bigram that follows a distribution it is told of.

    Q(y | x) = (1 - v) (u / C + (1 - u) U(y)) + v Bi(y | x)

What it is told are estimates p of the distribution to follow, few classes at a time. U and the
rows of Bi move towards them by interpolation, the shares u and v by a step of expectation
maximisation for their likelihood. A context x without a row is proposed for as if v were 0.

Draws are made from a copy of Q that stands still until `refresh`, which costs O(C + pairs);
to be told costs what is told.
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

LEAST_UNIFORM = 0.05  # share of the base: what the other parts overlook must be drawn, too
LEAST_PAIRS = 0.001  # share of the bigram, which at 0 could not be told of anything
LEAST_MASS = 1e-12  # of a pair, before its row is scaled to 1


class NgramMixture(ExactState):
    """The mixture over `num_classes` classes, as buffers: O(C + pairs) numbers.

    Args:
        counts: (C,) how often each class was seen, to begin with; all alike if left out.
        pairs: (previous, following, counts), (N,) each, as for `Bigram`. Rows move within
            these pairs; there is no bigram if they are left out.
        rate: by how much one example moves the row of its context, one step everything else.
    """

    unigram: Tensor  # (C,) U
    unigram_heard: Tensor  # (C,) sum of the estimates since the last refresh
    pair_mass: Tensor  # (N,) Bi, up to a factor for each row
    pair_heard: Tensor  # (N,)
    row_heard: Tensor  # (rows,) number of estimates for each context
    shares: Tensor  # (2,) u and v
    shares_heard: Tensor  # (4,) mass that the uniform and the bigram part explain, of how much each
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
            start = Squashed(counts, num_classes=num_classes)
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
        """Whether there are pairs, of which `given` can make use."""
        return self._bigram is not None

    def conditioned_on(self, context: Tensor | None) -> Proposal:
        """Q of a batch whose examples have these previous classes, (B,); negative is none."""
        base, bigram = self._freeze()
        return base if bigram is None or context is None else bigram.conditioned_on(context)

    @torch.no_grad()
    def observe(self, ids: Tensor, share: Tensor, context: Tensor | None) -> None:
        """Take note of estimates `share` (A, K) of the probabilities of `ids` (K,), rising.

        `context` (A,) are the previous classes of the A examples.
        """
        ids, share = ids.cpu(), share.cpu().double()
        base, bigram = self._freeze()
        base_prob = base.log_prob(ids).exp()
        total = share.sum(dim=0)
        _add(self.unigram_heard, ids, total / len(share))
        if bigram is not None and context is not None:
            total = total - self._hear_pairs(bigram, ids, share, context.cpu().long(), base_prob)
        by_uniform = float(self.shares[0]) / self.num_classes / base_prob
        self.shares_heard[0] += float((total * by_uniform).sum())
        self.shares_heard[2] += float(total.sum())
        self.num_heard += 1

    def _hear_pairs(
        self, bigram: Bigram, ids: Tensor, share: Tensor, context: Tensor, base_prob: Tensor
    ) -> Tensor:
        """(K,) the part of the summed `share` that comes from the bigram, as things stand."""
        row, known = index_of(bigram.contexts, context)
        row, example = row[known], known.nonzero()[:, 0]
        start, length = bigram.starts[row], bigram.starts[row + 1] - bigram.starts[row]
        # every pair of the examples' contexts, laid end to end
        owner = torch.repeat_interleave(length)
        offset = torch.arange(len(owner), device="cpu") - (length.cumsum(0) - length)[owner]
        pair = start[owner] + offset
        place, there = index_of(ids, bigram.following[pair])
        owner, pair, place = owner[there], pair[there], place[there]
        told = share[example[owner], place]
        _add(self.pair_heard, pair, told)
        _add(self.row_heard, row, torch.ones(len(row), device="cpu"))
        v = float(self.shares[1])
        paired = v * bigram.counts[pair]
        told *= paired / (paired + (1 - v) * base_prob[place])
        self.shares_heard[1] += float(told.sum())
        self.shares_heard[3] += float(share[example].sum())
        return share.new_zeros(len(ids)).index_add_(0, place, told)

    @torch.no_grad()
    def refresh(self) -> None:
        """Move Q towards what was heard since the last time."""
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
        """Of all that Q is made of."""
        sums = [crc32(x.cpu().numpy().tobytes()) for x in (self.unigram, self.pair_mass)]
        return crc32(repr((sums, self.shares.tolist())).encode())

    def _freeze(self) -> tuple[Squashed, Bigram | None]:
        """What to draw from: Q without context, and with it, as of the last refresh."""
        if self._frozen is None:
            u, v = self.shares.tolist()
            prob = (1 - u) * self.unigram.cpu().double()
            prob += (1 - float(prob.sum())) / self.num_classes  # u / C, roundings included
            base, bigram = Squashed(prob), None
            if self._bigram is not None:
                bigram = copy(self._bigram)
                bigram.counts = self.pair_mass.cpu().double()
                bigram.counts = _rows_of_one(bigram)
                # a row of sum 1 has the share 1 / (1 + kappa)
                bigram.unigram, bigram.kappa = base, (1 - v) / v
            self._frozen = base, bigram
        return self._frozen

    def state_numbers(self) -> dict[str, int | float]:
        return {"pairs": 0 if self._bigram is None else crc32(repr(_names(self._bigram)).encode())}

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        self._frozen = None
        if numbers != self.state_numbers():
            raise UsageError(
                "this state was adapted with other pairs than the mixture has. Pass the pairs that "
                "it was saved with."
            )


def _pairs(pairs: tuple[Tensor, Tensor, Tensor], unigram: Proposal) -> Bigram | None:
    if not isinstance(pairs, tuple) or len(pairs) != 3:
        raise UsageError(
            f"pairs must be a tuple (previous, following, counts), got {type(pairs).__name__} of "
            f"{len(pairs)}. Pair counts of a log come as such a triple."
        )
    bigram = Bigram(*pairs, unigram=unigram)
    if not len(bigram.counts):
        return None
    # an estimate is told to one pair: those listed twice become one
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


def _names(bigram: Bigram) -> list[int]:
    """Checksums of which pairs there are."""
    parts = (bigram.contexts, bigram.starts, bigram.following)
    return [crc32(part.numpy().tobytes()) for part in parts]


def _add(heard: Tensor, places: Tensor, values: Tensor) -> None:
    heard.index_add_(0, places.to(heard.device), values.to(heard))
