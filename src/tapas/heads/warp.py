"""WARP, the loss of Wsabie (Weston, Bengio, Usunier 2011): precision at the top by sampling.

For each target y of an example, draw other classes one after another until the N-th violates the
margin, s_neg > s_y - 1. If k classes violate it, one of them is found after (C - 1) / k draws on
average, so k is estimated from N:

    loss = L(floor((C - 1) / N)) * (1 - s_y + s_neg)        L(k) = 1 + 1/2 + ... + 1/k

A target whose margin no draw violates has a loss of 0, and its row gets no gradient. An example
with m targets has C - m other classes and makes one search for each of its targets.

The draws for one target are independent and uniform, as in the paper, but shared by the batch: all
targets go through the same circle of `tries` draws, each from a random start. The rows of the
circle are read once and scored by one matrix product. The paper also bounds the norms of rows;
weight decay of the row optimizer can be used for that.
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

SCORES_AT_ONCE = 1 << 24  # entries of a block of the (B, tries) scores
BLOCK = 32  # draws that a search can skip at once


class Violations(NamedTuple):
    """Targets for which a class that violates the margin was drawn."""

    example: Tensor  # (V,) row of the target in the batch
    column: Tensor  # (V,) column of the target
    violator: Tensor  # (V,) class id
    rank: Tensor  # (V,) floor((C - m) / N), at least 1


class WARP(LookupHead):
    """A ranking loss for precision at the top of the list.

    Args:
        tries: draws for one target, after which its loss is 0. If fewer than about
            num_classes / tries classes violate the margin, the search often misses them.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    It learns to rank, not to estimate probabilities: `log_prob` is exact but not calibrated.
    """

    method = "warp"
    title = "WARP"
    paper = "Weston, Bengio, Usunier 2011"
    bibtex = ("weston2011wsabie",)
    options: ClassVar[Options] = {
        "tries": Option(
            1024, int, low=1, high=1e8, help="most draws to find a class that violates the margin"
        ),
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
        target = batch.target[example, column]
        weight, bias = self.table.lookup(torch.cat([target, violator]), return_bias=True)
        query = batch.query.index_select(0, example)
        logit = (weight * torch.cat([query, query])).sum(dim=1) + bias
        cost = warp_loss(logit[: len(target)], logit[len(target) :], rank)
        if batch.weight is not None:
            cost = cost * batch.weight[example, column]
        return batch.query.new_zeros(len(batch.query)).index_add(0, example, cost)

    @torch.no_grad()
    def _violations(self, batch: Batch) -> Violations:
        """The first violating draw of every target whose weight is not 0."""
        query, target, generator = batch.query, batch.target, self._draws()
        real = target >= 0
        searching = real if batch.weight is None else real & (batch.weight > 0)
        counted = real if batch.counted is None else batch.counted
        others = self.num_classes - counted.sum(dim=1)
        drawn = torch.randint(self.num_classes, (self.tries,), generator=generator, device="cpu")
        number = (int(real.sum()),)  # padding draws no start, so that it changes no other
        begin = torch.randint(_padded(self.tries), number, generator=generator, device="cpu")
        drawn = drawn.to(target.device)
        start = torch.zeros_like(target).masked_scatter_(real, begin.to(target.device))
        weight, bias = self.table.rows(torch.cat([target[real], drawn]))
        num_targets = len(weight) - self.tries
        margin = positive_logits(query, target, weight[:num_targets], bias[:num_targets]) - 1
        parts, size = [], max(1, SCORES_AT_ONCE // self.tries)
        for low in range(0, max(1, len(query)), size):
            some = slice(low, low + size)
            score = torch.addmm(bias[num_targets:], query[some], weight[num_targets:].t())
            score = pass_by(score, drawn, target[some])
            example, column = searching[some].nonzero(as_tuple=True)
            at = example + low, column
            found, place, num_tries = first_above(score, example, start[at], margin[at])
            example, column = at[0][found], at[1][found]
            rank = others[example] // num_tries
            kept = rank > 0  # the paper makes at most as many draws as there are other classes
            parts.append([part[kept] for part in (example, column, drawn[place], rank)])
        return Violations(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def extra_repr(self) -> str:
        return f"tries={self.tries}"


def pass_by(score: Tensor, drawn: Tensor, target: Tensor) -> Tensor:
    """`score` (B, T) of the draws (T,), -inf for targets (B, L) of the row, padded with -inf.

    The columns are padded to a multiple of `BLOCK`.
    """
    near = torch.isin(drawn, target).nonzero()[:, 0]
    hit = (target[:, :, None] == drawn[near]).any(dim=1)
    score[:, near] = score[:, near].masked_fill(hit, -torch.inf)
    num_tries = len(drawn)
    return functional.pad(score, (0, _padded(num_tries) - num_tries), value=-torch.inf)


def first_above(
    score: Tensor, example: Tensor, start: Tensor, bar: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Search rows of `score` for the first value above `bar`, in a circular order of columns.

    A search visits the blocks of `BLOCK` columns from the block of `start` on, round to the block
    before; within every block it starts at column `start % BLOCK` and goes round, too. A block
    whose largest value is not above `bar` is skipped.

    Args:
        score:   (B, T), T a multiple of BLOCK; -inf is skipped and not counted.
        example: (P,) the row of each search.
        start:   (P,) the column it starts at.
        bar:     (P,)

    Returns, for the V searches that succeed: their positions (V,), the columns found (V,), and
    the number of values visited (V,), including the last.
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
    """(N, 1) the first True column of each row of `mask` (N, W)."""
    return mask.to(torch.uint8).argmax(dim=1, keepdim=True)


def _padded(num_tries: int) -> int:
    return -(-num_tries // BLOCK) * BLOCK
