"""Softmax in buckets against its definition, one bucket at a time."""

import math

import numpy as np
import pytest
import torch
from oracle import ranking_heads as oracle
from oracle.tables import dense_gradients
from torch.nn import functional

import tapas
from tapas.heads.scalable_cross_entropy import ScalableCrossEntropy

B, L, C, D = 6, 3, 41, 5
TARGET = torch.tensor(
    [[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9], [-100, 12, 40]]
)
WEIGHT = torch.tensor(
    [[0.5, 1.0, 2.0], [1.0, 0.25, 3.0], [1.5, 9, 9], [0, 2, 9], [1, 2, 3], [9, 0.3, 0.7]]
)
FEW = {"num_buckets": 2, "bucket_queries": 2, "bucket_classes": 7}  # leaves examples out


def make(**options):
    table = tapas.LocalTable(C, D, row_optimizer=options.pop("row_optimizer", None))
    with torch.no_grad():
        table.bias.copy_(torch.randn(C, generator=tapas.rng.stream(0, "bias")))
    return ScalableCrossEntropy(table=table, **({"seed": 3} | options))


def queries():
    return torch.randn(B, D, generator=tapas.rng.stream(0, "query"))


def expected(head, query, target, weight, *, num_buckets, bucket_queries, bucket_classes):
    mixture = torch.randn(num_buckets, B, generator=tapas.rng.stream(head.seed, "draws", 0))
    arrays = [
        value.detach().double().numpy()
        for value in (query, head.table.weight, head.table.bias, mixture)
    ]
    found = oracle.buckets(*arrays, bucket_queries, bucket_classes)
    logits = arrays[0] @ arrays[1].T + arrays[2]
    return oracle.softmax_in_buckets(logits, target.numpy(), weight.numpy(), found)


@pytest.mark.parametrize(
    "sizes",
    [
        FEW,
        {"num_buckets": 5, "bucket_queries": 4, "bucket_classes": 11},
        {"num_buckets": 3, "bucket_queries": B, "bucket_classes": C},
    ],
    ids=["few", "some", "whole"],
)
def test_the_loss_is_that_of_the_definition(sizes):
    head, query = make(**sizes, reduction="none"), queries()
    want, classes = expected(head, query, TARGET, WEIGHT, **sizes)
    got = head(query, TARGET, WEIGHT).detach().double().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    left_out = [each is None for each in classes]
    assert any(left_out) == (sizes is FEW)
    assert (got == 0).tolist() == left_out


def test_left_out_sizes_grow_with_the_root_of_the_batch():
    query = queries()
    root = math.ceil(2 * math.sqrt(B))
    same = make(num_buckets=root, bucket_queries=root, bucket_classes=C)
    torch.testing.assert_close(make()(query, TARGET), same(query, TARGET))


def test_one_bucket_of_everything_is_the_full_softmax():
    query, target = queries().requires_grad_(), torch.arange(B)
    head = make(num_buckets=1, bucket_queries=B, bucket_classes=C)
    loss = head(query, target)
    loss.backward()
    torch.testing.assert_close(loss.detach(), head.full_loss(query, target))
    again = query.detach().clone().requires_grad_()
    rows = head.table.weight.detach().clone().requires_grad_()
    functional.cross_entropy(again @ rows.T + head.table.bias.detach(), target).backward()
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table)[0], rows.grad)
    head.zero_grad()
    several = head(query, TARGET, WEIGHT).detach()
    torch.testing.assert_close(several, head.full_loss(query, TARGET, WEIGHT))


def test_gradients_are_those_of_the_bucket_with_the_largest_loss():
    sizes = {"num_buckets": 5, "bucket_queries": 3, "bucket_classes": 9}
    head, query = make(**sizes, reduction="sum"), queries().requires_grad_()
    head(query, TARGET, WEIGHT).backward()
    _, classes = expected(head, query, TARGET, WEIGHT, **sizes)
    again = query.detach().clone().requires_grad_()
    rows = head.table.weight.detach().clone().requires_grad_()
    bias = head.table.bias.detach().clone().requires_grad_()
    loss = torch.zeros(())
    for b in range(B):
        if classes[b] is None:
            continue
        seen = torch.tensor(sorted(oracle.real_targets(TARGET[b]) | set(classes[b])))
        log_p = torch.log_softmax(rows[seen] @ again[b] + bias[seen], dim=0)
        for column in range(L):
            if TARGET[b, column] >= 0:
                own = (seen == TARGET[b, column]).nonzero()[0, 0]
                loss = loss - WEIGHT[b, column] * log_p[own]
    loss.backward()
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table), (rows.grad, bias.grad))


def test_an_example_in_no_bucket_has_no_gradient_and_its_rows_are_not_touched():
    head, query = make(**FEW), queries().requires_grad_()
    head(query, TARGET).backward()
    losses, classes = expected(head, query, TARGET, WEIGHT, **FEW)
    left_out = torch.tensor([each is None for each in classes])
    assert 0 < int(left_out.sum()) < B
    assert torch.equal((query.grad == 0).all(dim=1), left_out)
    touched = set(head.table.gradients.summed().ids.tolist())
    covered = TARGET[~left_out].flatten().tolist()
    mixture = torch.randn(2, B, generator=tapas.rng.stream(3, "draws", 0)).double().numpy()
    table = head.table
    arrays = [v.detach().double().numpy() for v in (query, table.weight, table.bias)]
    in_buckets = {c for _, ids in oracle.buckets(*arrays, mixture, 2, 7) for c in ids}
    assert touched == in_buckets | {c for c in covered if c >= 0}
    assert len(losses) == B


def test_the_length_of_a_direction_does_not_outweigh_the_biases():
    """Many examples make long mixtures; a class with a high bias must still be found."""
    head = make(num_buckets=3, bucket_queries=2, bucket_classes=1)
    with torch.no_grad():
        head.table.bias[17] = 8.0
    query = torch.randn(500, D, generator=tapas.rng.stream(0, "many"))
    _, classes = head._buckets(query)
    assert classes.flatten().tolist() == [17, 17, 17]


def test_queries_of_zero_are_put_in_buckets_by_the_biases_alone():
    head = make(num_buckets=1, bucket_queries=B, bucket_classes=C)
    query = torch.zeros(B, D)
    loss = head(query, torch.arange(B)).detach()
    torch.testing.assert_close(loss, head.full_loss(query, torch.arange(B)))


def test_a_bucket_of_nothing_but_targets_has_a_gradient_of_zero():
    head = make(num_buckets=1, bucket_queries=B, bucket_classes=1)
    with torch.no_grad():
        head.table.bias[3] = 50.0
    query = queries().requires_grad_()
    loss = head(query, torch.full((B,), 3))
    loss.backward()
    assert loss.item() == 0
    assert not query.grad.any()


def test_weights_scale_the_loss():
    query = queries()
    want = make(reduction="none")(query, TARGET, WEIGHT)
    torch.testing.assert_close(make(reduction="none")(query, TARGET, 2 * WEIGHT), 2 * want)
    assert not make(reduction="none")(query, TARGET, torch.zeros_like(WEIGHT)).any()


def test_the_same_step_draws_the_same_and_another_one_others():
    query = queries()
    one, two = make(**FEW), make(**FEW)
    losses = [one(query, TARGET), two(query, TARGET), two(query, TARGET)]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[1], losses[2])
    three = make(**FEW)
    three.load_state_dict(one.state_dict())
    assert torch.equal(three(query, TARGET), losses[2])


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_logits_of_ten_thousand_stay_finite(sign):
    head = make(num_buckets=4, bucket_queries=3, bucket_classes=5)
    with torch.no_grad():
        head.table.bias.copy_(sign * torch.linspace(-1e4, 1e4, C))
    query = (1e3 * queries()).requires_grad_()
    loss = head(query, TARGET)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(query.grad.isfinite().all())
    assert bool(head.table.gradients.summed().weight.isfinite().all())


def test_scores_are_counted_with_those_of_the_search():
    head = make(num_buckets=4, bucket_queries=3, bucket_classes=5)
    assert math.isnan(head.scores_per_example)
    head(queries(), TARGET)
    with torch.no_grad():
        head(queries()[:1], TARGET[:1])
    assert head.scores_per_example == (4 * C + 4 * 3 * 5) / B
    head(queries()[:2], TARGET[:2])
    steps = ((4 * C + 4 * 3 * 5) / B, (4 * C + 4 * 2 * 5) / 2)
    assert head.scores_per_example == pytest.approx(sum(steps) / 2)


@pytest.mark.parametrize("name", ["num_buckets", "bucket_queries", "bucket_classes"])
def test_bad_options_are_told(name):
    with pytest.raises(tapas.UsageError, match=rf"{name} must be at least 1, got 0\."):
        make(**{name: 0})
    with pytest.raises(tapas.UsageError, match=rf"{name} must be a whole number, got 2\.5\."):
        make(**{name: 2.5})


def test_it_says_what_it_is():
    assert "num_buckets=None, bucket_queries=None, bucket_classes=256" in repr(make())
