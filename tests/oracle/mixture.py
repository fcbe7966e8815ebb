"""Counting parts and their mixture with a softmax, by loops over events and classes."""

import math

import numpy as np

RECENT = 10  # latest events whose followers are looked up


def transitions(items, times, offsets, end, num_classes, *, window=5, backward=0.25):
    """Counts (C, C) of followers (columns) of items (rows), by event and by distance."""
    count = np.zeros((num_classes, num_classes))
    for first, stop in zip(offsets[:-1], end, strict=True):
        for event in range(first, stop):
            later = [e for e in range(event + 1, stop) if times[e] > times[event]]
            for distance, other in enumerate(later[:window], start=1):
                count[items[event], items[other]] += 1 / distance
                count[items[other], items[event]] += backward / distance
    return count


def copy(items, ages, num_classes, *, decay, power, excluded=()):
    """Probabilities (C,) of the items of one history; all 0 if there are none."""
    weight = np.zeros(num_classes)
    for item, age in zip(items, ages, strict=True):
        if item not in excluded:
            weight[item] += age**-decay
    weight[weight > 0] **= power
    return weight / weight.sum() if weight.any() else weight


def follow(items, ages, count, *, decay, trust, excluded=()):
    """Probabilities (C,) of what follows the latest of `items`, and c(x_k) of each of these."""
    prob, total_weight, totals = np.zeros(len(count)), 0.0, []
    latest = list(zip(items, ages, strict=True))[-RECENT:]
    for item, age in reversed(latest):
        row = count[item].copy()
        row[[c for c in excluded if c >= 0]] = 0.0
        totals.append(row.sum())
        if totals[-1] > 0:
            weight = math.exp(-decay * (age - 1)) * (1 + totals[-1]) ** trust
            total_weight += weight
            prob += weight * row / totals[-1]
    return (prob / total_weight if total_weight else prob), totals


def softmax(logits, scale=1.0):
    """Probabilities of `logits` times `scale`."""
    value = np.exp(scale * (np.asarray(logits, float) - np.max(logits)))
    return value / value.sum()


def mixed(mixture, count, items, ages, logits, excluded=()):
    """Probabilities (C,) of `mixture` after one history, and its shares (1 + parts).

    `count` (C, C) is what the follow part has counted. Only the numbers of `mixture` are used.
    """
    num_classes, parts, features = len(logits), [], [1.0, 0.0, 0.0, math.log(len(items)) - 2, 0.0]
    if mixture.copy is not None:
        decay, power = float(mixture.copy.decay), math.exp(float(mixture.copy.log_power))
        parts.append(copy(items, ages, num_classes, decay=decay, power=power, excluded=excluded))
        features[4] = 1 - len(set(items)) / len(items)
    if mixture.follow is not None:
        numbers = {"decay": float(mixture.follow.decay), "trust": float(mixture.follow.trust)}
        prob, totals = follow(items, ages, count, **numbers, excluded=excluded)
        parts.append(prob)
        features[1], features[2] = math.log(1 + totals[0]), math.log(1 + max(totals))
    weight = [1.0]
    for row, prob in zip(mixture.gate.tolist(), parts, strict=True):
        weight.append(math.exp(np.dot(row, features)) if prob.any() else 0.0)
    share = np.array(weight) / sum(weight)
    every = [softmax(logits, float(mixture.scale)), *parts]
    return sum(g * prob for g, prob in zip(share, every, strict=True)), share


def best(prob, k, excluded=()):
    """The k classes of highest probability, ties by id; -1 if there are no more."""
    left = sorted((c for c in range(len(prob)) if c not in excluded), key=lambda c: (-prob[c], c))
    return (left + [-1] * k)[:k]
