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


def test_the_figure_and_the_table_show_who_was_done_and_who_was_left_out(load):
    settings = {"seconds": [60, 300], "metrics": {"groceries": "map@20"}}
    both = {"map@20": {"mean": 0.2}, "ndcg@10": {"mean": 0.1}}
    results = {
        "tapas train|60": {"seconds": 60, "metrics": both, "told": None},
        "tapas train|300": {"seconds": 300, "metrics": both, "told": None},
        "counting: most popular|0": {"seconds": 0, "metrics": both, "told": None},
        "implicit ALS|300": {"seconds": 300, "metrics": both,
                             "told": {"fit_seconds": 2.4, "epochs": None}},
        "RecTools EASE|300": {"seconds": 300, "left_out": "ended by signal 9"},
    }  # fmt: skip
    record = {"results": {"groceries": results}, "settings": settings}
    (png,) = load("recommenders_figure").draw_recommenders(record).values()
    assert png.startswith(b"\x89PNG")
    section = load("sections").recommenders(record)
    assert "| implicit ALS | 2 s | 0.1000 | 0.2000 |" in section
    assert "| RecTools EASE | 300 s | ended by signal 9 |  |" in section
