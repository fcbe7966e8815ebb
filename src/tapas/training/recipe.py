"""The recipe: settings that `tapas train` chooses from the log, each with its reason.

What was measured for each rule is in docs/training.md. A setting that was given, by a flag or in a
TOML file, is never changed, and the rules below see it.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapas.data.description import Description, describe
from tapas.data.event_log import EventLog
from tapas.data.splits import Split
from tapas.heads import FlatHead
from tapas.training.config import JSON, HeadConfig, TrainConfig

NO_REPEATS = 0.001  # share of events below which items that a user had are left out of lists
SOME_REPEATS = 0.01  # share of events from which on copying is worth its time
LARGE_BASKETS = 2.0  # events with the same time, on average, from which on their order says little
FEW_EVENTS = 50  # of an item, below which a model learns them by heart
FEW_ITEMS = 20_000  # up to which a full softmax is fast enough
MANY_ITEMS = 2_000_000  # from which on the moments of Adam take too much memory
WIDE_DIM, MOST_NUMBERS = 128, 25_600_000  # dimensions, of at most 200,000 items
EVENTS_IN_A_STEP = 2_000
EVENTS_TO_TRAIN = 3_000_000  # read in all epochs together
MOST_EPOCHS = 30.0
FEW_EPOCHS = 8.0  # of a full softmax; with fewer, sampling sees more events and is better
MOST_VALIDATION = 5_000  # users
TARGETS = ("next_items", "target_decay", "positions")  # of [head], whatever the method


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting, such as model.encoder, and why it has this value."""

    name: str
    value: JSON
    reason: str

    def __str__(self) -> str:
        return "{name} = {value}: {reason}".format(**self.as_words())

    def as_words(self) -> dict[str, str]:
        """Name, value and reason, for the journal."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        return {"name": self.name, "value": shown, "reason": self.reason}


def choose_settings(
    config: TrainConfig, log: EventLog, split: Split, given: Collection[str]
) -> tuple[TrainConfig, list[Choice]]:
    """`config` with settings that fit `log`, but for those in `given`; and what was chosen."""
    recipe = _Recipe(config, given)
    sizes = Sizes(
        num_classes=len(split.train_counts),
        num_points=len(split.validation),
        lengths=split.train_end - np.asarray(log.offsets)[:-1],
    )
    _choose(recipe, describe(log), sizes)
    return recipe.config, recipe.choices


def choose_for_time(
    config: TrainConfig, given: Collection[str], epochs: float
) -> tuple[TrainConfig, Choice] | None:
    """Another method if a full softmax, which was not `given`, has only `epochs` in its time."""
    recipe = _Recipe(config, given)
    if config.head.method != "full" or not recipe.leaves_method or epochs >= FEW_EPOCHS:
        return None
    often = f"{epochs:.1f} times" if epochs else "too seldom"
    recipe.choose(
        "head.method", "tapas", f"in this time a full softmax would see each event {often}"
    )
    recipe.choose("optimizer.weight_decay", 0.0, "as for other sampled methods")
    return recipe.config, recipe.choices[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What there is to learn from and to judge by."""

    num_classes: int
    num_points: int  # of validation
    lengths: NDArray[np.int64]  # (U,) training events of each user

    @property
    def num_events(self) -> int:
        return int(self.lengths.sum())

    def events_per_window(self, history: int) -> float:
        """How many events that are followed by another a window of `history` has, on average."""
        usable = np.maximum(self.lengths - 1, 0)
        return float(usable.sum() / max(1, np.ceil(usable / history).sum()))


class _Recipe:
    """A configuration whose settings are chosen one after the other."""

    def __init__(self, config: TrainConfig, given: Collection[str]):
        self.config, self.given = config, set(given)
        self.choices: list[Choice] = []

    @property
    def leaves_method(self) -> bool:
        """Whether neither a method nor an option of one was given."""
        return not any(name.startswith("head.") and name[5:] not in TARGETS for name in self.given)

    def choose(self, name: str, value: JSON, reason: str) -> None:
        """Set `name` unless it was given."""
        if name in self.given:
            return
        section, _, field = name.partition(".")
        if section == "head":
            table = self.config.head.as_table()
            if field == "method":  # it has other options
                table = {name: table[name] for name in TARGETS}
            head = HeadConfig.of(**{**table, field: value})
            self.config = replace(self.config, head=head)
        else:
            part: Any = getattr(self.config, section)
            self.config = replace(self.config, **{section: replace(part, **{field: value})})
        self.choices.append(Choice(name, value, reason))


def _choose(recipe: _Recipe, found: Description, sizes: Sizes) -> None:
    num_events, num_classes = sizes.num_events, sizes.num_classes
    repeats = (
        f"{100 * found.repeats:.{0 if found.repeats >= 0.01 else 1}f} % of events repeat an item"
    )
    if found.repeats < NO_REPEATS:
        recipe.choose("loop.exclude_seen", True, f"{repeats} that the user had before")
    copies = found.repeats >= SOME_REPEATS and not recipe.config.loop.exclude_seen
    recipe.choose("model.copy", copies, f"{repeats} of the same user")
    recipe.choose("model.follow", True, "what followed the latest items in training, as counted")

    ordered = found.items_per_basket < LARGE_BASKETS
    baskets = f"{found.items_per_basket:.1f} items have the same time, on average"
    if ordered:
        recipe.choose("model.encoder", "transformer", f"{baskets}: order says something")
    else:
        recipe.choose("model.encoder", "mean", f"{baskets}: order says little")
    encoder = recipe.config.model.encoder
    recipe.choose("model.inputs", _inputs(recipe), "one vector for each item is learned sooner")
    if num_classes * WIDE_DIM <= MOST_NUMBERS:
        recipe.choose("model.dim", WIDE_DIM, f"{num_classes:,} items: wider vectors learn sooner")
    if encoder == "transformer":
        recipe.choose("model.layers", 2, "as SASRec")
        if recipe.config.model.dim % recipe.config.model.attention_heads:
            reason = f"{recipe.config.model.dim} dimensions cannot be shared by more"
            recipe.choose("model.attention_heads", 1, reason)
        recipe.choose("model.dropout", *_dropout(num_events / num_classes))
    elif encoder == "mean":
        recipe.choose("model.history", 200, "a mean of many items costs little")

    items = f"{num_classes:,} items"
    if recipe.leaves_method:
        if num_classes <= FEW_ITEMS:
            reason = f"{items}: a full softmax is exact and fast enough"
            recipe.choose("head.method", "full", reason)
        else:
            reason = f"{items}: too many for a full softmax"
            recipe.choose("head.method", "tapas", reason)
    if num_classes < MANY_ITEMS:
        recipe.choose("optimizer.rows", "lazy-adam", f"{items}: its moments fit into memory")
    if recipe.config.optimizer.rows == "lazy-adam":
        recipe.choose("optimizer.rows_lr", 0.002, "with lazy-adam")
    recipe.choose("optimizer.encoder_lr", 0.002, "with adamw")
    if recipe.config.head.method == "full" and num_events < FEW_EVENTS * num_classes:
        reason = f"{num_events / num_classes:.1f} training events for each item"
        recipe.choose("optimizer.weight_decay", 0.001, reason)
    recipe.choose("optimizer.warmup", 0.05, "the first steps are uncertain")
    recipe.choose("optimizer.schedule", "cosine", "the last steps settle")
    recipe.choose("loop.patience", 10, "a falling learning rate gains most near its end")
    if sizes.num_points > recipe.config.loop.validation_examples:
        users = min(sizes.num_points, MOST_VALIDATION)
        recipe.choose("loop.validation_examples", users, "fewer would choose a checkpoint by luck")

    events = max(1.0, sizes.events_per_window(recipe.config.model.history))
    batch = 2 ** max(4, min(9, round(math.log2(EVENTS_IN_A_STEP / events))))
    recipe.choose("loop.batch", batch, f"about {EVENTS_IN_A_STEP:,} events in a step")
    if recipe.config.loop.steps is None:
        epochs = min(MOST_EPOCHS, max(1.0, round(EVENTS_TO_TRAIN / num_events, 1)))
        recipe.choose("loop.epochs", epochs, f"{num_events:,} training events")


def _inputs(recipe: _Recipe) -> str:
    return "shared" if issubclass(recipe.config.head.kind, FlatHead) else "own"


def _dropout(events_per_item: float) -> tuple[float, str]:
    rate = 0.5 if events_per_item < FEW_EVENTS else 0.2 if events_per_item < 500 else 0.1
    return rate, f"{events_per_item:.1f} training events for each item"
