"""The paper's claims about its real data, judged on ours, each by a rule written beside it.

A claim holds on a set when the 95 % interval says so; with a single seed that is an interval
over users alone, and the words say "one seed". Over the five sets: "reproduced" where it holds
on every one, "partly" where on some or where some have not been run, "not" where on none,
"missing" without results.
"""

from collections.abc import Callable, Sequence

from experiments.real.cells import PRIORITY, PRIORITY_8, SAMPLED, SAMPLED_8, TOP, TOP_8, Cell
from experiments.real.evidence import Evidence
from experiments.real.sets import SETS
from experiments.study_results import Claim

LEVEL = 0.02  # quality within 2 % is level
SMALL_OVERHEAD = 1.15  # the paper's "about 10 %", with room for measuring
Holds = Callable[[Evidence], tuple[bool, str] | None]  # None: no results


def beats(ours: Cell, theirs: Cell) -> Holds:
    """The interval of the relative difference of MAP@20 lies above 0."""

    def judge(found: Evidence) -> tuple[bool, str] | None:
        if not found.has(ours, theirs):
            return None
        change = found.relative(ours, theirs)
        return change.above, change.percent() + found.seed_words(ours, theirs)

    return judge


def at_least_level(ours: Cell, theirs: Cell) -> Holds:
    """The interval of the relative difference of MAP@20 lies above -2 %."""

    def judge(found: Evidence) -> tuple[bool, str] | None:
        if not found.has(ours, theirs):
            return None
        change = found.relative(ours, theirs)
        return change.low > -LEVEL, change.percent() + found.seed_words(ours, theirs)

    return judge


def higher_loss(ours: Cell, theirs: Cell) -> Holds:
    """The interval of the relative difference of the full softmax loss lies above 0."""

    def judge(found: Evidence) -> tuple[bool, str] | None:
        if not found.has(ours, theirs):
            return None
        change = found.relative(ours, theirs, "loss")
        return change.above, change.percent() + found.seed_words(ours, theirs)

    return judge


def small_overhead(pairs: Sequence[tuple[Cell, Cell]]) -> Holds:
    """A step with r=8 takes at most 1.15 times as long as with r=1 and the same n."""

    def judge(found: Evidence) -> tuple[bool, str] | None:
        if not all(cell in found.paces for pair in pairs for cell in pair):
            return None
        ratios = [found.paces[a].cost / found.paces[b].cost for a, b in pairs]
        return max(ratios) <= SMALL_OVERHEAD, " and ".join(f"{r:.2f} ×" for r in ratios)

    return judge


def slower_with_more_samples(found: Evidence) -> tuple[bool, str] | None:
    """A step with 8 n takes at least 1.5 times as long as with n."""
    if SAMPLED_8 not in found.paces:
        return None
    cost = found.paces[SAMPLED_8].cost
    return cost >= 1.5, f"{cost:.2f} ×"


CLAIMS: tuple[tuple[str, str, Holds], ...] = (
    (
        "figure-3",
        "At n=1000 MAP@20 rises with r from 1 to 8 (.050 to .068), the paper's rule",
        beats(TOP, SAMPLED),
    ),
    (
        "figure-3",
        "At n=8000 MAP@20 rises with r from 1 to 8 (.067 to .075), the paper's rule",
        beats(TOP_8, SAMPLED_8),
    ),
    (
        "figure-3",
        "n=1000, r=8 is at least as good as n=8000, r=1, the paper's rule",
        at_least_level(TOP, SAMPLED_8),
    ),
    ("figure-3", "At n MAP@20 rises with r from 1 to 8, priority", beats(PRIORITY, SAMPLED)),
    ("figure-3", "At 8n MAP@20 rises with r from 1 to 8, priority", beats(PRIORITY_8, SAMPLED_8)),
    (
        "figure-3",
        "n, r=8 is at least as good as 8n, r=1, priority",
        at_least_level(PRIORITY, SAMPLED_8),
    ),
    (
        "figure-4",
        "The softmax loss of n=8000, r=8 is above that of n=1000, r=1 (9.34, 9.10), the paper's "
        "rule",
        higher_loss(TOP_8, SAMPLED),
    ),
    (
        "figure-4",
        "The softmax loss of n=1000, r=8 is above that of n=1000, r=1, the paper's rule",
        higher_loss(TOP, SAMPLED),
    ),
    (
        "table-1",
        "r=8 costs about 10 % more time than r=1, the paper's rule",
        small_overhead(((TOP, SAMPLED), (TOP_8, SAMPLED_8))),
    ),
    (
        "table-1",
        "r=8 costs about 10 % more time than r=1, priority",
        small_overhead(((PRIORITY, SAMPLED), (PRIORITY_8, SAMPLED_8))),
    ),
    ("table-1", "Increasing n slows training significantly", slower_with_more_samples),
)


def judge_real_claims(sets: Sequence[Evidence]) -> list[Claim]:
    """A verdict on every claim, with what was found on every set."""
    return [Claim(text, study, *_over_sets(sets, holds)) for study, text, holds in CLAIMS]


def _over_sets(sets: Sequence[Evidence], holds: Holds) -> tuple[str, str]:
    found = {each.name: answer for each in sets if (answer := holds(each)) is not None}
    if not found:
        return "missing", "has not been run; `python -m experiments figure-3` and `table-1` do"
    yes = [name for name, (answer, _) in found.items() if answer]
    verdict = "reproduced" if len(yes) == len(SETS) else "partly" if yes else "not"
    rest = "" if len(found) == len(SETS) else f" that were run, of {len(SETS)}"
    words = ", ".join(
        f"{name} {'yes' if answer else 'no'} ({detail})" for name, (answer, detail) in found.items()
    )
    return verdict, f"on {len(yes)} of {len(found)} sets{rest}: {words}"
