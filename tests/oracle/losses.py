"""The sampled softmax loss of one example at a time, from all its logits."""

import math

from oracle.selection import log_sum_exp


def sampled_softmax(own, weight, logits, ids, log_q, target):
    """(B,) loss in nats.

    own (B, L) logits of the targets, weight (B, L), logits (B, K) of the candidates `ids`
    (K,) with `log_q` (K,), target (B, L) with negative for padding. A target counts once in
    the partition sum, however often it is listed; a candidate that is a target counts not
    at all.
    """
    losses = []
    for b in range(len(target)):
        mine = {}
        for place, class_id in enumerate(target[b]):
            if class_id >= 0:
                mine[int(class_id)] = float(own[b][place])
        terms = list(mine.values())
        for k, class_id in enumerate(ids):
            if int(class_id) not in mine:
                terms.append(float(logits[b][k]) - float(log_q[k]))
        partition = log_sum_exp(terms) if terms else -math.inf
        loss = 0.0
        for place, class_id in enumerate(target[b]):
            if class_id >= 0:
                loss += float(weight[b][place]) * (partition - float(own[b][place]))
        losses.append(loss)
    return losses
