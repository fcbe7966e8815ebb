"""One logistic regression for each class, against plain loops."""

import numpy as np
import pytest
import torch
from oracle import binary as oracle
from oracle.binary import TARGET, WEIGHT, B, C, D, biased_table, check_against, nobody
from oracle.tables import dense_gradients

import tapas
from tapas.heads.one_vs_all import OneVsAll


def test_loss_and_gradients_are_those_of_the_loops():
    check_against(OneVsAll(table=biased_table(), reduction="none"), oracle.one_vs_all)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_step_is_one_update_with_the_whole_gradient(num_shards):
    """Adagrad is not linear: the pull of targets and the push of the rest must come together."""
    rule = tapas.optim.Adagrad.fused(lr=0.1)
    table = tapas.LocalTable(C, D, row_optimizer=rule, num_shards=num_shards)
    head, before = OneVsAll(table=table, reduction="sum"), table.weight.clone()
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    head(query, TARGET, target_weight=WEIGHT).backward()
    assert table.num_updates == 1

    def total(weight):
        score = query.double().numpy() @ weight.T
        return sum(oracle.one_vs_all(score, TARGET.tolist(), WEIGHT.tolist()))

    grad = oracle.slope(total, before.double().numpy())
    want = before.numpy() - 0.1 * grad / np.sqrt(rule.initial_sum + grad**2)
    np.testing.assert_allclose(table.weight.numpy(), want, atol=1e-4)


def test_at_the_optimum_a_score_is_the_log_odds_of_its_class():
    """Exact: the expected gradient over targets drawn from p is 0 where sigmoid(s) = p."""
    p = torch.softmax(torch.randn(C, generator=tapas.rng.stream(0, "p")), dim=0)
    table = tapas.LocalTable(C, D, row_optimizer=None, bias=torch.logit(p))
    head = OneVsAll(table=table, reduction="sum")
    everyone = torch.arange(C)[None]
    optimizer = tapas.optim.SGD(head)  # for which the gradients of all passes are summed
    optimizer.zero_grad()
    for c in range(C):  # each class as the target, as often as it comes
        one, share = everyone[:, c : c + 1], p[None, c : c + 1]
        head(torch.zeros(1, D), one, target_weight=share).backward()
    assert torch.equal(table.gradients.summed().ids, torch.arange(C))
    torch.testing.assert_close(dense_gradients(table)[1], torch.zeros(C), rtol=0, atol=1e-6)


def test_frozen_rows_stay_and_the_query_still_learns():
    head = OneVsAll(C, D, row_optimizer=tapas.optim.SGD.fused(lr=1.0)).requires_grad_(False)
    before = head.table.weight.clone()
    query = torch.zeros(B, D, requires_grad=True)
    head(query, TARGET).backward()
    assert torch.equal(before, head.table.weight)
    assert bool(query.grad.abs().sum() > 0)


def test_a_rank_without_examples_pushes_nothing():
    head = OneVsAll(table=biased_table())
    loss = head.losses(nobody(head), None)
    assert loss.shape == (0,)
    loss.sum().backward()
    assert not head.table.gradients.summed().weight.any()


def test_every_class_is_scored():
    assert OneVsAll(table=biased_table()).scores_per_example == C
