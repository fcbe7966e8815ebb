"""The second pass in plain float64 loops: scores, shares, kept classes and their weights."""

import math

import numpy as np
import torch

from tapas.rng import new_key, philox


def logit(query, weight, bias):
    """(A, P) logits, one dot product at a time."""
    out = np.zeros((len(query), len(weight)))
    for a in range(len(query)):
        for y in range(len(weight)):
            dot = sum(float(q) * float(w) for q, w in zip(query[a], weight[y], strict=True))
            out[a, y] = dot + float(bias[y])
    return out


def log_sum_exp(values):
    peak = max(values)
    return peak + math.log(sum(math.exp(v - peak) for v in values))


def top_scores(logits, temperature):
    """score_y = log sum_a exp(logit_ay / tau), where the logit includes the bias."""
    return [log_sum_exp([row[y] / temperature for row in logits]) for y in range(logits.shape[1])]


def keep_largest(score, keep):
    """Positions of the `keep` largest scores, sorted; of equal scores the first are kept."""
    order = sorted(range(len(score)), key=lambda position: (-score[position], position))
    return sorted(order[:keep])


def shares(logits, ids, log_q, target, temperature):
    """Mean over queries of softmax((logit - log_q) / tau) over non-targets, (P,)."""
    num_queries, size = logits.shape
    total = np.zeros(size)
    for a in range(num_queries):
        mine = {int(t) for t in target[a] if t >= 0}
        others = [y for y in range(size) if int(ids[y]) not in mine]
        if not others:
            continue
        raw = {y: (logits[a, y] - float(log_q[y])) / temperature for y in others}
        norm = log_sum_exp(list(raw.values()))
        for y in others:
            total[y] += math.exp(raw[y] - norm)
    return total / num_queries


def priority(share, noise, keep, floor):
    """Kept positions, sorted, and their weights max(1, t / g): Duffield, Lund, Thorup 2007."""
    size = len(share)
    g = [max((1 - floor) * float(s) + floor / size, 1e-30) for s in share]
    rank = [g[y] / float(noise[y]) for y in range(size)]
    threshold = sorted(rank, reverse=True)[keep]
    kept = keep_largest(rank, keep)
    return kept, [max(1.0, threshold / g[y]) for y in kept]


def noise(generator, size):
    """The noise of a second pass in which all queries score: 24 bits of each number of a key."""
    numbers = philox(new_key(generator), size)
    return torch.tensor([1 - int(number >> np.uint64(40)) / 2**24 for number in numbers]).float()
