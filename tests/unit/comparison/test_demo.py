"""Settings of each variant of the demo, and its table and sentences for given numbers."""

from dataclasses import replace

import pytest

from tapas.comparison import demo
from tapas.comparison.demo import COPYING, PLAIN, TAPAS, DemoLog, DemoResult
from tapas.evaluation.evaluate import Evaluation
from tapas.evaluation.intervals import Interval
from tapas.evaluation.scores import Bucket, Scores
from tapas.training.config import as_tables

LOG = DemoLog("A log.", ["log.parquet"], {}, "household", demo.GROCERY_SETTINGS, has_baskets=True)
MADE_UP = replace(LOG, settings=demo.LISTENING_SETTINGS)


@pytest.mark.parametrize(
    ("steps", "every", "fewer", "every_fewer"),
    [(2000, 200, 160, 40), (337, 33, 26, 6), (24, 2, 1, 1), (1, 1, 1, 1)],
)
def test_the_third_variant_takes_two_steps_for_twenty_five(steps, every, fewer, every_fewer):
    for name in (PLAIN, TAPAS):
        assert demo.steps_of(name, steps, demo.GROCERY_SETTINGS) == (steps, every)
    assert demo.steps_of(COPYING, steps, demo.GROCERY_SETTINGS) == (fewer, every_fewer)
    assert demo.steps_of(COPYING, steps, demo.LISTENING_SETTINGS) == (steps, every)


def differences(first, second, log=LOG):
    """{section.name: (value of `first`, value of `second`)} where two variants differ."""
    one, other = (as_tables(demo.variant_config(log, name, 2000, 7)) for name in (first, second))
    assert one.keys() == other.keys()
    return {
        f"{section}.{name}": (value, other[section].get(name))
        for section, table in one.items()
        for name, value in table.items()
        if value != other[section].get(name)
    }


def test_the_first_two_differ_in_the_second_pass_only():
    for log in (LOG, MADE_UP):
        assert differences(PLAIN, TAPAS, log) == {"head.presample_factor": (1, 8)}


def test_on_the_made_up_log_the_third_differs_in_copying_only():
    assert differences(TAPAS, COPYING, MADE_UP) == {"model.copy": (False, True)}


def test_the_third_is_the_second_with_repeats_and_a_longer_history():
    assert differences(TAPAS, COPYING) == {
        "model.copy": (False, True),
        "model.history": (200, 1_000),
        "loop.batch": (64, 16),
        "loop.steps": (2000, 160),
        "loop.evaluate_every": (200, 40),
    }


def evaluation(value, **lead):
    """A model with MAP@20 `value`; `lead` maps baselines to intervals, "_" stands for a space."""
    interval = Interval(value, value - 0.01, value + 0.02)
    scores = Scores(
        num_examples=1_234,
        metrics=dict.fromkeys(("map@20", "precision@1", "recall@20"), interval),
        buckets={"tail": Bucket(31, 4, None, 0.125)},
        coverage=5,
    )
    named = {name.replace("_", " "): Interval(*ends) for name, ends in lead.items()}
    return Evaluation("test", False, 5, {"model": scores}, named, {"test_users": 1_234})


BEHIND, AHEAD = (-0.02, -0.03, -0.01), (0.04, 0.03, 0.05)
OLD = evaluation(0.05, popular=BEHIND, own_most_frequent=BEHIND)


def found(third, *, second=OLD):
    models = {PLAIN: OLD, TAPAS: second, COPYING: third}
    lead = Interval(0.0037, 0.0013, 0.0061)
    return DemoResult(models, lead, dict.fromkeys(models, 2.0), same_steps=False)


def test_the_verdict_is_about_the_best_of_the_models_and_the_points_are_those_of_evaluate():
    third = evaluation(0.08, popular=AHEAD, own_most_frequent=(0.0037, 0.0004, 0.0070))
    assert demo.verdict(found(third)) == [
        "Our best model (TAPAS with copying) is better than all 2 baselines: MAP@20 "
        "+0.0037 (+0.0004 to +0.0070) against own most frequent, the best of them."
    ]
    assert third.describe_points() == (
        "1,234 users, one point each; the next 5 items of each are to be found among all 31. Items "
        "that a user had before may be recommended again."
    )


def test_plus_minus_is_the_distance_to_the_farther_end():
    assert demo.table_rows(found(OLD))[0][1] == "0.0500 ±0.0200"
    assert "±: distance to the farther end of the 95 % interval" in demo.remarks(found(OLD))[-1]


def test_the_best_is_not_always_the_third():
    weak, strong = evaluation(0.04, popular=BEHIND), evaluation(0.06, popular=AHEAD)
    result = found(weak, second=strong)
    assert result.best == TAPAS
    assert demo.verdict(result)[0].startswith("Our best model (TAPAS priority) is better")
