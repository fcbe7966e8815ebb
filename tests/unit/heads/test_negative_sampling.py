"""The loss of word2vec against plain loops, and where its theory says it comes to rest."""

import math

import pytest
import torch
from oracle import binary as oracle
from oracle.binary import TARGET, B, C, D, biased_table, check_against, nobody
from oracle.tables import dense_gradients

import tapas
from tapas.errors import UsageError
from tapas.heads.negative_sampling import NegativeSampling

N = 40  # of 31 classes: some are drawn twice, and some are targets


def make(table=None, **options):
    proposal = tapas.Squashed(torch.arange(C) % 7, alpha=0.75)
    options = {"num_samples": N, "proposal": proposal, "seed": 3} | options
    return NegativeSampling(table=table or biased_table(), **options)


@pytest.mark.parametrize("negatives", [5.0, 0.5])
def test_loss_and_gradients_are_those_of_the_loops(negatives):
    head = make(negatives=negatives, reduction="none")
    draws = head.proposal.draw(N, generator=tapas.rng.stream(3, "draws", 0)).tolist()
    assert len(set(draws)) < N
    assert set(draws) & set(TARGET.flatten().tolist())
    check_against(head, lambda *given: oracle.negative_sampling(*given, draws, negatives))


@pytest.mark.slow
def test_it_comes_to_rest_at_the_log_odds_less_the_log_of_the_noise():
    steps, classes, size, negatives = 1_200, 11, 8, 3.0
    p = torch.softmax(torch.randn(classes, generator=tapas.rng.stream(0, "p")), dim=0)
    proposal = tapas.Squashed(torch.arange(classes) + 1, alpha=1.0)
    log_q = proposal.log_prob(torch.arange(classes)).float()
    best = torch.logit(p) - math.log(negatives) - log_q
    table = tapas.LocalTable(classes, 1, row_optimizer=None, bias=best)
    head = NegativeSampling(table=table, num_samples=6, negatives=negatives, proposal=proposal)
    target = torch.multinomial(p, steps * size, True, generator=tapas.rng.stream(0, "targets"))
    grads = torch.empty(steps, classes)
    for step, mine in enumerate(target.view(steps, size)):
        head.zero_grad()
        head(torch.zeros(size, 1), mine).backward()
        grads[step] = dense_gradients(table)[1]
    # 11 comparisons at 4.5 standard errors: a correct gradient fails 1 seed in 13,000
    assert bool((grads.mean(dim=0).abs() < 4.5 * grads.std(dim=0) / math.sqrt(steps)).all())


@pytest.mark.slow
def test_how_many_are_shared_does_not_change_the_expected_loss():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    few, many = (make(num_samples=n, reduction="sum") for n in (3, 400))
    steps, loss = 500, []
    for head in (few, many):
        loss.append(torch.stack([head(query, TARGET).detach() for _ in range(steps)]))
    error = (loss[0].mean() - loss[1].mean()).abs()
    # at 4 standard errors a correct loss fails 1 seed in 16,000
    assert error < 4 * torch.sqrt((loss[0].var() + loss[1].var()) / steps)


def test_a_rank_without_examples_has_no_noise_and_no_loss():
    head = make()
    loss = head.losses(nobody(head), None)
    assert loss.shape == (0,)
    loss.sum().backward()


@pytest.mark.parametrize("negatives", [0, -1.0, math.inf, math.nan, "5"])
def test_a_bad_number_of_negatives_is_told(negatives):
    words = (
        rf"^negatives must be a finite number above 0, got {negatives!r}\. It is what all draws of "
        "a batch weigh against one target; the paper takes 5 to 20, or 2 to 5 for large data\\.$"
    )
    with pytest.raises(UsageError, match=words):
        make(negatives=negatives)


def test_its_options_are_shown():
    shown = "num_samples=40, proposal=Uniform(31), negatives=2.5"
    assert make(proposal=None, negatives=2.5).extra_repr() == shown
