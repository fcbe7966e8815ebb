"""Reference losses of WARP, dynamic negatives and bucketed softmax, in plain loops."""

import math

import numpy as np
from oracle.selection import log_sum_exp


def real_targets(target):
    """The distinct classes of one example's `target` (L,), without padding."""
    return {int(class_id) for class_id in target if class_id >= 0}


def walk(drawn, start, block):
    """`drawn` in search order from `start`: cyclic over the blocks, and within each block."""
    num_blocks = math.ceil(len(drawn) / block)
    order = []
    for i in range(num_blocks):
        for j in range(block):
            position = (start // block + i) % num_blocks * block + (start + j) % block
            if position < len(drawn):
                order.append(int(drawn[position]))
    return order


def search(logits, target_id, positives, tries):
    """The first of `tries` that violates the margin, and the rank it estimates, or None."""
    num_tries = 0
    for class_id in tries:
        if class_id in positives:
            continue
        num_tries += 1
        if num_tries > len(logits) - len(positives):
            return None
        if logits[class_id] > logits[target_id] - 1:
            return class_id, (len(logits) - len(positives)) // num_tries
    return None


def warp(logits, target, weight, tries):
    """Losses (B,); `tries[b][l]` are the ids in the order in which they are tried."""
    losses = [0.0] * len(logits)
    for b in range(len(logits)):
        positives = real_targets(target[b])
        for column, class_id in enumerate(target[b]):
            if class_id < 0 or weight[b][column] == 0:
                continue
            found = search(logits[b], class_id, positives, tries[b][column])
            if found is not None:
                violator, rank = found
                factor = weight[b][column] * sum(1 / i for i in range(1, rank + 1))
                losses[b] += factor * (1 - logits[b][class_id] + logits[b][violator])
    return losses


def softmax_beside(logits, target, weight, kept):
    """Weighted cross-entropy (B,) over each example's targets and the classes `kept[b]`."""
    losses = []
    for b in range(len(logits)):
        terms = [float(logits[b][c]) for c in real_targets(target[b]) | set(kept[b])]
        partition = log_sum_exp(terms)
        loss = 0.0
        for column, class_id in enumerate(target[b]):
            if class_id >= 0:
                loss += weight[b][column] * (partition - float(logits[b][class_id]))
        losses.append(loss)
    return losses


def hardest(logits, target, pool, keep):
    """The `keep` classes of `pool` with the largest logits for each example, without targets."""
    kept = []
    for b in range(len(logits)):
        others = [int(c) for c in pool if int(c) not in real_targets(target[b])]
        kept.append(sorted(others, key=lambda c: -logits[b][c])[:keep])
    return kept


def buckets(query, weight, bias, mixture, num_queries, num_classes):
    """The queries and classes of each bucket; directions are `mixture` (n_b, B) @ query (B, D)."""
    mean_norm = np.mean([np.linalg.norm(row) for row in query])
    found = []
    for row in mixture:
        direction = row @ query
        members = sorted(range(len(query)), key=lambda b: -(direction @ query[b]))[:num_queries]
        direction = direction / np.linalg.norm(direction) * mean_norm
        score = weight @ direction + bias
        classes = sorted(range(len(weight)), key=lambda c: -score[c])[:num_classes]
        found.append((members, classes))
    return found


def softmax_in_buckets(logits, target, weight, found):
    """The largest loss of each example over its buckets, (B,); 0 for one in no bucket."""
    losses = []
    for b in range(len(logits)):
        mine = [classes for members, classes in found if b in members]
        each = [softmax_beside([logits[b]], [target[b]], [weight[b]], [ids])[0] for ids in mine]
        losses.append(max(each, default=0.0))
    return losses
