"""Builds model, optimizer and batches from a configuration and a log."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tapas.checkpoints.files import DENSE, read_record
from tapas.data.event_log import EventLog
from tapas.data.splits import Split
from tapas.data.windows import Windows, predicting_events
from tapas.distributed import ShardedTable
from tapas.distributed.collectives import GroupRanks
from tapas.encoders import Encoder, build_encoder, num_parameters
from tapas.errors import DataError, UsageError
from tapas.heads import FlatHead
from tapas.heads.facts import BuildContext
from tapas.mixture import CopyPart, FollowPart, Mixture, count_transitions
from tapas.mixture.transitions import counting_bytes
from tapas.optim import SGD, Adagrad, LazyAdam, RowOptimizer, RowUpdate, RowwiseAdagrad, anchors
from tapas.shapes import check_device
from tapas.tables import ClassTable, LocalTable
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.tables.shard import TableSpec
from tapas.training.config import (
    ModelConfig,
    OptimizerConfig,
    ServiceConfig,
    TrainConfig,
)
from tapas.training.memory_plan import MemoryPlan, Workload, check_fits, memory_plan
from tapas.training.model import SequenceModel

EVALUATIONS = 10
KEPT_VECTORS = {"mean": 4, "gru": 16, "transformer": 40}  # for each item read, until backward
SMALL_ROWS = 0.25  # of a transformer, whose queries have a norm of 8: it learns faster so
MANY_TARGETS = 64  # of an example; if there are more, empty ones are left out
OUTPUT_TABLE, INPUT_TABLE = "model.head.table", "model.input_table"


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The training data of a run, for methods that read more of it than one batch."""

    windows: Windows | None  # None if the model is only evaluated
    log: EventLog
    train_end: NDArray[np.int64]  # (U,) end of each user's training events
    counted_end: NDArray[np.int64] | None = None  # of those that counting parts count, if others

    def upcoming(self, step: int) -> Tensor:
        """Targets (N, L) of training step `step`."""
        if self.windows is None:
            raise UsageError(
                "a partitioned vocabulary looks ahead at training batches, but this run has none."
            )
        return self.windows.batch(step).target

    def pairs(self, next_items: int) -> tuple[Tensor, Tensor, Tensor]:
        """All pairs of training: previous class, target class and their count, (P,) each.

        The previous class is the last item of a basket; the targets are the `next_items` events
        after it.
        """
        log, items = self.log, np.asarray(self.log.items, dtype=np.int64)
        end = np.repeat(self.train_end, np.diff(log.offsets))  # of each event's user
        position = np.flatnonzero(predicting_events(log.times, log.offsets, self.train_end))
        follows = position[:, None] + np.arange(1, next_items + 1)
        row, column = np.nonzero(follows < end[position][:, None])
        code = items[position[row]] * log.num_items + items[follows[row, column]]
        pair, count = np.unique(code, return_counts=True)
        previous, following = np.divmod(pair, self.log.num_items)
        return torch.from_numpy(previous), torch.from_numpy(following), torch.from_numpy(count)


MakeTable = Callable[[str, TableSpec], ClassTable]


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Everything that a trainer needs."""

    config: TrainConfig  # resolved: steps and sizes are numbers
    windows: Windows
    model: SequenceModel
    optimizer: torch.optim.Optimizer
    plan: MemoryPlan  # of the memory of this process, which it fits


def build_training(
    config: TrainConfig,
    log: EventLog,
    split: Split,
    ranks: Ranks = ONE_PROCESS,
    *,
    mixture: Mixture | None = None,
) -> TrainingSetup:
    """Build model, optimizer and batches; each of `ranks` builds its shard of the rows.

    `mixture` are counting parts of the same log that were counted before, if there are any.
    Raises UsageError if the device cannot be used or the model does not fit into memory.
    """
    config, windows = resolve_config(config, log, split)
    device = check_device("loop.device", config.loop.device)
    plan = run_memory_plan(config, split.train_counts, ranks, events=len(log.items))
    if device.type == "cpu":
        check_fits(plan)
    data = TrainingData(windows, log, split.train_end)
    model = build_model(config, split.train_counts, ranks, data=data, mixture=mixture).to(device)
    return TrainingSetup(
        config, windows, model, build_optimizer(config.optimizer, dense_parameters(model)), plan
    )


def dense_parameters(model: SequenceModel) -> dict[str, nn.Parameter]:
    """Trainable parameters outside of class tables, by name."""
    rows = anchors(model)
    named = model.named_parameters()
    return {name: p for name, p in named if p.requires_grad and p not in rows}


def resolve_config(config: TrainConfig, log: EventLog, split: Split) -> tuple[TrainConfig, Windows]:
    """Return the configuration with all defaults resolved, and the training batches."""
    longest = int(np.diff(log.offsets).max())
    next_items = min(config.head.next_items, max(longest, MANY_TARGETS))
    config = dataclasses.replace(
        config, head=dataclasses.replace(config.head, next_items=next_items)
    )
    windows = Windows(
        log.items,
        log.times,
        log.offsets,
        split.train_end,
        length=config.model.history,
        next_items=next_items,
        positions=config.head.positions,
        batch_size=config.loop.batch,
        seed=config.loop.seed,
        weights=log.weights,
    )
    config = dataclasses.replace(config, split=split.config)
    return with_defaults(config, log.num_items, windows), windows


def with_defaults(config: TrainConfig, num_classes: int, windows: Windows) -> TrainConfig:
    """`config` with numbers in place of values that were left out."""
    head, loop = config.head, config.loop
    head = head.with_options(**head.kind.resolve_options(head.options, num_classes))
    steps = loop.steps or max(1, round(loop.epochs * windows.steps_per_epoch))
    every = loop.evaluate_every or max(1, math.ceil(steps / EVALUATIONS))
    if loop.evaluate_every is None and config.optimizer.schedule == "constant":
        every = min(every, max(1, windows.steps_per_epoch))  # the best may be any of them
    loop = dataclasses.replace(
        loop, steps=steps, evaluate_every=min(every, steps), batch=windows.batch_size
    )
    service = resolve_service(config.service)
    return dataclasses.replace(config, head=head, loop=loop, service=service)


def resolve_service(service: ServiceConfig) -> ServiceConfig:
    """`service` with a number as `max_staleness` if there are servers."""
    if service.servers and service.max_staleness is None:
        # each worker computes one step while its next step waits for the servers
        return dataclasses.replace(service, max_staleness=2 * service.workers - 1)
    return service


def workload_of(
    config: TrainConfig, train_counts: NDArray[np.int64], ranks: Ranks = ONE_PROCESS
) -> Workload:
    """The workload of a resolved `config` for `memory_plan`; sizes are upper bounds."""
    positions = config.model.history if config.head.positions == "all" else 1
    model = config.model
    rows, factor = config.head.kind.rows_per_step(config.head.options, len(train_counts))
    if not rows:  # a method without samples reads only the targets of its batch
        num_targets = config.loop.batch * positions * config.head.next_items
        rows = min(num_targets, len(train_counts))
    return Workload(
        num_classes=len(train_counts),
        dim=config.model.dim,
        num_samples=rows,
        presample_factor=factor,
        batch=config.loop.batch * positions,
        targets=config.head.next_items,
        ranks=ranks.size,
        dtype=config.model.dtype,
        optimizer=config.optimizer.rows,
        inputs=config.model.inputs == "own",
        input_ids=config.loop.batch * config.model.history,
        head_classes=int((train_counts > 0).sum()),
        encoder_parameters=num_encoder_parameters(model),
    )


def run_memory_plan(
    config: TrainConfig,
    train_counts: NDArray[np.int64],
    ranks: Ranks = ONE_PROCESS,
    *,
    events: int = 0,
) -> MemoryPlan:
    """The plan of `tapas plan` plus the memory that training needs in addition."""
    model = config.model
    workload = workload_of(config, train_counts, ranks)
    plan = memory_plan(dataclasses.replace(workload, events=events))
    places = math.ceil(config.loop.batch / ranks.size) * model.history
    layers = 1 if model.encoder == "mean" else model.layers
    more = {
        "counts of classes": train_counts.nbytes,
        "encoder, a step": 4 * model.dim * places * layers * KEPT_VECTORS[model.encoder],
    }
    if model.follow:
        more["counting parts"] = counting_bytes(events, len(train_counts))
    return dataclasses.replace(plan, memory=plan.memory | more)


def table_specs(config: TrainConfig, num_classes: int) -> dict[str, TableSpec]:
    """The tables of a model by their names in checkpoints, with one shard for each server."""
    dim, seed = config.model.dim, config.loop.seed
    spec = TableSpec(
        num_classes,
        dim,
        max(1, config.service.servers),
        build_row_optimizer(config.optimizer),
        seed=seed,
        dtype=getattr(torch, config.model.dtype),
        row_scale=SMALL_ROWS if config.model.encoder == "transformer" else 1.0,
    )
    specs = {OUTPUT_TABLE: spec} if issubclass(config.head.kind, FlatHead) else {}
    if config.model.inputs == "own":
        specs[INPUT_TABLE] = spec._replace(seed=_int64(seed + 1), has_bias=False)
    return specs


def _int64(seed: int) -> int:
    """`seed`, or the smallest ones after the largest."""
    return (seed + 2**63) % 2**64 - 2**63


def check_sizes(config: TrainConfig, num_classes: int, checkpoint: Path) -> None:
    """Raise DataError if `checkpoint` is too small for the model of `config`, before it is built.

    So a config.toml with absurd sizes does not take memory that its checkpoint does not need.
    """
    record, model = read_record(checkpoint), config.model
    least, fits = 4 * num_encoder_parameters(model), True  # bytes
    for name, spec in table_specs(config, num_classes).items():
        table = record["tables"].get(name)
        if table is None:
            least += num_classes * spec.dim
        else:
            fits = fits and (table["num_classes"], table["dim"]) == (num_classes, spec.dim)
    if not fits or least > record["files"][DENSE]["bytes"]:
        raise DataError(
            f"{checkpoint} does not have the sizes of its run: {num_classes:,} items, model.dim "
            f"{model.dim}, model.layers {model.layers}. Correct config.toml, or restore the run "
            "from another copy."
        )


def build_model(
    config: TrainConfig,
    train_counts: NDArray[np.int64],
    ranks: Ranks = ONE_PROCESS,
    *,
    make: MakeTable | None = None,
    data: TrainingData | None = None,
    mixture: Mixture | None = None,
    to_load: bool = False,
) -> SequenceModel:
    """Build the model. Its tables are local, or sharded over `ranks`, or built by `make`.

    `data` is the training data, for methods that read it and for counting parts, unless these are
    given as `mixture`. With `to_load`, rows are to be read and not trained: they have no
    optimizer, and local ones no values (device "meta") until `load_model_state` gives them those
    of a checkpoint.
    """
    check_ranks(config, ranks)
    num_classes, dim, seed = len(train_counts), config.model.dim, config.loop.seed
    rows = None if to_load else build_row_optimizer(config.optimizer)

    def make_here(name: str, spec: TableSpec) -> ClassTable:
        bias = spec.has_bias and bias_from_counts(train_counts)
        table: ClassTable
        if not isinstance(ranks, GroupRanks):
            table = LocalTable(
                num_classes,
                spec.dim,
                row_optimizer=rows,
                dtype=spec.dtype,
                bias=bias,
                seed=spec.seed,
                device="meta" if to_load else None,
            )
        else:
            table = ShardedTable(
                num_classes,
                spec.dim,
                row_optimizer=rows,
                dtype=spec.dtype,
                bias=bias,
                seed=spec.seed,
                group=ranks,
            )
        with torch.no_grad():
            table.state_dict()["weight"].mul_(spec.row_scale)
        return table

    specs = table_specs(config, num_classes)
    tables = {name: (make or make_here)(name, spec) for name, spec in specs.items()}
    head = config.head.kind.from_options(
        config.head.options,
        BuildContext(
            counts=torch.from_numpy(train_counts),
            dim=dim,
            seed=seed,
            steps=config.loop.steps or 1,
            row_optimizer=rows,
            table=tables.get(OUTPUT_TABLE),
            pairs=None if data is None else partial(data.pairs, config.head.next_items),
            upcoming=None if data is None else data.upcoming,
        ),
    )
    half = config.loop.precision == "bfloat16"
    return SequenceModel(
        encoder_of(config.model, seed),
        head,
        inputs=tables.get(INPUT_TABLE),
        encoder_dtype=torch.bfloat16 if half else torch.float32,
        target_decay=config.head.target_decay,
        mixture=build_mixture(config.model, data) if mixture is None and data else mixture,
        history=config.model.history,
    )


def build_mixture(config: ModelConfig, data: TrainingData) -> Mixture | None:
    """The counting parts of a model, which count the events of `data`."""
    if not config.copy and not config.follow:
        return None
    log, follow = data.log, None
    if config.follow:
        end = data.train_end if data.counted_end is None else data.counted_end
        arrays = log.items, log.times, log.offsets, end
        follow = FollowPart(count_transitions(*arrays, log.num_items))
    return Mixture(copy=CopyPart() if config.copy else None, follow=follow)


def bias_from_counts(train_counts: NDArray[np.int64]) -> torch.Tensor:
    """Initial biases (C,): log frequencies of the classes in training, with add-one smoothing."""
    counts = torch.from_numpy(train_counts).double().add_(1)
    return counts.div_(counts.sum()).log_().float()


def num_encoder_parameters(model: ModelConfig) -> int:
    """The number of parameters of `encoder_of`, without building it."""
    heads = model.attention_heads
    return num_parameters(model.encoder, model.dim, layers=model.layers, attention_heads=heads)


def encoder_of(config: ModelConfig, seed: int) -> Encoder:
    return build_encoder(
        config.encoder,
        config.dim,
        history=config.history,
        layers=config.layers,
        attention_heads=config.attention_heads,
        dropout=config.dropout,
        seed=seed,
    )


def build_row_optimizer(config: OptimizerConfig) -> RowUpdate:
    kinds: dict[str, type[RowOptimizer]] = {
        "rowwise-adagrad": RowwiseAdagrad,
        "adagrad": Adagrad,
        "lazy-adam": LazyAdam,
        "sgd": SGD,
    }
    return kinds[config.rows].fused(lr=config.rows_lr, weight_decay=config.weight_decay)


def check_ranks(config: TrainConfig, ranks: Ranks) -> None:
    """Raise UsageError if there are several ranks and the method cannot shard its rows."""
    if ranks.is_distributed and not issubclass(config.head.kind, FlatHead):
        raise UsageError(
            f"the method '{config.head.method}' keeps its rows in one process. Start it without "
            "torchrun."
        )


def build_optimizer(
    config: OptimizerConfig, learned: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    parameters = list(learned.values())
    kind = torch.optim.Adagrad if config.encoder == "adagrad" else torch.optim.AdamW
    return kind(
        parameters,
        lr=config.encoder_lr,
        weight_decay=config.weight_decay,
        fused=all(p.is_cpu for p in parameters) or None,  # one call instead of ten for each
    )
