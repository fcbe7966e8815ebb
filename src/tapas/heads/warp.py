"""WARP, the loss of Wsabie (Weston, Bengio, Usunier 2011): precision at the top by sampling.

For each target y of an example draw other classes, one after another, until the N-th violates
the margin, s_neg > s_y - 1. Were k classes to violate it, one of them would be found after
(C - 1) / k draws on average, so k is estimated from N, and

    loss = L(floor((C - 1) / N)) * (1 - s_y + s_neg)        L(k) = 1 + 1/2 + ... + 1/k

A target that no draw violates is well placed already: no loss, and its row is not touched.
Of an example with m targets the other classes are C - m, and each target searches by itself.

The draws of one target are independent and uniform, as in the paper, but the batch shares
them: all targets walk the same circle of `tries` draws, each from a start of its own. The
circle is scored by one product, and the rows it takes are read once, wherever they live.
The paper also bounds the norms of rows; here the row optimizer's weight decay can stand in.
"""

from typing import ClassVar, NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn import functional

from tapas.heads.batch import Batch
from tapas.heads.facts import Option, Options
from tapas.heads.flat import FlatOptions, LookupHead
from tapas.losses.hard_negatives import positive_logits
from tapas.losses.warp import warp_loss
from tapas.shapes import check_positive

SCORES_AT_ONCE = 1 << 24  # of examples by draws
BLOCK = 32  # draws that a search passes at one look


class Violations(NamedTuple):
    """Targets for which a violator was drawn."""

    example: Tensor  # (V,) where the target stands in the batch
    column: Tensor  # (V,)
    violator: Tensor  # (V,) class id
    rank: Tensor  # (V,) floor((C - m) / N), at least 1


class WARP(LookupHead):
    """Learns to rank, not to tell probabilities: `log_prob` is exact but not calibrated.

    Args:
        tries: draws after which a target is given up, as well placed as can be seen. The search
            sees violators down to about num_classes / tries of them.
    """

    method = "warp"
    title = "WARP"
    paper = "Weston, Bengio, Usunier 2011"
    bibtex = ("weston2011wsabie",)
    options: ClassVar[Options] = {
        "tries": Option(1024, int, low=1, help="draws for one that violates the margin"),
    }
    targets_softmax = False

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        tries: int = 1024,
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.tries = check_positive("tries", tries)

    @property
    def scores_per_example(self) -> float:
        return self.tries

    def losses(self, batch: Batch, context: Tensor | None) -> Tensor:
        example, column, violator, rank = self._violations(batch)
        own = batch.target[example, column]
        weight, bias = self.table.lookup(torch.cat([own, violator]), return_bias=True)
        query = batch.query.index_select(0, example)
        logit = (weight * torch.cat([query, query])).sum(dim=1) + bias
        cost = warp_loss(logit[: len(own)], logit[len(own) :], rank)
        if batch.weight is not None:
            cost = cost * batch.weight[example, column]
        return batch.query.new_zeros(len(batch.query)).index_add(0, example, cost)

    @torch.no_grad()
    def _violations(self, batch: Batch) -> Violations:
        """What all targets of some weight find."""
        query, target, generator = batch.query, batch.target, self._draws()
        real = target >= 0
        searching = real if batch.weight is None else real & (batch.weight > 0)
        counted = real if batch.counted is None else batch.counted
        others = self.num_classes - counted.sum(dim=1)
        drawn = torch.randint(self.num_classes, (self.tries,), generator=generator, device="cpu")
        number = (int(real.sum()),)  # padding draws nothing, or it would change what others draw
        begin = torch.randint(_padded(self.tries), number, generator=generator, device="cpu")
        drawn = drawn.to(target.device)
        start = torch.zeros_like(target).masked_scatter_(real, begin.to(target.device))
        weight, bias = self.table.rows(torch.cat([target[real], drawn]))
        num_own = len(weight) - self.tries
        margin = positive_logits(query, target, weight[:num_own], bias[:num_own]) - 1
        parts, size = [], max(1, SCORES_AT_ONCE // self.tries)
        for low in range(0, max(1, len(query)), size):
            some = slice(low, low + size)
            score = torch.addmm(bias[num_own:], query[some], weight[num_own:].t())
            score = pass_by(score, drawn, target[some])
            example, column = searching[some].nonzero(as_tuple=True)
            at = example + low, column
            found, place, num_tries = first_above(score, example, start[at], margin[at])
            example, column = at[0][found], at[1][found]
            rank = others[example] // num_tries
            kept = rank > 0  # the paper draws no more often than there are other classes
            parts.append([part[kept] for part in (example, column, drawn[place], rank)])
        return Violations(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def extra_repr(self) -> str:
        return f"tries={self.tries}"


def pass_by(score: Tensor, drawn: Tensor, own: Tensor) -> Tensor:
    """`score` (B, T), -inf where `drawn` (T,) is one of the row's `own` (B, L), and in columns
    that fill up its last block.
    """
    near = torch.isin(drawn, own).nonzero()[:, 0]
    mine = (own[:, :, None] == drawn[near]).any(dim=1)
    score[:, near] = score[:, near].masked_fill(mine, -torch.inf)
    num_tries = len(drawn)
    return functional.pad(score, (0, _padded(num_tries) - num_tries), value=-torch.inf)


def first_above(
    score: Tensor, example: Tensor, start: Tensor, bar: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The first score of a row that is above the bar, by a walk of all its columns.

    The columns are `BLOCK` by `BLOCK`; a walk begins in the block of `start` and goes round
    them, and in each block it begins at the same place and goes round that. Where the largest
    of a block is not above the bar, nobody looks inside.

    Args:
        score:   (B, T), T a multiple of BLOCK; -inf is passed by and is not counted.
        example: (P,) rows, one for each walk.
        start:   (P,) columns to begin at.
        bar:     (P,)

    Returns: the walks that end, (V,), the columns where they do, and how many scores each has
    passed, its last one included.
    """
    num_blocks = score.shape[1] // BLOCK
    blocks = score.view(len(score), num_blocks, BLOCK)
    ahead = torch.arange(num_blocks, device=score.device)
    order = (start[:, None] // BLOCK + ahead) % num_blocks
    row = example[:, None]
    above = blocks.amax(dim=2)[row, order] > bar[:, None]
    found = above.any(dim=1).nonzero()[:, 0]
    order, row, bar = order[found], row[found], bar[found, None]
    last = first_true(above[found])
    passed = ((blocks != -torch.inf).sum(dim=2)[row, order] * (ahead < last)).sum(dim=1)
    block = order.gather(1, last)
    inside = torch.arange(BLOCK, device=score.device)
    order = (start[found, None] + inside) % BLOCK
    value = blocks[row, block, order]
    end = first_true(value > bar)
    passed += ((value != -torch.inf) & (inside <= end)).sum(dim=1)
    return found, (block * BLOCK + order.gather(1, end))[:, 0], passed


def first_true(mask: Tensor) -> Tensor:
    """(N, 1) the first column of `mask` (N, W) that is True."""
    return mask.to(torch.uint8).argmax(dim=1, keepdim=True)


def _padded(num_tries: int) -> int:
    return -(-num_tries // BLOCK) * BLOCK
