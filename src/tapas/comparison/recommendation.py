"""Recommends a method, by a fixed rule.

    as good as the best   the paired 95 % interval of the difference in MAP@20 includes 0
    first among these     the one that reaches 95 % of the best MAP@20 earliest, then the one with
                          the least memory, then the one with the fastest step

All contenders have the same training time, so that MAP@20 already accounts for slow steps. If
full softmax is the best, it is recommended, because it is exact. A contender with a diverged
seed is never recommended. If all are as good as the best, the budget was too small, and there is
no recommendation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tapas.comparison.results import FULL, UNFINISHED, Comparison, MethodResults
from tapas.comparison.tables import (
    beaten_by,
    beats,
    describe_time,
    gap_to,
    quality,
    ranked,
    recall_of,
    short_state,
    targets_of,
)

NEAR = 0.95  # of the best MAP@20
CLEAR = 3.0  # standard errors, as if targets were independent: only a hint
SIMILAR = 1.1  # a memory ratio below this counts as equal


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended method and the reasons; `choice` is the name of a contender or None."""

    choice: str | None
    as_good: tuple[str, ...]  # names, the best first
    sentences: tuple[str, ...]


def recommend_method(comparison: Comparison) -> Recommendation:
    """Apply the rule to a comparison."""
    sound = [each for each in ranked(comparison) if not each.diverged_seeds]
    if not sound:
        return Recommendation(None, (), _without_results(comparison.methods))
    best = sound[0]
    beware = _beware(comparison, best)
    as_good = [each for each in sound if each is best or not _behind(each, best)]
    names = tuple(each.name for each in as_good)
    if len(sound) == 1:
        words = (
            f"No recommendation: only {in_sentence(best)} has results (MAP@20 "
            f"{quality(best).mean:.4f})."
        )
        return Recommendation(None, names, (*beware, words, *_warnings(comparison, best)))
    if len(as_good) == len(sound):
        return Recommendation(
            None, names, (*beware, *_too_thin(best, len(as_good) - 1), *_warnings(comparison, best))
        )
    chosen, why = (best, "") if best.name == FULL else _first(as_good, best)
    sentences = [*beware, _use(chosen, best, as_good, why)]
    sentences += _others(chosen, as_good)
    sentences += _tail(chosen, sound)
    return Recommendation(chosen.name, names, (*sentences, *_warnings(comparison, best)))


def first_reached(method: MethodResults, level: float) -> tuple[float, float]:
    """Share and seconds of training at which the mean curve first reaches `level`, or infinity.

    Shares are the same for all contenders; seconds are not, since steps cannot be divided.
    """
    there = (p for p in method.curve if p.quality >= level)
    return next(((p.share, p.seconds) for p in there), (math.inf, math.inf))


def _without_results(methods: Sequence[MethodResults]) -> tuple[str, ...]:
    """For each reason, the methods that have no complete results because of it."""
    titles: dict[str, list[str]] = {}
    for each in methods:
        titles.setdefault(short_state(each), []).append(in_sentence(each))
    reasons = [f"{state[0].upper()}{state[1:]}: {_list(those)}." for state, those in titles.items()]
    if UNFINISHED in titles:
        cure = "The same command continues where it stopped."
    else:
        cure = "Use a larger --budget, or other --methods."
    return ("No recommendation: no method has complete results.", *reasons, cure)


def _behind(method: MethodResults, best: MethodResults) -> bool:
    gap = gap_to(method, best)
    return gap is None or gap.below_zero


def _first(as_good: Sequence[MethodResults], best: MethodResults) -> tuple[MethodResults, str]:
    """The first of these by the rule, and the reason."""
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
        return first, f", and it gets there first: {there}"
    if first.peak_bytes is not None and all(_size(first) < _size(each) for each in equals):
        memory = f"{first.peak_bytes / 1e6:,.0f} MB"
        return first, f"; {there}, as others, but with the least memory: {memory}"
    if first.step_seconds is not None:
        pace = describe_time(first.step_seconds)
        return first, f"; {there}, as others, but with the fastest steps: {pace}"
    return first, ""


def _level(best: MethodResults) -> float:
    """On the test points of the curves, which are some of all."""
    return math.inf if best.best_quality is None else NEAR * best.best_quality


def _size(method: MethodResults) -> float:
    """Memory on a logarithmic scale, in steps of `SIMILAR`."""
    memory = method.peak_bytes
    return math.inf if memory is None else math.floor(math.log(memory, SIMILAR))


def _use(
    chosen: MethodResults, best: MethodResults, as_good: Sequence[MethodResults], why: str
) -> str:
    name, found = in_sentence(chosen), quality(chosen).format()
    if chosen.name == FULL and chosen is best:
        return (
            f"Use {name}: it is exact, and within this budget its MAP@20 of {found} is the best of "
            "all."
        )
    if len(as_good) == 1:
        return f"Use {name}: its MAP@20 of {found} is significantly better than that of all others."
    place = "the best of all" if chosen is best else f"as good as the best ({in_sentence(best)})"
    return f"Use {name}: its MAP@20 of {found} is {place}{why}."


def _others(chosen: MethodResults, as_good: Sequence[MethodResults]) -> list[str]:
    others = [in_sentence(each) for each in as_good if each is not chosen]
    if not others:
        return []
    return [f"No significant difference from the best: {_list(others)}."]


def _too_thin(best: MethodResults, others: int) -> list[str]:
    than = "the other method" if others == 1 else f"any of the {others} others"
    return [
        f"No recommendation: the evidence is too thin. {best.title} has the highest MAP@20, "
        f"{quality(best).format()}, but not significantly higher than {than}.",
        "Use a larger --budget or more --seeds; until then take the simplest method.",
    ]


def _tail(chosen: MethodResults, sound: Sequence[MethodResults]) -> list[str]:
    """A sentence if another method finds clearly more of the rare classes."""
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
        f"If rare classes matter most, consider {in_sentence(other)}: it finds {100 * recall:.1f} "
        f"% of the tail instead of {100 * mine:.1f} %, at a MAP@20 of {quality(other).mean:.4f}."
    ]


def _beware(comparison: Comparison, best: MethodResults) -> list[str]:
    """A sentence if the best method is not better than counting."""
    rivals = [each.title for each in comparison.baselines if beaten_by(best, each)]
    level = [each.title for each in comparison.baselines if not beats(best, each)]
    if not rivals and level:
        return [
            f"Beware: no significant difference between the best of these and {_list(level)}, "
            "without any training. Use a larger --budget or another model before you choose."
        ]
    if not rivals:
        return []
    return [
        f"Beware: {_list(rivals)}, without any training, "
        f"{'is' if len(rivals) == 1 else 'are'} better than all of these. Use a larger --budget "
        "or another model before you choose."
    ]


def _warnings(comparison: Comparison, best: MethodResults) -> list[str]:
    warnings = []
    if len(best.finals) == 1:
        warnings.append(
            "One seed: the intervals do not include the variation between training runs."
        )
    lost = [in_sentence(each) for each in comparison.methods if each.diverged_seeds]
    if lost:
        warnings.append(f"Not recommended because a seed diverged: {_list(lost)}.")
    return warnings


def in_sentence(method: MethodResults) -> str:
    """The title inside a sentence: "full softmax", but "NCE"."""
    title = method.title
    return title[0].lower() + title[1:] if title[1:2].islower() or title[1:2] == "-" else title


def _list(words: Sequence[str]) -> str:
    """Separated by semicolons if a title contains a comma."""
    return ("; " if any("," in word for word in words) else ", ").join(words)


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
