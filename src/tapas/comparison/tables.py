"""The numbers of a comparison in one table: a row for each contender, the best MAP@20 first.

Intervals are those of `tapas.evaluation.intervals`: seeds and blocks of users are resampled
together, and contenders in pairs, as all were judged with the same seeds at the same points.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from tapas.comparison.ledger import Result
from tapas.comparison.results import BaselineResult, Comparison, MethodResults
from tapas.evaluation.intervals import Interval, block_bootstrap, difference

BUCKETS = ("head", "middle", "tail")
NONE = "–"
HEADING = (
    "",
    "MAP@20",
    "against the best",
    "precision@1",
    "recall@20",
    "loss, nats",
    "recall of head / middle / tail",
    "steps",
    "ms a step",
    "scores per example",
    "peak memory",
    "rows_lr",
    "knob",
)
TERMINAL_QUALITY = ("", "MAP@20", "recall@20", "NDCG@10", "precision@1")
TERMINAL_METRICS = ("recall@20", "ndcg@10", "precision@1")
TERMINAL_DETAILS = ("", "MAP@20 against\nthe best", "loss", "tail\nrecall", "memory")
TERMINAL_SETTINGS = ("", "steps", "ms per\nstep", "learning\nrate", "setting")
REFERENCE_HEADING = (
    "",
    "MAP@20",
    "precision@1",
    "recall@20",
    "loss, nats",
    "recall of head / middle / tail",
)
EXCESS_HEADING = ("", "loss, nats", "above the truth, nats")


def ranked(comparison: Comparison) -> list[MethodResults]:
    """Those with final results, by falling MAP@20."""
    judged = [each for each in comparison.methods if each.finals]
    return sorted(judged, key=lambda each: -fmean(r["map@20"] for r in each.finals))


def best_of(judged: Sequence[MethodResults]) -> MethodResults:
    """The first without a diverged seed: of the others, only lucky seeds are left."""
    return next((each for each in judged if not each.diverged_seeds), judged[0])


def quality(method: MethodResults) -> Interval:
    """MAP@20 on the test points."""
    return block_bootstrap(method.finals, "map@20")


def loss_of(method: MethodResults) -> Interval | None:
    """Loss of the full softmax on the test points, in nats."""
    if not all("loss" in result["blocks"] for result in method.finals):
        return None
    return block_bootstrap(method.finals, "loss")


def gap_to(method: MethodResults, other: MethodResults) -> Interval | None:
    """MAP@20 of one less that of the other, in pairs; None without a seed that both have."""
    seeds = [{result["run"]["seed"] for result in each.finals} for each in (method, other)]
    return difference(method.finals, other.finals, "map@20") if seeds[0] & seeds[1] else None


def beaten_by(method: MethodResults, reference: BaselineResult) -> bool:
    """Whether a reference that counts is clearly better; the truth may be."""
    return not reference.is_truth and gap_to_reference(method, reference, "map@20").below_zero


def gap_to_reference(method: MethodResults, reference: BaselineResult, metric: str) -> Interval:
    """Of the contender less that of the reference, which is the same for every seed."""
    fixed = [{**reference.result, "run": result["run"]} for result in method.finals]
    return difference(method.finals, fixed, metric)


def recall_of(method: MethodResults, bucket: str) -> float | None:
    """Share of the targets of a bucket that are found in 20 places; the mean over seeds."""
    known = [result["buckets"][bucket]["recall"] for result in method.finals]
    return None if None in known or not known else fmean(known)


def targets_of(method: MethodResults, bucket: str) -> int:
    """Targets of the test points that lie in a bucket."""
    return max((result["buckets"][bucket]["targets"] for result in method.finals), default=0)


def table_rows(comparison: Comparison) -> list[list[str]]:
    """Under `HEADING`; contenders without results come last and say why."""
    judged = ranked(comparison)
    rows = [_row(each, best_of(judged)) for each in judged]
    for each in comparison.methods:
        if not each.finals:
            cost = [_milliseconds(each), _scores(each), NONE, NONE, NONE]
            rows.append([each.title, _why(each), *[NONE] * 6, *cost])
    return rows


def num_test_points(comparison: Comparison) -> int:
    """Points of the test users at which every method is scored."""
    return int(sum(ranked(comparison)[0].finals[0]["blocks"]["points"]))


def quality_rows(comparison: Comparison) -> list[list[str]]:
    """Rows for a terminal of 80 columns, under `TERMINAL_QUALITY`: methods with results."""
    return [
        [
            _short_title(each),
            quality(each).plus_minus(),
            *(_number(_mean(each.finals, name)) for name in TERMINAL_METRICS),
        ]
        for each in ranked(comparison)
    ]


def baseline_rows(comparison: Comparison) -> list[list[str]]:
    """The same for baselines that need no training."""
    return [
        [
            each.title,
            block_bootstrap([each.result], "map@20").plus_minus(),
            *(_number(each.result.get(name)) for name in TERMINAL_METRICS),
        ]
        for each in comparison.references
    ]


def detail_rows(comparison: Comparison) -> list[list[str]]:
    """Rows for a terminal of 80 columns, under `TERMINAL_DETAILS`."""
    judged, rows = ranked(comparison), []
    for each in judged:
        loss, gap = loss_of(each), gap_to(each, best_of(judged))
        against = NONE if gap is None else gap.plus_minus(sign=True)
        rows.append(
            [
                _short_title(each),
                "best" if each is best_of(judged) else against,
                NONE if loss is None else f"{loss.mean:.3f}",
                _percent(recall_of(each, "tail")),
                _memory(each),
            ]
        )
    return rows


def setting_rows(comparison: Comparison) -> list[list[str]]:
    """Rows for a terminal of 80 columns, under `TERMINAL_SETTINGS`."""
    return [
        [
            _short_title(each),
            _steps(each),
            _milliseconds(each),
            f"{each.finals[0]['run']['rows_lr']:g}",
            _knob(each),
        ]
        for each in ranked(comparison)
    ]


def _short_title(method: MethodResults) -> str:
    return method.title.replace("Hierarchical softmax", "Hierarchical")


def reference_rows(comparison: Comparison) -> list[list[str]]:
    """Under `REFERENCE_HEADING`: what needs no training."""
    rows = []
    for each in comparison.references:
        found = each.result
        loss = found.get("loss")
        rows.append(
            [
                each.title,
                block_bootstrap([found], "map@20").format(),
                _number(found.get("precision@1")),
                _number(found.get("recall@20")),
                NONE if loss is None else f"{loss:.3f}",
                _recalls(lambda bucket, r=found: r["buckets"][bucket]["recall"]),  # type: ignore[misc]
            ]
        )
    return rows


def excess_rows(comparison: Comparison) -> list[list[str]]:
    """Under `EXCESS_HEADING`: loss above that of the truth, the least first; only if it is known.

    On the same points, so that it is the mean divergence from the truth, up to the chance of
    which targets were drawn.
    """
    truth = next((each for each in comparison.references if each.is_truth), None)
    if truth is None:
        return []
    found = []
    for each in ranked(comparison):
        loss = loss_of(each)
        if loss is not None:
            found.append((gap_to_reference(each, truth, "loss"), loss, each))
    found.sort(key=lambda entry: entry[0].mean)
    return [[_title(each), f"{loss.mean:.3f}", gap.format(3)] for gap, loss, each in found]


def _row(method: MethodResults, best: MethodResults) -> list[str]:
    finals, loss = method.finals, loss_of(method)
    return [
        _title(method),
        quality(method).format(),
        _against(method, best),
        _number(_mean(finals, "precision@1")),
        _number(_mean(finals, "recall@20")),
        NONE if loss is None else loss.format(3),
        _recalls(lambda bucket: recall_of(method, bucket)),
        _steps(method),
        _milliseconds(method),
        _scores(method),
        _memory(method),
        f"{finals[0]['run']['rows_lr']:g}",
        _knob(method),
    ]


def _title(method: MethodResults) -> str:
    return f"{method.title} ({method.state})" if method.state else method.title


def _why(method: MethodResults) -> str:
    """In a cell: up to the colon; the rest is said below."""
    return method.state.partition(":")[0]


def _against(method: MethodResults, best: MethodResults) -> str:
    if method is best:
        return "best"
    found = gap_to(method, best)
    return NONE if found is None else found.format(sign=True)


def _mean(finals: Sequence[Result], name: str) -> float | None:
    known = [result[name] for result in finals if result.get(name) is not None]
    return fmean(known) if len(known) == len(finals) else None


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _recalls(recall: Callable[[str], float | None]) -> str:
    return " / ".join(_percent(recall(bucket)).removesuffix(" %") for bucket in BUCKETS) + " %"


def _steps(method: MethodResults) -> str:
    return f"{method.finals[0]['run']['steps']:,}"


def _milliseconds(method: MethodResults) -> str:
    seconds = method.step_seconds
    return NONE if seconds is None else _three_digits(1000 * seconds)


def time_words(seconds: float) -> str:
    """
    >>> time_words(0.0000431), time_words(0.0123), time_words(0.25), time_words(2.5)
    ('0.0431 ms', '12.3 ms', '250 ms', '2.5 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{_three_digits(1000 * seconds)} ms"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def _scores(method: MethodResults) -> str:
    scores = method.scores_per_example
    return NONE if scores is None else _three_digits(scores)


def _memory(method: MethodResults) -> str:
    return NONE if method.peak_bytes is None else f"{method.peak_bytes / 1e6:,.0f} MB"


def _knob(method: MethodResults) -> str:
    value = method.finals[0]["run"].get("knob")
    if method.knob is None or value is None:
        return NONE
    return f"{method.knob} = {value if isinstance(value, str) else f'{value:g}'}"
