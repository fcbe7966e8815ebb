"""What a training run is: frozen, checked, written beside its result.

A TOML file has one table for each section below; flags win over it. Unknown names are
errors that say what was meant.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.errors import UsageError, pick
from tapas.training.methods import METHODS, Method


def one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    pick(name, value, dict.fromkeys(options))


def at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, got {value}.")


def within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is not
        raise UsageError(f"{name} must be between {low:g} and {high:g}, got {value!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadConfig:
    """A method and its options; the last three are for all methods.

    An option that the method does not read must be left as it is: nothing is dropped in
    silence. `tapas compare --list` says which method reads what.
    """

    method: str = "tapas"
    samples: int | None = None  # n; left out: 1,000, or an eighth of few classes
    presample: int = 8  # r; 1 is sampled softmax
    selection: str = "priority"  # or "top", the paper's
    temperature: float = 1.0
    anneal_to: float | None = None  # the temperature falls to this in a straight line over the run
    score_queries: int | None = None  # queries that score; left out: 64 for priority, all for top
    proposal: str = "squashed"  # or "log-uniform" by rank, or "bigram" by what came before
    alpha: float = 0.75  # squash exponent of the training frequencies that classes are drawn by
    beta: float | None = None  # floor of squashed frequencies; left out: that of a class seen once
    rate: float = 0.01  # in-batch, mixed: at which frequencies of batches are learned
    min_ess: float = 50.0  # adaptive-importance: effective sample size that a batch shall have
    clusters: int | None = None  # two-level; left out: about the root of the number of classes
    negatives: float = 5.0  # negative-sampling: noise classes that weigh against each target
    penalty: float = 0.1  # self-normalised: of the squared log of the partition sum
    share: float = 0.1  # self-normalised: examples of a batch that are normalised
    tries: int = 1024  # warp: draws for one that violates the margin
    hardest: int = 64  # dynamic-negatives: of the samples, those that an example keeps
    bucket_classes: int = 256  # sce: classes of a bucket, the nearest among all
    calibration: float = 0.75  # gbce: t, from 0 (as sampled) to 1 (fully calibrated)
    next_items: int = 5  # targets of one position
    target_decay: float = 1.0  # weight of each further target against the one before it
    positions: str = "all"  # predict from all baskets of a stretch, or from the "last"

    def __post_init__(self) -> None:
        for name in ("samples", "score_queries", "clusters"):
            if getattr(self, name) is not None:
                at_least(f"head.{name}", getattr(self, name), 1)
        for name in ("presample", "next_items", "tries", "hardest", "bucket_classes"):
            at_least(f"head.{name}", getattr(self, name), 1)
        one_of("head.selection", self.selection, ("priority", "top"))
        one_of("head.positions", self.positions, ("all", "last"))
        one_of("head.proposal", self.proposal, ("squashed", "log-uniform", "bigram"))
        for name, low, high in (
            ("alpha", 0, 1),
            ("beta", 1e-300, 1),
            ("target_decay", 1e-6, 1),
            ("temperature", 1e-6, 1e6),
            ("anneal_to", 1e-6, 1e6),
            ("rate", 1e-9, 1),
            ("min_ess", 1, 1e9),
            ("negatives", 1e-6, 1e9),
            ("penalty", 0, 1e6),
            ("share", 1e-9, 1),
            ("calibration", 0, 1),
        ):
            if getattr(self, name) is not None:
                within(f"head.{name}", getattr(self, name), low, high)
        self._check_unread()

    @property
    def the_method(self) -> Method:
        return pick("head.method", self.method, METHODS)

    def _check_unread(self) -> None:
        read = {"method", "next_items", "target_decay", "positions", *self.the_method.options}
        for option in fields(self):
            if option.name not in read and getattr(self, option.name) != option.default:
                readers = [m.name for m in METHODS.values() if option.name in m.options]
                raise UsageError(
                    f"head.{option.name} is no option of the method '{self.method}', but of "
                    f"{', '.join(readers)}. Leave it out."
                )


JSON = str | int | float | bool | None | list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The encoder and the vectors it reads."""

    encoder: str = "gru"  # mean, gru or transformer
    dim: int = 64
    history: int = 50  # items the encoder looks back at
    layers: int = 1
    attention_heads: int = 2  # of the transformer
    dropout: float = 0.0
    inputs: str = (
        "own"  # item vectors that the encoder reads: its own, or "shared" with the softmax
    )
    repeats: bool = False  # part of the probability is copied from the history

    def __post_init__(self) -> None:
        one_of("model.encoder", self.encoder, ("mean", "gru", "transformer"))
        one_of("model.inputs", self.inputs, ("own", "shared"))
        for name in ("dim", "history", "layers", "attention_heads"):
            at_least(f"model.{name}", getattr(self, name), 1)
        within("model.dropout", self.dropout, 0, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Rows move by row optimizers, the encoder by one of torch's."""

    rows: str = "rowwise-adagrad"  # or adagrad, lazy-adam, sgd
    rows_lr: float = 0.1
    encoder: str = "adamw"  # or adagrad
    encoder_lr: float = 0.002
    weight_decay: float = 0.0
    clip: float | None = 1.0  # norm of the encoder's gradient, at most

    def __post_init__(self) -> None:
        one_of("optimizer.rows", self.rows, ("rowwise-adagrad", "adagrad", "lazy-adam", "sgd"))
        one_of("optimizer.encoder", self.encoder, ("adamw", "adagrad"))
        within("optimizer.rows_lr", self.rows_lr, 1e-12, 1e6)
        within("optimizer.encoder_lr", self.encoder_lr, 1e-12, 1e6)
        within("optimizer.weight_decay", self.weight_decay, 0, 1e6)
        if self.clip is not None:
            within("optimizer.clip", self.clip, 1e-12, 1e12)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """How long, how often, and what is kept."""

    epochs: float = 10.0
    steps: int | None = None  # instead of epochs
    batch: int = 64  # stretches of history
    evaluate_every: int | None = None  # steps; left out: ten times a run, at least once an epoch
    patience: int = 3  # evaluations without a better MAP@20 before it stops
    validation_examples: int = 2_000  # judged each time; the first of a fixed random order
    checkpoint_seconds: float = 60.0  # between checkpoints, at least one for each evaluation
    keep: int = 2  # newest checkpoints kept, beside the best
    device: str = "cpu"  # or any that torch knows, such as "cuda"
    precision: str = "float32"  # of the encoder; bfloat16 where the machine is fast at it
    peer_seconds: float = 120.0  # a rank or server that is silent for so long is given up
    exclude_seen: bool = False  # never recommend, or count, what the user has taken before
    seed: int = 0

    def __post_init__(self) -> None:
        within("loop.epochs", self.epochs, 1e-9, 1e9)
        for name in ("steps", "evaluate_every"):
            if getattr(self, name) is not None:
                at_least(f"loop.{name}", getattr(self, name), 1)
        for name in ("batch", "patience", "validation_examples", "keep"):
            at_least(f"loop.{name}", getattr(self, name), 1)
        within("loop.checkpoint_seconds", self.checkpoint_seconds, 0, 1e9)
        within("loop.peer_seconds", self.peer_seconds, 0.1, 1e6)
        one_of("loop.precision", self.precision, ("float32", "bfloat16"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceConfig:
    """Workers and servers; without servers, this process or the ranks of torchrun train."""

    servers: int = 0  # processes that keep the rows
    workers: int = 1  # processes that compute gradients
    max_staleness: int | None = None  # steps before its own that a step may miss; 0: one by one
    start_seconds: float = 600.0  # for a process to start, and to draw or load its rows

    def __post_init__(self) -> None:
        at_least("service.servers", self.servers, 0)
        at_least("service.workers", self.workers, 1)
        within("service.start_seconds", self.start_seconds, 1, 1e6)
        if self.max_staleness is not None:
            at_least("service.max_staleness", self.max_staleness, 0)
        if not self.servers and (self.workers > 1 or self.max_staleness is not None):
            raise UsageError("workers need servers to keep the rows: add --servers 2, say.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """A run, whole: equal ones on one machine give equal models."""

    log: LogSource
    split: SplitConfig = field(default_factory=SplitConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    service: ServiceConfig = field(default_factory=ServiceConfig)

    def __post_init__(self) -> None:
        method = self.head.the_method
        if self.service.servers and (method.keeps_state or not method.has_rows):
            what = "learns beside its rows" if method.has_rows else "has no rows for servers"
            raise UsageError(
                f"the method '{method.name}' {what}: train it in one process, without --servers."
            )
        if self.service.servers and self.head.proposal == "bigram":
            raise UsageError(
                "head.proposal 'bigram' is counted from the whole log, which workers do not read: "
                "use 'squashed', or train without --servers."
            )
        if self.model.inputs == "shared" and not method.has_rows:
            raise UsageError(
                f"the method '{method.name}' has no rows of classes for the encoder to share: use "
                "model.inputs 'own'."
            )
        if self.model.repeats and not method.estimates_softmax:
            raise UsageError(
                "model.repeats weighs copies against the probability that the softmax gives, which "
                f"the method '{method.name}' does not estimate. Use 'tapas', 'sampled' or 'full'."
            )
        if self.model.repeats and self.head.selection == "top" and self.head.presample > 1:
            raise UsageError(
                "model.repeats weighs copies against the probability that the softmax gives, which "
                "head.selection 'top' overestimates by design. Use 'priority'."
            )


SECTIONS = {part.name: part for part in dataclasses.fields(TrainConfig)}
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
    """The tables of a TOML file, not yet checked."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from error
    for name, table in document.items():
        pick(f"section of {path}", name, _TYPES)
        if not isinstance(table, dict):
            raise UsageError(f"{path}: '{name}' must be a table, [{name}], got {table!r}.")
    return document


def build_config(*layers: Mapping[str, Mapping[str, JSON]]) -> TrainConfig:
    """One configuration from several, later ones win; every name and value is checked."""
    merged: dict[str, dict[str, JSON]] = {name: {} for name in _TYPES}
    for layer in layers:
        for section, table in layer.items():
            known = {f.name: f for f in dataclasses.fields(pick("section", section, _TYPES))}
            for name, value in table.items():
                pick(f"name in [{section}]", name, known)
                merged[section][name] = _typed(f"{section}.{name}", value, known[name].type)
    if "text" in merged["log"]:  # the time of a word is its place: no cut in it means anything
        merged["split"].setdefault("kind", "group")
    return TrainConfig(**{name: _TYPES[name](**table) for name, table in merged.items()})


def as_tables(config: TrainConfig) -> dict[str, dict[str, JSON]]:
    """What `build_config` makes the same configuration of; None is left out."""
    return {
        name: {k: list(v) if isinstance(v, tuple) else v for k, v in part.items() if v is not None}
        for name, part in dataclasses.asdict(config).items()
    }


def as_toml(config: TrainConfig) -> str:
    """The resolved configuration, defaults included, as a file that can be passed again."""
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
    """`value` if it is of the annotated type; whole numbers are welcome as fractions."""
    wanted = str(wanted.__name__ if isinstance(wanted, type) else wanted)
    if wanted.startswith("tuple"):
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(value)
        raise UsageError(f"{name} must be a list of strings, got {value!r}.")
    kinds = {part.strip() for part in wanted.split("|")}
    if value is None and "None" in kinds:
        return None
    if isinstance(value, bool):
        fits = "bool" in kinds
    elif isinstance(value, int) and "int" not in kinds:
        fits, value = "float" in kinds, float(value)
    else:
        fits = type(value).__name__ in kinds
    if not fits:
        human = {"int": "a whole number", "float": "a number", "str": "a string", "bool": "a bool"}
        want = " or ".join(human[k] for k in ("bool", "int", "float", "str") if k in kinds)
        raise UsageError(f"{name} must be {want}, got {value!r}.")
    return value
