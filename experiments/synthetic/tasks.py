"""The paper's two synthetic tasks (section 4.1) and one with a long tail, from a seed.

    linear    C=1000 centroids mu ~ N(0, c²/d I), d=50, c=3;  x ~ N(mu_y, I)
    network   C=10000 centroids in d_c=10, z ~ N(0, sigma² I) in d_n=10;
              x = W2 relu(W1 [mu_y, z]), d_h=50, d=25, Gaussian weights
    long-tail C=20000 centroids in d=32, Zipf frequencies (long_tail.py)

Labels of the paper's two are uniform. Train, validation and test points are drawn
independently of each other; the validation points choose learning rates and temperatures,
the test points are looked at by nothing but the figures.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from experiments.synthetic.long_tail import Examples, LongTail, LongTailConfig
from tapas.errors import choice
from tapas.rng import stream


@dataclass(frozen=True, slots=True)
class Task:
    """One data set: every run of a figure sees the same."""

    num_classes: int
    train: Examples
    validation: Examples
    test: Examples
    bayes_accuracy: float | None  # precision@1 of the true posterior on the test points, if known
    counts: Tensor | None = None  # (C,) of the training points, where labels are not uniform


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How many points of each kind, and how many classes."""

    num_classes: int
    num_train: int
    num_validation: int = 10_000
    num_test: int = 10_000


def linear_task(sizes: Sizes, *, seed: int = 0, dim: int = 50, spread: float = 3.0) -> Task:
    """Gaussian mixture; its posterior is a linear softmax with w = mu, b = -|mu|²/2."""
    generator = stream(seed, "linear centroids")
    centroid = torch.randn(sizes.num_classes, dim, generator=generator) * (spread / math.sqrt(dim))

    def draw(name: str, count: int) -> Examples:
        generator = stream(seed, "linear", name)
        y = torch.randint(sizes.num_classes, (count,), generator=generator)
        return Examples(centroid[y] + torch.randn(count, dim, generator=generator), y)

    test = draw("test", sizes.num_test)
    guess = (test.x @ centroid.T - centroid.square().sum(dim=1) / 2).argmax(dim=1)
    return Task(
        num_classes=sizes.num_classes,
        train=draw("train", sizes.num_train),
        validation=draw("validation", sizes.num_validation),
        test=test,
        bayes_accuracy=float((guess == test.y).double().mean()),
    )


def network_task(
    sizes: Sizes,
    *,
    seed: int = 0,
    dims: tuple[int, int, int, int] = (10, 10, 50, 25),
    spread: float = 3.0,
    noise: float = 1.0,
) -> Task:
    """Centroid and noise through a fixed random two-layer network; `dims` d_c, d_n, d_h, d.

    Weights are N(0, 2/fan_in) before the ReLU and N(0, 1/fan_in) after it, which keeps the
    scale of the signal; the paper says "proper scaling" and leaves sigma open, we take 1.
    """
    centroid_dim, noise_dim, hidden, out = dims
    generator = stream(seed, "network generator")
    centroid = torch.randn(sizes.num_classes, centroid_dim, generator=generator)
    centroid *= spread / math.sqrt(centroid_dim)
    fan_in = centroid_dim + noise_dim
    first = torch.randn(fan_in, hidden, generator=generator) * math.sqrt(2 / fan_in)
    second = torch.randn(hidden, out, generator=generator) * math.sqrt(1 / hidden)

    def draw(name: str, count: int) -> Examples:
        generator = stream(seed, "network", name)
        y = torch.randint(sizes.num_classes, (count,), generator=generator)
        z = torch.randn(count, noise_dim, generator=generator) * noise
        return Examples((torch.cat([centroid[y], z], dim=1) @ first).relu() @ second, y)

    return Task(
        num_classes=sizes.num_classes,
        train=draw("train", sizes.num_train),
        validation=draw("validation", sizes.num_validation),
        test=draw("test", sizes.num_test),
        bayes_accuracy=None,
    )


def long_tail_task(sizes: Sizes, *, seed: int = 0) -> Task:
    """Classes by falling Zipf frequency: class 0 is the most frequent."""
    tail = LongTail(LongTailConfig(num_classes=sizes.num_classes), seed=seed)

    def draw(name: str, count: int) -> Examples:
        return tail.sample(count, generator=stream(seed, "long-tail", name))

    train, test = draw("train", sizes.num_train), draw("test", sizes.num_test)
    return Task(
        num_classes=sizes.num_classes,
        train=train,
        validation=draw("validation", sizes.num_validation),
        test=test,
        bayes_accuracy=float((tail.bayes_top(test.x, 1)[:, 0] == test.y).double().mean()),
        counts=torch.bincount(train.y, minlength=sizes.num_classes),
    )


TASKS: dict[str, tuple[Callable[[Sizes], Task], Sizes]] = {
    "linear": (linear_task, Sizes(num_classes=1_000, num_train=100_000)),
    "network": (network_task, Sizes(num_classes=10_000, num_train=1_000_000, num_test=100_000)),
    "linear-quick": (linear_task, Sizes(num_classes=100, num_train=4_000, num_test=1_000)),
    "long-tail": (
        long_tail_task,
        Sizes(num_classes=20_000, num_train=100_000, num_validation=4_000, num_test=4_000),
    ),
    "long-tail-quick": (
        long_tail_task,
        Sizes(num_classes=2_500, num_train=10_000, num_validation=500, num_test=500),
    ),
    "network-quick": (network_task, Sizes(num_classes=200, num_train=4_000, num_test=1_000)),
}


@lru_cache(maxsize=1)
def load_task(name: str) -> Task:
    """A named task, generated once for each process."""
    make, sizes = choice("task", name, TASKS)
    return make(sizes)


def sizes_of(name: str) -> Sizes:
    """Of a named task, without generating it."""
    return choice("task", name, TASKS)[1]


def has_uniform_labels(name: str) -> bool:
    return choice("task", name, TASKS)[0] is not long_tail_task
