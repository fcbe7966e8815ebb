"""Encoders wrapped in many ways, with a table on three ranks, train as in one process.

With DDP, FSDP2 and torch.compile, around the encoder or the whole model, and with an encoder
that reads its inputs from the table. Rows move by an optimizer on every rank, whose gradients are
clipped with those of the encoder, or in `backward`.
"""

import warnings

import pytest
import torch
from ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tapas import LocalTable, ShardedTable, TapasSoftmax, UsageError
from tapas.optim import Combined, RowwiseAdagrad, anchors
from tapas.rng import stream

C, D, M, BATCH, STEPS = 53, 5, 3, 17, 3
PARTS = [(5, 4, 8), (0, 13, 4), (17, 0, 0)]  # examples of each rank, for each step


class Model(torch.nn.Module):
    """Mean of the inputs' rows, two layers, the loss."""

    def __init__(self, table, *, reads_table=False):
        super().__init__()
        self.inputs = torch.nn.Parameter(draw(C, D, name="inputs"), requires_grad=not reads_table)
        self.encoder = torch.nn.Sequential(layer(0), torch.nn.Tanh(), layer(1))
        self.head = TapasSoftmax(table=table, num_samples=11, presample_factor=3, seed=1)
        self.reads_table = reads_table

    def forward(self, items, target):
        rows = self.head.table.lookup(items) if self.reads_table else self.inputs[items]
        return self.head(self.encoder(rows.mean(dim=1)), target)


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name))


def layer(number):
    linear = torch.nn.utils.skip_init(torch.nn.Linear, D, D)  # without torch's global random state
    with torch.no_grad():
        linear.weight.copy_(draw(D, D, name=f"weight {number}"))
        linear.bias.copy_(draw(D, name=f"bias {number}"))
    return linear


def whole_in_ddp(table):
    return DistributedDataParallel(Model(table))


def encoder_in_ddp(table):
    model = Model(table)
    model.inputs.requires_grad_(False)
    model.encoder = DistributedDataParallel(model.encoder)
    return model


def compiled_in_ddp(table):
    model = Model(table)
    model.inputs.requires_grad_(False)
    model.encoder = DistributedDataParallel(
        torch.compile(model.encoder, backend="eager", dynamic=True)
    )
    return model


def encoder_in_fsdp(table):
    model = Model(table)
    model.inputs.requires_grad_(False)
    mesh = init_device_mesh("cpu", (M,))
    fully_shard(model.encoder[0], mesh=mesh)
    fully_shard(model.encoder, mesh=mesh)
    return model


def whole_in_fsdp(table):
    model = Model(table)
    mesh = init_device_mesh("cpu", (M,))
    return fully_shard(model, mesh=mesh, ignored_params=anchors(model))


def reading_in_ddp(table):
    return DistributedDataParallel(Model(table, reads_table=True))


MAKES = {  # and whether one process would train the inputs, too, or read them from the table
    "the encoder in DDP": (encoder_in_ddp, False, False),
    "a compiled encoder in DDP": (compiled_in_ddp, False, False),
    "the encoder in FSDP2": (encoder_in_fsdp, False, False),
    "the whole model in DDP": (whole_in_ddp, True, False),
    "the whole model in FSDP2": (whole_in_fsdp, True, False),
    "inputs read from the table, in DDP": (reading_in_ddp, False, True),
}


def batch(step):
    generator = stream(0, "batch", step)
    items = torch.randint(0, C, (BATCH, 2), generator=generator)
    return items, torch.randint(0, C, (BATCH,), generator=generator)


def optimizer_of(model, table):
    dense = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return dense if table.row_optimizer else Combined(dense, RowwiseAdagrad(table, lr=0.1))


def train(model, table, part, *, clip):
    optimizer = optimizer_of(model, table)
    losses = []
    for step in range(STEPS):
        items, target = batch(step)
        loss = model(items[part(step)], target[part(step)])
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        if clip:  # by the norm of encoder and rows
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return losses


def dense(model):
    """All parameters except rows, unsharded, in the order of the model."""
    named = model.named_parameters()
    values = [p.detach() for name, p in named if ".table." not in name]
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in values]


WAYS = {  # a fused update, and whether gradients are clipped
    "in backward": (RowwiseAdagrad.fused(lr=0.1), False),
    "by an optimizer": (None, False),
    "by an optimizer, clipped": (None, True),
}
CASES = [(name, "in backward") for name in MAKES]
# torch cannot clip DTensors and other tensors together
CASES += [
    (name, "by an optimizer" if "FSDP2" in name else "by an optimizer, clipped") for name in MAKES
]


def on_ranks(ranks):
    answers = {}
    # what torch.compile looks at when a graph breaks
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
    for name, way in CASES:
        update, clip = WAYS[way]
        table = ShardedTable(C, D, seed=1, row_optimizer=update)
        model = MAKES[name][0](table)
        assert not any("table" in name for name, _ in model.named_buffers())

        def part(step):
            start = sum(PARTS[step][: ranks.rank])
            return slice(start, start + PARTS[step][ranks.rank])

        losses = train(model, table, part, clip=clip)
        rows = table.rows(torch.arange(C) if ranks.rank == 0 else torch.arange(0))
        answers[name, way] = losses, rows, dense(model)
    return answers


@pytest.fixture(scope="module")
def answers():
    return run_ranks(M, on_ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), CASES)
def test_rows_and_encoder_equal_those_of_one_process(answers, name, way):
    _, trains_inputs, reads_table = MAKES[name]
    update, clip = WAYS[way]
    table = LocalTable(C, D, seed=1, num_shards=M, row_optimizer=update)
    model = Model(table, reads_table=reads_table)
    model.inputs.requires_grad_(trains_inputs)
    start = table.rows(torch.arange(C))[0]
    losses = train(model, table, lambda step: slice(None), clip=clip)
    close = {"rtol": 2e-4, "atol": 2e-5}
    mean = torch.tensor([answer[name, way][0] for answer in answers]).mean(dim=0)
    torch.testing.assert_close(mean, torch.tensor(losses), **close)
    rows = table.rows(torch.arange(C))
    assert float((rows[0] - start).abs().max()) > 0.1  # they have moved
    torch.testing.assert_close(answers[0][name, way][1], rows, **close)
    for answer in answers:
        torch.testing.assert_close(answer[name, way][2], dense(model), **close)


def refused(ranks):
    """The errors on two ranks for a local table, and for an anchor sharded by FSDP."""
    errors = {}
    for name, wrap in (("alone", lambda m: m), ("DDP", DistributedDataParallel)):
        model = wrap(Model(LocalTable(C, D, seed=1)))
        with pytest.raises(UsageError) as error:
            model(*batch(0))
        errors[name] = str(error.value)
    model = Model(LocalTable(C, D, seed=1))
    with torch.no_grad():
        model(*batch(0))  # evaluation is allowed
    model.requires_grad_(False)
    model(*batch(0))
    own = Model(LocalTable(C, D, seed=1, independent_ranks=True))
    own(*batch(0)).backward()
    taken = fully_shard(Model(ShardedTable(C, D)), mesh=init_device_mesh("cpu", (ranks.size,)))
    with pytest.raises(UsageError) as error:
        taken(*batch(0))
    errors["FSDP2"] = str(error.value)
    return errors


@pytest.mark.slow
def test_a_local_table_cannot_be_trained_on_several_ranks():
    """DDP would silently keep the rows of rank 0 and drop all other updates."""
    alone = (
        "this table is in one process, but torch.distributed has 2 ranks: each would train its own "
        "rows. Share them with TapasSoftmax(table=tapas.ShardedTable(num_classes, dim), ...). If "
        "every rank should train a separate model, build the table with LocalTable(..., "
        "independent_ranks=True)."
    )
    taken = (
        "the anchor of the class rows was replaced by another parameter, as FSDP does: their "
        "gradients would be lost. Exclude it: fully_shard(model, "
        "ignored_params=tapas.optim.anchors(model))."
    )
    for errors in run_ranks(2, refused):
        assert errors == {"alone": alone, "DDP": alone, "FSDP2": taken}
