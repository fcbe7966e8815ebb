"""Expectations of samples and gradients, in standard errors, with the false-alarm rate."""

import math

import pytest
import torch
from oracle.flat_heads import TARGET, WEIGHT, B, C, D, queries, random_table, sample_of, scores_of
from oracle.tables import dense_gradients

import tapas
from tapas.heads import (
    GBCE,
    NCE,
    InBatchSoftmax,
    MixedSoftmax,
    NegativeSampling,
    OneVsAll,
    SampledSoftmax,
    SelfNormalised,
)

SKEWED = tapas.Squashed(torch.arange(C), alpha=0.75)
SIZE = 6  # of a batch whose targets are negatives for a query of another one
OFTEN = tapas.LogUniform(C).log_prob(torch.arange(C)).exp()


def settled(kind, **options):
    """A head with converged estimates of how often each class is in a batch."""
    head = kind(table=random_table(), rate=1e-7, **options)
    head.gap.copy_(1 / (1 - (1 - OFTEN) ** SIZE))
    head.last_seen.zero_()
    return head


SHARED = {
    "sampled": lambda: SampledSoftmax(table=random_table(), num_samples=7, proposal=SKEWED),
    # the pool has every class, so that only the second pass is random
    "tapas": lambda: tapas.TapasSoftmax(
        table=random_table(),
        num_samples=9,
        presample_factor=4,
        selection=tapas.Priority(score_queries=2),
    ),
    "in-batch": lambda: settled(InBatchSoftmax),
    "mixed": lambda: settled(MixedSoftmax, num_samples=7, proposal=SKEWED),
    "mixed, two passes": lambda: settled(
        MixedSoftmax, num_samples=5, presample_factor=3, proposal=SKEWED
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", SHARED)
def test_the_sum_over_a_sample_is_an_unbiased_estimate_of_the_partition_sum(method):
    """For queries of another batch: the targets of an example are always in its batch."""
    draws, head, query = 2_000, SHARED[method](), queries()
    logits = scores_of(head, query)
    estimate = torch.empty(draws, B, dtype=torch.float64)
    for step in range(draws):
        head.step = step + 1
        if head.method == "tapas":
            kept = head.sample(query)
        else:
            generator = tapas.rng.stream(2, "target", step)
            target = tapas.LogUniform(C).draw(SIZE, generator=generator)
            kept = sample_of(head, torch.zeros(SIZE, D), target[:, None])
        estimate[step] = (logits[:, kept.ids] - kept.log_q.double()).exp().sum(dim=1)
    error = (estimate.mean(dim=0) - logits.exp().sum(dim=1)).abs()
    # 5 comparisons at 4.4 standard errors: a correct estimate fails 1 seed in 18,000
    assert bool((error < 4.4 * estimate.std(dim=0) / math.sqrt(draws)).all())


FEW = 11
PROBABILITY = torch.softmax(torch.randn(FEW, generator=tapas.rng.stream(0, "p")), dim=0)
NOISE = tapas.Squashed(torch.arange(FEW) + 1, alpha=1.0)


def biased(bias):
    return tapas.LocalTable(FEW, 1, bias=bias)


AT_REST = {  # heads whose biases are at the optimum that the theory of the method gives
    "nce": lambda: NCE(table=biased(PROBABILITY.log()), num_samples=6, proposal=NOISE),
    "negative-sampling": lambda: NegativeSampling(
        table=biased(
            torch.logit(PROBABILITY) - math.log(3.0) - NOISE.log_prob(torch.arange(FEW)).float()
        ),
        num_samples=6,
        negatives=3.0,
        proposal=NOISE,
    ),
    "gbce, calibrated": lambda: GBCE(
        table=biased(torch.logit(PROBABILITY)), num_samples=4, calibration=1.0
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", AT_REST)
def test_at_the_optimum_of_a_method_its_expected_gradient_is_zero(method):
    """Log-probabilities for NCE, whatever the noise; log-odds for GBCE; less it for word2vec."""
    steps, size, head = 1_000, 8, AT_REST[method]()
    drawn = tapas.rng.stream(0, "targets")
    target = torch.multinomial(PROBABILITY, steps * size, True, generator=drawn)
    grads = torch.empty(steps, FEW)
    for step, mine in enumerate(target.view(steps, size)):
        head.zero_grad()
        head(torch.zeros(size, 1), mine).backward()
        grads[step] = dense_gradients(head.table)[1]
    # 11 comparisons at 4.5 standard errors: a correct gradient fails 1 seed in 13,000
    assert bool((grads.mean(dim=0).abs() < 4.5 * grads.std(dim=0) / math.sqrt(steps)).all())


def test_one_logistic_regression_for_each_class_has_its_optimum_at_the_log_odds():
    """Exact: the expected gradient over targets drawn from p is 0 where sigmoid(s) = p."""
    head = OneVsAll(table=biased(torch.logit(PROBABILITY)), reduction="sum")
    everybody = torch.arange(FEW)[:, None]
    head(torch.zeros(FEW, 1), everybody, PROBABILITY[:, None]).backward()
    grads = dense_gradients(head.table)[1]
    torch.testing.assert_close(grads, torch.zeros(FEW), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_how_many_negatives_are_shared_does_not_change_the_expected_loss():
    steps, loss = 500, []
    for num_samples in (3, 400):
        head = NegativeSampling(
            table=random_table(), num_samples=num_samples, proposal=SKEWED, reduction="sum"
        )
        loss.append(torch.stack([head(queries(), TARGET).detach() for _ in range(steps)]))
    error = (loss[0].mean() - loss[1].mean()).abs()
    # at 4 standard errors a correct loss fails 1 seed in 16,000
    assert error < 4 * torch.sqrt((loss[0].var() + loss[1].var()) / steps)


@pytest.mark.slow
def test_normalising_a_share_of_the_examples_adds_noise_but_no_bias():
    steps = 500
    full, head = (SelfNormalised(table=random_table(), share=share) for share in (1.0, 0.4))
    want = full(queries(), TARGET, WEIGHT)
    loss = torch.stack([head(queries(), TARGET, WEIGHT).detach() for _ in range(steps)])
    # at 4 standard errors a correct share fails 1 seed in 16,000
    assert (loss.mean() - want).abs() < 4 * loss.std() / math.sqrt(steps)
    assert loss.std() > 0
