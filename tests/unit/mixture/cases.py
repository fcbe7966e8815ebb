"""Small mixtures, histories and softmaxes for the tests of this folder."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from oracle import mixture as oracle

from tapas.data.baskets import baskets_ago
from tapas.mixture import CopyPart, FollowPart, Mixture, Past, Transitions

C = 13
PARTS = (("copy",), ("follow",), ("copy", "follow"))


def transitions_of(count):
    """`Transitions` with the positive counts of `count` (C, C)."""
    rows = [np.flatnonzero(row > 0) for row in count]
    rows = [ids[np.argsort(-count[x, ids], kind="stable")] for x, ids in enumerate(rows)]
    followers = np.concatenate(rows)
    counts = np.concatenate([count[x, ids] for x, ids in enumerate(rows)])
    starts = np.append(0, np.cumsum([len(ids) for ids in rows]))
    return Transitions(
        torch.from_numpy(starts).long(),
        torch.from_numpy(followers).int(),
        torch.from_numpy(counts).float(),
    )


def mixture_of(parts, count, **numbers):
    """A mixture with `parts` whose `numbers` are set, such as copy_decay=2.0."""
    mixture = Mixture(
        copy=CopyPart() if "copy" in parts else None,
        follow=FollowPart(transitions_of(count)) if "follow" in parts else None,
    )
    for name, value in mixture.state_dict().items():
        given = numbers.get(name.replace(".", "_"))
        if given is not None:
            value.copy_(torch.as_tensor(given))
    return mixture


@dataclass
class Case:
    mixture: Mixture
    count: np.ndarray  # (C, C)
    items: list[list[int]]  # B histories
    ages: list[list[int]]
    exclude: torch.Tensor | None  # (B, E)
    logits: torch.Tensor  # (B, C)

    @property
    def past(self):
        lengths = torch.tensor([len(row) for row in self.items])
        shape = len(self.items), int(lengths.max()) + 1
        items, ages = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        for b, (row, age) in enumerate(zip(self.items, self.ages, strict=True)):
            items[b, : len(row)], ages[b, : len(row)] = torch.tensor(row), torch.tensor(age)
        return Past.of(items, lengths, ages)

    def excluded(self, b):
        return () if self.exclude is None else tuple(self.exclude[b].tolist())

    @property
    def softmax(self):
        """(B, C) log-probabilities of the softmax alone."""
        return (float(self.mixture.scale) * self.logits).log_softmax(dim=1)

    def oracle(self, b):
        """Probabilities (C,) of the mixture after history b, and its shares."""
        given = self.items[b], self.ages[b], self.logits[b].tolist()
        return oracle.mixed(self.mixture, self.count, *given, self.excluded(b))

    def best_of_softmax(self, k):
        rows = [oracle.best(row.tolist(), k, self.excluded(b)) for b, row in enumerate(self.logits)]
        return torch.tensor(rows)


@st.composite
def cases(draw, parts=None):
    """Ties, empty counts, unseen items, histories of one event, all classes excluded, ..."""
    parts = draw(st.sampled_from(PARTS)) if parts is None else parts
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.1, 0.6]))  # of pairs that were seen in training
    count = random.integers(1, 9, (C, C)) * (random.random((C, C)) < share) / 2
    batch = draw(st.integers(1, 4))
    items, ages = [], []
    for _ in range(batch):
        length = draw(st.sampled_from([1, 2, 4, 9, 14]))
        items.append(random.integers(0, draw(st.sampled_from([1, 3, C])), length).tolist())
        times = np.sort(random.integers(0, 5, length))
        ages.append(baskets_ago(times[None], np.array([length]))[0].tolist())
    exclude = None
    if (most := draw(st.sampled_from([None, 1, 3, C, C + 5]))) is not None:
        exclude = torch.from_numpy(random.integers(-1, C, (batch, most)))
        if most > C:
            exclude[0, :C] = torch.arange(C)
    gate = draw(st.sampled_from([0, 1, 4])) * random.normal(size=(len(parts), 5))
    numbers = {
        "gate": torch.from_numpy(gate),
        "scale": random.choice([0.25, 1.0, 1.5]),
        "copy_decay": random.uniform(-1, 4), "copy_log_power": random.uniform(-2, 1),
        "follow_decay": random.uniform(-1, 3), "follow_trust": random.uniform(-1, 2),
    }  # fmt: skip
    spread = draw(st.sampled_from([0, 1, 3, 40]))  # few values: many classes tie
    logits = torch.from_numpy(random.integers(-spread, spread + 1, (batch, C))).float()
    return Case(mixture_of(parts, count, **numbers), count, items, ages, exclude, logits)
