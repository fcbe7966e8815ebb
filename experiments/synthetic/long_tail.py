"""A classification task with a long tail whose true distribution is known.

    f_y       ∝  1 / (y + 1)^exponent                      Zipf; class 0 is the most frequent
    v_y       ~  N(0, spread² / d · I)                     the class's centroid
    x | y     =  v_y + noise · N(0, I)
    P(y | x)  ∝  f_y exp(-|x - v_y|² / 2 noise²)
              ∝  exp(log f_y + x · v_y / noise² - |v_y|² / 2 noise²)

The last line is a softmax that is linear in x: a model with one row and one bias for each
class can reach it, and no model can rank better on average. With the default exponent of 1
the top 20 % of the classes take 87 % of the events of 100,000 classes (74 % of 300).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.proposals.alias import AliasTable
from tapas.rng import stream
from tapas.shapes import check_positive, check_shape

SCORES_PER_CHUNK = 1 << 24  # floats of a (B, C) block of scores


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs with the class that each was drawn from."""

    x: Tensor  # (B, d) float32
    y: Tensor  # (B,) int64


@dataclass(frozen=True, kw_only=True, slots=True)
class LongTailConfig:
    """How many classes, how long their tail, and how hard they are to separate."""

    num_classes: int = 100_000
    dim: int = 32  # d, of the inputs
    exponent: float = 1.0  # 0 is no tail at all
    spread: float = 1.0  # typical length of a centroid
    noise: float = 0.2  # standard deviation of each coordinate of x around its centroid

    def __post_init__(self) -> None:
        check_positive("num_classes", self.num_classes)
        check_positive("dim", self.dim)
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise UsageError(
                f"exponent must be a finite number of at least 0, got {self.exponent!r}."
            )
        for name, value in (("spread", self.spread), ("noise", self.noise)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} must be a finite number above 0, got {value!r}.")


class LongTail:
    """The task: draws examples, and knows the best possible answer to each.

    Ids are ranks: class 0 is the most frequent.
    """

    def __init__(self, config: LongTailConfig, *, seed: int = 0):
        self.config = config
        num_classes, variance = config.num_classes, config.noise**2
        weight = torch.arange(1, num_classes + 1, dtype=torch.float64).pow(-config.exponent)
        self.frequency = weight / weight.sum()  # (C,) float64, falling
        self._classes = AliasTable(self.frequency)
        self.centroid = torch.randn(  # (C, d)
            num_classes, config.dim, generator=stream(seed, "centroids")
        ).mul_(config.spread / math.sqrt(config.dim))
        self._row = self.centroid / variance
        length = torch.linalg.vector_norm(self.centroid, dim=1, dtype=torch.float64)
        self._bias = (self.frequency.log() - length.square() / (2 * variance)).float()

    @property
    def num_classes(self) -> int:
        return self.config.num_classes

    def sample(self, count: int, *, generator: torch.Generator) -> Examples:
        """`count` independent examples."""
        y = self._classes.draw(check_positive("count", count), generator=generator)
        noise = torch.randn(count, self.config.dim, generator=generator)
        return Examples(self.centroid[y].add_(noise, alpha=self.config.noise), y)

    def bayes_scores(self, x: Tensor) -> Tensor:
        """log P(y | x) up to a number for each row of `x` (B, d): (B, C)."""
        check_shape({"d": self.config.dim}, x=(x, "B d"))
        return torch.addmm(self._bias, x, self._row.t())

    def bayes_top(self, x: Tensor, k: int) -> Tensor:
        """The k most probable classes for each row of `x` (B, d), best first: (B, k)."""
        if check_positive("k", k) > self.num_classes:
            raise UsageError(f"k is {k}, but there are only {self.num_classes} classes.")
        size = max(1, SCORES_PER_CHUNK // self.num_classes)
        chunks = (x[start : start + size] for start in range(0, len(x), size))
        return torch.cat([self.bayes_scores(rows).topk(k).indices for rows in chunks])
