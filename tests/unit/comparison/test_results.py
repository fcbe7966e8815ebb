"""Reading the folder of a comparison, complete or not."""

import json
import re

import pytest
from oracle.comparison_results import (
    diverged,
    method,
    result,
    settings,
    write_lines,
)

from tapas.comparison.results import read_comparison, refuse_damaged
from tapas.errors import DataError


def write(folder, names=("full", "tapas"), *, paces=(), runs=(), seeds=2):
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings(names, seeds=seeds)))
    files = {"pace": paces, "runs": runs}
    for name, lines in files.items():
        if lines:
            write_lines(folder / f"{name}.jsonl", lines)
    return read_comparison(folder)


def test_a_folder_with_only_settings(tmp_path):
    found = write(tmp_path)
    assert [each.name for each in found.methods] == ["full", "tapas"]
    for each in found.methods:
        assert each.state == "not finished"
        assert (each.finals, each.trials, each.curve) == ((), (), [])
        assert each.step_seconds is each.peak_bytes is each.scores_per_example is None
    assert found.baselines == ()


def test_the_curve_is_the_mean_of_the_seeds_with_their_range():
    a, b = result("nce", 0.1, seed=0), result("nce", 0.3, seed=1)
    curve = method("nce", 0, finals=(a, b)).curve
    assert [p.seconds for p in curve] == [6, 15, 30, 60]
    assert curve[-1] == pytest.approx((1, 60, 0.2, 0.1, 0.3))
    assert curve[0] == pytest.approx((0.1, 6, 0.04, 0.02, 0.06))


@pytest.mark.parametrize("file", ["paces", "runs"])
def test_a_skipped_contender_has_the_reason(tmp_path, file):
    line = {"key": "x", "run": {"contender": "full", "points": "validation"}, "skipped": "slow: 9"}
    found = write(tmp_path, **{file: [line]}).methods[0]
    assert found.state == "slow: 9"
    assert (found.trials, found.finals, found.step_seconds) == ((), (), None)


def test_the_later_of_two_results_of_a_seed_counts(tmp_path):
    runs = [result("full", 0.2), result("full", 0.3, run={"steps": 7})]
    assert [r["map@20"] for r in write(tmp_path, runs=runs).methods[0].finals] == [0.3]


def test_a_contender_of_another_version_keeps_its_name(tmp_path):
    found = write(tmp_path)
    text = json.dumps({**found.settings, "contenders": ["gone"]})
    (tmp_path / "settings.json").write_text(text)
    assert [each.title for each in read_comparison(tmp_path).methods] == ["gone"]


@pytest.mark.parametrize("text", ["", "[]", '{"seeds": 2}'])
def test_invalid_settings(tmp_path, text):
    path = tmp_path / "settings.json"
    path.write_text(text)
    words = f"{path} cannot be read as the settings of the results beside it. Restore it, or move"
    with pytest.raises(DataError, match=re.escape(words)):
        read_comparison(tmp_path)


@pytest.mark.parametrize(
    ("runs", "seeds", "state"),
    [
        ([result("full", 0.2), diverged("full", seed=1)], 2, "1 of 2 seeds diverged"),
        (
            [diverged("full", seed=seed, points="validation") for seed in (1_000, 1_001)],
            2,
            "every trial of the search diverged",
        ),
        ([result("full", 0.2)], 3, "1 of 3 seeds done"),
    ],
)
def test_the_state_says_why_results_are_missing(tmp_path, runs, seeds, state):
    found, other = write(tmp_path, runs=runs, seeds=seeds).methods
    assert (found.state, other.state) == (state, "not finished")
    assert len(found.finals) == sum("diverged" not in run for run in runs)


def test_results_without_what_a_report_needs_are_refused(tmp_path):
    with (
        pytest.raises(
            DataError, match=r"^the results in .* are not as `tapas compare` writes them \(KeyError"
        ),
        refuse_damaged(tmp_path),
    ):
        {}["blocks"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contenders": "tapas"}, ": contenders is no list of methods. Restore it, or move the"),
        ({"seeds": 2.5}, ": seeds is no number above 0. Restore it, or move the folder away."),
        ({"model": None}, " cannot be read as the settings of the results beside it. Restore it,"),
    ],
)
def test_settings_without_what_a_report_needs_are_refused(tmp_path, change, words):
    path = tmp_path / "settings.json"
    found = {**settings(["full"]), **change}
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))
    with pytest.raises(DataError, match=re.escape(f"{path}{words}")):
        read_comparison(tmp_path)
