"""Settings that are valid but odd, the least and the most of what is allowed, or just beyond."""

import random
from typing import Any

from tapas.heads import METHODS

CHANGES = 4  # of settings, beside the method and its options
ODD: dict[str, tuple[Any, ...]] = {
    "model.encoder": ("mean", "gru", "transformer"),
    "model.dim": (1, 2, 3, 7, 200),
    "model.history": (1, 2, 300),
    "model.layers": (1, 2, 5),
    "model.attention_heads": (1, 2, 4),
    "model.dropout": (0.0, 1e-9, 0.95),
    "model.inputs": ("own", "shared"),
    "model.copy": ("true", "false"),
    "head.next_items": (1, 2, 100, 10**6),
    "head.target_decay": (1e-6, 0.5, 1.0),
    "head.positions": ("all", "last"),
    "optimizer.rows": ("rowwise-adagrad", "adagrad", "lazy-adam", "sgd"),
    "optimizer.encoder": ("adamw", "adagrad"),
    "optimizer.rows_lr": (0, 1e-12, 1e-3, 10.0, 1e6),
    "optimizer.encoder_lr": (0, 1e-12, 1.0, 1e6),
    "optimizer.weight_decay": (0.0, 1e-9, 1.0, 1e6),
    "optimizer.clip": (1e-12, 1e-3, 1e12),
    "loop.batch": (1, 2, 1_000),
    "loop.epochs": (1e-9, 0.01),
    "loop.steps": (1, 2, 3),
    "loop.evaluate_every": (1, 2, 10**15),
    "loop.patience": (1, 10**6),
    "loop.validation_examples": (1, 2),
    "loop.checkpoint_seconds": (0, 1e9),
    "loop.keep": (1, 10**6),
    "loop.precision": ("float32", "bfloat16"),
    "loop.exclude_seen": ("true", "false"),
    "loop.seed": (0, 2**63 - 1),
}
IMPOSSIBLE: dict[str, tuple[Any, ...]] = {
    "model.dim": (0, -1, 2**31),
    "model.history": (0, -1, 2**31),
    "model.layers": (0, -1, 1_001),
    "model.attention_heads": (0, -1),
    "model.dropout": (-0.1, 1.0, "nan"),
    "head.next_items": (0, -1, 2**31),
    "head.target_decay": (0, 1.1, "nan"),
    "optimizer.rows_lr": (0, -0.1, "inf", "nan"),
    "optimizer.encoder_lr": (0, -0.1, "inf", "nan"),
    "optimizer.weight_decay": (-1e-9, "inf", "nan"),
    "optimizer.clip": (0, -1, "inf", "nan"),
    "loop.batch": (0, -1, 2**31),
    "loop.epochs": (0, -1, "inf", "nan"),
    "loop.steps": (0, -1, 10**15 + 1),
    "loop.evaluate_every": (0, -1),
    "loop.patience": (0, -1),
    "loop.validation_examples": (0, -1),
    "loop.checkpoint_seconds": (-1, "inf", "nan"),
    "loop.keep": (0, -1),
    "loop.seed": (2**63, -(2**63) - 1),
    "loop.device": ("meta", "nowhere"),
    "service.servers": (-1, 10**5 + 1),
    "service.workers": (0, -1),
    "split.validation": (-1, "nan"),
}
SPLITS = (  # kind, and shares or numbers of validation and test
    ("time", 0.001, 0.001), ("time", 0.9, 0.05), ("time", 0.01, 0.98), ("time", 0.5, 0),
    ("last", 1, 1), ("last", 1, 0), ("last", 5, 5), ("last", 0, 1), ("last", 1000, 1),
    ("group", 0.01, 0.01), ("group", 0.5, 0.4), ("group", 0.99, 0),
)  # fmt: skip
INTEGERS = (1, 2, 23, 24, 1_000)  # the log has 23 classes


def odd_settings(draw: random.Random) -> dict[str, Any]:
    """A method with odd options, and a few odd settings, for a run of a few steps."""
    method = draw.choice(sorted(METHODS))
    found: dict[str, Any] = {"loop.steps": 3, "loop.batch": 4, "model.dim": 4, "loop.seed": 0}
    for name in draw.sample(sorted(ODD), CHANGES):
        found[name] = draw.choice(ODD[name])
    found["head.method"] = method
    for name, option in METHODS[method].options.items():
        if draw.random() < 0.5:
            found[f"head.{name}"] = draw.choice(_values(option))
    kind, validation, test = draw.choice(SPLITS) if draw.random() < 0.5 else ("last", 1, 1)
    found |= {"split.kind": kind, "split.validation": validation, "split.test": test}
    return found


def impossible_setting(draw: random.Random) -> tuple[str, Any]:
    """A setting with a value that it cannot have."""
    name = draw.choice(sorted(IMPOSSIBLE))
    return name, draw.choice(IMPOSSIBLE[name])


def _values(option: Any) -> tuple[Any, ...]:
    if isinstance(option.kind, tuple):
        return tuple(option.kind)
    if option.kind is bool:
        return "true", "false"
    if option.kind is int:
        return INTEGERS
    bounds = tuple(bound for bound in (option.low, option.high) if bound is not None)
    return (*bounds, option.default or 0.5)
