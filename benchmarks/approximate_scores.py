"""Priority with cheaper scores: fewer queries, fewer bits, fewer dimensions, or older scores.

    share ~ mean_a softmax_y(logit_ay - log_q_y), approximately
    keep and weight by priority, as `tapas.Priority` does with exact shares

Priority is unbiased for any positive shares, so that an approximation costs variance, not bias.
Reused scores come with a reused pool, whose rows the steps before have moved: there, a little of
that promise is given up.
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
from tapas.candidates import Candidates, mask_hits
from tapas.selection import NativeRows, SelectionInput
from tapas.selection.base import largest
from tapas.selection.priority import TINY, mean_share

SHRINK = 4  # D/4 dimensions are left of D
LARGEST = 127  # of int8, the same on both sides of 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ByShare(tapas.Priority):
    """`tapas.Priority` in two parts, so that one of them can be approximated."""

    def share(self, given: SelectionInput) -> Tensor:
        """What is kept is decided by these, (P,), positive."""
        share = mean_share(given)
        if not given.complete:
            share.mul_(1 - self.floor).add_(self.floor / len(given))
        return share.clamp_(min=TINY)

    def select(self, given: SelectionInput, keep: int) -> tuple[Tensor, Tensor]:
        share = self.share(given)
        kept, threshold = largest(share / given.noise, keep)
        return kept, (threshold / share[kept]).clamp_(min=1.0).log_()


@dataclass(frozen=True, kw_only=True, slots=True)
class Coarse(ByShare):
    """Scores with what `coarsen` makes of rows (P, D) and queries (A, D); biases stay exact."""

    coarsen: Callable[[Tensor], Tensor]

    def share(self, given: SelectionInput) -> Tensor:
        weight, bias = given.rows(0, len(given))
        weight = self.coarsen(weight)
        native = None
        if given.native is not None:
            native = NativeRows(weight, torch.arange(len(given)), bias)
        coarse = replace(
            given,
            rows=lambda start, stop: (weight[start:stop], bias[start:stop]),
            query=self.coarsen(given.query),
            native=native,
        )
        return ByShare.share(self, coarse)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stale(ByShare):
    """Scores a pool once: when the same one comes again, its shares are those of the first time.

    For a head whose proposal is a `HeldPool`.
    """

    seen: list[Tensor] = field(default_factory=list, repr=False, compare=False)  # ids, shares

    def share(self, given: SelectionInput) -> Tensor:
        if not self.seen or not torch.equal(self.seen[0], given.ids):
            self.seen[:] = given.ids, ByShare.share(self, given)
        return self.seen[1]


class HeldPool(tapas.Proposal):
    """`proposal`, drawn from at every `every`-th call of `sample`; between, the same pool again."""

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
    """Whole numbers (N, D) from -127 to 127, and the scale of each row, (N, 1)."""
    scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=TINY) / LARGEST
    return (rows / scale).round_().to(torch.int8), scale


def through_int8(rows: Tensor) -> Tensor:
    """What `to_int8` leaves of rows, as float32: their products are those of int8, but for
    rounding in float32."""
    whole, scale = to_int8(rows)
    return whole.float() * scale


def int8_share(
    rows: tuple[Tensor, Tensor], query: Tensor, offset: Tensor, ids: Tensor, own: Tensor
) -> Tensor:
    """Shares (P,) by whole-number products, in torch.

    `rows` are of `to_int8`, `query` (A, D), `offset` and `ids` (P,), `own` (A, L) classes that a
    query leaves out.
    """
    (whole, scale), (asked, asked_scale) = rows, to_int8(query)
    logit = torch._int_mm(asked, whole.t()).float().mul_(asked_scale).mul_(scale.t())
    logit += offset
    mask_hits(logit, ids, own)
    return torch.softmax(logit, dim=1, out=logit).mean(dim=0)


@functools.cache
def projection(dim: int) -> Tensor:
    """(D, D/4), orthogonal columns of length 2: products keep their size on average."""
    small = max(1, dim // SHRINK)
    full = torch.randn(dim, dim, generator=tapas.rng.stream(0, "projection"), dtype=torch.float64)
    return (torch.linalg.qr(full).Q[:, :small] * (dim / small) ** 0.5).float()


def project(rows: Tensor) -> Tensor:
    """(N, D) to (N, D/4)."""
    return rows @ projection(rows.shape[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A way to score, and for how many steps a scored pool is used."""

    rule: ByShare
    hold: int = 1

    def install(self, head: tapas.TapasSoftmax) -> None:
        """Makes `head` score this way."""
        head.selection = self.rule
        if self.hold > 1:
            head.proposal = HeldPool(head.proposal, self.hold)


DEFAULT = "64 queries (default)"


def variants() -> dict[str, Variant]:
    """Every variant, none of which has seen a pool."""
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
    """How far a choice is from the exact one."""

    overlap: float  # the share of the exact choice that is kept
    correlation: float  # of the shares with the exact ones
    sum_error: float  # root mean square of (estimate / sum over the pool - 1) over queries


@torch.no_grad()
def compare(
    head: tapas.TapasSoftmax, query: Tensor, own: Tensor, pool: Candidates, rule: ByShare, at: int
) -> Closeness:
    """`rule` against all queries in float32, for the same pool and noise, which `at` names."""
    keep = head.num_samples
    exact_rule = ByShare(score_queries=None)
    exact, mine = (_selection_input(head, query, own, pool, r, at) for r in (exact_rule, rule))
    wanted, _ = exact_rule.select(exact, keep)
    kept, log_weight = rule.select(mine, keep)
    weight, bias = head.table.rows(pool.ids)
    logit = torch.addmm(bias - pool.log_q, query, weight.t())
    mask_hits(logit, pool.ids, own)
    estimate = (logit[:, kept] + log_weight).logsumexp(dim=1)
    error = torch.expm1(estimate - logit.logsumexp(dim=1))
    both = torch.stack([exact_rule.share(exact), rule.share(mine)])
    return Closeness(
        float(torch.isin(kept, wanted).float().mean()),
        float(torch.corrcoef(both)[0, 1]),
        float(error.square().mean().sqrt()),
    )


def _selection_input(
    head: tapas.TapasSoftmax, query: Tensor, own: Tensor, pool: Candidates, rule: ByShare, at: int
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
        target=own[chosen],
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
    """Means over `steps` steps, each variant with pools of its own.

    `draw()` gives queries (B, D) and targets (B, L), `train(1)` moves on by a step.
    """
    tried, size = variants(), head.presample_factor * head.num_samples
    pools = {name: HeldPool(head.proposal, variant.hold) for name, variant in tried.items()}
    found: dict[str, list[Closeness]] = {name: [] for name in tried}
    for number in range(steps):
        query, own = (x.detach() for x in draw())
        for name, variant in tried.items():
            pool = pools[name].sample(size, generator=tapas.rng.stream(0, "pool", number))
            found[name].append(compare(head, query, own, pool, variant.rule, number))
        train(1)
    return {
        name: Closeness(*(statistics.fmean(v) for v in zip(*values, strict=True)))
        for name, values in found.items()
    }


class MadeUpTask:
    """Targets come from one of two groups of classes that are told; low ids are frequent."""

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
        told = torch.randint(self.num_groups, (self.batch, 2), generator=generator)
        first = torch.rand(self.batch, generator=generator) < 0.7
        group = torch.where(first, told[:, 0], told[:, 1])
        size = self.num_classes // self.num_groups
        place = torch.expm1(torch.rand(self.batch, generator=generator) * math.log1p(size)).long()
        target = place.clamp_(max=size - 1) * self.num_groups + group
        return self.group[told].sum(dim=1), target[:, None]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.head(*self.draw()).backward()
            self.optimizer.step()
