"""`Contender`, the interface of all contenders, and their batches; needs only numpy.

Classes are numbered by falling frequency, as the log-uniform sampler and the adaptive softmax
require: the count of class c is proportional to 1 / (c + 1).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EVENTS = 10_000_000  # sum of the counts, about
NUM_BATCHES = 16  # made before timing starts and used in turn
LEARNING_RATE = 0.1
CHECK_STEPS = 60

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    num_classes: int
    dim: int
    batch: int


def zipf_counts(num_classes: int) -> NDArray[np.float64]:
    """(C,) integer counts of at least 1."""
    share = 1 / np.arange(1, num_classes + 1)
    return np.maximum(1, np.round(EVENTS * share / share.sum()))


def make_batches(sizes: Sizes) -> list[tuple[Floats, NDArray[np.int64]]]:
    """Queries (B, D) and targets (B,), the same for every contender."""
    rng = np.random.default_rng(0)
    counts = zipf_counts(sizes.num_classes)
    queries = rng.standard_normal((NUM_BATCHES, sizes.batch, sizes.dim), dtype=np.float32)
    targets = rng.choice(len(counts), (NUM_BATCHES, sizes.batch), p=counts / counts.sum())
    return list(zip(queries, targets, strict=True))


class Contender(ABC):
    """One softmax head with its optimizer, built for one size.

    A subclass takes `(sizes, **options)`, holds `NUM_BATCHES` batches as tensors of its framework
    and allocates its table and row state in its constructor.
    """

    versions: dict[str, str]
    moves_few_rows = True  # False if a step moves classes it has not drawn

    @abstractmethod
    def step(self, number: int) -> float:
        """Compute loss and gradients of batch `number` and update the rows; returns the loss."""

    def change(self, **sizes: int) -> None:
        """Prepare steps of other sizes on the same table, where a benchmark asks for it."""
        raise NotImplementedError(f"{type(self).__name__} has one size.")

    @abstractmethod
    def query_grad(self) -> Floats:
        """(B, D) gradient of the last step's queries."""

    @abstractmethod
    def table(self) -> tuple[Floats, Floats]:
        """Copies of the weights (C, D) and biases (C,)."""

    @abstractmethod
    def state_bytes(self) -> int:
        """Size of the table and its row state."""

    def full_loss(self, query: Floats, target: NDArray[np.int64]) -> float:
        """The exact softmax loss over all classes."""
        weight, bias = self.table()
        logits = (query @ weight.T + bias).astype(np.float64)
        positive = logits[np.arange(len(target)), target]
        return float((np.log(np.exp(logits).sum(axis=1)) - positive).mean())

    def count_moved(self, number: int) -> int:
        """How many classes one step on batch `number` updates."""
        weight, bias = self.table()
        self.step(number)
        new_weight, new_bias = self.table()
        return int(((weight != new_weight).any(axis=1) | (bias != new_bias)).sum())


def check(make: Any, options: dict[str, Any]) -> None:
    """Raise unless the contender fits a toy problem and moves the rows it should, and no others."""
    sizes = Sizes(num_classes=3000, dim=16, batch=64)
    options = options | ({"num_samples": 100} if "num_samples" in options else {})
    contender: Contender = make(sizes, **options)
    query, target = make_batches(sizes)[0]
    moved = contender.count_moved(0)
    least, most = len(set(target)) + 1, sizes.batch + options.get("num_samples", 0)
    if contender.moves_few_rows and not least <= moved <= most:
        raise RuntimeError(f"one step moved {moved} classes; expected {least} to {most}")
    slope = contender.query_grad()
    if slope.shape != query.shape or not np.abs(slope).max(axis=1).all():
        raise RuntimeError("the gradient of some query is missing")
    before = contender.full_loss(query, target)
    for _ in range(CHECK_STEPS):
        contender.step(0)
    after = contender.full_loss(query, target)
    # without learning the loss stays near log(3000) = 8
    if not after < before - 2:
        raise RuntimeError(
            f"{CHECK_STEPS} steps on one batch took its loss from {before:.2f} to {after:.2f}"
        )
