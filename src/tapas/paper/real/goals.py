"""What this library wants of its own rule, set by set: the distance where it is missed."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tapas.paper.real.comparisons import Evidence
from tapas.paper.real.intervals import share_of_gap
from tapas.paper.real.plan import PRIORITY, SAMPLED, SAMPLED_2, SAMPLED_4, SAMPLED_8
from tapas.paper.real.verdicts import LEVEL


class Answer(NamedTuple):
    reached: bool
    words: str


def better_map(found: Evidence) -> Answer:
    change = found.relative(PRIORITY, SAMPLED)
    return Answer(change.above, change.percent())


def half_of_the_gap(found: Evidence) -> Answer:
    seeds = [found.seeds(cell) for cell in (SAMPLED, PRIORITY, SAMPLED_8)]
    share = share_of_gap(seeds[0], seeds[1], seeds[2], "map@20")
    return Answer(share.mean >= 0.5, share.words(2))


def no_worse_loss(found: Evidence) -> Answer:
    change = found.relative(PRIORITY, SAMPLED, "loss")
    before, after = (found.score(cell, "loss").mean for cell in (SAMPLED, PRIORITY))
    return Answer(not change.above, f"{before:.3f} to {after:.3f}, {change.percent()}")


def better_at_equal_time(found: Evidence) -> Answer | None:
    change = found.at_equal_time(PRIORITY, SAMPLED)
    return None if change is None else Answer(change.mean >= 0.05, change.percent())


def fewer_rows(found: Evidence) -> Answer | None:
    """Rows that enter the loss, for the quality of priority; between measured sizes."""
    if not found.paces:
        return None
    sizes = (SAMPLED, SAMPLED_2, SAMPLED_4, SAMPLED_8)
    times = found.samples_for(found.score(PRIORITY).mean, sizes)
    mine = found.paces[PRIORITY].rows.in_loss
    if math.isinf(times):
        return Answer(True, "above 8 times the samples")
    n = found.plan.real_set.num_samples
    theirs = found.paces[SAMPLED].rows.in_loss + (times - 1) * n
    return Answer(
        theirs >= 2 * mine, f"{times:.1f} times the samples, {theirs / mine:.2f} times the rows"
    )


def level_with_more_samples(found: Evidence) -> Answer:
    change = found.relative(PRIORITY, SAMPLED_8)
    return Answer(change.mean > -LEVEL, change.percent())


GOALS: tuple[tuple[str, Callable[[Evidence], Answer | None]], ...] = (
    ("MAP@20 above sampled softmax with the same n, beyond the interval", better_map),
    ("closes at least half of the gap to sampled softmax with 8 n", half_of_the_gap),
    ("full softmax loss not above that of sampled softmax", no_worse_loss),
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
        answers = [ask(each) for each in ready]
        cells = [
            "–" if a is None else f"{'**yes**' if a.reached else 'no'}: {a.words}" for a in answers
        ]
        rows.append(f"| {text} | " + " | ".join(cells) + " |")
    return rows
