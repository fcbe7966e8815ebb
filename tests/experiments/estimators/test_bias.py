"""The bias of estimators: exactly 0 where theory says so, and found where there is one."""

import numpy as np
import pytest
import torch

from experiments.estimators import bias
from experiments.estimators.bias import (
    BATCH,
    NUM_CLASSES,
    NUM_CONTEXTS,
    BiasRun,
    Truth,
    at_the_truth,
    gradients,
    make_truth,
    measure_bias,
    summarise,
)
from tapas.comparison.contenders import CONTENDERS
from tapas.heads import METHODS, FlatHead

TRUTH = make_truth()
AIMS_ELSEWHERE = {
    "one-vs-all", "negative-sampling", "warp", "gbce", "sce", "partitioned", "dynamic-negatives"
}  # fmt: skip


def steps_of(name, num_samples, steps):
    run = BiasRun(name, num_samples, steps)
    return list(gradients(run, TRUTH, *at_the_truth(run, TRUTH)))


def test_the_log_has_exactly_the_frequencies_of_the_truth():
    feed, _ = TRUTH.feed(BATCH)
    previous, following, count = feed.pairs(1)
    found = np.zeros_like(TRUTH.counts)
    found[previous, following] = count
    assert (found == TRUTH.counts).all()


def test_a_head_at_the_truth_has_its_log_probabilities():
    head, _, _ = at_the_truth(BiasRun("sampled", 16, 1), TRUTH)
    every = torch.arange(NUM_CLASSES).expand(NUM_CONTEXTS, -1)
    found = head.log_prob(torch.eye(NUM_CONTEXTS), every)
    torch.testing.assert_close(found, TRUTH.log_prob.float(), rtol=0, atol=1e-4)


def test_the_full_softmax_stays_at_the_truth_and_so_does_a_sample_of_all_classes():
    found = measure_bias(BiasRun("full", 0, 3))
    assert found["bias"] < 1e-5  # float32, summed over 1,600 pairs
    assert found["noise"] < 1e-5
    assert found["aims_at_softmax"]
    assert measure_bias(BiasRun("sampled", NUM_CLASSES, 3))["bias"] < 1e-5  # every class drawn


def test_gradients_are_those_of_plain_arithmetic():
    """One step of sampled softmax, computed from the classes that it draws."""
    run = BiasRun("sampled", 16, 1)
    head, table, windows = at_the_truth(run, TRUTH)
    kept = head.proposal.sample(16, generator=head._draws())
    want = torch.zeros(NUM_CONTEXTS, NUM_CLASSES, dtype=torch.float64)
    for g in range(NUM_CONTEXTS):
        for y in range(NUM_CLASSES):
            others = [i for i, z in enumerate(kept.ids.tolist()) if z != y]
            ids = torch.cat([torch.tensor([y]), kept.ids[others]])
            log_q = torch.cat([torch.zeros(1), kept.log_q[others]]).double()
            share = (TRUTH.log_prob[g, ids] - log_q).softmax(dim=0)
            share[0] -= 1
            want[g].index_add_(0, ids, TRUTH.joint[g, y] * share)
    [found] = gradients(run, TRUTH, head, table, windows)
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-6)


def test_rows_never_change():
    run = BiasRun("tapas", 16, 3)
    head, table, windows = at_the_truth(run, TRUTH)
    before = table.weight.detach().clone()
    assert len(list(gradients(run, TRUTH, head, table, windows))) == 3
    assert torch.equal(table.weight, before)
    assert head.step == 3


def test_drawn_batches_cancel_exactly_for_the_full_softmax(monkeypatch):
    """The control variate is the full softmax itself: the difference is 0 in every step."""
    monkeypatch.setattr(METHODS["full"], "learns_from_batch", True)
    for gradient in steps_of("full", 0, 5):
        assert float(gradient.abs().sum()) < 1e-5


def test_both_ways_of_averaging_over_targets_agree(monkeypatch):
    """The pull of the head with sampled softmax, by all pairs and by drawn batches."""
    exact = summarise(iter(steps_of("sampled", 16, 300)), TRUTH)["pull"]["head"]
    monkeypatch.setattr(METHODS["sampled"], "learns_from_batch", True)
    drawn = summarise(iter(steps_of("sampled", 16, 300)), TRUTH)["pull"]["head"]
    error = np.hypot(exact["standard_error"], drawn["standard_error"])
    # the draws of classes are shared, which only brings them closer; 1 in 16,000 fails
    assert abs(exact["mean"] - drawn["mean"]) < 4 * error


def test_summary_of_known_gradients():
    """Two steps that differ by 2 in one place: mean 1, standard error 1."""
    truth = Truth(np.array([[6, 3, 1]]))
    one, two = torch.tensor([[0.0, 0.5, 0.0]]).double(), torch.tensor([[2.0, 0.5, 0.0]]).double()
    found = summarise(iter([one, two]), truth)
    assert found["bias"] == 1.5
    assert found["noise"] == pytest.approx(np.sqrt(2 / np.pi), rel=1e-5)
    assert found["pull"]["head"] == {"mean": -1, "standard_error": 1}
    assert found["pull"]["middle"] == {"mean": -0.5, "standard_error": 0}
    assert found["classes"] == {"head": 1, "middle": 1, "tail": 1}


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_has_a_bias_or_none_by_construction(name, monkeypatch):
    monkeypatch.setattr(bias, "SETTLING", 2)
    found = measure_bias(BiasRun(name, 16, 2))
    assert "exact" in found or np.isfinite(found["bias"])
    assert "skipped" not in found
    assert ("exact" in found) == (not issubclass(CONTENDERS[name].kind, FlatHead))
    assert found["aims_at_softmax"] == (name not in AIMS_ELSEWHERE)


def test_methods_that_adapt_settle_first(monkeypatch):
    monkeypatch.setattr(bias, "SETTLING", 7)
    run = BiasRun("in-batch", 0, 2)
    head, table, windows = at_the_truth(run, TRUTH)
    assert len(list(gradients(run, TRUTH, head, table, windows))) == 2
    assert head.step == 9
