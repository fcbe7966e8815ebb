"""Binary losses, one classification per class, and self-normalisation, in plain loops.

All take the scores of all classes, `score` (B, C), `target` (B, L) padded with negative ids, and
`weight` (B, L), and return the losses (B,) in nats.
"""

import math

from oracle.selection import log_sum_exp


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def real_targets(target, weight):
    """The (class, weight) pairs of each example's targets, without padding."""
    rows = zip(target, weight, strict=True)
    return [[(int(c), float(w)) for c, w in zip(*row, strict=True) if c >= 0] for row in rows]


def one_vs_all(score, target, weight):
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        positives = {c for c, _ in mine}
        negative = sum(softplus(score[b][c]) for c in range(len(score[b])) if c not in positives)
        losses.append(sum(w * (softplus(-score[b][c]) + negative) for c, w in mine))
    return losses


def nce(score, target, weight, draws, log_q):
    """`draws` (k,) may repeat; `log_q` (C,) is the log-probability of each class as noise."""
    losses, log_k = [], math.log(len(draws))
    for b, mine in enumerate(real_targets(target, weight)):
        negative = sum(softplus(score[b][c] - log_k - log_q[c]) for c in draws)
        losses.append(
            sum(w * (softplus(-(score[b][c] - log_k - log_q[c])) + negative) for c, w in mine)
        )
    return losses


def negative_sampling(score, target, weight, draws, negatives):
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        positives = {c for c, _ in mine}
        negative = (
            sum(softplus(score[b][c]) for c in draws if c not in positives) * negatives / len(draws)
        )
        losses.append(sum(w * (softplus(-score[b][c]) + negative) for c, w in mine))
    return losses


def gbce(score, target, weight, sample, calibration):
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        positives = {c for c, _ in mine}
        alpha = len(sample) / len(score[b])
        beta = alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)
        negative = sum(softplus(score[b][c]) for c in sample if c not in positives)
        losses.append(sum(w * (beta * softplus(-score[b][c]) + negative) for c, w in mine))
    return losses


def self_normalised(score, target, weight, chosen, penalty):
    """`chosen` are the examples for which the normaliser is computed."""
    losses = []
    for b, mine in enumerate(real_targets(target, weight)):
        log_z = log_sum_exp(list(score[b]))
        ratio = len(score) / len(chosen) if b in chosen else 0.0
        normaliser = ratio * (log_z + penalty * log_z**2)
        losses.append(sum(w * (normaliser - score[b][c]) for c, w in mine))
    return losses
