"""The page of the benchmarks, written from fake records, and its break-even."""

import json
import re

import pytest


@pytest.fixture(scope="module")
def page(load):
    return load("page")


def growth_results() -> dict[str, object]:
    def sweep(letter, fixed, points):
        return {"letter": letter, "fixed": fixed, "plain_draws": "n", "points": points}

    fixed = {"D": 64, "B": 64, "n": 1000, "r": 8}
    points = [
        {
            "x": x,
            "seconds": {"TAPAS priority": [0.01] * 3, "full softmax": [x / 1e5] * 3},
            "left_out": {"plain PyTorch": "does not fit into memory beside ours"},
        }
        for x in (500, 2_000)
    ]
    medians = [{"TAPAS priority": 0.01, "full softmax": p["x"] / 1e5} for p in points]
    even = {"classes": 1004.0, "low": None, "high": 1111.0, "from": 500, "to": 2000}
    return {
        "sweeps": {"C": sweep("C", fixed, points), "break-even, B=64": sweep("C", fixed, points)},
        "median_step_seconds": {"C": medians},
        "break_even": {"64": even | {"first_ratio": 0.5}},
    }


def write_fake_records(measuring) -> None:
    """Records of top (two, one older), of growth, and of draw without targets."""
    miss = measuring.Target(measure="top / floor", target=1.3, kind="at most", reading=4.56)
    hit = measuring.Target(measure="log / floor", target=1.3, kind="at most", reading=1.07)
    seconds = {"product": [2.0] * 3, "top 20": [9.12] * 3}
    measuring.write_record("top", {"B": 77}, {"seconds": seconds}, targets=[miss, hit])
    measuring.write_record("growth", {}, growth_results())
    (newest,) = measuring.RECORDS.glob("*_top_*")
    old = json.loads(newest.read_text()) | {"date": "2020-01-01"}
    del old["targets"], old["command"]
    for theme, found in (("top", {"product": [123.0] * 3}), ("draw", {"x": {"ours": [0.5] * 3}})):
        record = old | {"theme": theme, "results": {"seconds": found}}
        (measuring.RECORDS / f"2020-01-01_{theme}_1xOther.json").write_text(json.dumps(record))


def test_the_page_of_fake_records(load, page, tmp_path, monkeypatch):
    measuring = load("measuring")
    monkeypatch.setattr(measuring, "RECORDS", tmp_path / "records")
    write_fake_records(measuring)
    page.write_page(tmp_path / "records", tmp_path)
    written = (tmp_path / "README.md").read_text()
    # whether a target was met
    assert "| top / floor | at most 1.30 × | 4.56 × | **missed** | `python bench" in written
    assert "| log / floor | at most 1.30 × | 1.07 × | met | `python bench" in written
    # the newest record
    assert "| top 20 | 9.12 s [9.12, 9.12] | 4.56 [4.56, 4.56] |" in written
    assert "B=77" in written
    assert "123" not in written.split("## top")[1].split("##")[0]
    # what is missing
    words = written.split("Missing, because no record was written yet: ")[1].splitlines()[0]
    assert "peers (`python benchmarks/bench_peers.py`)" in words
    assert "scoring (`python benchmarks/bench_scoring.py`)" in words
    assert "top (" not in words
    assert "| all of peers |  | no record yet | not measured |" in written
    assert "| all of draw |  | recorded before targets were kept |" in written
    assert "No record yet: `python benchmarks/bench_ingest.py` writes one." in written
    # when not to sample
    advice = written.split("## When not to use sampling at all")[1].split("##")[0]
    assert "with batches of 64 at about 1,000 classes [below 500, 1,100]" in advice
    assert "at 2,000 classes and batches of 64 a step of the full softmax took 20.0 ms" in advice
    assert "ours 10.0 ms" in advice
    # figures
    links = re.findall(r"\]\((figures/[^)]+)\)", written)
    assert len(links) == 2
    for link in links:
        assert (tmp_path / link).read_bytes().startswith(b"\x89PNG")


def test_a_contender_that_was_left_out_says_why(page):
    results = growth_results()
    results["sweeps"]["C"]["points"][0]["seconds"]["plain PyTorch"] = [0.5] * 3
    text = page.sections.growth({"results": results})
    assert "| does not fit into memory beside ours |" in text


def test_a_break_even_outside_the_measured_range_has_no_number(page):
    even = {"classes": None, "low": None, "high": None, "from": 500, "to": 2000}
    assert page.break_even(even | {"first_ratio": 2.0}).startswith("below 500 classes")
    assert page.break_even(even | {"first_ratio": 0.5}).startswith("beyond 2,000 classes")


def test_the_break_even_is_linear_in_log_log_and_swaps_the_quartiles_of_the_ratio(load):
    growth = load("bench_growth")
    assert growth.crossing([10, 1000], [0.1, 10.0]) == pytest.approx(100)
    assert growth.crossing([10, 100, 1000], [0.5, 0.5, 2.0]) == pytest.approx(1000 / 10**0.5)
    assert growth.crossing([10, 100], [1.5, 3.0]) is None
    assert growth.crossing([10, 100], [0.5, 0.9]) is None
    points = [
        {"x": x, "seconds": {growth.FULL: [x, 2 * x, 4 * x], growth.PRIORITY: [100.0] * 3}}
        for x in (10, 1000)
    ]
    found = growth.break_even(points)
    assert [found[key] for key in ("low", "classes", "high")] == pytest.approx([25, 50, 100])
    assert found["first_ratio"] == pytest.approx(0.2)
    points[1]["seconds"][growth.CHUNKED] = [100.0] * 3  # the faster of the two full softmaxes
    assert growth.break_even(points)["classes"] == pytest.approx(1000)
