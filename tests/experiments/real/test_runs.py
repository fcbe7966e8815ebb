"""One run on a real set: reproducible, and trained and evaluated with its settings."""

import dataclasses
import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.real import runs as real_runs
from experiments.real.cells import SAMPLED, SetRuns
from experiments.real.runs import (
    BUCKETS,
    METHODS,
    MOMENTS,
    RealRun,
    build_run,
    execute,
    open_set,
    probe_model,
)
from experiments.real.selection_rules import VARIANTS
from experiments.real.sets import GROCERY, SYNTHETIC
from tapas import Squashed, TapasSoftmax
from tapas.comparison import runs
from tapas.comparison.synthetic_log import TRUTH
from tapas.data.splits import next_items_at
from tapas.errors import UsageError
from tapas.evaluation.intervals import block_bootstrap
from tapas.evaluation.points import PointEvaluator, spread_points
from tapas.rng import stream

RUN = RealRun(set="rust", method="priority", num_samples=16, presample_factor=2, rows_lr=0.1,
              batch=4, steps=5, seed=0, quick=True)  # fmt: skip


@pytest.fixture(scope="module")
def result(place):
    return execute(RUN, place)


def prepare(run, place):
    log, split = open_set(run.real_set, place)
    return log, split, build_run(run, place, log, split)


def numbers(result):
    """A result without its key, settings and times."""
    curve = [{k: v for k, v in at.items() if k != "seconds"} for at in result["curve"]]
    rest = {k: v for k, v in result.items() if k not in ("key", "run", "train_seconds")}
    return {**rest, "curve": curve}


def test_equal_runs_give_equal_numbers_and_other_seeds_others(result, place):
    again = execute(replace(RUN), place)
    assert numbers(again) == numbers(result)
    assert (again["key"], again["run"]) == (result["key"], result["run"])
    other = execute(replace(RUN, seed=1), place)
    assert other["loss"] != result["loss"]
    assert other["blocks"]["points"] == result["blocks"]["points"]  # so that they can be compared
    assert other["looks"] == []  # one seed is enough to probe
    assert other["curve"]


def test_a_result_is_complete_and_survives_json(result):
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


def test_a_curve_is_evaluated_at_its_moments(result, place):
    want = sorted({max(1, round(5 * moment)) for moment in MOMENTS})
    assert [at["step"] for at in result["curve"]] == want == [1, 2, 4, 5]
    assert [at["step"] for at in result["looks"]] == want
    assert want[-1] == RUN.steps
    seconds = [at["seconds"] for at in result["curve"]]
    assert seconds == sorted(seconds)
    assert sum(result["blocks"]["points"]) == 60  # of the quick set
    assert sum(result["curve_points"]) == 40
    for metric, digits in (("map@20", 1e-5), ("loss", 2e-5)):
        assert block_bootstrap([result], metric).mean == pytest.approx(result[metric], abs=digits)
    for at in result["curve"]:
        assert len(at["blocks"]) == 50
        mean = sum(at["blocks"]) / sum(result["curve_points"])
        assert at["map@20"] == pytest.approx(mean, abs=1e-5)


def test_validation_runs_have_no_curve_and_other_points(result, place):
    found = execute(replace(RUN, points="validation"), place)
    assert (found["curve"], found["looks"]) == ([], [])
    assert set(found) == set(result)
    assert sum(found["blocks"]["points"]) == 40
    assert found["loss"] != result["loss"]


def test_scores_agree_with_plain_numpy(place):
    """After a few steps: MAP@20 and loss, from all logits, point by point."""
    log, split, parts = prepare(RUN, place)
    runs.step(parts.model, parts.optimizer, parts.windows.batch(0), seed=0, number=0, clip=1.0)
    points = spread_points(log, split.test, 7)
    judged = PointEvaluator(log, split, points, 5, 20)
    found = judged.scores(*judged.rank(parts.model, 7))
    weight = parts.model.head.table.weight.detach().double().numpy()
    bias = parts.model.head.table.bias.detach().double().numpy()
    precision, losses = [], []
    for user, point, target in zip(
        points.user, points.point, next_items_at(log, points, 5), strict=True
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
             for m in ("sampled", "priority", "top", *VARIANTS)}  # fmt: skip
    assert kinds == {
        "sampled": "Priority",
        "priority": "Priority",
        "top": "Top",
        "top with a floor": "TopWithFloor",
        "top per query": "TopPerQuery",
        "priority, half corrected": "TemperedPriority",
        "priority, not corrected": "TemperedPriority",
    }


@pytest.mark.parametrize("points", ["test", "validation"])
def test_a_run_that_diverges_is_a_result(place, monkeypatch, points):
    """A row becomes NaN after the first step."""
    whole = runs.step

    def spoil(model, *arguments, number, **options):
        value = whole(model, *arguments, number=number, **options)
        model.head.table.weight.data.fill_(torch.nan)
        return value

    monkeypatch.setattr(runs, "step", spoil)
    run = replace(RUN, steps=20, points=points)  # the first measurement is after the second step
    found = execute(run, place)
    assert found == {
        "key": run.key(),
        "run": dataclasses.asdict(run),
        "map@20": 0.0,
        "diverged": "the loss is nan at step 1: training has diverged. Lower optimizer.rows_lr or "
        "optimizer.encoder_lr (with --set) and start again.",
    }


def test_wrong_names_are_an_error():
    with pytest.raises(UsageError) as error:
        replace(RUN, method="best")
    assert str(error.value) == f"method must be one of {', '.join(METHODS)}, got 'best'."
    with pytest.raises(UsageError) as error:
        replace(RUN, points="train")
    assert str(error.value) == "points must be test or validation, got 'train'."


def test_baselines_are_evaluated_at_the_points_of_the_runs(place, monkeypatch):
    set_runs = SetRuns(SYNTHETIC, quick=True)
    runs_of_none = set_runs.references(None)
    references = [execute(run, place) for run in runs_of_none]
    trained = execute(set_runs.run(SAMPLED, 0.1, 0.75, 0), place)
    for found in references:
        assert found["blocks"]["points"] == trained["blocks"]["points"]
    truth = references[-1]
    assert truth["run"]["method"] == TRUTH
    assert truth["loss"] < trained["loss"]
    assert "loss" not in references[0]
    quick = GROCERY.quick()
    monkeypatch.setattr(RealRun, "real_set", property(lambda self: replace(quick, made=None)))
    monkeypatch.setattr(real_runs, "open_set", lambda real_set, place: open_set(quick, place))
    with pytest.raises(UsageError, match="the true distribution of grocery is not known"):
        execute(replace(runs_of_none[-1], set=GROCERY.name), place)


B, C, D = 5, 31, 3
TARGET = torch.tensor([[1, 2], [3, -1], [4, 30], [0, 0], [9, 8]])
BUCKET = torch.tensor([0, 0, 1, 1, 1] + 20 * [2] + 6 * [3])[
    torch.randperm(C, generator=stream(0, "order"))
]


def a_model(scale=1.0):
    bias = torch.randn(C, generator=stream(0, "bias"))
    proposal = Squashed(torch.arange(C), alpha=0.5)
    head = TapasSoftmax(C, D, num_samples=6, presample_factor=2, bias=bias, proposal=proposal)
    head.table.weight.data.copy_(scale * torch.randn(C, D, generator=stream(0, "rows")))
    return SimpleNamespace(head=head, tapas_head=head, output_table=head.table)


def a_query():
    return torch.randn(B, D, generator=stream(0, "query"))


@pytest.mark.parametrize(("scale", "chunk"), [(0.1, 1), (1.0, 7), (5.0, C), (1.0, 1 << 16)])
def test_masses_and_log_probabilities_agree_with_numpy_over_all_classes(scale, chunk, monkeypatch):
    monkeypatch.setattr(real_runs, "CLASSES_PER_CHUNK", chunk)
    model = a_model(scale)
    found = probe_model(model, a_query(), TARGET, BUCKET)
    weight, bias = (
        part.detach().double().numpy() for part in (model.head.table.weight, model.head.table.bias)
    )
    logit = a_query().double().numpy() @ weight.T + bias
    log_prob = logit - np.log(np.exp(logit).sum(axis=1, keepdims=True))
    for place, name in enumerate(BUCKETS):
        mine = log_prob[:, BUCKET.numpy() == place]
        mass = np.exp(mine).sum(axis=1).mean()
        assert found[f"mass of {name}"] == pytest.approx(mass, rel=1e-5, abs=1e-6)
        height = pytest.approx(mine.mean(), rel=1e-5, abs=1e-6)
        assert found[f"log-probability of {name}"] == height
    empty = probe_model(model, a_query(), TARGET, BUCKET.clamp(max=1))
    assert (empty["mass of tail"], empty["mass of unseen"]) == (0, 0)


def test_diagnoses_are_those_of_the_head_which_does_not_change():
    model = a_model()
    before = model.head.table.weight.clone()
    found = probe_model(model, a_query(), TARGET, BUCKET)
    want = asdict(model.head.diagnose(a_query(), TARGET.masked_fill(TARGET < 0, -100)))
    assert {name: found[name] for name in want} == {n: round(v, 6) for n, v in want.items()}
    assert len(found) == len(want) + 2 * len(BUCKETS)
    assert model.head.step == 0
    assert torch.equal(model.head.table.weight, before)
    assert TARGET[1, 1] == -1  # the caller's stays as it was
