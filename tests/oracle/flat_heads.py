"""One small batch and its rows for heads with a row for each class, and how losses are checked.

A loss by loops takes `score` (B, C) of every class, `target` (B, L) with negative for padding and
`weight` (B, L), and gives the (B,) losses in nats.
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
    """Rows whose gradients wait, unless told otherwise, with biases that are not all 0."""
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
    """A batch as heads that share a sample see it."""
    target = target.masked_fill(target < 0, -1)
    return GlobalBatch(query, target, context, (len(query),), target.shape[1])


def sample_of(head, query, target=TARGET, context=None):
    """What a head that shares a sample puts beside the targets in its next step."""
    return head.candidates(batch_of(query, target, context))


def nobody(head):
    """A batch without examples, as one rank of many may have."""
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
    """A list that grows by how many rows are read, whenever some are."""
    read, seen = table._read, []
    table._read = lambda ids: seen.append(len(ids)) or read(ids)
    return seen


def slope(function, array, *, by=1e-5):
    """Central differences of a number that is a `function` of a float64 `array`."""
    found = np.empty_like(array)
    for place in np.ndindex(array.shape):
        up, down = array.copy(), array.copy()
        up[place] += by
        down[place] -= by
        found[place] = (function(up) - function(down)) / (2 * by)
    return found


def check_against(head, losses, context=None):
    """Loss and gradients of a `head` with reduction 'none' on the batch above are those of loops.

    Rows that no gradient reaches by the loops must not have one that is not 0.
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

        want = slope(total, values[i])
        np.testing.assert_allclose(grad.numpy(), want, rtol=1e-4, atol=1e-5)
