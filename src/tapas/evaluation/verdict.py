"""Sentences that say who is better, from paired differences in MAP@20."""

from collections.abc import Mapping

from tapas.evaluation.baselines import COUNTING, title_of
from tapas.evaluation.intervals import Interval

BASELINES = {title_of(name) for name in COUNTING}
NUMBERS = {3: "three"}
LEAST_USERS = 10  # with fewer, an interval says nothing


def beside_baselines(ours: str, lead: Mapping[str, Interval], num_users: int) -> list[str]:
    """Who is better, `ours` or the baselines; `lead` is MAP@20 of ours minus that of each.

    >>> beside_baselines("the model", {"most popular": Interval(-0.02, -0.03, -0.01)}, 99)
    ['Most popular is better than the model: MAP@20 +0.0200 (+0.0100 to +0.0300).']
    """
    if num_users < LEAST_USERS:
        return [too_few(num_users)]
    better = [name for name in lead if lead[name].below_zero]
    level = [name for name in lead if not lead[name].below_zero and not lead[name].above_zero]
    if better or level:
        return [beside(ours, name, lead[name], num_users) for name in better or level]
    best = min(lead, key=lambda name: lead[name].mean)
    return [
        f"{capital(ours)} is better than all {NUMBERS.get(len(lead), len(lead))} baselines: MAP@20 "
        f"{lead[best].format(sign=True)} against {best}, the best of them."
    ]


def beside(ours: str, theirs: str, lead: Interval, num_users: int) -> str:
    """Who is better, `ours` or `theirs`; `lead` is MAP@20 of ours minus theirs."""
    if num_users < LEAST_USERS:
        return too_few(num_users)
    if lead.above_zero:
        return f"{capital(ours)} is better than {theirs}: MAP@20 {lead.format(sign=True)}."
    if lead.below_zero:
        turned = Interval(-lead.mean, -lead.high, -lead.low)
        return f"{capital(theirs)} is better than {ours}: MAP@20 {turned.format(sign=True)}."
    return (
        f"No significant difference between {ours} and {theirs}: MAP@20 {lead.format(sign=True)}."
    )


def too_few(num_users: int) -> str:
    users = "1 user is" if num_users == 1 else f"{num_users} users are"
    return f"{users} too few to say who is better: at least {LEAST_USERS} are needed."


def capital(words: str) -> str:
    """`words` at the start of a sentence: names of files and folders stay as they are."""
    ours = words in BASELINES or words.startswith(("the model", "our best model"))
    return words[0].upper() + words[1:] if ours else words
