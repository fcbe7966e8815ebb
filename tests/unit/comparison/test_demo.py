"""Settings of each variant of the demo, and its table and sentences for given numbers."""

from dataclasses import replace

from tapas.comparison import demo
from tapas.comparison.demo import CHOSEN, PLAIN, TAPAS, DemoLog, DemoResult
from tapas.evaluation.evaluate import Evaluation
from tapas.evaluation.intervals import Interval
from tapas.evaluation.scores import Bucket, Scores
from tapas.training.config import as_tables, build_config, names_in

LOG = DemoLog("A log.", ["log.parquet"], {}, "household", demo.GROCERY_SETTINGS, has_baskets=True)
MADE_UP = replace(LOG, settings=demo.LISTENING_SETTINGS)


def settings(log, name, steps=None):
    return as_tables(build_config(*demo.variant_layers(log, name, steps, 7)))


def test_the_first_two_differ_in_the_second_pass_only():
    for log in (LOG, MADE_UP):
        one, other = settings(log, PLAIN), settings(log, TAPAS)
        assert (one["head"].pop("presample_factor"), other["head"].pop("presample_factor")) == (
            1,
            8,
        )
        assert one == other


def test_the_third_is_given_the_log_and_the_seed_and_perhaps_its_length():
    def given(log, steps=None):
        return names_in(*demo.variant_layers(log, CHOSEN, steps, 7))

    assert given(LOG) == {"log.files", "loop.seed"}
    assert given(LOG, 20) == given(MADE_UP) == {"log.files", "loop.seed", "loop.steps"}
    assert settings(MADE_UP, CHOSEN)["loop"]["steps"] == 1_200
    assert settings(LOG, TAPAS)["loop"]["steps"] == 2_000
    assert settings(LOG, TAPAS, 20)["loop"]["evaluate_every"] == 2


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
    models = {PLAIN: OLD, TAPAS: second, CHOSEN: third}
    lead = Interval(0.0037, 0.0013, 0.0061)
    return DemoResult(models, lead, dict.fromkeys(models, 2.0))


def test_the_verdict_is_about_the_best_of_the_models_and_the_points_are_those_of_evaluate():
    third = evaluation(0.08, popular=AHEAD, own_most_frequent=(0.0037, 0.0004, 0.0070))
    assert demo.verdict(found(third)) == [
        "Our best model (chosen from the log) is better than all 2 baselines: MAP@20 "
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
