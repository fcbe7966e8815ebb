"""From a configuration and a log to the objects that train; the one place that builds them."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tapas.data.event_log import EventLog
from tapas.data.splits import Split
from tapas.data.windows import Windows
from tapas.encoders import Encoder, GRUEncoder, MeanEncoder, TransformerEncoder
from tapas.errors import UsageError
from tapas.heads import TapasSoftmax
from tapas.proposals import Squashed
from tapas.schedule import Anneal, Schedule
from tapas.selection import Priority, Selection, Top
from tapas.tables import (
    SGD,
    Adagrad,
    ClassTable,
    LazyAdam,
    LocalTable,
    RowOptimizer,
    RowwiseAdagrad,
    ShardedTable,
)
from tapas.training.config import HeadConfig, ModelConfig, OptimizerConfig, TrainConfig
from tapas.training.model import SequenceModel
from tapas.training.planning import Plan, Workload, check_fits, plan
from tapas.training.repeats import Repeats
from tapas.training.team import Team

MOST_SAMPLES = 1_000
EVALUATIONS = 10


@dataclass(frozen=True, slots=True)
class Parts:
    """All that a trainer needs, and the configuration with nothing left open."""

    config: TrainConfig
    windows: Windows
    model: SequenceModel
    optimizer: torch.optim.Optimizer


def build(config: TrainConfig, log: EventLog, split: Split, team: Team | None = None) -> Parts:
    """On every rank of `team` alike; each builds its part of the rows."""
    windows = Windows(
        log.items,
        log.times,
        log.offsets,
        split.train_end,
        length=config.model.history,
        next_items=config.head.next_items,
        positions=config.head.positions,
        batch_size=config.loop.batch,
        seed=config.loop.seed,
    )
    config = resolve(config, log.num_items, windows)
    device = check_device(config.loop.device)
    if device.type == "cpu":
        check_fits(plan_of(config, split.train_counts, team))
    model = build_model(config, split.train_counts, team).to(device)
    learned = [model.encoder] if model.repeats is None else [model.encoder, model.repeats]
    return Parts(config, windows, model, build_optimizer(config.optimizer, *learned))


def resolve(config: TrainConfig, num_classes: int, windows: Windows) -> TrainConfig:
    """`config` with a number wherever one was left to us."""
    head, loop = config.head, config.loop
    if head.samples is None:
        head = dataclasses.replace(head, samples=min(MOST_SAMPLES, max(1, num_classes // 8)))
    steps = loop.steps or max(1, round(loop.epochs * windows.steps_per_epoch))
    every = loop.evaluate_every or min(
        max(1, math.ceil(steps / EVALUATIONS)), max(1, windows.steps_per_epoch)
    )
    loop = dataclasses.replace(
        loop, steps=steps, evaluate_every=min(every, steps), batch=windows.batch_size
    )
    return dataclasses.replace(config, head=head, loop=loop)


def workload_of(
    config: TrainConfig, train_counts: NDArray[np.int64], team: Team | None = None
) -> Workload:
    """What `tapas plan` would be asked about a resolved `config`, at most."""
    positions = config.model.history if config.head.positions == "all" else 1
    encoder = build_encoder(config.model, config.loop.seed)
    return Workload(
        num_classes=len(train_counts),
        dim=config.model.dim,
        num_samples=config.head.samples or 1,
        presample_factor=config.head.presample,
        batch=config.loop.batch * positions,
        targets=config.head.next_items,
        ranks=team.size if team is not None else 1,
        optimizer=config.optimizer.rows,
        inputs=config.model.inputs == "own",
        input_ids=config.loop.batch * config.model.history,
        head_classes=int((train_counts > 0).sum()),
        encoder_parameters=sum(p.numel() for p in encoder.parameters()),
    )


def plan_of(config: TrainConfig, train_counts: NDArray[np.int64], team: Team | None = None) -> Plan:
    """The plan of a run: what `tapas plan` says, and what training holds beside it."""
    planned = plan(workload_of(config, train_counts, team))
    beside = {"counts of classes": train_counts.nbytes}
    if config.loop.background_saves:
        tables = ("rows", "biases", "row state", "input rows and state")
        beside["copy to be saved"] = sum(planned.memory[name] for name in tables)
    return dataclasses.replace(planned, memory=planned.memory | beside)


def build_model(
    config: TrainConfig, train_counts: NDArray[np.int64], team: Team | None = None
) -> SequenceModel:
    num_classes, dim, seed = len(train_counts), config.model.dim, config.loop.seed
    rows = build_row_optimizer(config.optimizer)

    def table(dim: int, *, bias: bool | torch.Tensor, seed: int) -> ClassTable:
        if team is None or team.ranks is None:
            return LocalTable(num_classes, dim, row_optimizer=rows, bias=bias, seed=seed)
        return ShardedTable(
            num_classes, dim, row_optimizer=rows, bias=bias, seed=seed, group=team.ranks
        )

    head = TapasSoftmax(
        table=table(dim, bias=log_frequency(train_counts), seed=seed),
        num_samples=config.head.samples or min(MOST_SAMPLES, num_classes),
        presample_factor=config.head.presample,
        temperature=_temperature(config.head, config.loop.steps or 1),
        proposal=Squashed(train_counts, alpha=config.head.alpha, beta=config.head.beta),
        selection=build_selection(config.head),
        seed=seed,
    )
    inputs = table(dim, bias=False, seed=seed + 1) if config.model.inputs == "own" else None
    repeats = None
    if config.model.repeats:
        rate = table(1, bias=False, seed=seed + 2)
        repeats = Repeats(num_classes, dim, history=config.model.history, rate=rate)
    half = config.loop.precision == "bfloat16"
    return SequenceModel(
        build_encoder(config.model, seed),
        head,
        inputs=inputs,
        encoder_dtype=torch.bfloat16 if half else torch.float32,
        target_decay=config.head.target_decay,
        repeats=repeats,
    )


def build_selection(config: HeadConfig) -> Selection:
    rule = Priority() if config.selection == "priority" else Top()
    if config.score_queries is None:
        return rule
    return dataclasses.replace(rule, score_queries=config.score_queries)


def check_device(name: str) -> torch.device:
    """The device called `name`, if torch can compute on it here."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"loop.device is '{name}', which torch cannot use here: {reason}. Try 'cpu'."
        ) from None
    return device


def log_frequency(train_counts: NDArray[np.int64]) -> torch.Tensor:
    """Where biases start: what a model that knows nothing but frequencies would say, (C,)."""
    seen = torch.from_numpy(train_counts).double().add_(1)
    return seen.div_(seen.sum()).log_().float()


def build_encoder(config: ModelConfig, seed: int) -> Encoder:
    if config.encoder == "mean":
        return MeanEncoder(config.dim, window=config.history, dropout=config.dropout, seed=seed)
    if config.encoder == "gru":
        return GRUEncoder(config.dim, num_layers=config.layers, dropout=config.dropout, seed=seed)
    return TransformerEncoder(
        config.dim,
        window=config.history,
        num_layers=config.layers,
        num_heads=config.attention_heads,
        dropout=config.dropout,
        seed=seed,
    )


def build_row_optimizer(config: OptimizerConfig) -> RowOptimizer:
    kinds: dict[str, type[RowOptimizer]] = {
        "rowwise-adagrad": RowwiseAdagrad,
        "adagrad": Adagrad,
        "lazy-adam": LazyAdam,
        "sgd": SGD,
    }
    return kinds[config.rows](lr=config.rows_lr, weight_decay=config.weight_decay)


def build_optimizer(config: OptimizerConfig, *learned: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for module in learned for parameter in module.parameters()]
    if config.encoder == "adagrad":
        return torch.optim.Adagrad(
            parameters, lr=config.encoder_lr, weight_decay=config.weight_decay
        )
    return torch.optim.AdamW(parameters, lr=config.encoder_lr, weight_decay=config.weight_decay)


def _temperature(config: HeadConfig, steps: int) -> float | Schedule:
    if config.anneal_to is None:
        return config.temperature
    return Anneal(start=config.temperature, end=config.anneal_to, steps=steps)
