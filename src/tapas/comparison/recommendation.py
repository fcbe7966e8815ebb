"""Which method for this data, and why: a short rule, from the numbers alone.

    as good as the best   the paired 95 % interval of the difference in MAP@20 reaches 0
    first among these     who reaches 95 % of the best MAP@20 earliest, then who needs the least
                          memory, then who takes the least time for a step

The budget of all is the same time, so that being slow has already been paid for in MAP@20.
A full softmax that is the best is chosen outright: it is exact. A contender with a diverged
seed is never recommended. If all are as good as the best, the
budget was too small to tell, and the rule says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tapas.comparison.results import FULL, Comparison, MethodResults
from tapas.comparison.tables import (
    beaten_by,
    gap_to,
    quality,
    ranked,
    recall_of,
    targets_of,
    time_words,
)

NEAR = 0.95  # of the best MAP@20: who is there is nearly done
CLEAR = 3.0  # standard errors of independent targets, which those of one user are not: a hint
SIMILAR = 1.1  # memory within a tenth is the same


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to use, in sentences; `choice` is the name of a contender or None."""

    choice: str | None
    as_good: tuple[str, ...]  # names, the best first
    sentences: tuple[str, ...]


def recommend_method(comparison: Comparison) -> Recommendation:
    """The rule for the data of this comparison."""
    judged = ranked(comparison)
    sound = [each for each in judged if not each.diverged_seeds]
    if not sound:
        words = "No contender has finished without diverging, so that there is nothing to choose."
        return Recommendation(None, (), (f"{words} Give a larger --budget, or other --methods.",))
    best = sound[0]
    as_good = [each for each in sound if each is best or not _behind(each, best)]
    names = tuple(each.name for each in as_good)
    if len(sound) == 1:
        words = (
            f"Only {in_sentence(best)} has been judged (MAP@20 {quality(best).mean:.4f}): there is "
            "nothing to compare it with."
        )
        return Recommendation(None, names, (words, *_warnings(comparison, best)))
    if len(as_good) == len(sound):
        return Recommendation(
            None, names, (*_too_thin(best, len(as_good) - 1), *_warnings(comparison, best))
        )
    chosen, why = (best, "") if best.name == FULL else _first(as_good, best)
    sentences = [_use(chosen, best, as_good, why)]
    sentences += _others(chosen, as_good)
    sentences += _tail(chosen, sound)
    return Recommendation(chosen.name, names, (*sentences, *_warnings(comparison, best)))


def first_reached(method: MethodResults, level: float) -> tuple[float, float]:
    """Share and seconds of training at which its mean curve first reaches `level`, or endless.

    Seconds are whole steps, and so never quite those of another; shares are the same for all.
    """
    there = (p for p in method.curve if p.quality >= level)
    return next(((p.share, p.seconds) for p in there), (math.inf, math.inf))


def _behind(method: MethodResults, best: MethodResults) -> bool:
    gap = gap_to(method, best)
    return gap is None or gap.below_zero


def _first(as_good: Sequence[MethodResults], best: MethodResults) -> tuple[MethodResults, str]:
    """Which of these, and why."""
    level = _level(best)

    def order(each: MethodResults) -> tuple[float, float, float]:
        return first_reached(each, level)[0], _size(each), each.step_seconds or math.inf

    first, *others = sorted(as_good, key=order)
    share, seconds = first_reached(first, level)
    there = f"{100 * NEAR:.0f} % of the best MAP@20 after {_time(seconds)} of training"
    equals = [each for each in others if first_reached(each, level)[0] == share]
    if not others or math.isinf(seconds):
        return first, ""
    if not equals:
        return first, f", and of these it is there first: {there}"
    if first.peak_bytes is not None and all(_size(first) < _size(each) for each in equals):
        memory = f"{first.peak_bytes / 1e6:,.0f} MB"
        return first, f"; {there}, as others, but with the least memory: {memory}"
    if first.step_seconds is not None:
        pace = time_words(first.step_seconds)
        return first, f"; {there}, as others, but with the fastest steps: {pace}"
    return first, ""


def _level(best: MethodResults) -> float:
    """At the points of the curves, which are some of those of the end."""
    return NEAR * best.curve[-1].quality if best.curve else math.inf


def _size(method: MethodResults) -> float:
    """Memory in classes that differ by a tenth."""
    memory = method.peak_bytes
    return math.inf if memory is None else math.floor(math.log(memory, SIMILAR))


def _use(
    chosen: MethodResults, best: MethodResults, as_good: Sequence[MethodResults], why: str
) -> str:
    name, found = in_sentence(chosen), quality(chosen).format()
    if chosen.name == FULL and chosen is best:
        return (
            f"Use plain {name}: it is exact, needs no sampling, and within this budget its MAP@20 "
            f"of {found} is the best of all."
        )
    if len(as_good) == 1:
        return f"Use {name}: its MAP@20 of {found} is better than that of every other."
    place = "the best of all" if chosen is best else f"as good as the best ({in_sentence(best)})"
    return f"Use {name}: its MAP@20 of {found} is {place}{why}."


def _others(chosen: MethodResults, as_good: Sequence[MethodResults]) -> list[str]:
    others = [in_sentence(each) for each in as_good if each is not chosen]
    if not others:
        return []
    return [f"As good as the best, as far as these seeds and users can tell: {_list(others)}."]


def _too_thin(best: MethodResults, others: int) -> list[str]:
    who = "the other is not" if others == 1 else f"none of the {others} others is"
    return [
        f"The evidence is too thin for a rule. {best.title} has the highest MAP@20, "
        f"{quality(best).format()}, but {who} clearly behind it.",
        "Give a larger --budget or more --seeds; until then take the one you find simplest.",
    ]


def _tail(chosen: MethodResults, sound: Sequence[MethodResults]) -> list[str]:
    """A sentence if another finds clearly more of the rare classes."""
    mine, targets = recall_of(chosen, "tail"), targets_of(chosen, "tail")
    known = [(recall_of(each, "tail"), each) for each in sound if each is not chosen]
    scored = [(recall, each) for recall, each in known if recall is not None]
    if mine is None or not scored or not targets:
        return []
    recall, other = max(scored, key=lambda pair: pair[0])
    error = math.sqrt((mine * (1 - mine) + recall * (1 - recall)) / targets)
    if recall - mine <= CLEAR * error:
        return []
    return [
        f"If rare classes matter most, look at {in_sentence(other)}: it finds {100 * recall:.1f} % "
        f"of the tail instead of {100 * mine:.1f} %, at a MAP@20 of {quality(other).mean:.4f}."
    ]


def _warnings(comparison: Comparison, best: MethodResults) -> list[str]:
    said = []
    rivals = [each.title for each in comparison.baselines if beaten_by(best, each)]
    if rivals:
        said.append(
            f"Beware: {_list(rivals)}, without any training, is better than all of these. Give a "
            "larger --budget or another model before you choose."
        )
    if len(best.finals) == 1:
        said.append("One seed: the intervals know nothing of the chance in training.")
    lost = [in_sentence(each) for each in comparison.methods if each.diverged_seeds]
    if lost:
        said.append(f"Not recommended because a seed diverged: {_list(lost)}.")
    return said


def in_sentence(method: MethodResults) -> str:
    """Its title within a sentence: "Full softmax" loses its capital, "NCE" does not."""
    title = method.title
    return title[0].lower() + title[1:] if title[1:2].islower() or title[1:2] == "-" else title


def _list(words: Sequence[str]) -> str:
    """Some titles have commas of their own."""
    return ("; " if any("," in word for word in words) else ", ").join(words)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
