"""One run on a real set: equal ones give equal numbers, and each trains what it says."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.real.runs import METHODS, MOMENTS, RealRun, build_run, execute, open_set
from experiments.real.selection_rules import CURES
from tapas.comparison import runs
from tapas.data.splits import targets_of
from tapas.errors import UsageError
from tapas.evaluation.intervals import estimate
from tapas.evaluation.points import PointEvaluator, spread_points


def prepare(run, place):
    log, split = open_set(run.real_set, place)
    return log, split, build_run(run, place, log, split)


RUN = RealRun(set="rust", method="priority", num_samples=16, presample_factor=2, rows_lr=0.1,
              batch=4, steps=5, seed=0, quick=True)  # fmt: skip
CHANGES = {
    "set": "grocery", "method": "top", "num_samples": 9, "presample_factor": 3, "alpha": 0.5,
    "beta": 1e-3, "rows_lr": 0.2, "temperature": 0.5, "anneal_to": 0.1, "score_queries": 7,
    "batch": 5, "steps": 6, "seed": 1, "points": "validation", "quick": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def result(place):
    return execute(RUN, place)


def numbers(result):
    """All but what says who it was and how long it took."""
    curve = [{k: v for k, v in at.items() if k != "seconds"} for at in result["curve"]]
    rest = {k: v for k, v in result.items() if k not in ("key", "run", "train_seconds")}
    return {**rest, "curve": curve}


def test_every_field_is_part_of_the_key():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(RealRun)}
    keys = {replace(RUN, **{name: value}).key() for name, value in CHANGES.items()}
    assert len(keys | {RUN.key()}) == len(CHANGES) + 1
    assert replace(RUN).key() == RUN.key()


def test_keys_are_the_same_tomorrow():
    """Results on disk are found by them."""
    assert RUN.key() == "8ad39316bad98a19"


def test_equal_runs_give_equal_numbers_and_other_seeds_others(result, place):
    again = execute(replace(RUN), place)
    assert numbers(again) == numbers(result)
    assert (again["key"], again["run"]) == (result["key"], result["run"])
    other = execute(replace(RUN, seed=1), place)
    assert other["loss"] != result["loss"]
    assert other["blocks"]["points"] == result["blocks"]["points"]  # so that they can be compared
    assert other["looks"] == []  # one seed is enough to look into
    assert other["curve"]


def test_a_result_says_all_and_survives_json(result):
    assert set(result) == {
        "key", "run", "map@20", "loss", "blocks", "recall@20", "ndcg@10", "coverage", "buckets",
        "train_seconds", "torch", "curve_points", "curve", "looks",
    }  # fmt: skip
    assert json.loads(json.dumps(result)) == result
    assert result["key"] == RUN.key()
    assert RealRun(**result["run"]) == RUN
    assert set(result["blocks"]) == {"points", "map@20", "loss"}
    assert set(result["buckets"]) == {"head", "middle", "tail", "unseen"}
    assert sum(bucket["share"] for bucket in result["buckets"].values()) == pytest.approx(1)


def test_a_curve_is_judged_at_its_moments(result, place):
    want = sorted({max(1, round(5 * moment)) for moment in MOMENTS})
    assert [at["step"] for at in result["curve"]] == want == [1, 2, 4, 5]
    assert [at["step"] for at in result["looks"]] == want
    assert want[-1] == RUN.steps
    seconds = [at["seconds"] for at in result["curve"]]
    assert seconds == sorted(seconds)
    for at in result["curve"]:
        assert len(at["blocks"]) == 50
        mean = sum(at["blocks"]) / sum(result["curve_points"])
        assert at["map@20"] == pytest.approx(mean, abs=1e-5)


def test_blocks_give_the_means_back(result):
    assert sum(result["blocks"]["points"]) == 60  # of the quick set
    assert sum(result["curve_points"]) == 40
    for metric, digits in (("map@20", 1e-5), ("loss", 2e-5)):
        assert estimate([result], metric).mean == pytest.approx(result[metric], abs=digits)


def test_validation_runs_have_no_curve_and_other_points(result, place):
    found = execute(replace(RUN, points="validation"), place)
    assert (found["curve"], found["looks"]) == ([], [])
    assert set(found) == set(result)
    assert sum(found["blocks"]["points"]) == 40
    assert found["loss"] != result["loss"]


def test_judging_is_that_of_plain_numpy(place):
    """After a few steps: MAP@20 and loss, from all logits, one point after the other."""
    log, split, parts = prepare(RUN, place)
    runs.step(parts.model, parts.optimizer, parts.windows.batch(0), seed=0, number=0, clip=1.0)
    points = spread_points(log, split.test, 7)
    judged = PointEvaluator(log, split, points, 5, 20)
    found = judged.scores(*judged.rank(parts.model, 7))
    weight = parts.model.head.table.weight.detach().double().numpy()
    bias = parts.model.head.table.bias.detach().double().numpy()
    precision, losses = [], []
    for user, point, target in zip(
        points.user, points.point, targets_of(log, points, 5), strict=True
    ):
        history = np.asarray(log.items[log.offsets[user] : point][-20:]).astype(np.int64)
        query = parts.model.query(torch.from_numpy(history)[None], torch.tensor([len(history)]))
        logit = weight @ query[0].double().numpy() + bias
        target = target[target >= 0]
        losses.append(np.log(np.exp(logit).sum()) - logit[target].mean())
        hits, total = 0, 0.0
        for rank, item in enumerate(np.argsort(-logit, kind="stable")[:20], start=1):
            if item in target:
                hits += 1
                total += hits / rank
        precision.append(total / min(len(set(target.tolist())), 20))
    assert found["map@20"] == pytest.approx(np.mean(precision), abs=1e-5)
    assert found["loss"] == pytest.approx(np.mean(losses), abs=2e-5)


def test_full_softmax_keeps_every_class_and_is_exact(place):
    run = replace(RUN, method="full", num_samples=0, presample_factor=1)
    log, _, parts = prepare(run, place)
    head, batch = parts.model.head, parts.windows.batch(0)
    states = parts.model.states(batch.items, batch.lengths)
    query = states.view(-1, states.shape[2])[batch.places].detach()
    kept = head.sample(query, batch.target)
    assert torch.equal(kept.ids, torch.arange(log.num_items))
    assert torch.equal(kept.log_q, torch.zeros(log.num_items))
    with torch.no_grad():
        torch.testing.assert_close(head(query, batch.target), head.full_loss(query, batch.target))


def test_with_r_1_the_rule_does_not_matter(place):
    one = replace(RUN, method="sampled", presample_factor=1)
    sampled = numbers(execute(one, place))
    assert numbers(execute(replace(one, method="priority"), place)) == sampled
    assert numbers(execute(replace(one, method="top"), place)) == sampled
    assert numbers(execute(replace(one, presample_factor=2), place)) != sampled


def test_settings_reach_the_head(place):
    options = {"alpha": 0.5, "beta": 0.03, "temperature": 2.0, "anneal_to": 0.5}
    _, _, parts = prepare(replace(RUN, method="top", score_queries=3, **options), place)
    head = parts.model.head
    assert (head.num_samples, head.presample_factor) == (16, 2)
    assert (head.selection.score_queries, head.temperature) == (3, 2.0)
    assert (head.proposal.alpha, head.proposal.beta) == (0.5, 0.03)
    assert head.table.row_optimizer.lr == RUN.rows_lr
    assert (parts.windows.batch_size, parts.windows.next_items) == (4, 5)
    assert (parts.windows.seed, head.seed) == (0, 0)
    head.step = RUN.steps
    assert head.temperature == 0.5
    kinds = {m: type(prepare(replace(RUN, method=m), place)[2].model.head.selection).__name__
             for m in ("sampled", "priority", "top", *CURES)}  # fmt: skip
    assert kinds == {
        "sampled": "Priority",
        "priority": "Priority",
        "top": "Top",
        "top with a floor": "TopWithFloor",
        "top per query": "TopPerQuery",
        "priority, half corrected": "TemperedPriority",
        "priority, not corrected": "TemperedPriority",
    }


@pytest.mark.parametrize("name", CURES)
def test_a_cure_trains_and_differs_from_the_rule_it_cures(name, place):
    short = replace(RUN, method=name, steps=2, points="validation")
    found = execute(short, place)
    assert numbers(found) == numbers(execute(short, place))
    assert found["loss"] != execute(replace(short, method="top"), place)["loss"]


@pytest.mark.parametrize("points", ["test", "validation"])
def test_a_run_that_diverges_is_a_result(place, monkeypatch, points):
    """In its second step: a row goes to NaN behind the first."""
    whole = runs.step

    def spoil(model, *arguments, number, **options):
        value = whole(model, *arguments, number=number, **options)
        model.head.table.weight.data.fill_(torch.nan)
        return value

    monkeypatch.setattr(runs, "step", spoil)
    run = replace(RUN, steps=20, points=points)  # the first look is after the second step
    found = execute(run, place)
    assert found == {
        "key": run.key(),
        "run": dataclasses.asdict(run),
        "map@20": 0.0,
        "diverged": "the loss is nan at step 1: training has diverged. Lower optimizer.rows_lr or "
        "optimizer.encoder_lr (with --set) and begin again.",
    }


def test_a_learning_rate_far_too_high_is_a_poor_result_and_no_crash(result, place):
    found = execute(replace(RUN, rows_lr=1e6), place)
    assert found["map@20"] < result["map@20"]
    assert found["map@20"] == 0 or found["loss"] > 100 * result["loss"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_wrong_words_are_told():
    with pytest.raises(UsageError) as error:
        replace(RUN, method="best")
    assert str(error.value) == f"method must be one of {', '.join(METHODS)}, got 'best'."
    assert METHODS[:4] == ("full", "sampled", "top", "priority")
    with pytest.raises(UsageError) as error:
        replace(RUN, points="train")
    assert str(error.value) == "points must be test or validation, got 'train'."
