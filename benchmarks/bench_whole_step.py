"""What does the second pass add to a complete training step?  GRU over 30 items, B=1000, C=500,000.

The model is the one that `tapas train` builds: input vectors, GRU, sampled softmax head with
row-wise Adagrad, AdamW for the encoder. One query for each sequence, its last state. Targets: a
step with r=8 takes at most 1.10 times the step with r=1 (sampled softmax), at n=1000 and at
n=8000. Arguments are the numbers of queries that score in the priority rule, beside the default:
64 32 16 when left out.
"""

from collections.abc import Callable

import numpy as np
import torch
from measuring import (
    arguments,
    interleave,
    ratio,
    ratio_target,
    spread,
    write_record,
)
from profiling import profile_summary

import tapas
from tapas.data.windows import SequenceBatch
from tapas.tables.shard import TableSpec
from tapas.training.build import (
    bias_from_counts,
    build_model,
    build_optimizer,
    dense_parameters,
)
from tapas.training.config import TrainConfig, build_config
from tapas.training.model import SequenceModel

B, C, D, HISTORY, R = 1000, 500_000, 64, 30, 8
SAMPLES = (1000, 8000)
BATCHES = 8  # prepared before timing starts
DEFAULT = f"r={R}, priority, {tapas.Priority().score_queries or 'all'} score"
Step = Callable[[], None]


def zipf_ids(shape: tuple[int, ...], purpose: str) -> torch.Tensor:
    """Ids with probability about 1 / (id + 1), as in real logs."""
    draws = torch.rand(shape, generator=tapas.rng.stream(0, purpose), dtype=torch.float64)
    return torch.expm1(draws * np.log1p(C)).long().clamp_(max=C - 1)


def batches() -> list[SequenceBatch]:
    lengths = torch.full((B,), HISTORY)
    places = torch.arange(B) * HISTORY + HISTORY - 1
    items, target = zipf_ids((BATCHES, B, HISTORY), "items"), zipf_ids((BATCHES, B, 1), "target")
    return [SequenceBatch(items[i], lengths, places, target[i]) for i in range(BATCHES)]


def make_model(head: dict[str, object], *, fused: bool = True) -> tuple[TrainConfig, SequenceModel]:
    """The model of `tapas train`; without `fused` its rows need an optimizer."""
    config = build_config(
        {
            "log": {"files": ["none.parquet"]},  # not read: the data is synthetic
            "model": {"encoder": "gru", "dim": D, "history": HISTORY},
            "head": {"next_items": 1, "positions": "last", **head},
            "loop": {"batch": B},
        }
    )
    counts = (10 * C / np.arange(1, C + 1)).astype(np.int64)
    if fused:
        return config, build_model(config, counts)

    def plain_table(name: str, spec: TableSpec) -> tapas.LocalTable:
        bias = spec.has_bias and bias_from_counts(counts)
        return tapas.LocalTable(C, spec.dim, bias=bias, seed=spec.seed)

    return config, build_model(config, counts, make=plain_table)


def make_step(head: dict[str, object], data: list[SequenceBatch]) -> Step:
    config, model = make_model(head)
    optimizer = build_optimizer(config.optimizer, dense_parameters(model))
    parameters, clip = list(model.encoder.parameters()), config.optimizer.clip
    turn = 0

    def step() -> None:
        nonlocal turn
        optimizer.zero_grad(set_to_none=True)
        model.loss(data[turn % BATCHES]).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        turn += 1

    return step


def contenders(num_samples: int, scorers: list[int], data: list[SequenceBatch]) -> dict[str, Step]:
    made: dict[str, dict[str, object]] = {
        "r=1": {"presample_factor": 1},
        DEFAULT: {"presample_factor": R},
    }
    for number in scorers:
        made[f"r={R}, priority, {number} score"] = {"presample_factor": R, "score_queries": number}
    made[f"r={R}, top, all score"] = {"presample_factor": R, "selection": "top"}
    return {name: make_step({"num_samples": num_samples, **h}, data) for name, h in made.items()}


def main() -> None:
    scorers = [int(word) for word in arguments()] or [64, 32, 16]
    data = batches()
    results: dict[str, dict[str, list[float]]] = {}
    profiles, targets = {}, []
    for num_samples in SAMPLES:
        steps = contenders(num_samples, scorers, data)
        seconds = interleave(steps, repeats=50)
        print(f"\nn = {num_samples}")
        for name, values in seconds.items():
            print(f"  {name:<28}{spread(values):<32}{ratio(values, seconds['r=1'])} of r=1")
        measure = f"whole training step, r={R} / r=1, n={num_samples}"
        targets.append(ratio_target(measure, seconds[DEFAULT], seconds["r=1"], "at most", 1.10))
        results[f"n={num_samples}"] = seconds
        profiles[f"n={num_samples}, {DEFAULT}"] = profile_summary(steps[DEFAULT])
    write_record(
        "whole-step",
        {"B": B, "C": C, "D": D, "history": HISTORY, "default": DEFAULT},
        {"seconds": results, "profiles": profiles},
        targets=targets,
    )


if __name__ == "__main__":
    main()
