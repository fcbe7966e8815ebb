"""Log-probabilities of trees and clusters, one class at a time, in float64."""

import heapq
import math

import numpy as np
from oracle.selection import log_sum_exp


def code_length(counts):
    """The smallest sum of count * depth over the classes of any binary tree."""
    heap = [int(count) for count in counts]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


def codes(down):
    """The path from the root to each class, such as "010", of the children `down` (C - 1, 2)."""
    found, waiting = {}, [(0, "")]
    while waiting:
        node, path = waiting.pop()
        for side in (0, 1):
            child = int(down[node][side])
            if child >= len(down):
                found[child - len(down)] = path + str(side)
            else:
                waiting.append((child, path + str(side)))
    return found


def dot(query, row, bias):
    return sum(float(a) * float(b) for a, b in zip(query, row, strict=True)) + float(bias)


def log_sigmoid(x):
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


def tree_log_probs(query, down, weight, bias):
    """Log-probabilities (B, C): each node goes left with sigmoid(x), right with sigmoid(-x)."""
    paths = codes(down)
    out = np.zeros((len(query), len(down) + 1))
    for b in range(len(query)):
        for class_id, path in paths.items():
            node = 0
            for side in path:
                x = dot(query[b], weight[node], bias[node])
                out[b, class_id] += log_sigmoid(-x if side == "1" else x)
                node = int(down[node][int(side)])
    return out


def log_softmax(query, weight, bias):
    """Log-probabilities (N,) for one query."""
    logit = [dot(query, row, b) for row, b in zip(weight, bias, strict=True)]
    total = log_sum_exp(logit)
    return [x - total for x in logit]


def clustered_log_probs(query, members, first, inner):
    """Log-probabilities (B, C) of classes in clusters; `members` has the ids of each cluster.

    `first(query)` returns the log-probabilities of the clusters, `inner(g, query)` those of the
    members of cluster g, given g.
    """
    out = np.zeros((len(query), sum(len(ids) for ids in members)))
    for b in range(len(query)):
        clusters = first(query[b])
        for g, ids in enumerate(members):
            for class_id, value in zip(ids, inner(g, query[b]), strict=True):
                out[b, class_id] = clusters[g] + value
    return out


def weighted_loss(log_probs, target, weight):
    """Sum of weight * -log p over the targets of each example, (B,); negative is padding."""
    losses = []
    for b in range(len(target)):
        loss = 0.0
        for column, class_id in enumerate(target[b]):
            if class_id >= 0:
                loss -= float(weight[b][column]) * log_probs[b][int(class_id)]
        losses.append(loss)
    return losses
