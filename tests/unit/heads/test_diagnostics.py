"""The five numbers of `head.diagnose`, each against its definition in dense arithmetic."""

import pytest
import torch
from torch.nn import functional

import tapas

B, C, D = 5, 31, 4


def make(**options):
    defaults = {"num_samples": 6, "presample_factor": 3, "row_optimizer": tapas.optim.SGD.fused()}
    return tapas.TapasSoftmax(C, D, **(defaults | options))


def batch():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    return query, torch.tensor([[1, 2], [3, 3], [4, -100], [30, 0], [9, 8]])


@pytest.mark.parametrize("selection", ["priority", "top"])
def test_a_head_that_keeps_everything_is_perfect(selection):
    found = make(num_samples=C, selection=selection).diagnose(*batch())
    assert found.top_coverage == 1
    assert found.gradient_cosine == pytest.approx(1)
    assert found.kept_mass == pytest.approx(1)
    assert found.other_targets == pytest.approx(8 / C)  # 0 1 2 3 4 8 9 30


@pytest.mark.parametrize("selection", ["priority", "top"])
def test_every_number_is_what_its_definition_says(selection):
    head = make(
        selection=selection, temperature=0.5, proposal=tapas.Squashed(torch.arange(C), alpha=0.5)
    )
    query, target = batch()
    kept = head.sample(query, target)
    pool = head.proposal.sample(18, generator=tapas.rng.stream(0, "draws", 0))
    logits = query @ head.table.weight.T + head.table.bias
    found = head.diagnose(query, target)

    best = (logits / 0.5).logsumexp(dim=0).topk(6).indices.tolist()
    assert found.top_coverage == pytest.approx(len(set(best) & set(kept.ids.tolist())) / 6)
    weight = (logits[:, pool.ids] - pool.log_q).exp()
    ess = weight.sum(dim=1) ** 2 / (weight**2).sum(dim=1)
    assert found.pool_effective_size == pytest.approx(float(ess.mean()), rel=1e-5)
    mass = logits.exp()
    share = mass[:, kept.ids].sum(dim=1) / mass[:, pool.ids].sum(dim=1)
    assert found.kept_mass == pytest.approx(float(share.mean()), rel=1e-5)
    own = {0, 1, 2, 3, 4, 8, 9, 30}
    assert found.other_targets == pytest.approx(len(own & set(kept.ids.tolist())) / 6)

    exact = query.clone().requires_grad_()
    soft = torch.zeros(B, C)
    for row, ids in enumerate([[1, 2], [3, 3], [4], [30, 0], [9, 8]]):
        for one in ids:
            soft[row, one] += 1 / len(ids)
    functional.cross_entropy(exact @ head.table.weight.T + head.table.bias, soft).backward()
    sampled = query.clone().requires_grad_()
    head(sampled, target).backward()  # last: it moves rows
    cosine = functional.cosine_similarity(exact.grad.reshape(-1), sampled.grad.reshape(-1), dim=0)
    assert found.gradient_cosine == pytest.approx(float(cosine), rel=1e-5)


def test_a_diagnosis_changes_nothing():
    head = make()
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head.diagnose(*batch())
    assert head.step == 0
    for name, value in before.items():
        assert torch.equal(head.state_dict()[name], value)
