"""Row updates one at a time in float64, and rankings by sorting all classes."""

import math

import numpy as np
import torch


def sum_repeated(ids, grad):
    """The sum of the gradients of each distinct id, {id: gradient}."""
    total = {}
    for position, class_id in enumerate(ids):
        total[int(class_id)] = total.get(int(class_id), 0.0) + np.asarray(grad[position], float)
    return total


class SlowRows:
    """Rows (C, W) and the update formulas of all row optimizers, one row at a time."""

    def __init__(self, rows, optimizer, *, decays=True):
        self.rows = np.asarray(rows, float).copy()
        self.optimizer, self.num_updates = optimizer, 0
        self.decay = optimizer.weight_decay if decays else 0.0
        self.memory = {}

    def update(self, ids, grad):
        self.num_updates += 1
        for class_id, g in sum_repeated(ids, grad).items():
            row = self.rows[class_id]
            move = getattr(self, self.optimizer.name)
            self.rows[class_id] = row - self.optimizer.lr * move(class_id, g + self.decay * row)

    def SGD(self, class_id, g):  # noqa: N802
        return g

    def Adagrad(self, class_id, g):  # noqa: N802
        total = self.memory.get(class_id, self.optimizer.initial_sum) + g**2
        self.memory[class_id] = total
        return g / (np.sqrt(total) + self.optimizer.eps)

    def RowwiseAdagrad(self, class_id, g):  # noqa: N802
        total = self.memory.get(class_id, self.optimizer.initial_sum)
        total += sum(float(x) ** 2 for x in g) / len(g)
        self.memory[class_id] = total
        return g / (math.sqrt(total) + self.optimizer.eps)

    def LazyAdam(self, class_id, g):  # noqa: N802
        (b1, b2), t = self.optimizer.betas, self.num_updates
        mean, square = self.memory.get(class_id, (0.0, 0.0))
        mean, square = b1 * mean + (1 - b1) * g, b2 * square + (1 - b2) * g**2
        self.memory[class_id] = (mean, square)
        scale = math.sqrt(1 - b2**t) / (1 - b1**t)
        return scale * mean / (np.sqrt(square) + self.optimizer.eps)


def dense_gradients(table):
    """The queued gradients of a table as dense tensors (C, D) and (C,)."""
    weight, bias = torch.zeros(table.num_classes, table.dim), torch.zeros(table.num_classes)
    queued = table.gradients.summed()
    if queued is not None:
        for class_id, row, number in zip(*queued, strict=True):
            weight[class_id] += row
            bias[class_id] += number
    return weight, bias


def top(scores, k, exclude=None):
    """Scores and ids (B, k) of the best classes, ties by id; padded with -inf and -1."""
    values, ids = [], []
    for b, row in enumerate(scores):
        banned = set() if exclude is None else {int(e) for e in exclude[b]}
        left = [c for c in range(len(row)) if c not in banned]
        left = sorted(left, key=lambda c, row=row: (-row[c], c))[:k]
        missing = k - len(left)
        values.append([float(row[c]) for c in left] + [-math.inf] * missing)
        ids.append(left + [-1] * missing)
    return np.array(values), np.array(ids)
