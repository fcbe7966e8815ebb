"""Self-normalisation against plain loops, and what its penalty and its share promise."""

import math

import numpy as np
import pytest
import torch
from oracle import binary as oracle
from oracle.binary import TARGET, WEIGHT, B, C, D, biased_table, check_against, nobody

import tapas
from tapas.errors import UsageError
from tapas.heads import self_normalised
from tapas.heads.full import FullSoftmax
from tapas.heads.self_normalised import SelfNormalised

pytestmark = pytest.mark.usefixtures("kernels")


def make(table=None, **options):
    return SelfNormalised(table=table or biased_table(), **({"share": 0.4, "seed": 3} | options))


@pytest.mark.parametrize("share", [0.01, 0.4, 1.0])
@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_loss_and_gradients_are_those_of_the_loops(monkeypatch, share, chunk):
    monkeypatch.setattr(self_normalised, "SCORES_PER_CHUNK", chunk)
    head = make(share=share, penalty=0.3, reduction="none")
    chosen = head.chosen(B).tolist()
    assert len(chosen) == {0.01: 1, 0.4: 2, 1.0: 5}[share]
    check_against(head, lambda *given: oracle.self_normalised(*given, chosen, 0.3))


def test_everybody_normalised_without_a_penalty_is_full_softmax():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    got = make(share=1.0, penalty=0.0)(query, TARGET, target_weight=WEIGHT)
    torch.testing.assert_close(
        got, FullSoftmax(table=biased_table())(query, TARGET, target_weight=WEIGHT)
    )


@pytest.mark.slow
def test_a_share_costs_noise_and_no_bias():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    whole = make(share=1.0)(query, TARGET, target_weight=WEIGHT)
    steps, head = 500, make()
    loss = torch.stack([head(query, TARGET, target_weight=WEIGHT).detach() for _ in range(steps)])
    # at 4 standard errors a correct share fails 1 seed in 16,000
    assert (loss.mean() - whole).abs() < 4 * loss.std() / math.sqrt(steps)
    assert loss.std() > 0


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_step_is_one_update_with_the_whole_gradient(num_shards):
    """Adagrad is not linear: the pull of targets and the push of the rest must come together."""
    rule = tapas.optim.Adagrad.fused(lr=0.1)
    table = tapas.LocalTable(C, D, row_optimizer=rule, num_shards=num_shards)
    head, before = make(table, reduction="sum"), table.weight.clone()
    chosen = head.chosen(B).tolist()
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    head(query, TARGET, target_weight=WEIGHT).backward()
    assert table.num_updates == 1

    def total(weight):
        score = query.double().numpy() @ weight.T
        return sum(
            oracle.self_normalised(score, TARGET.tolist(), WEIGHT.tolist(), chosen, head.penalty)
        )

    grad = oracle.slope(total, before.double().numpy())
    want = before.numpy() - 0.1 * grad / np.sqrt(rule.initial_sum + grad**2)
    np.testing.assert_allclose(table.weight.numpy(), want, atol=1e-4)


@pytest.mark.slow
def test_the_penalty_brings_the_normalisers_to_one_and_keeps_the_answers():
    """Four queries with a distribution each, which s = log p fits, with log Z = 0."""
    query = torch.eye(4)
    p = torch.softmax(torch.randn(4, 11, generator=tapas.rng.stream(0, "p")), dim=1)
    target = torch.arange(11).expand(4, 11)
    entropy = float(-(p * p.log()).sum(dim=1).mean())
    log_z = {}
    for penalty, share in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.5)):
        table = tapas.LocalTable(11, 4, row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.3))
        head = SelfNormalised(table=table, penalty=penalty, share=share)
        for _ in range(500):
            head(query, target, target_weight=p).backward()
        log_z[penalty, share] = float(table.log_partition(query).abs().mean())
        if share == 1.0:
            assert float(head.full_loss(query, target, target_weight=p)) - entropy < 1e-3
    assert log_z[1.0, 1.0] < 1e-2
    # without a penalty it stays where it began, near log 11; the choice of two shakes it a bit
    assert log_z[1.0, 0.5] < log_z[0.0, 1.0] / 10
    assert log_z[0.0, 1.0] > 1


@pytest.mark.parametrize("chunk", [7, 1 << 18])
@pytest.mark.parametrize("height", [1e3, -1e5])
def test_shares_of_the_normaliser_add_up_to_one_wherever_the_scores_are(monkeypatch, height, chunk):
    """Biases in eighths and no rows, so that scores are exact; each bias gets its shares."""
    monkeypatch.setattr(self_normalised, "SCORES_PER_CHUNK", chunk)
    bias = (height + torch.arange(C) / 8).requires_grad_()
    log_z = self_normalised._LogPartition.apply(torch.ones(B, D), torch.zeros(C, D), bias)
    want = bias.detach().double()
    torch.testing.assert_close(log_z.double(), want.logsumexp(0).expand(B), rtol=2e-7, atol=0.0)
    log_z.sum().backward()
    torch.testing.assert_close(
        bias.grad.double(), B * torch.softmax(want, dim=0), rtol=1e-6, atol=0.0
    )


def test_extreme_scores_stay_finite():
    head = make(reduction="none")
    query = torch.full((B, D), 3e4, requires_grad=True)
    loss = head(query, TARGET, target_weight=WEIGHT)
    loss.sum().backward()
    for part in (loss, query.grad, head.table.gradients.summed().weight):
        assert bool(part.isfinite().all())


def test_a_saved_head_goes_on_with_the_same_numbers():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    one, other = make(), make()
    chosen = set()
    for _ in range(5):
        chosen.add(tuple(one.chosen(B).tolist()))
        one(query, TARGET)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(query, TARGET), other(query, TARGET))
    assert len(chosen) > 1


def test_scores_are_those_of_the_examples_that_are_normalised():
    head, query = make(), torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    assert math.isnan(head.scores_per_example)
    head(query, TARGET)  # 2 of 5
    head(query[:1], TARGET[:1])  # 1 of 1
    with torch.no_grad():
        head(query, TARGET)
    assert head.scores_per_example == pytest.approx((2 / 5 + 1) / 2 * C)


def test_a_rank_without_examples_pushes_nothing():
    head = make()
    loss = head.losses(nobody(head), None)
    assert loss.shape == (0,)
    loss.sum().backward()
    assert not head.table.gradients.summed().weight.any()
    assert math.isnan(head.scores_per_example)


@pytest.mark.parametrize("penalty", [-0.1, math.inf, math.nan, "1"])
def test_a_bad_penalty_is_told(penalty):
    words = (
        rf"^penalty must be a finite number of at least 0, got {penalty!r}\. It weighs the square "
        "of log Z; 0 leaves the normalisers free\\.$"
    )
    with pytest.raises(UsageError, match=words):
        make(penalty=penalty)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, math.nan, "1"])
def test_a_bad_share_is_told(share):
    words = (
        rf"^share must be above 0 and at most 1, got {share!r}\. It is the part of each batch that "
        "is normalised; without any, scores would grow for ever\\.$"
    )
    with pytest.raises(UsageError, match=words):
        make(share=share)


def test_its_options_are_shown():
    assert make(penalty=0.25).extra_repr() == "penalty=0.25, share=0.4"
