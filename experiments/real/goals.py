"""What this library wants of its own rule, set by set: the distance where it is missed.

Judged by 95 % intervals; where the cells share a single seed these are over users alone, and
the words say so.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.real.cells import PRIORITY, SAMPLED, SAMPLED_2, SAMPLED_4, SAMPLED_8
from experiments.real.claims import LEVEL
from experiments.real.evidence import Evidence
from tapas.evaluation.intervals import gap, share_of_gap

LOSS_MARGIN = 0.02  # nats, by which a loss may be above another and still count as no worse


class Answer(NamedTuple):
    reached: bool | None  # None: there is nothing to reach
    words: str


def better_map(found: Evidence) -> Answer:
    change = found.relative(PRIORITY, SAMPLED)
    return Answer(change.above, change.percent() + found.seed_words(PRIORITY, SAMPLED))


def half_of_the_gap(found: Evidence) -> Answer:
    """The interval of the share lies above a half."""
    seeds = [found.seeds(cell) for cell in (SAMPLED, PRIORITY, SAMPLED_8)]
    share = share_of_gap(seeds[0], seeds[1], seeds[2], "map@20")
    if share is None:
        change = found.relative(SAMPLED_8, SAMPLED)
        return Answer(None, f"no gap to close: 8 n is {change.percent()} above n")
    return Answer(share.low > 0.5, share.words(2) + found.seed_words(SAMPLED, PRIORITY, SAMPLED_8))


def no_worse_loss(found: Evidence) -> Answer:
    change = gap(found.seeds(PRIORITY), found.seeds(SAMPLED), "loss")
    words = f"{change.words(3, sign=True)} nats" + found.seed_words(PRIORITY, SAMPLED)
    return Answer(change.high < LOSS_MARGIN, words)


def better_at_equal_time(found: Evidence) -> Answer | None:
    """The mean is at least 5 % above, and the interval above 0."""
    change = found.at_equal_time(PRIORITY, SAMPLED)
    if change is None:
        return None
    words = change.percent() + found.seed_words(PRIORITY, SAMPLED)
    return Answer(change.mean >= 0.05 and change.above, words)


def fewer_rows(found: Evidence) -> Answer | None:
    """Rows that enter the loss; those that the second pass reads where they live are not.

    A reading without an interval.
    """
    if not found.paces:
        return None
    mine = found.paces[PRIORITY].rows.in_loss
    most = found.paces[SAMPLED_8].rows.in_loss
    sizes = (SAMPLED, SAMPLED_2, SAMPLED_4, SAMPLED_8)
    theirs = found.rows_for(PRIORITY, sizes)
    if math.isinf(theirs):
        return Answer(most >= 2 * mine, f"more than {most / mine:.2f} times, which 8 n has")
    return Answer(theirs >= 2 * mine, f"{theirs / mine:.2f} times; 8 n has {most / mine:.2f}")


def level_with_more_samples(found: Evidence) -> Answer:
    """The interval lies above -2 %."""
    change = found.relative(PRIORITY, SAMPLED_8)
    return Answer(change.low > -LEVEL, change.percent() + found.seed_words(PRIORITY, SAMPLED_8))


GOALS: tuple[tuple[str, Callable[[Evidence], Answer | None]], ...] = (
    ("MAP@20 above sampled softmax with the same n, beyond the interval", better_map),
    ("closes at least half of the gap to sampled softmax with 8 n", half_of_the_gap),
    ("full softmax loss no worse than that of sampled softmax", no_worse_loss),
    ("MAP@20 at equal time at least 5 % above sampled softmax", better_at_equal_time),
    ("sampled softmax needs twice the rows for the same MAP@20", fewer_rows),
    ("within 2 % of sampled softmax with 8 n", level_with_more_samples),
)


def goals_table(sets: Sequence[Evidence]) -> list[str]:
    """Markdown: a row for each goal, a column for each set that has the seeds."""
    ready = [each for each in sets if each.has(SAMPLED, PRIORITY, SAMPLED_8)]
    rows = [
        "| goal | " + " | ".join(each.name for each in ready) + " |",
        "|---" * (len(ready) + 1) + "|",
    ]
    for text, ask in GOALS:
        rows.append(f"| {text} | " + " | ".join(_said(ask(each)) for each in ready) + " |")
    return rows


def _said(answer: Answer | None) -> str:
    if answer is None:
        return "–"
    if answer.reached is None:
        return answer.words
    return f"{'**yes**' if answer.reached else 'no'}: {answer.words}"
