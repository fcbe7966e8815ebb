"""m ranks compute the same as one process that emulates m shards.

Losses, encoder, every row and every number of optimizer state, step after step, to float32
rounding, at sizes that divide nothing.
"""

import pytest
import torch
from ranks import run_ranks

from tapas import LocalTable, Priority, ShardedTable, Squashed, TapasSoftmax, Top
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.rng import stream

C, D, STEPS = 103, 5, 4
COUNTS = [1 + 400 // (c + 1) for c in range(C)]
SETTINGS = {  # the number of targets, and options of the head and of the table
    "priority": (3, {"num_samples": 23, "presample_factor": 3}, {}),
    "few score": (
        1,
        {"num_samples": 19, "presample_factor": 4, "selection": Priority(score_queries=5)},
        {"row_optimizer": Adagrad.fused(lr=0.2, weight_decay=0.01)},
    ),
    "top": (
        3,
        {"num_samples": 13, "presample_factor": 3, "selection": Top(), "temperature": 0.7},
        {"row_optimizer": LazyAdam.fused(lr=0.03)},
    ),
    "no second pass": (
        1,
        {"num_samples": 37, "presample_factor": 1},
        {"row_optimizer": SGD.fused(lr=0.3)},
    ),
    "whole pool, tiny keep": (1, {"num_samples": 4, "presample_factor": 90}, {}),
    "contiguous": (
        3,
        {"num_samples": 7, "presample_factor": 2},
        {"placement": "contiguous", "bias": False},
    ),
    "sum": (
        3,
        {"num_samples": 23, "presample_factor": 3, "reduction": "sum"},
        {"bias": torch.linspace(-2, 1, C)},
    ),
}


def examples(step, num_targets):
    """The global batch of `step`: 17 inputs with several weighted targets and padding."""
    generator = stream(5, "batch", step)
    x = torch.randn(17, D, generator=generator)
    target = torch.randint(0, C, (17, num_targets), generator=generator)
    weight = torch.rand(17, num_targets, generator=generator)
    if num_targets > 1:
        target[:, 1:][torch.rand(17, num_targets - 1, generator=generator) < 0.3] = -100
        target[3] = -100  # an example without any target
        weight = weight.masked_fill(target == -100, 0.0)
    return x, target, weight


def cut(num_ranks, rank, step):
    """Parts of different sizes; in one step rank 0 has none, in another the last rank."""
    bounds = [0, *(int(17 * (r + 1) / num_ranks + r % 2) for r in range(num_ranks - 1)), 17]
    if num_ranks > 1 and step == 1:
        bounds[1] = 0
    if num_ranks > 1 and step == 2:
        bounds[-2] = 17
        bounds = [min(b, 17) for b in bounds]
    return slice(bounds[rank], bounds[rank + 1])


def an_encoder():
    encoder = torch.nn.utils.skip_init(torch.nn.Linear, D, D)  # without torch's global random state
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream(0, "encoder")) / 3)
    return encoder


def train(name, kind, part, *, wrap=lambda encoder: encoder, scale=1.0, **options):
    """Table, encoder and losses after some steps with this rank's `part` of each batch."""
    num_targets, head_options, table_options = SETTINGS[name]
    options |= {"row_optimizer": RowwiseAdagrad.fused(lr=0.1)} | table_options
    table, encoder = kind(C, D, seed=3, **options), wrap(an_encoder())
    head = TapasSoftmax(table=table, proposal=Squashed(COUNTS), seed=3, **head_options)
    losses = []
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for step in range(STEPS):
        x, target, weight = examples(step, num_targets)
        mine = part(step)
        loss = head(encoder(x[mine]), target[mine], weight[mine])
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        (loss * scale).backward()
        optimizer.step()
    return table, encoder, losses


def on_ranks(ranks):
    answers = {}
    for name in SETTINGS:
        table, encoder, losses = train(
            name,
            ShardedTable,
            lambda step: cut(ranks.size, ranks.rank, step),
            wrap=torch.nn.parallel.DistributedDataParallel,
        )
        answers[name] = {
            "losses": losses,
            "rows": table.rows(torch.arange(C) if ranks.rank == 0 else torch.arange(0)),
            "state": table.row_tensors(),
            "encoder": [p.detach() for p in encoder.parameters()],
            "ids": table.placement.ids_of(ranks.rank),
        }
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_ranks_train_the_rows_of_one_process(num_ranks):
    answers = run_ranks(num_ranks, on_ranks)
    for name in SETTINGS:
        # ranks average their losses, so a sum over all examples is larger by their number
        scale = 1 / num_ranks if name == "sum" else 1.0
        table, encoder, losses = train(
            name, LocalTable, lambda step: slice(0, 17), scale=scale, num_shards=num_ranks
        )
        got = [answer[name] for answer in answers]

        def close(a, b, name=name):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5, msg=lambda m: f"{name}: {m}")

        mean = torch.tensor([one["losses"] for one in got]).mean(dim=0)
        close(mean, torch.tensor(losses) * scale)
        for one in got:
            close(one["encoder"], [p.detach() for p in encoder.parameters()])
            for key, value in table.row_tensors().items():
                close(one["state"][key], value[one["ids"]] if len(value) else value)
        close(got[0]["rows"], table.rows(torch.arange(C)))
        everyone = torch.cat([one["ids"] for one in got]).sort().values
        assert torch.equal(everyone, torch.arange(C))
