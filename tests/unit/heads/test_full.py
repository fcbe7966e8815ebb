"""Full softmax is cross_entropy, in blocks of classes or not."""

import pytest
import torch
from oracle.sampling_heads import loss_of
from oracle.tables import dense_gradients
from torch.nn import functional

import tapas
from tapas.heads.full import FullSoftmax
from tapas.losses import sampled_softmax

pytestmark = pytest.mark.usefixtures("kernels")
B, L, C, D = 5, 3, 31, 4


def make(**options):
    table = tapas.LocalTable(C, D, row_optimizer=None, num_shards=options.pop("num_shards", 1))
    with torch.no_grad():
        table.weight.copy_(torch.randn(C, D, generator=tapas.rng.stream(0, "rows")))
        table.bias.copy_(torch.randn(C, generator=tapas.rng.stream(0, "biases")))
    return FullSoftmax(table=table, **options)


def queries():
    return torch.randn(B, D, generator=tapas.rng.stream(0, "query"))


@pytest.fixture(params=["one matrix", "blocks"])
def held(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", 7 * B)


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("num_shards", [1, 3])
def test_it_is_cross_entropy_in_value_and_gradient(num_shards):
    head, query = make(num_shards=num_shards), queries().requires_grad_()
    target = torch.tensor([4, 30, 0, 4, 17])
    loss = head(query, target)
    loss.backward()
    again = query.detach().clone().requires_grad_()
    dense = [x.clone().requires_grad_() for x in head.table.rows(torch.arange(C))]
    want = functional.cross_entropy(again @ dense[0].T + dense[1], target)
    want.backward()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table), (dense[0].grad, dense[1].grad))


@pytest.mark.usefixtures("held")
def test_padding_repeats_and_weights_are_those_of_the_loops():
    head, query = make(reduction="none"), queries()
    target = torch.tensor([[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    weight[1, 2] = 0
    rows = head.table.weight.detach(), head.table.bias.detach()
    every = torch.arange(C), torch.zeros(C)
    for share in (weight, 2 * weight, None):
        want = loss_of(query, *rows, target, *every, share)
        torch.testing.assert_close(head(query, target, share), torch.tensor(want))


@pytest.mark.usefixtures("held")
def test_logits_of_ten_thousand_stay_finite():
    head, query = make(), queries().requires_grad_()
    with torch.no_grad():
        head.table.bias.copy_(torch.linspace(-1e4, 1e4, C))
    loss = head(query, torch.arange(B))
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(query.grad.isfinite().all())
    torch.testing.assert_close(loss.detach(), head.full_loss(query, torch.arange(B)))


def test_it_scores_every_class_and_touches_every_row():
    head = make()
    assert head.scores_per_example == C
    head(queries(), torch.arange(B)).backward()
    assert bool((dense_gradients(head.table)[0] != 0).any(dim=1).all())
