"""Generalised binary cross-entropy against plain loops, and its calibration."""

import math

import pytest
import torch
from oracle import binary as oracle
from oracle.binary import TARGET, WEIGHT, B, C, D, biased_table, check_against
from oracle.tables import dense_gradients

import tapas
from tapas.errors import UsageError
from tapas.heads.gbce import GBCE
from tapas.heads.one_vs_all import OneVsAll

N = 13


def make(table=None, **options):
    return GBCE(table=table or biased_table(), **({"num_samples": N, "seed": 3} | options))


@pytest.mark.parametrize("calibration", [0.0, 0.75, 1.0])
@pytest.mark.parametrize("skewed", [False, True])
def test_loss_and_gradients_are_those_of_the_loops(calibration, skewed):
    proposal = tapas.Squashed(torch.arange(C) % 7, alpha=0.75) if skewed else tapas.Uniform(C)
    head = make(calibration=calibration, proposal=proposal, reduction="none")
    sample = proposal.sample(N, generator=tapas.rng.stream(3, "draws", 0)).ids.tolist()
    assert set(sample) & set(TARGET.flatten().tolist())
    check_against(head, lambda *given: oracle.gbce(*given, sample, calibration))


def test_beta_goes_from_plain_cross_entropy_to_the_sampling_rate():
    assert make(calibration=0).beta == 1.0
    assert make(calibration=1).beta == pytest.approx(N / C)
    assert make().beta == pytest.approx(1 - 0.75 * (1 - N / C))


def test_all_classes_sampled_are_one_vs_all():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    want = OneVsAll(table=biased_table())(query, TARGET, target_weight=WEIGHT)
    torch.testing.assert_close(make(num_samples=C)(query, TARGET, target_weight=WEIGHT), want)


@pytest.mark.slow
def test_with_full_calibration_it_comes_to_rest_at_the_log_odds():
    """Every class is a target as often as it comes, so that all the chance is in the sample."""
    steps, classes = 1_200, 5
    p = torch.softmax(torch.randn(classes, generator=tapas.rng.stream(0, "p")), dim=0)
    table = tapas.LocalTable(classes, 1, row_optimizer=None, bias=torch.logit(p))
    head = GBCE(table=table, num_samples=2, calibration=1.0, reduction="sum")
    grads = torch.empty(steps, classes)
    for step in range(steps):
        head.zero_grad()
        head(torch.zeros(classes, 1), torch.arange(classes), target_weight=p).backward()
        grads[step] = dense_gradients(table)[1]
    # 5 comparisons at 4.5 standard errors: a correct gradient fails 1 seed in 29,000
    assert bool((grads.mean(dim=0).abs() < 4.5 * grads.std(dim=0) / math.sqrt(steps)).all())


@pytest.mark.parametrize("calibration", [-0.1, 1.5, math.nan, "0.5"])
def test_a_bad_calibration_is_told(calibration):
    words = (
        rf"^calibration must be between 0 and 1, got {calibration!r}\. 0 is plain binary "
        "cross-entropy, 1 makes up for the sampling in full\\.$"
    )
    with pytest.raises(UsageError, match=words):
        make(calibration=calibration)


def test_more_samples_than_classes_are_refused():
    with pytest.raises(UsageError, match=r"^num_samples is 32, but there are only 31 classes\."):
        make(num_samples=32)


def test_its_options_and_cost_are_shown():
    assert make().extra_repr() == "num_samples=13, proposal=Uniform(31), calibration=0.75"
    assert make().scores_per_example == N
