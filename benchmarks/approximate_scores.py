"""Priority with cheaper scores: fewer queries, fewer bits, fewer dimensions, or older scores.

    share ~ mean_a softmax_y(logit_ay - log_q_y), approximately
    keep and weight by priority, as `tapas.Priority` does with exact shares

Priority is unbiased for any positive shares, so an approximation adds variance, not bias. Reused
scores need a reused pool, whose rows have moved since; these are slightly biased.
"""

import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

import tapas
import tapas.native as native
from tapas.candidates import Candidates, mask_hits
from tapas.selection import SelectionInput
from tapas.selection.base import largest
from tapas.selection.priority import TINY, mean_share

SHRINK = 4  # D is projected to D/4 dimensions
LARGEST = 127  # of int8, symmetric around 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ByShare(tapas.Priority):
    """`tapas.Priority` in two parts, so that one of them can be approximated."""

    def share(self, given: SelectionInput) -> Tensor:
        """(P,) positive shares, which decide what is kept."""
        if given.native is None:
            share = mean_share(given)
        else:
            share = native.mean_share(
                given.native,
                given.log_q,
                given.query,
                given.ids,
                given.target,
                temperature=given.temperature,
            )
        if not given.complete:
            share.mul_(1 - self.floor).add_(self.floor / len(given))
        return share.clamp_(min=TINY)

    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        share = self.share(given)
        kept, threshold = largest(share / given.noise, keep)
        return kept, (threshold / share[kept]).clamp_(min=1.0).log_()


@dataclass(frozen=True, kw_only=True, slots=True)
class Coarse(ByShare):
    """Scores with coarsened rows (P, D) and queries (A, D); biases stay exact."""

    coarsen: Callable[[Tensor], Tensor]

    def share(self, given: SelectionInput) -> Tensor:
        weight, bias = given.rows(0, len(given))
        weight = self.coarsen(weight)
        coarse = replace(
            given,
            rows=lambda start, stop: (weight[start:stop], bias[start:stop]),
            query=self.coarsen(given.query),
        )
        if given.native is not None:  # biases are of the type of the rows there
            rows = native.PoolRows(weight, None, torch.arange(len(given)))
            coarse = replace(coarse, native=rows, log_q=given.log_q - bias)
        return ByShare.share(self, coarse)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stale(ByShare):
    """Scores a pool once, and returns the same shares when the pool is used again.

    For a head whose proposal is a `HeldPool`.
    """

    seen: list[Tensor] = field(default_factory=list, repr=False, compare=False)  # ids, shares

    def share(self, given: SelectionInput) -> Tensor:
        if not self.seen or not torch.equal(self.seen[0], given.ids):
            self.seen[:] = given.ids, ByShare.share(self, given)
        return self.seen[1]


class HeldPool(tapas.Proposal):
    """A proposal that draws a new pool only at every `every`-th call of `sample`."""

    def __init__(self, proposal: tapas.Proposal, every: int):
        self.proposal, self.every = proposal, every
        self.num_classes = proposal.num_classes
        self.calls = 0
        self.pool: Candidates | None = None

    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        return self.proposal.draw(k, generator=generator)

    def log_prob(self, ids: Tensor) -> Tensor:
        return self.proposal.log_prob(ids)

    def sample(self, k: int, *, generator: torch.Generator) -> Candidates:
        if self.pool is None or self.calls % self.every == 0:
            self.pool = self.proposal.sample(k, generator=generator)
        self.calls += 1
        return self.pool


def to_bfloat16(rows: Tensor) -> Tensor:
    """Rounded to eight bits of mantissa, as float32."""
    return rows.bfloat16().float()


def to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Integers (N, D) from -127 to 127, and the scale of each row, (N, 1)."""
    scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=TINY) / LARGEST
    return (rows / scale).round_().to(torch.int8), scale


def through_int8(rows: Tensor) -> Tensor:
    """Rows rounded by `to_int8`, as float32: their products are those of int8 up to rounding."""
    integers, scale = to_int8(rows)
    return integers.float() * scale


def int8_share(
    rows: tuple[Tensor, Tensor], query: Tensor, offset: Tensor, ids: Tensor, target: Tensor
) -> Tensor:
    """Shares (P,) by integer products, in torch.

    `rows` is the result of `to_int8`; `query` (A, D), `offset` and `ids` (P,); `target` (A, L) are
    left out of the shares of their query.
    """
    (integers, scale), (queries, query_scale) = rows, to_int8(query)
    logit = torch._int_mm(queries, integers.t()).float().mul_(query_scale).mul_(scale.t())
    logit += offset
    mask_hits(logit, ids, target)
    return torch.softmax(logit, dim=1, out=logit).mean(dim=0)


@functools.cache
def projection(dim: int) -> Tensor:
    """(D, D/4) with orthogonal columns of length 2, so that products keep their size on average."""
    small = max(1, dim // SHRINK)
    full = torch.randn(dim, dim, generator=tapas.rng.stream(0, "projection"), dtype=torch.float64)
    return (torch.linalg.qr(full).Q[:, :small] * (dim / small) ** 0.5).float()


def project(rows: Tensor) -> Tensor:
    """(N, D) to (N, D/4)."""
    return rows @ projection(rows.shape[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A way to score, and the number of steps for which a scored pool is used."""

    rule: ByShare
    hold: int = 1

    def install(self, head: tapas.TapasSoftmax) -> None:
        """Make `head` score this way."""
        head.selection = self.rule
        if self.hold > 1:
            head.proposal = HeldPool(head.proposal, self.hold)


DEFAULT = "64 queries (default)"


def variants() -> dict[str, Variant]:
    """All variants, newly built."""
    return {
        DEFAULT: Variant(rule=ByShare()),
        "32 queries": Variant(rule=ByShare(score_queries=32)),
        "16 queries": Variant(rule=ByShare(score_queries=16)),
        "8 queries": Variant(rule=ByShare(score_queries=8)),
        "all queries": Variant(rule=ByShare(score_queries=None)),
        "bfloat16": Variant(rule=Coarse(coarsen=to_bfloat16)),
        "int8": Variant(rule=Coarse(coarsen=through_int8)),
        "D/4": Variant(rule=Coarse(coarsen=project)),
        "scored every 2nd step": Variant(rule=Stale(), hold=2),
        "scored every 4th step": Variant(rule=Stale(), hold=4),
    }


class Closeness(NamedTuple):
    """How close a choice is to the exact one."""

    overlap: float  # share of the exact choice that is kept
    correlation: float  # of the shares with the exact ones
    sum_error: float  # root mean square of (estimate / sum over the pool - 1) over queries


@torch.no_grad()
def compare(
    head: tapas.TapasSoftmax,
    query: Tensor,
    target: Tensor,
    pool: Candidates,
    rule: ByShare,
    at: int,
) -> Closeness:
    """Compare `rule` with exact scores of all queries, for the same pool and noise of step `at`."""
    keep = head.num_samples
    exact_rule = ByShare(score_queries=None)
    exact, mine = (_selection_input(head, query, target, pool, r, at) for r in (exact_rule, rule))
    wanted, _ = exact_rule.select(exact, keep)
    kept, log_weight = rule.select(mine, keep)
    weight, bias = head.table.rows(pool.ids)
    logit = torch.addmm(bias - pool.log_q, query, weight.t())
    mask_hits(logit, pool.ids, target)
    estimate = (logit[:, kept] + log_weight).logsumexp(dim=1)
    error = torch.expm1(estimate - logit.logsumexp(dim=1))
    both = torch.stack([exact_rule.share(exact), rule.share(mine)])
    return Closeness(
        float(torch.isin(kept, wanted).float().mean()),
        float(torch.corrcoef(both)[0, 1]),
        float(error.square().mean().sqrt()),
    )


def _selection_input(
    head: tapas.TapasSoftmax,
    query: Tensor,
    target: Tensor,
    pool: Candidates,
    rule: ByShare,
    at: int,
) -> SelectionInput:
    generator = tapas.rng.stream(0, "view", at)
    noise = 1 - torch.rand(len(pool), generator=generator)
    chosen = torch.randperm(len(query), generator=generator)[: rule.score_queries]
    weight, bias = head.table.rows(pool.ids)
    return SelectionInput(
        ids=pool.ids,
        log_q=pool.log_q,
        rows=lambda start, stop: (weight[start:stop], bias[start:stop]),
        query=query[chosen],
        target=target[chosen],
        complete=len(chosen) == len(query),
        temperature=1.0,
        noise=noise,
    )


def closeness(
    head: tapas.TapasSoftmax,
    draw: Callable[[], tuple[Tensor, Tensor]],
    train: Callable[[int], object],
    *,
    steps: int,
) -> dict[str, Closeness]:
    """Means over `steps` steps; every variant has separate pools.

    `draw()` gives queries (B, D) and targets (B, L), `train(1)` trains for one step.
    """
    tried, size = variants(), head.presample_factor * head.num_samples
    pools = {name: HeldPool(head.proposal, variant.hold) for name, variant in tried.items()}
    found: dict[str, list[Closeness]] = {name: [] for name in tried}
    for number in range(steps):
        query, target = (x.detach() for x in draw())
        for name, variant in tried.items():
            pool = pools[name].sample(size, generator=tapas.rng.stream(0, "pool", number))
            found[name].append(compare(head, query, target, pool, variant.rule, number))
        train(1)
    return {
        name: Closeness(*(statistics.fmean(v) for v in zip(*values, strict=True)))
        for name, values in found.items()
    }


class SyntheticTask:
    """A query stands for two groups of classes, the target is in one; low ids are frequent."""

    num_classes, num_groups, num_samples, batch, dim = 40_000, 50, 256, 512, 64

    def __init__(self, seed: int = 0):
        self.seed, self.number = seed, 0
        counts = 1e6 / (torch.arange(self.num_classes) + 10)
        self.head = tapas.TapasSoftmax(
            self.num_classes,
            self.dim,
            num_samples=self.num_samples,
            proposal=tapas.Squashed(counts, alpha=0.75),
            bias=(counts / counts.sum()).log(),
            row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.3),
            seed=seed,
        )
        start = torch.randn(self.num_groups, self.dim, generator=tapas.rng.stream(seed, "groups"))
        self.group = torch.nn.Parameter(0.5 * start)
        self.optimizer = torch.optim.Adagrad([self.group], lr=0.3)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Queries (B, D) and targets (B, 1) of the next batch."""
        generator = tapas.rng.stream(self.seed, "batch", self.number)
        self.number += 1
        groups = torch.randint(self.num_groups, (self.batch, 2), generator=generator)
        first = torch.rand(self.batch, generator=generator) < 0.7
        group = torch.where(first, groups[:, 0], groups[:, 1])
        size = self.num_classes // self.num_groups
        rank = torch.expm1(torch.rand(self.batch, generator=generator) * math.log1p(size)).long()
        target = rank.clamp_(max=size - 1) * self.num_groups + group
        return self.group[groups].sum(dim=1), target[:, None]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.head(*self.draw()).backward()
            self.optimizer.step()
