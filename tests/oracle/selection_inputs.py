"""Random inputs of second-pass rules."""

import torch

from tapas.rng import stream
from tapas.selection import SelectionInput


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


def make_selection_input(num_queries, dim, size, *, seed=0, **options):
    """A `SelectionInput` with A queries and P classes; `options` replace its fields.

    `seed` is that of the noise.
    """
    weight, bias = draw(size, dim, name="rows"), draw(size, name="bias")
    defaults = {
        "ids": torch.arange(size) * 3,
        "log_q": -draw(size, name="log_q").abs(),
        "rows": lambda start, stop: (weight[start:stop], bias[start:stop]),
        "query": draw(num_queries, dim, name="query"),
        "target": torch.randint(-1, size, (num_queries, 4), generator=stream(0, "own")) * 3,
        "complete": True,
        "temperature": 1.0,
        "noise": 1 - torch.rand(size, generator=stream(seed, "noise")),
    }
    return SelectionInput(**(defaults | options))
