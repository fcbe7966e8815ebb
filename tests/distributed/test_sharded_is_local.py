"""The central promise: m ranks compute what one process with m virtual shards computes.

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
SETTINGS = {
    "priority": {"head": {"num_samples": 23, "presample_factor": 3}},
    "few score": {
        "head": {"num_samples": 19, "presample_factor": 4, "selection": Priority(score_queries=5)},
        "table": {"row_optimizer": Adagrad.fused(lr=0.2, weight_decay=0.01)},
    },
    "top": {
        "head": {"num_samples": 13, "presample_factor": 3, "selection": Top(), "temperature": 0.7},
        "table": {"row_optimizer": LazyAdam.fused(lr=0.03)},
    },
    "no second pass": {
        "head": {"num_samples": 37, "presample_factor": 1},
        "table": {"row_optimizer": SGD.fused(lr=0.3)},
    },
    "whole pool, tiny keep": {"head": {"num_samples": 4, "presample_factor": 90}},
    "contiguous": {
        "head": {"num_samples": 7, "presample_factor": 2},
        "table": {"placement": "contiguous", "bias": False},
    },
    "sum": {
        "head": {"num_samples": 23, "presample_factor": 3, "reduction": "sum"},
        "table": {"bias": torch.linspace(-2, 1, C)},
    },
}


def table_options(setting):
    return {"row_optimizer": RowwiseAdagrad.fused(lr=0.1)} | setting.get("table", {})


def examples(step, num_targets):
    """The global batch of `step`: 17 inputs, several weighted targets, some of them padding."""
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
    """Uneven parts; at one step rank 0 has nothing, at another the last rank."""
    bounds = [0, *(int(17 * (r + 1) / num_ranks + r % 2) for r in range(num_ranks - 1)), 17]
    if num_ranks > 1 and step == 1:
        bounds[1] = 0
    if num_ranks > 1 and step == 2:
        bounds[-2] = 17
        bounds = [min(b, 17) for b in bounds]
    return slice(bounds[rank], bounds[rank + 1])


def an_encoder():
    encoder = torch.nn.utils.skip_init(torch.nn.Linear, D, D)  # without ambient randomness
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream(0, "encoder")) / 3)
    return encoder


def train(head, encoder, num_targets, part, scale=1.0):
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
    return losses


def everything(table, shard):
    """Rows, biases and states with the ids they belong to."""
    return {k: v.clone() for k, v in shard.row_tensors().items()}


def on_ranks(ranks, names):
    answers = {}
    for name in names:
        for num_targets in (1, 3):
            setting = SETTINGS[name]
            table = ShardedTable(C, D, seed=3, **table_options(setting))
            head = TapasSoftmax(table=table, proposal=Squashed(COUNTS), seed=3, **setting["head"])
            encoder = torch.nn.parallel.DistributedDataParallel(an_encoder())
            losses = train(head, encoder, num_targets, lambda s: cut(ranks.size, ranks.rank, s))
            weight, bias = table.rows(torch.arange(C) if ranks.rank == 0 else torch.arange(0))
            answers[name, num_targets] = {
                "losses": losses,
                "rows": (weight, bias),
                "state": everything(table, table.shard),
                "encoder": [p.detach() for p in encoder.parameters()],
                "ids": table.placement.ids_of(ranks.rank),
            }
    return answers


def on_one(name, num_targets, num_shards):
    setting = SETTINGS[name]
    table = LocalTable(C, D, seed=3, num_shards=num_shards, **table_options(setting))
    head = TapasSoftmax(table=table, proposal=Squashed(COUNTS), seed=3, **setting["head"])
    encoder = an_encoder()
    # ranks average their losses; a sum over all examples is so many times that
    scale = 1 / num_shards if setting["head"].get("reduction") == "sum" else 1.0
    losses = train(head, encoder, num_targets, lambda s: slice(0, 17), scale)
    return table, encoder, losses, scale


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_ranks_end_with_the_rows_of_one_process(num_ranks):
    answers = run_ranks(num_ranks, on_ranks, list(SETTINGS))
    for name in SETTINGS:
        for num_targets in (1, 3):
            table, encoder, losses, scale = on_one(name, num_targets, num_ranks)
            got = [answer[name, num_targets] for answer in answers]
            where = f"{name}, {num_targets} targets, {num_ranks} ranks"

            def close(a, b, where=where):
                torch.testing.assert_close(
                    a, b, rtol=2e-4, atol=2e-5, msg=lambda m: f"{where}: {m}"
                )

            mean = torch.tensor([one["losses"] for one in got]).mean(dim=0)
            close(mean, torch.tensor(losses) * scale)
            for one in got:
                for a, b in zip(one["encoder"], encoder.parameters(), strict=True):
                    close(a, b.detach())
                for key, value in everything(table, table).items():
                    close(one["state"][key], value[one["ids"]] if len(value) else value)
            rows, bias = table.rows(torch.arange(C))
            close(got[0]["rows"][0], rows)
            close(got[0]["rows"][1], bias)
            everyone = torch.cat([one["ids"] for one in got]).sort().values
            assert torch.equal(everyone, torch.arange(C))
