"""`Option`, how a method declares its options, and `BuildContext`, what heads are built from.

An option has one name in the constructor, in [head] of a configuration and as a flag. A
configuration is checked against the options of the method that it names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tapas.errors import UsageError, choice
from tapas.optim.row_updates import RowUpdate
from tapas.proposals import Bigram, ByRank, LogUniform, Proposal, Squashed
from tapas.proposals.squashed import ALPHA
from tapas.tables import ClassTable

if TYPE_CHECKING:
    from tapas.heads.base import Head

MOST_SAMPLES = 1_000
ALPHAS = (0.75, 1.0, 0.5, 0.0)  # power-raised, unigram, in between, uniform
UNIFORM_FIRST = (0.0, 0.75, 1.0, 0.5)  # for methods whose papers draw uniformly
Pairs = tuple[Tensor, Tensor, Tensor]  # previous class, next class, count: (P,) each
_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a method: its default, the values allowed, and those worth searching.

    >>> Option(5.0, float, low=0).check("negatives", 3)
    3.0
    """

    default: Any  # None: chosen when the head is built
    kind: type | tuple[str, ...]  # int, float, bool, str, or the strings allowed
    low: float | None = None  # least value; None is no bound
    high: float | None = None
    search: tuple[float, ...] = ()  # values that `tapas compare` tries
    help: str = ""
    argument: str | None = None  # the constructor's argument that is built from this option

    def check(self, name: str, value: Any) -> Any:
        """`value` after checks, as `kind`; an error calls it `name`. An int is a valid float."""
        if value is None and self.default is None:
            return None
        if isinstance(self.kind, tuple):
            if not isinstance(value, str):
                raise UsageError(f"{name} must be a string, got {value!r}.")
            choice(name, value, dict.fromkeys(self.kind))
            return value
        allowed = (int, float) if self.kind is float else (self.kind,)
        if isinstance(value, bool) != (self.kind is bool) or not isinstance(value, allowed):
            raise UsageError(f"{name} must be {_WORDS[self.kind]}, got {value!r}.")
        value = self.kind(value)
        if self.kind in (bool, str):
            return value
        low = -inf if self.low is None else self.low
        high = inf if self.high is None else self.high
        if not low <= value <= high:  # also true of NaN
            bounds = f"at least {low:g}" if high == inf else f"between {low:g} and {high:g}"
            raise UsageError(f"{name} must be {bounds}, got {value!r}.")
        return value


Options = Mapping[str, Option]  # by name
NUM_SAMPLES = Option(
    None,
    int,
    low=1,
    help="n, classes in the sample; default: 1,000, or an eighth of the classes if that is less",
)


def drawn_options(search: tuple[float, ...] = ALPHAS) -> Options:
    """Options of a method that draws `num_samples` classes from a proposal."""
    return {
        "num_samples": NUM_SAMPLES,
        "proposal": Option(
            "squashed",
            ("squashed", "log-uniform", "bigram"),
            help="squashed: by frequency; log-uniform: by its rank; bigram: by the previous class",
            argument="proposal",
        ),
        "alpha": Option(
            ALPHA,
            float,
            low=0,
            high=1,
            search=search,
            help="exponent of the frequencies; 0 is uniform, 1 the frequencies",
            argument="proposal",
        ),
        "beta": Option(
            None,
            float,
            low=1e-300,
            high=1,
            help="floor of frequency^alpha; default: the value of a class seen once",
            argument="proposal",
        ),
    }


def default_num_samples(num_classes: int) -> int:
    """The number of samples if none was given.

    >>> default_num_samples(1_000_000), default_num_samples(800)
    (1000, 100)
    """
    return min(MOST_SAMPLES, max(1, num_classes // 8))


def check_options(
    method: str, given: Mapping[str, Any], methods: Mapping[str, "type[Head]"]
) -> dict[str, Any]:
    """All options of `method`, one of `methods`: the `given` ones, and defaults for the others."""
    known = methods[method].options
    for name in given:
        readers = [other for other, kind in methods.items() if name in kind.options]
        if name not in known and readers:
            raise UsageError(
                f"head.{name} is not an option of the method '{method}', but of "
                f"{', '.join(readers)}. Leave it out."
            )
        choice(f"option of the method '{method}'", name, known)
    return {
        name: option.check(f"head.{name}", given.get(name, option.default))
        for name, option in known.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildContext:
    """Everything that a head is built from, beside its options.

    `pairs` and `upcoming` are functions, because only methods that list them in `reads` need them.
    """

    counts: Tensor  # (C,) how often each class occurs in training
    dim: int
    seed: int
    steps: int  # of the run
    row_optimizer: RowUpdate | None  # for heads that create their tables
    table: ClassTable | None = None  # for a `FlatHead`
    pairs: Callable[[], Pairs] | None = None  # counts of which class follows which in training
    upcoming: Callable[[int], Tensor | None] | None = None  # targets of a training step

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    def read(self, name: str) -> Any:
        """The value of field `name` for the constructor; `pairs` are counted here."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"the head needs {name}, but the BuildContext has none")
        return value() if name == "pairs" else value

    def proposal(self, options: Mapping[str, Any]) -> Proposal:
        """The proposal of the options `proposal`, `alpha` and `beta`."""
        if options["proposal"] == "log-uniform":
            by_rank = torch.argsort(-self.counts, stable=True)
            return ByRank(LogUniform(self.num_classes), by_rank)
        squashed = Squashed(self.counts, alpha=options["alpha"], beta=options["beta"])
        if options["proposal"] == "squashed":
            return squashed
        return Bigram(*self.read("pairs"), unigram=squashed)
