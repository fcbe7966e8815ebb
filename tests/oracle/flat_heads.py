"""A small batch for heads with one row per class, and a check of their losses against loops.

A reference loss takes the scores of all classes, `score` (B, C), `target` (B, L) padded with
negative ids and `weight` (B, L), and returns the losses (B,) in nats.
"""

import numpy as np
import torch
from oracle.tables import dense_gradients

import tapas
from tapas.tables.ranks import GlobalBatch

B, L, C, D = 5, 3, 31, 4
TARGET = torch.tensor([[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])
WEIGHT = torch.tensor(
    [[0.5, 1.25, 0.0], [0.3, 0.7, 2.0], [1.0, 9.0, 9.0], [0.2, 0.1, 9.0], [0.4, 0.5, 0.6]]
)
CONTEXT = torch.tensor([2, 3, -1, 2, 2])


def queries(num=B, seed=0):
    return torch.randn(num, D, generator=tapas.rng.stream(seed, "query"))


def random_table(*, num_classes=C, peaked=1.0, **options):
    """A table with random rows and biases; gradients are queued unless `options` say otherwise."""
    table = tapas.LocalTable(num_classes, D, **options)
    with torch.no_grad():
        table.weight.copy_(torch.randn(num_classes, D, generator=tapas.rng.stream(0, "rows")))
        bias = torch.randn(num_classes, generator=tapas.rng.stream(0, "biases"))
        table.bias.copy_(peaked * bias)
    return table


def scores_of(head, query):
    """(B, C) float64 logits of all classes."""
    return (query @ head.table.weight.T + head.table.bias).detach().double()


def batch_of(query, target=TARGET, context=None):
    """The global batch that `SharedSample` heads receive."""
    target = target.masked_fill(target < 0, -1)
    return GlobalBatch(query, target, context, (len(query),), target.shape[1])


def sample_of(head, query, target=TARGET, context=None):
    """The candidates that a `SharedSample` head draws in its next step."""
    return head.candidates(batch_of(query, target, context))


def empty_batch(head):
    """A batch without examples, as a single rank may have."""
    return tapas.heads.batch.prepare(
        torch.empty(0, head.dim, requires_grad=True),
        torch.empty(0, L).long(),
        None,
        num_classes=head.num_classes,
        dim=head.dim,
        ignore_index=-100,
        may_be_empty=True,
    )


def count_reads(table):
    """A list to which every read of the table appends its number of rows."""
    read, seen = table._read, []
    table._read = lambda ids: seen.append(len(ids)) or read(ids)
    return seen


def numerical_gradient(function, array, *, by=1e-5):
    """Gradient of the scalar `function` at a float64 `array`, by central differences."""
    found = np.empty_like(array)
    for index in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[index] += by
        down[index] -= by
        found[index] = (function(up) - function(down)) / (2 * by)
    return found


def check_against(head, losses, context=None):
    """Check loss and gradients of `head`, with reduction 'none', against the loops of `losses`.

    Rows that the loops do not touch must have gradient 0.
    """
    query = queries().requires_grad_()
    got = head(query, TARGET, WEIGHT, context=context)
    pull = torch.rand(B, generator=tapas.rng.stream(0, "pull"))
    (got * pull).sum().backward()
    values = [x.detach().double().numpy() for x in (query, head.table.weight, head.table.bias)]

    def each(query, weight, bias):
        return losses(query @ weight.T + bias, TARGET.tolist(), WEIGHT.tolist())

    np.testing.assert_allclose(got.detach().numpy(), each(*values), rtol=1e-5, atol=1e-5)
    for i, grad in enumerate((query.grad, *dense_gradients(head.table))):

        def total(value, i=i):
            return float(np.dot(each(*values[:i], value, *values[i + 1 :]), pull.double().numpy()))

        want = numerical_gradient(total, values[i])
        np.testing.assert_allclose(grad.numpy(), want, rtol=1e-4, atol=1e-5)
