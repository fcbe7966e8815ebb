"""Dynamic negatives and softmax in buckets: which classes are compared, and empty sums."""

import math

import pytest
import torch
from oracle.flat_heads import TARGET, B, C, D, queries, random_table
from torch.nn import functional

import tapas
from tapas.heads import DynamicNegatives, ScalableCrossEntropy
from tapas.losses.hard_negatives import log_sum_without, positive_logits


def buckets(num_buckets=None, bucket_queries=None, bucket_classes=256, **options):
    return ScalableCrossEntropy(
        table=random_table(),
        num_buckets=num_buckets,
        bucket_queries=bucket_queries,
        bucket_classes=bucket_classes,
        **options,
    )


def only_the_first_class(head):
    with torch.no_grad():
        head.table.bias[0] = 50.0
    return head


OWN_ALONE = {
    "dynamic-negatives": lambda: DynamicNegatives(
        table=random_table(),
        num_samples=1,
        presample_factor=1,
        proposal=tapas.Squashed(torch.tensor([1e12] + [1e-12] * (C - 1)), alpha=1.0, beta=1e-12),
    ),
    "sce": lambda: only_the_first_class(buckets(1, B, 1)),
}


@pytest.mark.parametrize("method", OWN_ALONE)
def test_an_example_whose_targets_are_all_classes_drawn_has_a_gradient_of_zero(method):
    head, query = OWN_ALONE[method](), queries().requires_grad_()
    loss = head(query, torch.zeros(B, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0
    assert not query.grad.any()
    assert not head.table.gradients.summed().weight.any()


def test_left_out_sizes_grow_with_the_root_of_the_batch():
    root = math.ceil(2 * math.sqrt(B))
    same = buckets(root, root, C)
    torch.testing.assert_close(buckets()(queries(), TARGET), same(queries(), TARGET))


def test_an_example_in_no_bucket_has_no_gradient_and_its_rows_are_not_touched():
    head, query = buckets(1, 2, 7), queries().requires_grad_()
    members, classes = head._buckets(query.detach())
    head(query, TARGET).backward()
    inside = set(members.flatten().tolist())
    assert len(inside) == 2
    moved = (query.grad != 0).any(dim=1)
    assert moved.nonzero()[:, 0].tolist() == sorted(inside)
    covered = {c for b in inside for c in TARGET[b].tolist() if c >= 0}
    touched = set(head.table.gradients.summed().ids.tolist())
    assert touched == covered | set(classes.flatten().tolist())


def test_the_length_of_a_direction_does_not_outweigh_the_biases():
    """Many examples make long mixtures; a class with a high bias must still be found."""
    head = buckets(3, 2, 1)
    with torch.no_grad():
        head.table.weight.mul_(0.3)
        head.table.bias[17] = 8.0
    _, classes = head._buckets(queries(500))
    assert classes.flatten().tolist() == [17, 17, 17]


def test_queries_of_zero_are_put_in_buckets_by_the_biases_alone():
    head, query = buckets(1, B, C), torch.zeros(B, D)
    loss = head(query, torch.arange(B)).detach()
    torch.testing.assert_close(loss, head.full_loss(query, torch.arange(B)))


def test_an_empty_sum_has_a_gradient():
    logit = torch.zeros(2, 3, requires_grad=True)
    left_out = torch.tensor([[True, True, True], [False, True, False]])
    log_sum = log_sum_without(logit, left_out)
    functional.softplus(log_sum).sum().backward()
    assert bool(log_sum[0].isneginf())
    assert not logit.grad[0].any()
    torch.testing.assert_close(logit.grad[1], torch.tensor([1 / 3, 0.0, 1 / 3]))


def test_positive_logits_are_read_row_by_row():
    query, target = queries(2), torch.tensor([[3, -1, 4], [-1, 5, -1]])
    rows = torch.arange(12.0).view(3, D)
    bias = torch.tensor([0.5, 1.0, 1.5])
    got = positive_logits(query, target, rows, bias)
    assert torch.equal(got.isneginf(), target < 0)
    want = [query[0] @ rows[0] + 0.5, query[0] @ rows[1] + 1.0, query[1] @ rows[2] + 1.5]
    torch.testing.assert_close(got[target >= 0], torch.stack(want))
