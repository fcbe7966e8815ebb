"""From the [head] of a configuration to a head."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.windows import Windows, predicting_events
from tapas.errors import UsageError
from tapas.heads import (
    GBCE,
    NCE,
    WARP,
    AdaptiveImportance,
    AdaptiveSoftmax,
    DynamicNegatives,
    FullSoftmax,
    Head,
    HuffmanSoftmax,
    InBatchSoftmax,
    MixedSoftmax,
    NegativeSampling,
    OneVsAll,
    PartitionedSoftmax,
    SampledSoftmax,
    ScalableCrossEntropy,
    SelfNormalised,
    TapasSoftmax,
    TwoLevelSoftmax,
)
from tapas.optim import RowUpdate
from tapas.proposals import Bigram, LogUniform, Proposal, Relabelled, Squashed
from tapas.schedule import Anneal, Schedule
from tapas.selection import Priority, Selection, Top
from tapas.tables import ClassTable
from tapas.training.head_config import HeadConfig

MOST_SAMPLES = 1_000


def default_samples(num_classes: int) -> int:
    """n, where it was left to us."""
    return min(MOST_SAMPLES, max(1, num_classes // 8))


@dataclass(frozen=True, slots=True)
class Feed:
    """What a run trains on, for methods that look at more of it than one batch."""

    windows: Windows | None  # None where nothing is trained
    log: EventLog
    train_end: NDArray[np.int64]  # (U,) where each user's training events end

    def upcoming(self, step: int) -> Tensor:
        """Targets of training step `step`, (N, L)."""
        if self.windows is None:
            raise UsageError("a partitioned vocabulary looks ahead at batches: there are none.")
        return self.windows.batch(step).target

    def pairs(self, next_items: int) -> tuple[Tensor, Tensor, Tensor]:
        """What batches predict from what: previous class, target and how often, (P,) each.

        A basket predicts from its last item; its targets are the next `next_items` events.
        """
        log, items = self.log, np.asarray(self.log.items, dtype=np.int64)
        end = np.repeat(self.train_end, np.diff(log.offsets))  # of the training of an event's user
        place = np.flatnonzero(predicting_events(log.times, log.offsets, self.train_end))
        follows = place[:, None] + np.arange(1, next_items + 1)
        row, column = np.nonzero(follows < end[place][:, None])
        code = items[place[row]] * log.num_items + items[follows[row, column]]
        pair, count = np.unique(code, return_counts=True)
        previous, following = np.divmod(pair, self.log.num_items)
        return torch.from_numpy(previous), torch.from_numpy(following), torch.from_numpy(count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """All that a head may be built from."""

    config: HeadConfig
    counts: NDArray[np.int64]  # (C,) how often training has each class
    dim: int
    seed: int
    steps: int  # of the run
    table: ClassTable | None  # the rows of the classes; None for a method without
    row_optimizer: RowUpdate
    log: Feed | None  # None where no method needs it: servers

    @property
    def feed(self) -> Feed:
        if self.log is None:
            raise ValueError(f"{self.config.method} needs what it is trained on")
        return self.log

    @property
    def rows(self) -> ClassTable:
        if self.table is None:
            raise ValueError(f"{self.config.method} needs a table")
        return self.table

    @property
    def num_samples(self) -> int:
        return min(self.config.samples or default_samples(len(self.counts)), len(self.counts))

    def proposal(self) -> Proposal:
        config = self.config
        squashed = Squashed(self.counts, alpha=config.alpha, beta=config.beta)
        if config.proposal == "squashed":
            return squashed
        if config.proposal == "log-uniform":
            by_rank = np.argsort(-self.counts, kind="stable")
            return Relabelled(LogUniform(len(self.counts)), torch.from_numpy(by_rank))
        return Bigram(*self.feed.pairs(config.next_items), unigram=squashed)


def build_head(needs: Needs) -> Head:
    """The head that `needs.config` names."""
    return _BUILDERS[needs.config.method](needs)


def _tapas(needs: Needs) -> Head:
    config = needs.config
    return TapasSoftmax(
        table=needs.rows,
        num_samples=needs.num_samples,
        presample_factor=config.presample,
        temperature=_temperature(config, needs.steps),
        proposal=needs.proposal(),
        selection=build_selection(config),
        seed=needs.seed,
    )


def build_selection(config: HeadConfig) -> Selection:
    rule = Priority() if config.selection == "priority" else Top()
    if config.score_queries is None:
        return rule
    return dataclasses.replace(rule, score_queries=config.score_queries)


def _temperature(config: HeadConfig, steps: int) -> float | Schedule:
    if config.anneal_to is None:
        return config.temperature
    return Anneal(start=config.temperature, end=config.anneal_to, steps=steps)


def _adaptive_importance(needs: Needs) -> Head:
    return AdaptiveImportance(
        table=needs.rows,
        num_samples=needs.num_samples,
        min_ess=min(needs.config.min_ess, needs.num_samples),
        counts=torch.from_numpy(needs.counts),
        pairs=needs.feed.pairs(needs.config.next_items),
        seed=needs.seed,
    )


def _partitioned(needs: Needs) -> Head:
    return PartitionedSoftmax(
        table=needs.rows,
        num_samples=needs.num_samples,
        upcoming=needs.feed.upcoming,
        seed=needs.seed,
    )


def _dynamic_negatives(needs: Needs) -> Head:
    kept = min(needs.config.hardest, max(1, needs.num_samples // 8))  # of few, or all are hard
    return DynamicNegatives(
        table=needs.rows,
        num_samples=kept,
        presample_factor=needs.num_samples // kept,
        proposal=needs.proposal(),
        seed=needs.seed,
    )


def _drawing(kind: Callable[..., Head], *options: str) -> Callable[[Needs], Head]:
    """Builds `kind`, which draws `num_samples` from `proposal`; `options` go by their names."""

    def build(needs: Needs) -> Head:
        own = {name: getattr(needs.config, name) for name in options}
        size, proposal = needs.num_samples, needs.proposal()
        return kind(table=needs.rows, num_samples=size, proposal=proposal, **own, seed=needs.seed)

    return build


def _with_rows(kind: Callable[..., Head], *options: str) -> Callable[[Needs], Head]:
    def build(needs: Needs) -> Head:
        own = {name: getattr(needs.config, name) for name in options}
        return kind(table=needs.rows, **own, seed=needs.seed)

    return build


def _without_rows(kind: Callable[..., Head], **options: str) -> Callable[[Needs], Head]:
    """Builds `kind`, which keeps rows of its own; `options` are ours by its names for them."""

    def build(needs: Needs) -> Head:
        own = {theirs: getattr(needs.config, ours) for theirs, ours in options.items()}
        rows = {"row_optimizer": needs.row_optimizer, "seed": needs.seed}
        return kind(needs.counts, needs.dim, **own, **rows)

    return build


_BUILDERS: dict[str, Callable[[Needs], Head]] = {
    "tapas": _tapas,
    "full": _with_rows(FullSoftmax),
    "one-vs-all": _with_rows(OneVsAll),
    "sampled": _drawing(SampledSoftmax),
    "in-batch": _with_rows(InBatchSoftmax, "rate"),
    "mixed": _drawing(MixedSoftmax, "rate"),
    "adaptive-importance": _adaptive_importance,
    "partitioned": _partitioned,
    "huffman": _without_rows(HuffmanSoftmax),
    "two-level": _without_rows(TwoLevelSoftmax, num_clusters="clusters"),
    "adaptive": _without_rows(AdaptiveSoftmax),
    "nce": _drawing(NCE),
    "negative-sampling": _drawing(NegativeSampling, "negatives"),
    "self-normalised": _with_rows(SelfNormalised, "penalty", "share"),
    "warp": _with_rows(WARP, "tries"),
    "dynamic-negatives": _dynamic_negatives,
    "sce": _with_rows(ScalableCrossEntropy, "bucket_classes"),
    "gbce": _drawing(GBCE, "calibration"),
}
