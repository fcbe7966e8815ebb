"""The paper's claims about real data, checked on our sets, and the goals for our rule.

A claim holds on a set if the 95 % interval says so. With one seed the interval is over users
only, and the evidence says "one seed". A claim is "reproduced" if it holds on all five sets,
"partly" if on some of them or if some were not run, "not reproduced" if on none, and "missing"
without results. Goals are answered set by set, with the distance if one is missed.
"""

import math
from collections.abc import Callable, Sequence

from experiments.claims import (
    MISSING,
    NOT,
    PARTLY,
    REPRODUCED,
    Claim,
    SetAnswer,
    markdown_table,
)
from experiments.real.cells import (
    PRIORITY,
    PRIORITY_8,
    PRIORITY_EIGHTH,
    SAMPLED,
    SAMPLED_2,
    SAMPLED_4,
    SAMPLED_8,
    SAMPLED_EIGHTH,
    TOP,
    TOP_8,
    SetCell,
)
from experiments.real.evidence import SetEvidence
from experiments.real.sets import SETS
from tapas.evaluation.intervals import difference, share_of_gap

LEVEL = 0.02  # quality within 2 % is level
LOSS_MARGIN = 0.02  # nats, by which a loss may be above another and still count as no worse
SMALL_OVERHEAD = 1.15  # the paper's "about 10 %", with room for measuring
Answer = tuple[bool | None, str]  # None: there is nothing to reach
Rule = Callable[[SetEvidence], Answer | None]  # None: no results


def higher(ours: SetCell, theirs: SetCell, metric: str = "map@20", *, than: float = 0.0) -> Rule:
    """The interval of the relative difference lies above `than`."""

    def check(found: SetEvidence) -> Answer | None:
        if not found.has(ours, theirs):
            return None
        change = found.relative(ours, theirs, metric)
        return change.low > than, change.format_percent() + found.describe_seeds(ours, theirs)

    return check


def small_overhead(pairs: Sequence[tuple[SetCell, SetCell]]) -> Rule:
    """A step with r=8 takes at most 1.15 times as long as with r=1 and the same n."""

    def check(found: SetEvidence) -> Answer | None:
        if not all(cell in found.paces for pair in pairs for cell in pair):
            return None
        ratios = [found.paces[a].cost / found.paces[b].cost for a, b in pairs]
        return max(ratios) <= SMALL_OVERHEAD, " and ".join(f"{r:.2f} ×" for r in ratios)

    return check


def slower_with_more_samples(found: SetEvidence) -> Answer | None:
    """A step with 8 n takes at least 1.5 times as long as with n."""
    if SAMPLED_8 not in found.paces:
        return None
    cost = found.paces[SAMPLED_8].cost
    return cost >= 1.5, f"{cost:.2f} ×"


CLAIMS: tuple[tuple[str, str, Rule], ...] = (
    (
        "figure-3",
        "At n=1000 MAP@20 rises with r from 1 to 8 (.050 to .068), the paper's rule.",
        higher(TOP, SAMPLED),
    ),
    (
        "figure-3",
        "At n=8000 MAP@20 rises with r from 1 to 8 (.067 to .075), the paper's rule.",
        higher(TOP_8, SAMPLED_8),
    ),
    (
        "figure-3",
        "n=1000, r=8 is at least as good as n=8000, r=1, the paper's rule.",
        higher(TOP, SAMPLED_8, than=-LEVEL),
    ),
    ("figure-3", "At n MAP@20 rises with r from 1 to 8, priority.", higher(PRIORITY, SAMPLED)),
    ("figure-3", "At 8n MAP@20 rises with r from 1 to 8, priority.", higher(PRIORITY_8, SAMPLED_8)),
    (
        "figure-3",
        "n, r=8 is at least as good as 8n, r=1, priority.",
        higher(PRIORITY, SAMPLED_8, than=-LEVEL),
    ),
    (
        "figure-4",
        "The softmax loss of n=8000, r=8 is above that of n=1000, r=1 (9.34, 9.10), the paper's "
        "rule.",
        higher(TOP_8, SAMPLED, "loss"),
    ),
    (
        "figure-4",
        "The softmax loss of n=1000, r=8 is above that of n=1000, r=1, the paper's rule.",
        higher(TOP, SAMPLED, "loss"),
    ),
    (
        "table-1",
        "r=8 costs about 10 % more time than r=1, the paper's rule.",
        small_overhead(((TOP, SAMPLED), (TOP_8, SAMPLED_8))),
    ),
    (
        "table-1",
        "r=8 costs about 10 % more time than r=1, priority.",
        small_overhead(((PRIORITY, SAMPLED), (PRIORITY_8, SAMPLED_8))),
    ),
    ("table-1", "Increasing n slows training significantly.", slower_with_more_samples),
)


def check_real_claims(sets: Sequence[SetEvidence]) -> list[Claim]:
    """A verdict on every claim, with an answer for each set that was run."""
    return [_over_sets(sets, study, text, rule) for study, text, rule in CLAIMS]


def _over_sets(sets: Sequence[SetEvidence], study: str, text: str, rule: Rule) -> Claim:
    answers = []
    for each in sets:
        answer = rule(each)
        if answer is not None:
            answers.append(SetAnswer(each.name, bool(answer[0]), answer[1]))
    if not answers:
        words = "not run yet: `python -m experiments figure-3` and `table-1` run it"
        return Claim(text, study, MISSING, words)
    yes = sum(answer.holds for answer in answers)
    verdict = REPRODUCED if yes == len(SETS) else PARTLY if yes else NOT
    words = f"holds on {yes} of {len(answers)} sets"
    if len(answers) < len(SETS):
        words += f"; the other {len(SETS) - len(answers)} were not run"
    return Claim(text, study, verdict, words, tuple(answers))


def half_of_the_gap(found: SetEvidence) -> Answer:
    """The interval of the share lies above a half."""
    seeds = [found.seeds(cell) for cell in (SAMPLED, PRIORITY, SAMPLED_8)]
    share = share_of_gap(seeds[0], seeds[1], seeds[2], "map@20")
    if share is None:
        change = found.relative(SAMPLED_8, SAMPLED)
        return None, f"no gap to close: 8 n is {change.format_percent()} above n"
    return share.low > 0.5, share.format(2) + found.describe_seeds(SAMPLED, PRIORITY, SAMPLED_8)


def no_worse_loss(found: SetEvidence) -> Answer:
    change = difference(found.seeds(PRIORITY), found.seeds(SAMPLED), "loss")
    words = f"{change.format(3, sign=True)} nats" + found.describe_seeds(PRIORITY, SAMPLED)
    return change.high < LOSS_MARGIN, words


def better_at_equal_time(found: SetEvidence) -> Answer | None:
    """The mean is at least 5 % above, and the interval above 0."""
    change = found.at_equal_time(PRIORITY, SAMPLED)
    if change is None:
        return None
    words = change.format_percent() + found.describe_seeds(PRIORITY, SAMPLED)
    return change.mean >= 0.05 and change.above_zero, words


def fewer_rows(found: SetEvidence) -> Answer | None:
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
        return most >= 2 * mine, f"more than {most / mine:.2f} times, which 8 n has"
    return theirs >= 2 * mine, f"{theirs / mine:.2f} times; 8 n has {most / mine:.2f}"


GOALS: tuple[tuple[str, Rule], ...] = (
    (
        "MAP@20 above sampled softmax with the same n, beyond the interval",
        higher(PRIORITY, SAMPLED),
    ),
    (
        "MAP@20 above sampled softmax with the same n/8, beyond the interval",
        higher(PRIORITY_EIGHTH, SAMPLED_EIGHTH),
    ),
    ("closes at least half of the gap to sampled softmax with 8 n", half_of_the_gap),
    ("full softmax loss no worse than that of sampled softmax", no_worse_loss),
    ("MAP@20 at equal time at least 5 % above sampled softmax", better_at_equal_time),
    ("sampled softmax needs twice the rows for the same MAP@20", fewer_rows),
    ("within 2 % of sampled softmax with 8 n", higher(PRIORITY, SAMPLED_8, than=-LEVEL)),
)


def goals_table(sets: Sequence[SetEvidence]) -> list[str]:
    """Markdown: a row for each goal, a column for each set that has the seeds."""
    ready = [each for each in sets if each.has(SAMPLED, PRIORITY, SAMPLED_8)]
    rows = [[text, *(_said(ask(each)) for each in ready)] for text, ask in GOALS]
    return markdown_table(["goal", *(each.name for each in ready)], rows)


def _said(answer: Answer | None) -> str:
    if answer is None:
        return "–"
    reached, words = answer
    return words if reached is None else f"{'**yes**' if reached else 'no'}: {words}"
