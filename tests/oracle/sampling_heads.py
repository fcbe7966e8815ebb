"""Reference versions of heads that differ in what they sample, in plain loops."""

import math

from oracle.losses import sampled_softmax


def loss_of(score, target, weight, ids, log_q):
    """Sampled softmax losses (B,) from the scores of all classes, (B, C)."""
    positive = [
        [row[max(int(c), 0)] for c in mine] for row, mine in zip(score, target, strict=True)
    ]
    kept = [[row[int(c)] for c in ids] for row in score]
    return sampled_softmax(positive, weight, kept, ids, log_q, target)


class Gaps:
    """Yi et al. 2019: the last step of each class, and the smoothed gap between its steps."""

    def __init__(self, rate):
        self.rate, self.last, self.gap = rate, {}, {}

    def after(self, class_id, step):
        """The gap if the class occurs in `step`."""
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
    """The weight of a class; `drawn` is its expected count if it was drawn, else None."""
    foreseen = 1 - (1 - prob) ** num_samples
    weight = 1 / (chance + foreseen) if met else 0.0
    if drawn is not None:
        weight += foreseen / (chance + foreseen) / drawn
    return weight


def partitions(batches, num_samples):
    """[(first step, end step, sorted classes)] of the partitions of `batches`."""
    found, start, classes = [], 0, set()
    for step, batch in enumerate(batches):
        classes |= {int(c) for c in batch if c >= 0}
        if len(classes) >= num_samples:
            found.append((start, step + 1, sorted(classes)))
            start, classes = step + 1, set()
    if classes:
        found.append((start, len(batches), sorted(classes)))
    return found


def effective_sizes(logits, ids, log_q, target):
    """(sum w)^2 / sum (1 - pi) w^2 over the ids that are no targets, at most len(ids): (A,)."""
    sizes = []
    for row, mine in zip(logits, target, strict=True):
        total = spread = 0.0
        for k, class_id in enumerate(ids):
            if int(class_id) not in [int(c) for c in mine]:
                weight = math.exp(float(row[k]) - float(log_q[k]))
                total += weight
                spread += (1 - math.exp(float(log_q[k]))) * weight**2
        sizes.append(min(total**2 / spread, len(ids)) if spread else len(ids))
    return sizes


class Ngrams:
    """Q(y | x) = (1 - v)(u / C + (1 - u) U(y)) + v Bi(y | x), learned in plain loops."""

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
        self.observed = []

    def base(self, y):
        return self.u / len(self.unigram) + (1 - self.u) * self.unigram[y]

    def paired(self, x, y):
        row = self.rows[x]
        return row.get(y, 0.0) / sum(row.values())

    def prob(self, contexts, y):
        """Mean of Q(y | x) over the contexts of a batch."""
        total = 0.0
        for x in contexts:
            known = x in self.rows
            v = self.v if known else 0.0
            total += (1 - v) * self.base(y) + (v * self.paired(x, y) if known else 0.0)
        return total / len(contexts)

    def observe(self, ids, share, contexts):
        self.observed.append(([int(c) for c in ids], share, contexts))

    def refresh(self, least=(0.05, 0.001)):
        pace = 1 - (1 - self.rate) ** len(self.observed)
        marginal = [0.0] * len(self.unigram)
        rows = {x: (dict.fromkeys(row, 0.0), []) for x, row in self.rows.items()}
        by_uniform = by_base = by_pairs = of_pairs = 0.0
        for ids, share, contexts in self.observed:
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
            (1 - pace) * old + pace * new / total
            for old, new in zip(self.unigram, marginal, strict=True)
        ]
        for x, (mass, times) in rows.items():
            row_pace = 1 - (1 - self.rate) ** len(times)
            for y in mass:
                mean = mass[y] / max(len(times), 1)
                self.rows[x][y] = (1 - row_pace) * self.rows[x][y] + row_pace * mean
        self.u = (1 - pace) * self.u + pace * by_uniform / by_base
        self.u = min(max(self.u, least[0]), 1 - least[0])
        if of_pairs:
            self.v = (1 - pace) * self.v + pace * by_pairs / of_pairs
            self.v = min(max(self.v, least[1]), 1 - least[1])
        self.observed = []
