"""The second pass with plain loops in float64: scores, shares, who is kept and how heavy."""

import math

import numpy as np


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
    """score_y = log sum_a exp(logit_ay / tau), the bias divided by tau like all the rest."""
    return [log_sum_exp([row[y] / temperature for row in logits]) for y in range(logits.shape[1])]


def keep_largest(score, keep):
    """Places of the `keep` largest, rising; equal scores go to the lower place."""
    order = sorted(range(len(score)), key=lambda place: (-score[place], place))
    return sorted(order[:keep])


def shares(logits, ids, log_q, own, temperature):
    """(P,) mean over queries of softmax((logit - log_q) / tau) over what is not their own."""
    num_queries, size = logits.shape
    total = np.zeros(size)
    for a in range(num_queries):
        mine = {int(t) for t in own[a] if t >= 0}
        foreign = [y for y in range(size) if int(ids[y]) not in mine]
        if not foreign:
            continue
        raw = {y: (logits[a, y] - float(log_q[y])) / temperature for y in foreign}
        norm = log_sum_exp(list(raw.values()))
        for y in foreign:
            total[y] += math.exp(raw[y] - norm)
    return total / num_queries


def priority(share, noise, keep, floor):
    """Places kept, rising, and their weights max(1, t / g): Duffield, Lund, Thorup 2007."""
    size = len(share)
    g = [max((1 - floor) * float(s) + floor / size, 1e-30) for s in share]
    rank = [g[y] / float(noise[y]) for y in range(size)]
    threshold = sorted(rank, reverse=True)[keep]
    kept = keep_largest(rank, keep)
    return kept, [max(1.0, threshold / g[y]) for y in kept]
