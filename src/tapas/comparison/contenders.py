"""Who takes part in a comparison, and what is tried for each: fixed here, before any result.

Every contender has the same number of trials. One without a knob tries learning rates of
the rows; one with a knob tries half as many, each with two values of it. A knob is a setting
that does not change what a step costs, so that one pace holds for all trials. Row-wise
Adagrad divides gradients by their size: losses of very different scale want similar rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tapas.errors import UsageError, pick
from tapas.training.config import HeadConfig
from tapas.training.methods import METHODS, Method

RATES = (0.3, 1.0, 0.1, 3.0, 0.03, 0.6, 0.2, 2.0)  # of the rows; the first ones first
MOST_TRIALS = len(RATES)
ALPHAS = (0.75, 1.0, 0.5, 0.0)  # power-raised, unigram, in between, uniform
UNIFORM_FIRST = (0.0, 0.75, 1.0, 0.5)  # for methods whose papers draw uniformly
PART = 10  # times n: a partitioned vocabulary's subset is to last for many batches
NEXT_ITEMS = 5  # targets of one position, as in the paper
ALL = "all"


class Trial(NamedTuple):
    """One point of the search."""

    rows_lr: float
    knob: float | None  # None for a contender without one


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A method with its options, and what is tuned."""

    name: str
    title: str
    colour: str  # of its line in every figure
    method: str  # a key of `METHODS`
    options: tuple[tuple[str, str | float], ...] = ()  # of `HeadConfig`, beside n and the knob
    knob: str | None = None  # of `HeadConfig`; tuned together with the learning rate
    values: tuple[float, ...] = ()  # of the knob: two or four
    times: int = 1  # samples are so many times n

    @property
    def the_method(self) -> Method:
        return METHODS[self.method]

    @property
    def paper(self) -> str:
        return self.the_method.paper

    @property
    def draws(self) -> bool:
        """Whether there is a number of samples, n, for it to share with the others."""
        return "samples" in self.the_method.options

    def head(self, num_samples: int, knob: float | None) -> HeadConfig:
        """Its part of a configuration, with n = `num_samples` if it samples at all."""
        given: dict[str, object] = {"method": self.method, "next_items": NEXT_ITEMS}
        given |= dict(self.options)
        if self.draws:
            given["samples"] = self.times * num_samples
        if self.knob is not None and knob is not None:
            given[self.knob] = knob
        return HeadConfig(**given)  # type: ignore[arg-type]

    def trials(self, count: int) -> list[Trial]:
        """The first `count` of its fixed list, at most 8.

        >>> [tuple(trial) for trial in CONTENDERS["full"].trials(3)]
        [(0.3, None), (1.0, None), (0.1, None)]
        """
        if self.knob is None:
            return [Trial(rate, None) for rate in RATES][:count]
        halves = [self.values[:2], self.values[2:] or self.values[:2]]
        rates = [RATES[:2], RATES[:2] if self.values[2:] else RATES[2:4]]
        return [
            Trial(rate, value)
            for some_rates, some_values in zip(rates, halves, strict=True)
            for value in some_values
            for rate in some_rates
        ][:count]


def _table(*contenders: Contender) -> dict[str, Contender]:
    return {contender.name: contender for contender in contenders}


CONTENDERS = _table(
    Contender(name="full", title="Full softmax", colour="#7a7a7a", method="full"),
    Contender(name="one-vs-all", title="One-vs-all", colour="#4d4d4d", method="one-vs-all"),
    Contender(
        name="sampled",
        title="Sampled softmax",
        colour="#c8791b",
        method="sampled",
        knob="alpha",
        values=ALPHAS,
    ),
    Contender(
        name="sampled-log-uniform",
        title="Sampled softmax, log-uniform",
        colour="#e0a458",
        method="sampled",
        options=(("proposal", "log-uniform"),),
    ),
    Contender(
        name="sampled-bigram",
        title="Sampled softmax, bigram",
        colour="#8a5410",
        method="sampled",
        options=(("proposal", "bigram"),),
    ),
    Contender(
        name="in-batch",
        title="In-batch softmax",
        colour="#3b6fb6",
        method="in-batch",
        knob="rate",
        values=(0.01, 0.1),
    ),
    Contender(
        name="mixed",
        title="In-batch and sampled",
        colour="#1f4e8c",
        method="mixed",
        knob="alpha",
        values=UNIFORM_FIRST,
    ),
    Contender(
        name="adaptive-importance",
        title="Adaptive importance sampling",
        colour="#6a51a3",
        method="adaptive-importance",
    ),
    Contender(
        name="partitioned",
        title="Partitioned vocabulary",
        colour="#9e7bb5",
        method="partitioned",
        times=PART,
    ),
    Contender(
        name="huffman", title="Hierarchical softmax, Huffman", colour="#4a7c2c", method="huffman"
    ),
    Contender(
        name="two-level",
        title="Hierarchical softmax, two levels",
        colour="#7fae5a",
        method="two-level",
    ),
    Contender(name="adaptive", title="Adaptive softmax", colour="#2f5d1e", method="adaptive"),
    Contender(name="nce", title="NCE", colour="#b5651d", method="nce", knob="alpha", values=ALPHAS),
    Contender(
        name="negative-sampling",
        title="Negative sampling",
        colour="#d98c5f",
        method="negative-sampling",
        knob="alpha",
        values=(0.75, 0.0),  # its optimum is log p - log q: with uniform noise, log p
    ),
    Contender(
        name="self-normalised",
        title="Self-normalisation",
        colour="#5f7f8c",
        method="self-normalised",
        knob="penalty",
        values=(0.1, 1.0),
    ),
    Contender(name="warp", title="WARP", colour="#a23b2a", method="warp"),
    Contender(
        name="dynamic-negatives",
        title="Dynamic negative sampling",
        colour="#d1495b",
        method="dynamic-negatives",
        knob="alpha",
        values=UNIFORM_FIRST,
    ),
    Contender(name="sce", title="Scalable cross-entropy", colour="#00798c", method="sce"),
    Contender(
        name="gbce",
        title="gBCE",
        colour="#8d96a3",
        method="gbce",
        options=(("alpha", 0.0),),  # uniform negatives, as its theory wants them
        knob="calibration",
        values=(0.75, 1.0),
    ),
    Contender(
        name="tapas",
        title="TAPAS, priority",
        colour="#b5224f",
        method="tapas",
        knob="alpha",
        values=ALPHAS,
    ),
    Contender(
        name="tapas-top",
        title="TAPAS, the paper's rule",
        colour="#2b7a78",
        method="tapas",
        options=(("selection", "top"),),
        knob="alpha",
        values=ALPHAS,
    ),
)


def pick_contenders(words: str) -> tuple[str, ...]:
    """Names of the contenders in `words`, such as "all" or "full,tapas", each once."""
    wanted = dict.fromkeys(word.strip() for word in words.split(",") if word.strip())
    if not wanted:
        raise UsageError(
            f"--methods names no method. Give some of {', '.join(CONTENDERS)}, or {ALL}."
        )
    for name in wanted:
        pick("method", name, {**CONTENDERS, ALL: None})
    return tuple(CONTENDERS) if ALL in wanted else tuple(wanted)


def by_name(names: Sequence[str]) -> list[Contender]:
    return [pick("method", name, CONTENDERS) for name in names]
