"""Four ways, one start: what is shared, what is measured, and how near the best they come."""

import dataclasses
import itertools
import math

import pytest
import torch

from experiments.four_ways import training as four_ways
from experiments.four_ways.figure import COLOURS, draw_four_ways
from experiments.four_ways.training import (
    METHODS,
    FourWaysConfig,
    Learner,
    Progress,
    batch,
    build_task,
    score,
    train_four_ways,
)
from experiments.synthetic.long_tail import LongTailConfig
from tapas import UsageError
from tapas.comparison.figure_style import spread
from tapas.rng import stream

TINY = FourWaysConfig(
    task=LongTailConfig(num_classes=61, dim=5),
    steps=6,
    batch_size=7,
    num_samples=9,
    presample_factor=3,
    hidden=8,
    dim=4,
    num_held_out=53,
    seed=3,
)


@pytest.fixture(scope="module")
def result():
    return train_four_ways(TINY)


def test_the_four_start_from_the_same_encoder_and_the_same_rows():
    task = build_task(TINY)
    learners = [Learner(method, TINY, task) for method in METHODS]
    for learner in learners:
        for mine, first in zip(
            learner.encoder.parameters(), learners[0].encoder.parameters(), strict=True
        ):
            assert torch.equal(mine, first)
        table = getattr(learner.head, "table", None) or learner.head.linear
        assert torch.equal(table.weight, learners[0].head.table.weight)
        assert torch.equal(table.bias, task.frequency.log().float())


def test_the_four_are_the_methods_they_are_called():
    task = build_task(TINY)
    heads = {method: Learner(method, TINY, task).head for method in METHODS}
    rules = {
        name: (type(head.selection).__name__, head.presample_factor)
        for name, head in heads.items()
        if name != "full softmax"
    }
    assert rules == {
        "sampled softmax": ("Priority", 1),
        "TAPAS top": ("Top", 3),
        "TAPAS priority": ("Priority", 3),
    }
    assert isinstance(heads["full softmax"], four_ways.FullSoftmax)


def test_the_four_see_the_same_batches(monkeypatch):
    seen: list[list[torch.Tensor]] = []

    class Watched(Learner):
        def __init__(self, *args):
            super().__init__(*args)
            self.seen = []
            seen.append(self.seen)

        def step(self, examples):
            self.seen.append(torch.cat([examples.x, examples.y[:, None]], dim=1))
            return super().step(examples)

    monkeypatch.setattr(four_ways, "Learner", Watched)
    train_four_ways(TINY)
    trained = [batches for batches in seen if len(batches) == TINY.steps]
    assert len(trained) == 4
    assert len({examples.numpy().tobytes() for examples in trained[0]}) == TINY.steps
    for batches in trained[1:]:
        for mine, first in zip(batches, trained[0], strict=True):
            assert torch.equal(mine, first)


def test_the_same_config_gives_the_same_scores(result):
    again = train_four_ways(TINY)
    for one, other in zip(result.methods, again.methods, strict=True):
        assert [p.score for p in one.curve] == [p.score for p in other.curve]
    assert result.bayes == again.bayes


def test_a_result_holds_what_was_run_and_a_curve_for_each_method(result):
    assert result.config == TINY
    assert tuple(method.name for method in result.methods) == METHODS
    assert result.num_threads == torch.get_num_threads()
    for method in result.methods:
        assert [point.step for point in method.curve] == [1, 2, 3, 4, 6]
        seconds = [point.seconds for point in method.curve]
        assert seconds == sorted(seconds)
        assert 0 < method.step_seconds <= seconds[-1]
        assert method.final is method.curve[-1].score


def test_the_four_take_turns_and_nothing_is_printed(capfd):
    told: list[Progress] = []
    train_four_ways(TINY, on_progress=told.append)
    turns = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6)]
    assert [(said.method, said.step) for said in told] == [
        (method, step)
        for first, last in turns
        for method in METHODS
        for step in range(first, last + 1)
    ]
    for method in METHODS:
        seconds = [said.seconds for said in told if said.method == method]
        assert seconds == sorted(seconds)
        assert seconds[0] > 0
    assert capfd.readouterr() == ("", "")


def test_score_is_the_mean_over_examples():
    ranked = torch.arange(20).expand(4, 20)
    got = score(ranked, torch.tensor([0, 1, 4, 33]))  # ranks 1, 2, 5 and none
    assert got.precision_at_1 == 0.25
    assert math.isclose(got.map_at_20, (1 + 1 / 2 + 1 / 5) / 4, rel_tol=1e-6)
    spread_of_four = torch.tensor([1, 1 / 2, 1 / 5, 0]).double().std(correction=0)
    assert math.isclose(got.map_at_20_standard_error, float(spread_of_four) / 2, rel_tol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sampled softmax", "TAPAS priority", "full softmax"])
def test_training_comes_near_the_best_possible_score_on_an_easy_task(method):
    easy = FourWaysConfig(
        task=LongTailConfig(num_classes=30, dim=6, noise=0.25),
        steps=700,
        batch_size=64,
        num_samples=12,
        presample_factor=2,
        hidden=32,
        dim=16,
        num_held_out=1000,
    )
    task = build_task(easy)
    held_out = task.sample(easy.num_held_out, generator=stream(0, "held out"))
    best = score(task.bayes_top(held_out.x, 20), held_out.y).precision_at_1
    error = math.sqrt(best * (1 - best) / easy.num_held_out)
    learner = Learner(method, easy, task)
    before = score(learner.rank(held_out.x), held_out.y).precision_at_1
    for step in range(1, easy.steps + 1):
        learner.step(batch(task, easy, step))
    after = score(learner.rank(held_out.x), held_out.y).precision_at_1
    assert before < best - 30 * error
    assert after > best - 4 * error


def test_bad_configs_are_told_what_would_do():
    with pytest.raises(UsageError) as error:
        dataclasses.replace(TINY, num_samples=62)
    assert str(error.value) == (
        "61 classes are too few: sampling 62 of them and ranking the best 20 needs at least 62."
    )
    with pytest.raises(UsageError, match=r"^steps must be at least 1, got 0\.$"):
        FourWaysConfig(steps=0)


def test_the_figure_is_a_png_with_a_colour_for_each_method(result):
    assert draw_four_ways(result).startswith(b"\x89PNG\r\n")
    assert set(METHODS) <= set(COLOURS)


@pytest.mark.parametrize("values", [[0.5], [3.0, 1.0, 2.0], [1.0] * 5, [0.2, 0.21, 0.9, 0.22]])
def test_labels_keep_their_order_and_their_distance(values):
    places = spread(values, 0.1)
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [places[i] for i in order]
    assert all(b - a > 0.0999 for a, b in itertools.pairwise(ordered))
    assert math.isclose(sum(places), sum(values), rel_tol=1e-9)
