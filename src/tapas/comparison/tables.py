"""Tables of a comparison: one row for each contender, the best MAP@20 first.

Intervals are those of `tapas.evaluation.intervals`: seeds and blocks of users are resampled
together. Differences are paired, since all contenders have the same seeds and test points.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from tapas.comparison.ledger import Result
from tapas.comparison.results import BaselineResult, Comparison, MethodResults
from tapas.evaluation.intervals import Interval, block_bootstrap, difference

BUCKETS = ("head", "middle", "tail")
NONE = "–"
HEADING = ("method", "MAP@20", "recall@20", "ms a step", "difference from the best")
DETAILS_HEADING = (
    "method",
    "precision@1",
    "loss, nats",
    "recall of head / middle / tail",
    "steps",
    "scores per example",
    "peak memory",
    "learning rate",
    "setting",
)
TERMINAL_QUALITY = ("", "MAP@20", "recall@20", "NDCG@20", "precision@1")
TERMINAL_METRICS = ("recall@20", "ndcg@20", "precision@1")
TERMINAL_DETAILS = ("", "MAP@20 against\nthe best", "loss", "tail\nrecall", "memory")
TERMINAL_SETTINGS = ("", "steps", "ms per\nstep", "learning\nrate", "setting")
BASELINE_HEADING = (
    "",
    "MAP@20",
    "precision@1",
    "recall@20",
    "loss, nats",
    "recall of head / middle / tail",
)
EXCESS_HEADING = ("", "loss, nats", "above the truth, nats")


def ranked(comparison: Comparison) -> list[MethodResults]:
    """The contenders with final results, by decreasing MAP@20."""
    finished = [each for each in comparison.methods if each.finals]
    return sorted(finished, key=lambda each: -fmean(r["map@20"] for r in each.finals))


def best_of(ranked: Sequence[MethodResults]) -> MethodResults:
    """The first without a diverged seed; with one, only the lucky seeds have been averaged."""
    return next((each for each in ranked if not each.diverged_seeds), ranked[0])


def quality(method: MethodResults) -> Interval:
    """MAP@20 on the test points."""
    return block_bootstrap(method.finals, "map@20")


def loss_of(method: MethodResults) -> Interval | None:
    """Loss of the full softmax on the test points, in nats."""
    if not all("loss" in result["blocks"] for result in method.finals):
        return None
    return block_bootstrap(method.finals, "loss")


def gap_to(method: MethodResults, other: MethodResults) -> Interval | None:
    """MAP@20 of `method` minus that of `other`, paired; None if they share no seed."""
    seeds = [{result["run"]["seed"] for result in each.finals} for each in (method, other)]
    return difference(method.finals, other.finals, "map@20") if seeds[0] & seeds[1] else None


def beaten_by(method: MethodResults, baseline: BaselineResult) -> bool:
    """Whether a counting baseline is significantly better. The truth does not count."""
    return not baseline.is_truth and gap_to_baseline(method, baseline, "map@20").below_zero


def beats(method: MethodResults, baseline: BaselineResult) -> bool:
    """Whether it is significantly better than a counting baseline. The truth does not count."""
    return baseline.is_truth or gap_to_baseline(method, baseline, "map@20").above_zero


def gap_to_baseline(method: MethodResults, baseline: BaselineResult, metric: str) -> Interval:
    """`metric` of the contender minus that of the baseline, which is the same for every seed."""
    fixed = [{**baseline.result, "run": result["run"]} for result in method.finals]
    return difference(method.finals, fixed, metric)


def recall_of(method: MethodResults, bucket: str) -> float | None:
    """Recall@20 of the targets in a bucket, the mean over seeds."""
    known = [result["buckets"][bucket]["recall"] for result in method.finals]
    return None if None in known or not known else fmean(known)


def targets_of(method: MethodResults, bucket: str) -> int:
    """How many targets of the test points are in a bucket."""
    return max((result["buckets"][bucket]["targets"] for result in method.finals), default=0)


def table_rows(comparison: Comparison) -> list[list[str]]:
    """Under `HEADING`; contenders without results come last and say why."""
    finished = ranked(comparison)
    rows = []
    for each in finished:
        recall = _number(_mean(each.finals, "recall@20"))
        gap_words = "best"
        if each is not best_of(finished):
            gap = gap_to(each, best_of(finished))
            gap_words = NONE if gap is None else gap.format(sign=True)
        rows.append(
            [_title(each), quality(each).plus_minus(), recall, _milliseconds(each), gap_words]
        )
    for each in comparison.methods:
        if not each.finals:
            rows.append([each.title, short_state(each), NONE, _milliseconds(each), NONE])
    return rows


def num_test_points(comparison: Comparison) -> int:
    """Points of the test users at which every method is scored; 0 without results."""
    results = [r for each in comparison.methods for r in each.finals]
    results += [each.result for each in comparison.baselines]
    return int(sum(results[0]["blocks"]["points"])) if results else 0


def quality_rows(comparison: Comparison) -> list[list[str]]:
    """Rows for a terminal of 80 columns, under `TERMINAL_QUALITY`: methods with results."""
    return [
        [
            short_title(each),
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
        for each in comparison.baselines
    ]


def detail_rows(comparison: Comparison) -> list[list[str]]:
    """Rows for a terminal of 80 columns, under `TERMINAL_DETAILS`."""
    finished, rows = ranked(comparison), []
    for each in finished:
        loss, gap = loss_of(each), gap_to(each, best_of(finished))
        against = NONE if gap is None else gap.plus_minus(sign=True)
        rows.append(
            [
                short_title(each),
                "best" if each is best_of(finished) else against,
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
            short_title(each),
            f"{each.finals[0]['run']['steps']:,}",
            _milliseconds(each),
            f"{each.finals[0]['run']['rows_lr']:g}",
            _knob(each),
        ]
        for each in ranked(comparison)
    ]


def short_title(method: MethodResults) -> str:
    return method.title.replace("Hierarchical softmax", "Hierarchical")


def details_table_rows(comparison: Comparison) -> list[list[str]]:
    """Under `DETAILS_HEADING`; contenders with results, in the order of the first table."""
    return [_details(each) for each in ranked(comparison)]


def baseline_table_rows(comparison: Comparison) -> list[list[str]]:
    """Under `BASELINE_HEADING`: lists that need no training."""
    rows = []
    for each in comparison.baselines:
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
    """Under `EXCESS_HEADING`: the loss above that of the true distribution, lowest first.

    Empty if the truth is not known. Both losses are on the same targets, so that the difference
    estimates the mean divergence from the truth.
    """
    truth = next((each for each in comparison.baselines if each.is_truth), None)
    if truth is None:
        return []
    found = []
    for each in ranked(comparison):
        loss = loss_of(each)
        if loss is not None:
            found.append((gap_to_baseline(each, truth, "loss"), loss, each))
    found.sort(key=lambda entry: entry[0].mean)
    return [[_title(each), f"{loss.mean:.3f}", gap.format(3)] for gap, loss, each in found]


def _details(method: MethodResults) -> list[str]:
    loss = loss_of(method)
    return [
        _title(method),
        _number(_mean(method.finals, "precision@1")),
        NONE if loss is None else loss.plus_minus(3),
        _recalls(lambda bucket: recall_of(method, bucket)),
        f"{method.finals[0]['run']['steps']:,}",
        _scores(method),
        _memory(method),
        f"{method.finals[0]['run']['rows_lr']:g}",
        _knob(method),
    ]


def _title(method: MethodResults) -> str:
    state = "" if method.seeds_done else method.state  # `seed_sentences` are above the table
    return f"{method.title} ({state})" if state else method.title


def seed_sentences(comparison: Comparison) -> list[str]:
    """How many seeds are done, if not all: a sentence for each number, with its methods."""
    titles: dict[str, list[str]] = {}
    for each in ranked(comparison):
        titles.setdefault(each.seeds_done, []).append(each.title)
    whose = "every method" if len(titles) == 1 else ""
    return [f"{words}: {whose or ', '.join(titles[words])}." for words in titles if words]


def short_state(method: MethodResults) -> str:
    """The state up to its colon; the section "Left out" has the rest."""
    return method.state.partition(":")[0]


def _mean(finals: Sequence[Result], name: str) -> float | None:
    known = [result[name] for result in finals if result.get(name) is not None]
    return fmean(known) if len(known) == len(finals) else None


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _recalls(recall: Callable[[str], float | None]) -> str:
    return " / ".join(_percent(recall(bucket)).removesuffix(" %") for bucket in BUCKETS) + " %"


def _milliseconds(method: MethodResults) -> str:
    seconds = method.step_seconds
    return NONE if seconds is None else _three_digits(1000 * seconds)


def describe_time(seconds: float) -> str:
    """
    >>> describe_time(0.0000431), describe_time(0.0123), describe_time(0.25), describe_time(2.5)
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
