"""The sampled softmax loss, one example at a time, from its definition."""

import math

from oracle.selection import log_sum_exp


def sampled_softmax(positive, weight, logits, ids, log_q, target):
    """Losses (B,) in nats.

    positive (B, L) are the logits of the targets, weight (B, L) their weights, logits (B, K) those
    of the candidates `ids` (K,) with `log_q` (K,), target (B, L) padded with negative ids. In the
    partition sum each distinct target counts once; candidates that are targets are left out.
    """
    losses = []
    for b in range(len(target)):
        mine = {}
        for column, class_id in enumerate(target[b]):
            if class_id >= 0:
                mine[int(class_id)] = float(positive[b][column])
        terms = list(mine.values())
        for k, class_id in enumerate(ids):
            if int(class_id) not in mine:
                terms.append(float(logits[b][k]) - float(log_q[k]))
        partition = log_sum_exp(terms) if terms else -math.inf
        loss = 0.0
        for column, class_id in enumerate(target[b]):
            if class_id >= 0:
                loss += float(weight[b][column]) * (partition - float(positive[b][column]))
        losses.append(loss)
    return losses
