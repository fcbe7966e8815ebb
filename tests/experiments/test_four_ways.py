"""`four-ways`: what the four methods share, how they train, and the command."""

import json
import math
from dataclasses import replace

import pytest
import torch
from oracle.command_line import invoke_experiment, last_line, names

from experiments import four_ways
from experiments.four_ways import (
    BAYES,
    METHODS,
    FourWaysRun,
    Learner,
    execute,
    remarks,
    scores,
    table,
)
from experiments.synthetic.long_tail import LongTail, LongTailConfig
from tapas import UsageError
from tapas.rng import stream

TINY = FourWaysRun(
    method="sampled softmax", classes=61, steps=6, batch=7, num_samples=9, presample_factor=3,
    hidden=8, dim=4, num_held_out=53, seed=3,
)  # fmt: skip
COMMAND = ("four-ways", "--classes", 300, "--steps", 20)


def learners(run: FourWaysRun, task: LongTail) -> dict[str, Learner]:
    return {method: Learner(replace(run, method=method), task) for method in METHODS}


def test_the_four_start_equal_and_are_the_named_methods():
    task = LongTail(LongTailConfig(num_classes=61), seed=3)
    found = learners(TINY, task)
    first = found["sampled softmax"]
    for each in found.values():
        pairs = zip(each.encoder.parameters(), first.encoder.parameters(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
        assert torch.equal(each.head.table.weight, first.head.table.weight)
        assert torch.equal(each.head.table.bias, task.frequency.log().float())
    full = found.pop("full softmax").head
    assert full.method == "full"
    rules = {
        name: (type(each.head.selection).__name__, each.head.presample_factor)
        for name, each in found.items()
    }
    assert rules == {
        "sampled softmax": ("Priority", 1),
        "TAPAS top": ("Top", 3),
        "TAPAS priority": ("Priority", 3),
    }


def test_the_four_have_the_same_batches_and_two_runs_differ_only_in_time(monkeypatch):
    seen = []
    whole = Learner.step

    def watched(self, batch):
        seen.append(batch.x.sum().item())
        return whole(self, batch)

    monkeypatch.setattr(Learner, "step", watched)
    one = [execute(replace(TINY, method=method)) for method in METHODS]
    each = len(seen) // len(METHODS)
    assert seen == seen[:each] * len(METHODS)
    assert len(set(seen)) == TINY.steps + 1  # and the first one of warming up
    for result in one:
        assert [moment["step"] for moment in result["curve"]] == [1, 2, 3, 4, 6]
        again = execute(FourWaysRun(**result["run"]))
        assert again["key"] == result["key"]
        assert again["map@20"] == result["map@20"] == result["curve"][-1]["map@20"]
        seconds = [moment["seconds"] for moment in result["curve"]]
        assert seconds == sorted(seconds)
        assert 0 < result["step_seconds"] <= seconds[-1]


def test_scores_are_means_over_examples():
    ranked = torch.arange(20).expand(4, 20)
    got = scores(ranked, torch.tensor([0, 1, 4, 33]))  # ranks 1, 2, 5 and none
    assert got["precision@1"] == 0.25
    assert math.isclose(got["map@20"], (1 + 1 / 2 + 1 / 5) / 4, rel_tol=1e-6)
    spread_of_four = torch.tensor([1, 1 / 2, 1 / 5, 0]).double().std(correction=0)
    assert math.isclose(got["standard_error"], float(spread_of_four) / 2, rel_tol=1e-6)


@pytest.mark.parametrize("method", ["sampled softmax", "TAPAS priority", "full softmax"])
def test_training_comes_near_the_best_possible_score_on_an_easy_task(method):
    easy = FourWaysRun(
        method=method, classes=30, steps=700, batch=64, num_samples=12, presample_factor=2,
        hidden=32, dim=16, num_held_out=1000,
    )  # fmt: skip
    task = LongTail(LongTailConfig(num_classes=30, dim=6, noise=0.25))
    held_out = task.sample(easy.num_held_out, generator=stream(0, "held out"))
    best = scores(task.bayes_top(held_out.x, 20), held_out.y)["precision@1"]
    error = math.sqrt(best * (1 - best) / easy.num_held_out)
    learner = Learner(easy, task)
    before = scores(learner.rank(held_out.x), held_out.y)["precision@1"]
    for step in range(1, easy.steps + 1):
        learner.step(task.sample(easy.batch, generator=stream(0, "batch", step)))
    after = scores(learner.rank(held_out.x), held_out.y)["precision@1"]
    assert before < best - 30 * error
    assert after > best - 4 * error


def test_the_command_trains_once_draws_and_writes(tmp_path, monkeypatch):
    done = invoke_experiment(*COMMAND, "--out", tmp_path)
    folder = tmp_path / "four-ways"
    assert done.stderr.startswith("four-ways: 0 of 5 runs\n")
    assert done.stderr.endswith(f"Wrote {folder / 'figure.png'} and {folder / 'README.md'}.\n")
    assert names(folder) == ["README.md", "figure.png", "results.jsonl"]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG\r\n")
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [result["run"]["method"] for result in results] == [*METHODS, BAYES]
    assert all(result["map@20"] <= results[-1]["map@20"] for result in results)
    lines = done.stdout.splitlines()
    assert lines[0] == "300 classes, 20 steps of 128 examples, one seed (0), 1 thread."
    words = remarks(results)[1]
    assert lines[-1] == words
    assert "draws 300 (r = 8) and keeps 128" in words  # the pool is never more than there is
    page = (folder / "README.md").read_text()
    for row in table(results).rows:
        assert f"| {' | '.join(row)} |" in page
        assert all(cell in done.stdout for cell in row)
    monkeypatch.setattr(four_ways, "execute", lambda run: pytest.fail("it trained"))
    assert invoke_experiment(*COMMAND, "--out", tmp_path).stdout == done.stdout
    assert (folder / "README.md").read_text() == page


def test_a_quick_run_says_so_and_stays_apart(tmp_path):
    done = invoke_experiment("four-ways", "--steps", 2, "--quick", "--out", tmp_path)
    assert done.stderr.startswith("Quick run on generated points: no verdicts.\n")
    assert done.stdout.startswith("2,000 classes, 2 steps of 128 examples")
    assert names(tmp_path) == ["quick"]
    page = (tmp_path / "quick/four-ways/README.md").read_text()
    assert page.startswith("Quick run on generated points: no verdicts.\n")
    assert "$ python -m experiments four-ways --quick\n" in page


def test_too_few_classes_and_an_occupied_folder_are_errors_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(UsageError) as error:
        replace(TINY, num_samples=62)
    words = "61 classes are too few: sampling 62 of them and ranking the best 20 needs at least 62."
    assert str(error.value) == words
    monkeypatch.setattr(four_ways, "execute", lambda run: pytest.fail("it trained"))
    assert "19 classes are too few" in last_line(invoke_experiment("four-ways", "--classes", 19))
    (tmp_path / "taken").write_text("mine")
    done = invoke_experiment("four-ways", "--out", tmp_path / "taken")
    assert last_line(done) == (
        f"cannot write into {tmp_path / 'taken' / 'four-ways'}: a file is in the way. Choose "
        "another folder with --out."
    )
