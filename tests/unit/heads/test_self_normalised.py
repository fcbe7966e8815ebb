"""Self-normalisation: the effect of its penalty, and the sum over all classes in chunks."""

import pytest
import torch
from oracle.flat_heads import B, C, D

import tapas
from tapas.heads import self_normalised
from tapas.heads.self_normalised import SelfNormalised


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
            head(query, target, p).backward()
        log_z[penalty, share] = float(table.log_partition(query).abs().mean())
        if share == 1.0:
            assert float(head.full_loss(query, target, p)) - entropy < 1e-3
    assert log_z[1.0, 1.0] < 1e-2
    # without a penalty it stays where it began, near log 11; the choice of two shakes it a bit
    assert log_z[1.0, 0.5] < log_z[0.0, 1.0] / 10
    assert log_z[0.0, 1.0] > 1


@pytest.mark.usefixtures("kernels")
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
