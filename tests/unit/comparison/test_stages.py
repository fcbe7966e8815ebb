"""A tiny comparison from start to end: its files, resuming, and other settings."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from tapas.comparison import stages as comparing
from tapas.comparison.config import quick
from tapas.comparison.ledger import short_key
from tapas.comparison.pace import paces
from tapas.comparison.report import as_document
from tapas.comparison.results import read_comparison
from tapas.comparison.runs import open_log
from tapas.comparison.settings import check_settings
from tapas.comparison.stages import compare
from tapas.errors import DataError, UsageError
from tapas.training.run_folder import exclusive

pytestmark = pytest.mark.slow
CONFIG = quick(contenders=("full", "sampled"))
FILES = {"settings.json", "pace.jsonl", "runs.jsonl"}


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module", autouse=True)
def steady_pace():
    """Steps of 10 ms, so that no method is too slow for the small budget on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "paces", lambda _, runs: {run.contender: 0.01 for run in runs})
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("compare") / "out"
    compare(CONFIG, folder, cache=cache)
    return folder


def copy(out, folder):
    return Path(shutil.copytree(out, folder, dirs_exist_ok=True))


def test_every_contender_has_its_trials_its_seeds_and_the_references(out):
    assert {file.name for file in out.iterdir()} == FILES
    runs = lines(out / "runs.jsonl")
    count = {}
    for result in runs:
        kind = (result["run"]["contender"], result["run"]["points"])
        count[kind] = count.get(kind, 0) + 1
    assert count == {
        ("full", "validation"): 2, ("full", "test"): 2, ("sampled", "validation"): 2,
        ("sampled", "test"): 2, ("most popular", "test"): 1, ("the user's favourites", "test"): 1,
        ("co-occurrence", "test"): 1, ("the true distribution", "test"): 1,
    }  # fmt: skip
    assert len({result["key"] for result in runs}) == len(runs)
    assert len(lines(out / "pace.jsonl")) == 2
    loss = {}
    for result in runs:
        if "loss" in result and result["run"]["points"] == "test":
            loss.setdefault(result["run"]["contender"], []).append(result["loss"])
    # by its loss no model is better than the truth
    assert min(loss["full"] + loss["sampled"]) > loss["the true distribution"][0]
    found = json.loads((out / "settings.json").read_text())
    assert (found["num_samples"], found["budget_seconds"]) == (16, 0.4)
    assert found["sizes"]["users"] == 300
    assert set(found["machine"]) == {"cores", "tapas", "torch", "python", "commit"}


@pytest.mark.parametrize("after", [1, 6, 10])
def test_it_continues_where_it_stopped(after, out, tmp_path, cache, monkeypatch):
    """Stopped at a reference, a trial or a seed: finished runs are not repeated."""
    results = {result["key"]: result for result in lines(out / "runs.jsonl")}
    done, stopping = [], [after]

    def execute(run, **more):
        if stopping and len(done) == stopping[0]:
            raise KeyboardInterrupt
        done.append(run.key())
        return results[run.key()]

    monkeypatch.setattr(comparing, "execute", execute)
    with pytest.raises(KeyboardInterrupt):
        compare(CONFIG, tmp_path, cache=cache)
    paces = (tmp_path / "pace.jsonl").read_text()
    stopping.clear()
    compare(CONFIG, tmp_path, cache=cache)
    assert len(done) == len(set(done)) == 12
    assert lines(tmp_path / "runs.jsonl") == lines(out / "runs.jsonl")
    assert (tmp_path / "pace.jsonl").read_text() == paces  # one pace for all of it
    assert {file.name for file in tmp_path.iterdir()} == FILES


def test_two_comparisons_in_one_folder_at_once_are_an_error(tmp_path, cache):
    out = tmp_path / "out"
    out.mkdir()
    opened = open_log(CONFIG, cache)
    check_settings(out / "settings.json", CONFIG, opened.log, opened.split)
    with (
        exclusive(out, "settings.json"),
        pytest.raises(UsageError, match=r"^another process is training in .*out\. Wait until"),
    ):
        compare(CONFIG, out, cache=cache)
    assert not (out / "pace.jsonl").exists()


def test_a_method_that_is_too_slow_is_reported_and_recorded(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(comparing, "paces", lambda *a: {"full": 1.0, "sampled": 0.01})
    said = []
    config = quick(contenders=("full", "sampled"))
    compare(config, tmp_path, cache=cache, status=said.append)
    [line] = [r for r in lines(tmp_path / "runs.jsonl") if r["run"]["contender"] == "full"]
    assert line["skipped"].startswith("too slow for this budget: a step takes 1 s, so a run of")
    assert f"Method full: {line['skipped']}" in said


def test_parallel_runs_give_the_same_numbers(out, tmp_path, cache):
    """All runs but the last two seeds exist already."""
    copy(out, tmp_path)
    whole = (out / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text("\n".join(whole[:-2]) + "\n")
    compare(CONFIG, tmp_path, cache=cache, workers=2)
    own = ("wall_seconds", "train_wall_seconds", "peak_bytes")

    def numbers(folder):
        return {
            r["key"]: {k: v for k, v in r.items() if k not in own}
            for r in lines(folder / "runs.jsonl")
        }

    assert numbers(tmp_path) == numbers(out)


def test_another_machine_may_continue_and_damaged_settings_are_an_error(
    out, cache, monkeypatch, tmp_path
):
    monkeypatch.setattr(os, "cpu_count", lambda: 77)
    opened = open_log(CONFIG, cache)
    check_settings(out / "settings.json", CONFIG, opened.log, opened.split)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(DataError, match=r"settings\.json cannot be read as the settings of the re"):
        check_settings(tmp_path / "settings.json", CONFIG, opened.log, opened.split)


DAMAGE = [
    ("runs.jsonl", lambda line: line["run"].update(steps=7), "its key is that of another run"),
    ("pace.jsonl", lambda line: line.update(step_seconds=[float("nan")]),
     "step_seconds are no times of steps"),
    ("pace.jsonl", lambda line: line.pop("step_seconds"), "step_seconds are no times of steps"),
    ("pace.jsonl", lambda line: line["run"].update(contender="sampled"),
     "its key is that of another run"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "words"), DAMAGE)
def test_damaged_results_are_not_continued(out, cache, tmp_path, monkeypatch, name, change, words):
    monkeypatch.setattr(comparing, "paces", paces)
    copied = copy(out, tmp_path)
    first, *others = lines(copied / name)
    change(first)
    text = "".join(json.dumps(line) + "\n" for line in (first, *others))
    (copied / name).write_text(text)
    with pytest.raises(DataError) as error:
        compare(CONFIG, copied, cache=cache)
    assert str(error.value) == (
        f"{copied / name}, line 1 is damaged: {words}. Remove that line; the same command then "
        "does its run again."
    )
    assert (copied / name).read_text() == text


@pytest.mark.parametrize("score", [float("nan"), "0.5", None])
def test_a_trial_without_a_score_is_not_continued(out, cache, tmp_path, score):
    copied = copy(out, tmp_path)
    found = lines(copied / "runs.jsonl")
    at = next(n for n, line in enumerate(found) if line["run"]["points"] == "validation")
    found[at]["map@20"] = score
    (copied / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    words = rf"runs.jsonl, line {at + 1} is damaged: map@20 is no number\. "
    with pytest.raises(DataError, match=words):
        compare(CONFIG, copied, cache=cache)


def test_results_of_an_unknown_method_change_nothing(out, cache, tmp_path):
    copied = copy(out, tmp_path)
    run = {"contender": "gone", "seed": 0, "points": "test"}
    with (copied / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"key": short_key(run), "run": run, "map@20": 1.0}) + "\n")
    before = (copied / "runs.jsonl").read_text()
    compare(CONFIG, copied, cache=cache)
    assert (copied / "runs.jsonl").read_text() == before
    want, got = (as_document(read_comparison(folder)) for folder in (out, copied))
    assert got == want


def test_results_at_other_points_are_not_continued(out, cache, tmp_path):
    """A folder of an earlier version, which judged at several points of each user."""
    found = json.loads((out / "settings.json").read_text())
    assert found.pop("points_per_user") == "one"
    (tmp_path / "settings.json").write_text(json.dumps(found))
    opened = open_log(CONFIG, cache)
    with pytest.raises(UsageError) as error:
        check_settings(tmp_path / "settings.json", CONFIG, opened.log, opened.split)
    assert str(error.value) == (
        f"the results in {tmp_path} are of an earlier version, which judged at several points of "
        "each user; today's would not be comparable. Choose another folder with --out; --draw "
        "still draws the old results."
    )


def test_every_stage_reports_progress_and_threads_are_restored(tmp_path, cache):
    seen = {}

    def progress(stage):
        return lambda done, total: seen.setdefault(stage, []).append((done, total))

    torch.set_num_threads(2)
    config = quick(contenders=("full",), trials=1, seeds=1)
    compare(config, tmp_path, cache=cache, progress=progress)
    assert torch.get_num_threads() == 2
    assert seen == {
        stage: [(done, total) for done in range(total + 1)]
        for stage, total in {"step times": 2, "baselines": 4, "trials": 1, "final runs": 1}.items()
    }
