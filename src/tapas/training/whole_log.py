"""`train_whole_log`: a model like that of a run, which has learned from all events of its log.

A run holds out the newest events, to choose its best checkpoint and to be judged by them; so the
model that it recommends with has not learned from them. The new run has the same settings, and as
many passes over the events as its example until its best checkpoint. It is not judged: what is
known of its quality are the numbers of its example. The shares of counting parts, which are fitted
to held-out events, are those of its example, too.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from tapas.data.splits import NONE, SplitConfig, split_log
from tapas.errors import UsageError
from tapas.escapes import shell_path
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.build import build_training
from tapas.training.config import TrainConfig
from tapas.training.run import (
    OnProgress,
    ShouldStop,
    Status,
    check_no_servers,
    describe_start,
    opened_trainer,
    run_to_end,
)
from tapas.training.run_evaluation import load_model
from tapas.training.run_folder import (
    RunFolder,
    best_step,
    check_free,
    create_run,
    exclusive,
    open_run,
)
from tapas.training.trainer import TrainResult


def train_whole_log(
    like: RunFolder,
    out: Path,
    *,
    ranks: Ranks = ONE_PROCESS,
    status: Status = lambda words: None,
    on_progress: OnProgress = lambda progress: None,
    should_stop: ShouldStop = lambda: False,
) -> TrainResult:
    """Train a model like the best of the run `like` on its whole log, in the new folder `out`."""
    check_no_servers(like.config)
    config = whole_log_config(like)
    if ranks.is_main:
        check_free(out)
    split = split_log(like.log, config.split)
    example, step = load_model(like, None, ranks)
    setup = build_training(config, like.log, split, ranks)
    if setup.model.mixture is not None and example.mixture is not None:
        setup.model.mixture.load_state_dict(example.mixture.state_dict())
    del example
    run = ranks.main_first(
        "create the run folder",
        lambda: create_run(out, setup.config, like.log) if ranks.is_main else open_run(out),
    )
    with exclusive(out) if ranks.is_main else nullcontext():
        status(
            f"Like {shell_path(like.path)} at step {step:,}, on all events of its log. Nothing is "
            f"held out: `tapas evaluate {shell_path(like.path)}` says how good such a model is."
        )
        status(describe_start(setup.config, split, ranks))
        with opened_trainer(run, split, setup, None, ranks) as trainer:
            trainer.save()  # the shares of counting parts, if it is killed before the next one
            return run_to_end(trainer, on_progress, should_stop, status)


def whole_log_config(like: RunFolder) -> TrainConfig:
    """The configuration of a run on the whole log with the passes of `like` to its best step."""
    config, loop = like.config, like.config.loop
    if config.split.kind == NONE:
        raise UsageError(
            f"{like.path} was trained on its whole log already. Name the run that it is like."
        )
    if not like.checkpoints.steps():
        raise UsageError(
            f"{like.path} has no checkpoint yet, so its best length is unknown. Train on with "
            f"`tapas train --resume {shell_path(like.path)}`."
        )
    before = int(split_log(like.log, config.split).train_counts.sum())
    ratio = like.log.num_events / max(1, before)
    best = best_step(like.checkpoints)
    best = loop.steps if best is None else best
    steps = max(1, round((best or 1) * ratio))
    return replace(
        config,
        split=SplitConfig(kind=NONE),
        loop=replace(loop, steps=steps, evaluate_every=max(1, -(-steps // 10))),
    )
