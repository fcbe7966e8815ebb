"""Tables beside the figures: where the full softmax becomes slower, and what is biased."""

import math

from tapas.comparison.results import FULL, Comparison, Standing, measured_times
from tapas.comparison.summary import NONE, time_words
from tapas.paper.ledger import Result

BIAS_HEADING = (
    "",
    "n",
    "bias",
    "of which chance, about",
    "pull on head / middle / tail",
    "",
)
BIAS_WORDS = (
    "Put at the truth of a small made-up world (8 contexts, 200 classes), the full softmax stays "
    "where it is: its expected gradient is 0. What another loss would do there is its bias: "
    "the sum of the absolute mean gradients by the logits, exact over targets, a mean over draws. "
    "Chance alone would make it look as large as the next column says. Pull: whether the classes "
    "of the head, the middle and the tail are pushed up (+) or down (−), all in all.",
    "Methods that aim elsewhere than at the softmax have a bias by design; their rankings can "
    "still be good.",
)


def break_even_heading(comparison: Comparison) -> tuple[str, ...]:
    return ("", *(f"{number:,} classes" for number in _sizes(comparison)), "break-even, classes")


def break_even_rows(comparison: Comparison) -> list[list[str]]:
    """Milliseconds of a step by number of classes; the fastest at the largest number first."""
    sizes = _sizes(comparison)

    def order(each: Standing) -> list[float]:
        times = measured_times(each)
        return [times.get(size, math.inf) for size in reversed(sizes)]

    drawn = [each for each in comparison.standings if each.step_times]
    rows = []
    for each in sorted(drawn, key=order):
        times = measured_times(each)
        cells = [time_words(times[size]) if size in times else NONE for size in sizes]
        rows.append([each.title, *cells, _break_even(comparison, each.name)])
    return rows


def bias_rows(comparison: Comparison) -> list[list[str]]:
    """Under `BIAS_HEADING`, in the order of the contenders."""
    titles = {each.name: each.title for each in comparison.standings}
    return [_bias_row(titles[line["run"]["contender"]], line) for line in comparison.bias]


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


def _break_even(comparison: Comparison, name: str) -> str:
    number, sizes = comparison.break_even(name), _sizes(comparison)
    if name == FULL or number is None:
        return NONE
    if math.isinf(number):
        return f"above {sizes[-1]:,}"
    return f"below {sizes[0]:,}" if number <= sizes[0] else f"{float(f'{number:.1e}'):,.0f}"


def _sizes(comparison: Comparison) -> list[int]:
    return sorted({size for each in comparison.standings for size in each.step_times})
