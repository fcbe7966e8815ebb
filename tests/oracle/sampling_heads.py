"""Heads that differ in what they draw, one class and one step at a time."""

import math

from oracle.losses import sampled_softmax


def loss_of(score, target, weight, ids, log_q):
    """(B,) sampled softmax of all scores (B, C), targets (B, L) and their weights."""
    own = [[row[max(int(c), 0)] for c in mine] for row, mine in zip(score, target, strict=True)]
    kept = [[row[int(c)] for c in ids] for row in score]
    return sampled_softmax(own, weight, kept, ids, log_q, target)


class Waits:
    """Yi et al. 2019: for every class the step it was last seen in and its smoothed gap."""

    def __init__(self, rate):
        self.rate, self.last, self.gap = rate, {}, {}

    def after(self, class_id, step):
        """The gap, were the class met in `step`."""
        if class_id not in self.gap:
            return step + 1
        waited = step - self.last[class_id]
        return (1 - self.rate) * self.gap[class_id] + self.rate * waited

    def meet(self, targets, step):
        met = sorted({int(c) for c in targets if c >= 0})
        for c in met:
            self.gap[c], self.last[c] = self.after(c, step), step
        return met


def mixed_weight(chance, prob, num_samples, *, met, drawn):
    """What a class counts: `drawn` is its expected count if it was drawn, else None."""
    foreseen = 1 - (1 - prob) ** num_samples
    weight = 1 / (chance + foreseen) if met else 0.0
    if drawn is not None:
        weight += foreseen / (chance + foreseen) / drawn
    return weight


def parts(batches, num_samples):
    """[(first step, step after the last, rising classes)] of all the `batches` there are."""
    found, start, classes = [], 0, set()
    for step, batch in enumerate(batches):
        classes |= {int(c) for c in batch if c >= 0}
        if len(classes) >= num_samples:
            found.append((start, step + 1, sorted(classes)))
            start, classes = step + 1, set()
    if classes:
        found.append((start, len(batches), sorted(classes)))
    return found


def effective_sizes(logits, ids, log_q, own):
    """(A,) (sum w)^2 / sum (1 - pi) w^2 over what is not an example's own, at most len(ids)."""
    sizes = []
    for row, mine in zip(logits, own, strict=True):
        total = spread = 0.0
        for k, class_id in enumerate(ids):
            if int(class_id) not in [int(c) for c in mine]:
                weight = math.exp(float(row[k]) - float(log_q[k]))
                total += weight
                spread += (1 - math.exp(float(log_q[k]))) * weight**2
        sizes.append(min(total**2 / spread, len(ids)) if spread else len(ids))
    return sizes


class Ngrams:
    """Q(y | x) = (1 - v)(u / C + (1 - u) U(y)) + v Bi(y | x), told and refreshed by loops."""

    def __init__(self, unigram, pairs, rate):
        self.unigram, self.rate = [float(p) for p in unigram], rate
        self.rows = {}
        for x, y, count in pairs:
            self.rows.setdefault(x, {}).setdefault(y, 0.0)
            self.rows[x][y] += count
        for row in self.rows.values():
            total = sum(row.values())
            for y in row:
                row[y] /= total
        self.u = self.v = 0.5
        self.told = []

    def base(self, y):
        return self.u / len(self.unigram) + (1 - self.u) * self.unigram[y]

    def paired(self, x, y):
        row = self.rows[x]
        return row.get(y, 0.0) / sum(row.values())

    def prob(self, contexts, y):
        """The mean of Q(y | x) over a batch's contexts."""
        total = 0.0
        for x in contexts:
            known = x in self.rows
            v = self.v if known else 0.0
            total += (1 - v) * self.base(y) + (v * self.paired(x, y) if known else 0.0)
        return total / len(contexts)

    def observe(self, ids, share, contexts):
        self.told.append(([int(c) for c in ids], share, contexts))

    def refresh(self, least=(0.05, 0.001)):
        pace = 1 - (1 - self.rate) ** len(self.told)
        marginal = [0.0] * len(self.unigram)
        rows = {x: (dict.fromkeys(row, 0.0), []) for x, row in self.rows.items()}
        by_uniform = by_base = by_pairs = of_pairs = 0.0
        for ids, share, contexts in self.told:
            for a, x in enumerate(contexts):
                if x in rows:
                    rows[x][1].append(1)
                for k, y in enumerate(ids):
                    p = float(share[a][k])
                    marginal[y] += p / len(contexts)
                    paired = self.v * self.paired(x, y) if x in self.rows else 0.0
                    explained = paired / (paired + (1 - self.v) * self.base(y))
                    by_pairs += p * explained
                    of_pairs += p if x in self.rows else 0.0
                    by_base += p * (1 - explained)
                    rest = p * (1 - explained)
                    by_uniform += rest * self.u / len(self.unigram) / self.base(y)
                    if x in rows and y in rows[x][0]:
                        rows[x][0][y] += p
        total = sum(marginal)
        self.unigram = [
            (1 - pace) * old + pace * heard / total
            for old, heard in zip(self.unigram, marginal, strict=True)
        ]
        for x, (heard, times) in rows.items():
            row_pace = 1 - (1 - self.rate) ** len(times)
            for y in heard:
                mean = heard[y] / max(len(times), 1)
                self.rows[x][y] = (1 - row_pace) * self.rows[x][y] + row_pace * mean
        self.u = (1 - pace) * self.u + pace * by_uniform / by_base
        self.u = min(max(self.u, least[0]), 1 - least[0])
        if of_pairs:
            self.v = (1 - pace) * self.v + pace * by_pairs / of_pairs
            self.v = min(max(self.v, least[1]), 1 - least[1])
        self.told = []
