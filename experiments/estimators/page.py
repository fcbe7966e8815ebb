"""The page of the estimators: step times by number of classes, and the bias of each loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from experiments.estimators.step_times import break_even, median_of
from tapas.comparison.contenders import CONTENDERS
from tapas.comparison.ledger import Ledger, Result
from tapas.comparison.results import FULL
from tapas.comparison.tables import NONE, describe_time
from tapas.page import Block, Command, Heading, Paragraph, Picture, Table, as_markdown

STEP_TIMES, BIAS = "step_times.jsonl", "bias.jsonl"
README, FIGURE = "README.md", "step-time.png"
COMMAND = "python -m experiments estimators"
TITLE = "Step time and bias of every method"
STEP_WORDS = (
    "The head without an encoder, with random queries and Zipf frequencies: loss, backward and "
    "update of the rows. Medians on one thread; for adaptive methods, means over 64 steps. "
    "Break-even: the number of classes above which a step of the full softmax takes longer. "
    "Columns may have been measured on different days: compare methods inside one column."
)
BIAS_HEADING = (
    "",
    "n",
    "bias",
    "expected by chance",
    "pull on head / middle / tail",
    "",
)
BIAS_WORDS = (
    "A small synthetic world (8 contexts, 200 classes) has known probabilities. With logits equal "
    "to the true ones, the expected gradient of the full softmax is 0. The bias of another loss is "
    "the sum of the absolute mean gradients with respect to the logits, exact over targets, "
    "averaged over draws. Expected by chance is the value that an unbiased loss would show with "
    "as many draws. Pull: the net gradient on head, middle and tail classes, up (+) or down (−).",
    "Methods whose target is not the softmax are biased by design; their rankings can still be "
    "good.",
)


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of one head, by number of classes: seconds, or why it was not measured."""

    name: str
    seconds: Mapping[int, float] = field(default_factory=dict)
    skipped: Mapping[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return CONTENDERS[self.name].title

    @property
    def colour(self) -> str:
        return CONTENDERS[self.name].colour


@dataclass(frozen=True, slots=True)
class Estimators:
    """The contents of both ledgers."""

    times: tuple[Timed, ...] = ()
    bias: tuple[Result, ...] = ()

    @property
    def classes(self) -> list[int]:
        """All numbers of classes that were tried, in increasing order."""
        return sorted({n for each in self.times for n in (*each.seconds, *each.skipped)})

    def break_even(self, name: str) -> float | None:
        """Classes from which on a step of the full softmax takes longer than one of `name`.

        The smallest number that was measured if it does so there already, inf if it never
        does, None if that is not known.
        """
        times = {each.name: each.seconds for each in self.times}
        full, other = times.get(FULL, {}), times.get(name, {})
        if name == FULL or not full.keys() & other.keys():
            return None
        return break_even(full, other)


def read_estimators(folder: Path) -> Estimators:
    """What is in `folder`, however far it has come."""
    lines = list(Ledger(folder / STEP_TIMES).results.values())
    return Estimators(
        tuple(timed(name, lines) for name in CONTENDERS),
        tuple(
            line
            for name in CONTENDERS
            for line in Ledger(folder / BIAS).results.values()
            if line["run"]["contender"] == name
        ),
    )


def timed(name: str, lines: list[Result]) -> Timed:
    """The steps of one head, of lines of a ledger."""
    mine = [line for line in lines if line["run"]["contender"] == name]
    seconds = {line["run"]["num_classes"]: median_of(line) for line in mine}
    return Timed(
        name,
        {number: value for number, value in seconds.items() if value is not None},
        {line["run"]["num_classes"]: line["skipped"] for line in mine if "skipped" in line},
    )


def make_page(found: Estimators) -> str:
    parts: list[Block] = [
        Paragraph(
            "Neither looks at anybody's log: methods on a log, in equal time, are compared by "
            "`tapas compare`."
        ),
        Command(COMMAND),
        Heading("Time of a step over the number of classes"),
        Picture(FIGURE, "time of a step over the number of classes"),
        Table(break_even_heading(found), break_even_rows(found)),
        Paragraph(STEP_WORDS, "note"),
        *(
            Paragraph(f"{each.title}, {number:,} classes: {words}.")
            for each in found.times
            for number, words in each.skipped.items()
        ),
        Heading("The bias of each estimator"),
        *(Paragraph(words) for words in BIAS_WORDS),
        Table(BIAS_HEADING, bias_rows(found)),
    ]
    return as_markdown(TITLE, parts)


def break_even_heading(found: Estimators) -> tuple[str, ...]:
    return ("", *(f"{number:,} classes" for number in found.classes), "break-even, classes")


def break_even_rows(found: Estimators) -> list[list[str]]:
    """Milliseconds of a step by number of classes; the fastest at the largest number first."""
    sizes = found.classes

    def order(each: Timed) -> list[float]:
        return [each.seconds.get(size, math.inf) for size in reversed(sizes)]

    rows = []
    for each in sorted((e for e in found.times if e.seconds or e.skipped), key=order):
        cells = [describe_time(each.seconds[n]) if n in each.seconds else NONE for n in sizes]
        rows.append([each.title, *cells, _break_even(found, each.name)])
    return rows


def _break_even(found: Estimators, name: str) -> str:
    number, sizes = found.break_even(name), found.classes
    if name == FULL or number is None:
        return NONE
    if math.isinf(number):
        return f"above {sizes[-1]:,}"
    return f"below {sizes[0]:,}" if number <= sizes[0] else f"{float(f'{number:.1e}'):,.0f}"


def bias_rows(found: Estimators) -> list[list[str]]:
    """Under `BIAS_HEADING`, in the order of the contenders."""
    return [_bias_row(CONTENDERS[line["run"]["contender"]].title, line) for line in found.bias]


def _bias_row(title: str, line: Result) -> list[str]:
    samples = line["run"].get("num_samples")
    row = [title, f"{samples:,}" if samples else NONE]
    if "skipped" in line:
        return [*row, NONE, NONE, NONE, str(line["skipped"])]
    if "exact" in line:
        return [*row, NONE, NONE, NONE, str(line["exact"])]
    pulls = [line["pull"][name] for name in ("head", "middle", "tail")]
    pull = " / ".join(_pull(p["mean"], p["standard_error"]) for p in pulls)
    remark = "" if line["aims_at_softmax"] else "aims elsewhere, by design"
    return [*row, f"{line['bias']:.4f}", f"{line['noise']:.4f}", pull, remark]


def _pull(mean: float, standard_error: float) -> str:
    """0 where chance explains it, or where there is nothing to see."""
    return f"{mean:+.3f}" if abs(mean) > max(2 * standard_error, 0.0005) else "0"
