"""Which contenders count at which time."""

import pytest


@pytest.fixture
def bench(load):
    return load("bench_recommenders")


def result(value, seconds, told=None):
    return {"seconds": seconds, "metrics": {"map@20": {"mean": value}}, "told": told}


def test_a_contender_counts_from_when_it_is_done(bench):
    log = bench.Log("groceries", None, (), True, "map@20")
    results = {
        "tapas train|60": result(0.2, 60),
        "tapas train|300": result(0.3, 300),
        "counting: most popular|0": result(0.1, 0),
        "RecTools SASRec|300": result(0.25, 300, {"fit_seconds": 331.0, "epochs": 2}),
        "RecTools EASE|900": result(0.4, 900, {"fit_seconds": 200.0, "epochs": None}),
        "implicit ALS|900": {"seconds": 900, "left_out": "not installed"},
    }
    short, long = bench.targets(log, results, (60, 300))
    assert short.measure == "groceries, 60 s: map@20 against counting: most popular"
    assert (short.reading, short.met) == (2.0, True)
    assert long.measure == "groceries, 300 s: map@20 against RecTools EASE"
    assert long.reading == pytest.approx(0.75)
    assert not long.met
