"""The contenders of a comparison and the settings tried for each, fixed before any result.

A contender is a method, or a variant of one. Every contender has the same number of trials.
One without a knob tries learning rates of the rows; one with a knob tries half as many, each
with two values of it. The knob is the option whose `search` the class of the method gives; it
does not change what a step costs, so that one pace holds for all trials. Row-wise Adagrad
divides gradients by their size: losses of very different scale want similar rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

from tapas.errors import UsageError, choice
from tapas.heads import METHODS, Head, import_method, method_class
from tapas.heads.own_method import OWN_METHODS, is_own
from tapas.training.config import HeadConfig

RATES = (0.3, 1.0, 0.1, 3.0, 0.03, 0.6, 0.2, 2.0)  # of the rows; the first ones first
MOST_TRIALS = len(RATES)
SPARE = ("#000000", "#7b1fa2", "#00897b", "#6d4c41")  # colours of methods not listed below
PART = 10  # times n: the subset of a partitioned vocabulary serves many batches
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
    method: str  # a key of `METHODS`, or a method of the user's own
    options: tuple[tuple[str, str | float], ...] = ()  # of the method, beside n and the knob
    knob: str | None = None  # an option that is tuned together with the learning rate
    values: tuple[float, ...] = ()  # of the knob: two or four
    times: int = 1  # samples are so many times n

    @property
    def kind(self) -> type[Head]:
        """The class of its method."""
        return method_class(self.method)

    @property
    def draws(self) -> bool:
        """Whether there is a number of samples, n, for it to share with the others."""
        return "num_samples" in self.kind.options

    def head(self, num_samples: int, knob: float | None) -> HeadConfig:
        """Its part of a configuration, with n = `num_samples` if it samples at all."""
        options = dict(self.options) | self.kind.sample_options(self.times * num_samples)
        if self.knob is not None and knob is not None:
            options[self.knob] = knob
        return HeadConfig(method=self.method, options=options, next_items=NEXT_ITEMS)

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


def _contender(
    method: str,
    colour: str,
    *,
    name: str | None = None,
    title: str | None = None,
    times: int = 1,
    searched: bool = True,
    **options: str | float,
) -> Contender:
    """`method` with `options`; `searched` is whether the knob of its class is tuned."""
    kind = method_class(method)
    knobs = {name: option.search for name, option in kind.options.items() if option.search}
    knob, values = next(iter(knobs.items())) if knobs and searched else (None, ())
    return Contender(
        name=name or method,
        title=title or kind.title,
        colour=colour,
        method=method,
        options=tuple(options.items()),
        knob=knob,
        values=values,
        times=times,
    )


_LISTED = (
    _contender("full", "#7a7a7a"),
    _contender("one-vs-all", "#4d4d4d"),
    _contender("sampled", "#c8791b"),
    _contender(
        "sampled",
        "#e0a458",
        name="sampled-log-uniform",
        title="Sampled softmax, log-uniform",
        searched=False,
        proposal="log-uniform",
    ),
    _contender(
        "sampled",
        "#8a5410",
        name="sampled-bigram",
        title="Sampled softmax, bigram",
        searched=False,
        proposal="bigram",
    ),
    _contender("in-batch", "#3b6fb6", title="In-batch softmax"),
    _contender("mixed", "#1f4e8c"),
    _contender("adaptive-importance", "#6a51a3"),
    _contender("partitioned", "#9e7bb5", times=PART),
    _contender("huffman", "#4a7c2c", title="Hierarchical softmax, Huffman"),
    _contender("two-level", "#7fae5a"),
    _contender("adaptive", "#2f5d1e"),
    _contender("nce", "#b5651d"),
    _contender("negative-sampling", "#d98c5f"),
    _contender("self-normalised", "#5f7f8c"),
    _contender("warp", "#a23b2a"),
    _contender("dynamic-negatives", "#d1495b"),
    _contender("sce", "#00798c"),
    _contender("gbce", "#8d96a3", alpha=0.0),  # uniform negatives, as its theory wants them
    _contender("tapas", "#b5224f", title="TAPAS, priority"),
    _contender(
        "tapas", "#2b7a78", name="tapas-top", title="TAPAS, the paper's rule", selection="top"
    ),
)
_NEW = [m for m in METHODS if m not in {contender.method for contender in _LISTED}]
_OTHERS = [_contender(method, colour) for method, colour in zip(_NEW, cycle(SPARE), strict=False)]
CONTENDERS = {each.name: each for each in (*_LISTED, *_OTHERS)}


def find_contender(name: str) -> Contender:
    """The contender `name`: one of `CONTENDERS`, or an imported method of the user's own."""
    if not is_own(name):
        return choice("method", name, CONTENDERS)
    method_class(name)  # raises if it was not imported
    return _contender(name, SPARE[list(OWN_METHODS).index(name) % len(SPARE)])


def pick_contenders(words: str) -> tuple[str, ...]:
    """Names of the contenders in `words`, such as "all" or "full,tapas,mine:Class", each once.

    Methods of the user's own are imported.
    """
    wanted = dict.fromkeys(word.strip() for word in words.split(",") if word.strip())
    if not wanted:
        raise UsageError(
            f"--methods names no method. Give some of {', '.join(CONTENDERS)}, or {ALL}."
        )
    for name in wanted:
        if is_own(name):
            import_method(name)
        else:
            choice("method", name, {**CONTENDERS, ALL: None})
    named = [name for name in wanted if name != ALL]
    return tuple(dict.fromkeys([*CONTENDERS, *named])) if ALL in wanted else tuple(named)


def by_name(names: Sequence[str]) -> list[Contender]:
    return [find_contender(name) for name in names]
