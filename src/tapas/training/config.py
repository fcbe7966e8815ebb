"""The configuration of a training run: frozen dataclasses, read from TOML and flags.

A TOML file has one table for each section below; flags override it. Unknown names are errors
that suggest the closest known name.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.errors import UsageError, choice
from tapas.heads import FlatHead, Head, known_methods, method_class
from tapas.heads.facts import check_options
from tapas.heads.own_method import is_own
from tapas.json_toml import parse_toml
from tapas.mixture.follow_part import RECENT
from tapas.regular_file import read_given
from tapas.rng import check_seed

JSON = str | int | float | bool | None | list[str]
RENAMED = {"model": {"repeats": "copy"}}  # by section: names of earlier versions


MOST = 2**31 - 1  # of counts: many more than any machine can hold
MOST_STEPS = 10**15
MOST_PROCESSES = 100_000
PAST_EVENTS = 1_000  # of a history that a model with model.copy counts


def one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    choice(name, value, dict.fromkeys(options))


def at_least(name: str, value: int, least: int, most: int = MOST) -> None:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, got {value}.")
    if value > most:
        raise UsageError(f"{name} must be at most {most:,}, got {value:,}.")


def within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is not
        raise UsageError(f"{name} must be between {low:g} and {high:g}, got {value!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadConfig:
    """The training method and its targets.

    `options` are those of the method, checked against its class and completed by its defaults.
    In a TOML file they are listed in [head] like all others.
    """

    method: str = "tapas"  # training method; `tapas compare --list` prints all of them
    options: Mapping[str, JSON] = field(default_factory=dict, hash=False)  # options of the method
    next_items: int = 5  # number of next items to predict at each position
    target_decay: float = 1.0  # weight of each target relative to the one before it
    positions: str = "all"  # predict at "all" baskets of a window, or only at the "last"

    def __post_init__(self) -> None:
        method_class(self.method)
        checked = check_options(self.method, self.options, known_methods())
        object.__setattr__(self, "options", checked)
        at_least("head.next_items", self.next_items, 1)
        within("head.target_decay", self.target_decay, 1e-6, 1)
        one_of("head.positions", self.positions, ("all", "last"))

    @classmethod
    def of(cls, /, **table: JSON) -> "HeadConfig":
        """Build a HeadConfig from the table [head], which also contains the options.

        >>> HeadConfig.of(method="nce", num_samples=50, next_items=1).options["num_samples"]
        50
        """
        shared = {f.name: f.type for f in fields(cls) if f.name != "options"}
        kind = method_class(str(table.get("method", "tapas")))
        for name in table:
            if not any(name in other.options for other in known_methods().values()):
                choice("name in [head]", name, {**shared, **kind.options})
        options = {name: value for name, value in table.items() if name not in shared}
        rest = {n: _typed(f"head.{n}", v, shared[n]) for n, v in table.items() if n in shared}
        return cls(options=options, **rest)

    def as_table(self) -> dict[str, JSON]:
        """The inverse of `of`."""
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "options"}
        return {"method": self.method, **self.options, **shared}

    def with_options(self, **changes: JSON) -> "HeadConfig":
        return dataclasses.replace(self, options={**self.options, **changes})

    @property
    def kind(self) -> type[Head]:
        """The class of the method."""
        return method_class(self.method)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The encoder and its input vectors."""

    encoder: str = "gru"  # encoder of the history: "mean", "gru" or "transformer"
    dim: int = 64  # dimensions of class vectors and queries
    history: int = 50  # how many of the latest items the encoder reads
    layers: int = 1  # layers of the GRU or transformer
    attention_heads: int = 2  # attention heads of the transformer
    dropout: float = 0.0  # dropout rate of the encoder
    inputs: str = "own"  # input vectors of the encoder: its "own", or "shared" with the softmax
    copy: bool = False  # also offer the items of the history, by how often and how recent
    follow: bool = False  # also offer what followed the latest items in training, as counted
    dtype: str = "float32"  # number type of class and input vectors: "float32" or "bfloat16"

    def __post_init__(self) -> None:
        one_of("model.encoder", self.encoder, ("mean", "gru", "transformer"))
        one_of("model.inputs", self.inputs, ("own", "shared"))
        one_of("model.dtype", self.dtype, ("float32", "bfloat16"))
        for name, most in (("dim", MOST), ("history", MOST), ("layers", 1_000)):
            at_least(f"model.{name}", getattr(self, name), 1, most)
        at_least("model.attention_heads", self.attention_heads, 1)
        within("model.dropout", self.dropout, 0, 0.95)

    @property
    def reads(self) -> int:
        """How many of the latest events a model reads: the encoder, or the counting parts."""
        counted = PAST_EVENTS if self.copy else RECENT if self.follow else 0
        return max(self.history, counted)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """The optimizers of the class vectors (rows) and of the encoder."""

    rows: str = "rowwise-adagrad"  # optimizer of the class vectors; or adagrad, lazy-adam, sgd
    rows_lr: float = 0.1  # learning rate of the class vectors
    encoder: str = "adamw"  # optimizer of the encoder: "adamw" or "adagrad"
    encoder_lr: float = 0.002  # learning rate of the encoder
    warmup: float = 0.0  # share of the steps over which both learning rates rise from 0
    schedule: str = "constant"  # then they are "constant", or fall to 0 along a "cosine"
    weight_decay: float = 0.0  # weight decay of both optimizers
    clip: float | None = 1.0  # largest gradient norm of the encoder

    def __post_init__(self) -> None:
        one_of("optimizer.rows", self.rows, ("rowwise-adagrad", "adagrad", "lazy-adam", "sgd"))
        one_of("optimizer.encoder", self.encoder, ("adamw", "adagrad"))
        within("optimizer.rows_lr", self.rows_lr, 1e-12, 1e6)
        within("optimizer.encoder_lr", self.encoder_lr, 1e-12, 1e6)
        within("optimizer.warmup", self.warmup, 0, 1)
        one_of("optimizer.schedule", self.schedule, ("constant", "cosine"))
        within("optimizer.weight_decay", self.weight_decay, 0, 1e6)
        if self.clip is not None:
            within("optimizer.clip", self.clip, 1e-12, 1e12)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """The training loop: length, evaluation, checkpoints, device."""

    epochs: float = 10.0  # passes over the training data
    steps: int | None = None  # number of steps, instead of epochs
    batch: int = 64  # windows of histories in a step
    evaluate_every: int | None = None  # steps between evaluations; default: a tenth of the run
    patience: int = 3  # stop after this many evaluations without a better MAP@20
    validation_examples: int = 2_000  # validation points in an evaluation, a fixed random sample
    checkpoint_seconds: float = 60.0  # longest time without a checkpoint; evaluations save one, too
    keep: int = 2  # how many of the newest checkpoints to keep, besides the best
    device: str = "cpu"  # torch device, such as "cpu" or "cuda"
    precision: str = "float32"  # number type of the encoder: "float32" or "bfloat16"
    peer_seconds: float = 120.0  # give up on a rank or server that is silent for this long
    exclude_seen: bool = False  # leave out items that the user had before, from lists and targets
    seed: int = 0  # seed of all random draws

    def __post_init__(self) -> None:
        within("loop.epochs", self.epochs, 1e-9, 1e9)
        for name in ("steps", "evaluate_every"):
            if getattr(self, name) is not None:
                at_least(f"loop.{name}", getattr(self, name), 1, MOST_STEPS)
        for name in ("batch", "patience", "validation_examples", "keep"):
            at_least(f"loop.{name}", getattr(self, name), 1)
        check_seed(self.seed, "loop.seed")
        within("loop.checkpoint_seconds", self.checkpoint_seconds, 0, 1e9)
        within("loop.peer_seconds", self.peer_seconds, 0.1, 1e6)
        one_of("loop.precision", self.precision, ("float32", "bfloat16"))
        if self.device.startswith("meta"):
            raise UsageError("loop.device is 'meta', whose tensors have no data. Try 'cpu'.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceConfig:
    """Workers and servers. Without servers, this process or the ranks of torchrun train."""

    servers: int = 0  # server processes that keep the class vectors
    workers: int = 1  # worker processes that compute gradients
    max_staleness: int | None = None  # earlier steps whose updates a step may miss; 0: synchronous
    start_seconds: float = 600.0  # time limit for a process to start and load its class vectors

    def __post_init__(self) -> None:
        at_least("service.servers", self.servers, 0, MOST_PROCESSES)
        at_least("service.workers", self.workers, 1, MOST_PROCESSES)
        within("service.start_seconds", self.start_seconds, 1, 1e6)
        if self.max_staleness is not None:
            at_least("service.max_staleness", self.max_staleness, 0)
        if not self.servers and (self.workers > 1 or self.max_staleness is not None):
            raise UsageError(
                "service.workers and service.max_staleness need servers, but service.servers is "
                "0. Add --servers 2, for example."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """The complete configuration of a run; on one machine, it determines the model exactly."""

    log: LogSource
    split: SplitConfig = field(default_factory=SplitConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    service: ServiceConfig = field(default_factory=ServiceConfig)

    def __post_init__(self) -> None:
        kind, method, options = self.head.kind, self.head.method, self.head.options
        has_rows = issubclass(kind, FlatHead)
        if self.service.servers and is_own(method):
            raise UsageError(
                f"the workers on Ray cannot import '{method}', a method of your own: train it in "
                "one process or with torchrun, without --servers."
            )
        if self.service.servers and (kind.learns_state or not has_rows):
            what = "learns state besides its rows" if has_rows else "has no rows for servers"
            raise UsageError(
                f"the method '{method}' {what}: train it in one process, without --servers."
            )
        if self.service.servers and options.get("proposal") == "bigram":
            raise UsageError(
                "head.proposal 'bigram' is counted from the full log, which workers do not read: "
                "use 'squashed', or train without --servers."
            )
        if self.model.dtype != "float32" and not has_rows:
            raise UsageError(
                f"model.dtype is '{self.model.dtype}', but the method '{method}' has no class "
                "vectors of its own to store in it. Use 'float32'."
            )
        if self.model.inputs == "shared" and not has_rows:
            raise UsageError(
                f"model.inputs is 'shared', but the method '{method}' has no class vectors to "
                "share. Use 'own'."
            )


_TYPES: dict[str, Any] = {
    "log": LogSource,
    "split": SplitConfig,
    "model": ModelConfig,
    "head": HeadConfig,
    "optimizer": OptimizerConfig,
    "loop": LoopConfig,
    "service": ServiceConfig,
}


def read_toml(path: Path) -> dict[str, dict[str, JSON]]:
    """Read the tables of a TOML file; only the names of sections are checked."""
    try:
        document = parse_toml(read_given(path).decode())
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}.") from error
    for name, table in document.items():
        choice(f"section of {path}", name, _TYPES)
        if not isinstance(table, dict):
            raise UsageError(f"{path}: '{name}' must be a table, [{name}], got {table!r}.")
    return document


def build_config(*layers: Mapping[str, Mapping[str, JSON]]) -> TrainConfig:
    """Merge `layers` into one checked configuration; later layers override earlier ones."""
    merged: dict[str, dict[str, JSON]] = {name: {} for name in _TYPES}
    for layer in layers:
        for section, table in layer.items():
            kind = choice("section", section, _TYPES)
            if kind is HeadConfig:  # its names depend on the method
                merged[section] |= table
                continue
            known = {f.name: f for f in fields(kind)}
            for name, value in table.items():
                choice(f"name in [{section}]", name, known, RENAMED.get(section))
                merged[section][name] = _typed(f"{section}.{name}", value, known[name].type)
    if "files" not in merged["log"]:
        raise UsageError("log.files is missing: name the files of the log.")
    head = HeadConfig.of(**merged.pop("head"))
    return TrainConfig(head=head, **{name: _TYPES[name](**t) for name, t in merged.items()})


# how others judge, by name: settings of the section that they stand in
PROTOCOLS: dict[str, dict[str, dict[str, JSON]]] = {
    "leave-one-out": {
        "log": {"ties": "file"},
        "split": {"kind": "last", "validation": 1, "test": 1},
        "head": {"next_items": 1},
        "loop": {"exclude_seen": True},
    }
}


def names_in(*layers: Mapping[str, Mapping[str, JSON]]) -> set[str]:
    """The settings that `layers` name, such as "model.dim"."""
    return {f"{section}.{name}" for layer in layers for section in layer for name in layer[section]}


def without_replaced(
    tables: Mapping[str, Mapping[str, JSON]], *layers: Mapping[str, Mapping[str, JSON]]
) -> dict[str, dict[str, JSON]]:
    """`tables` of a TOML file without what belongs to a method or split that `layers` replace.

    These are options that the new method does not have, and sizes of another kind of split.
    """
    found = {section: dict(table) for section, table in tables.items()}
    methods = known_methods()
    for layer in layers:
        method = methods.get(str(layer.get("head", {}).get("method")))
        if method is not None:
            others = {name for other in methods.values() for name in other.options}
            others -= {*method.options}
            found["head"] = {n: v for n, v in found.get("head", {}).items() if n not in others}
        split = found.get("split", {})
        if layer.get("split", {}).get("kind", split.get("kind")) != split.get("kind"):
            found["split"] = {n: v for n, v in split.items() if n not in ("validation", "test")}
    return found


def as_tables(config: TrainConfig) -> dict[str, dict[str, JSON]]:
    """The inverse of `build_config`; values of None are left out."""
    tables = dataclasses.asdict(config) | {"head": config.head.as_table()}
    return {
        name: {k: list(v) if isinstance(v, tuple) else v for k, v in table.items() if v is not None}
        for name, table in tables.items()
    }


def as_toml(config: TrainConfig) -> str:
    """The configuration as TOML, including defaults; `read_toml` reads it back."""
    lines = []
    for name, table in as_tables(config).items():
        lines += [f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def _literal(value: JSON) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        control = {c: f"\\u{ord(c):04x}" for c in escaped if ord(c) < 32 or ord(c) == 127}
        return '"' + "".join(control.get(c, c) for c in escaped) + '"'
    return repr(value)


def _typed(name: str, value: Any, wanted: Any) -> Any:
    """Return `value` if it has the annotated type; an int is accepted as a float."""
    wanted = str(wanted.__name__ if isinstance(wanted, type) else wanted)
    if wanted.startswith("tuple"):
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(value)
        raise UsageError(f"{name} must be a list of strings, got {value!r}.")
    kinds = {kind.strip() for kind in wanted.split("|")}
    if value is None and "None" in kinds:
        return None
    if isinstance(value, bool):
        fits = "bool" in kinds
    elif isinstance(value, int) and "int" not in kinds:
        fits, value = "float" in kinds, float(value)
    else:
        fits = type(value).__name__ in kinds
    if not fits:
        human = {"int": "an integer", "float": "a number", "str": "a string", "bool": "a bool"}
        want = " or ".join(human[k] for k in ("bool", "int", "float", "str") if k in kinds)
        raise UsageError(f"{name} must be {want}, got {value!r}.")
    return value
