"""A run from its configuration to its end, and going on with one that was broken off."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from tapas.checkpoints.folder import Checkpoint
from tapas.checkpoints.model import read_checkpoint
from tapas.data.description import reading_words, split_words
from tapas.data.prepare import prepare_log
from tapas.data.splits import Split, split_log
from tapas.errors import UsageError
from tapas.servers.job import Engine
from tapas.servers.ray_session import the_ray
from tapas.servers.run import serve
from tapas.servers.training_server import table_specs
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.build import (
    Parts,
    build,
    check_device,
    plan_of,
    prepare,
    resolve_service,
)
from tapas.training.config import ServiceConfig, TrainConfig
from tapas.training.journal import Journal, NoJournal
from tapas.training.memory_plan import check_fits
from tapas.training.parallel import Team
from tapas.training.run_folder import (
    RunFolder,
    check_free,
    create_run,
    only_one,
    open_run,
    write_config,
)
from tapas.training.step import OwnSteps
from tapas.training.trainer import Outcome, Tick, Trainer
from tapas.training.validation import judge_of, training_words

Talk = Callable[[str], None]
Watch = Callable[[Tick], None]
Asked = Callable[[], bool]


def begin(
    config: TrainConfig,
    out: Path,
    *,
    cache: Path,
    talk: Talk,
    watch: Watch = lambda tick: None,
    asked_to_stop: Asked = lambda: False,
    team: Team | None = None,
    engine: Engine | None = None,
) -> Outcome:
    """Read the log, split it, train, and keep everything in the new folder `out`.

    The ranks of a `team` must see the same folders, and so must workers and servers, if
    `config.service` asks for them. `engine` starts those; left out, Ray on this machine does.
    """
    team = team or Team()
    check_service(config, team, engine)
    if team.leads:
        check_free(out)
    if not config.split.shares[0]:
        raise UsageError(
            "split.validation is 0: training chooses its best checkpoint by it. Hold something out."
        )
    log = team.in_turn("read the log", lambda: prepare_log(config.log, cache, talk=talk))
    for words in reading_words(log.report):
        talk(words)
    split = split_log(log, config.split)
    for words in split_words(log, split):
        talk(words)
    if config.service.servers:
        config = prepare(config, log, split)[0]
        check_layout(config, log.num_items)
        if engine is None:  # all on this machine
            check_fits(plan_of(config, split.train_counts))
        run = create_run(out, config, log)
        with only_one(out):
            return serve(run, split, None, talk, watch, asked_to_stop, engine)
    parts = build(config, log, split, team)
    run = team.in_turn(
        "lay out the run",
        lambda: create_run(out, parts.config, log) if team.leads else open_run(out),
    )
    with only_one(out) if team.leads else nullcontext():
        return _train(run, split, parts, None, team, talk, watch, asked_to_stop)


def resume(
    folder: Path,
    *,
    step: int | None = None,
    talk: Talk,
    watch: Watch = lambda tick: None,
    asked_to_stop: Asked = lambda: False,
    team: Team | None = None,
    engine: Engine | None = None,
    service: ServiceConfig | None = None,
) -> Outcome:
    """Go on from the newest checkpoint, or from that of `step`, to the same end.

    `service` are other numbers of workers and servers than those it was begun with.
    """
    team = team or Team()
    run = open_run(folder)
    if service is not None:
        run = replace(run, config=replace(run.config, service=resolve_service(service)))
    check_service(run.config, team, engine)
    check_layout(run.config, run.log.num_items)
    torch.set_num_threads(run.num_threads)  # sums over threads are sums in another order
    split = split_log(run.log, run.config.split)
    if run.config.service.servers:
        with only_one(folder):
            checkpoint = None
            if run.checkpoints.steps() or step is not None:
                servers = run.config.service.servers  # who check the files of rows
                checkpoint = run.checkpoints.load_dense(step, part=servers, parts=servers + 1)
            if service is not None:
                write_config(run)  # which all processes read
            talk(_going_on(checkpoint))
            return serve(run, split, checkpoint, talk, watch, asked_to_stop, engine)
    parts = build(run.config, run.log, split, team)
    with only_one(folder) if team.leads else nullcontext():
        checkpoint = None
        if run.checkpoints.steps() or step is not None:
            checkpoint = read_checkpoint(
                run.checkpoints, parts.model, step, team.ranks or ONE_PROCESS
            )
            if team.ranks is not None:
                team.ranks.last_checkpoint = f"step {checkpoint.step} in {run.checkpoints.folder}"
        if service is not None and team.leads:
            write_config(run)
        talk(_going_on(checkpoint))
        return _train(run, split, parts, checkpoint, team, talk, watch, asked_to_stop)


def _train(
    run: RunFolder,
    split: Split,
    parts: Parts,
    checkpoint: Checkpoint | None,
    team: Team,
    talk: Talk,
    watch: Watch,
    asked_to_stop: Asked,
) -> Outcome:
    config = parts.config
    judge = judge_of(run, split, team)
    ranks = "" if team.size == 1 else f", rows on {team.size} ranks"
    talk(training_words(config, split) + f"{ranks}.")
    begun = checkpoint.step if checkpoint else 0
    with Journal(run.path, resume_at=begun) if team.leads else NoJournal() as journal:
        trainer = Trainer(
            parts.model,
            OwnSteps(
                parts.model,
                parts.windows,
                parts.optimizer,
                seed=config.loop.seed,
                clip=config.optimizer.clip,
                team=team,
            ),
            judge,
            run.checkpoints,
            journal,
            loop=config.loop,
            team=team,
        )
        if checkpoint is not None:
            trainer.resume(checkpoint)
        return trainer.run(on_tick=watch, asked_to_stop=asked_to_stop)


def _going_on(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "There is no checkpoint yet: beginning again."
    return f"Going on from step {checkpoint.step:,}."


def check_service(config: TrainConfig, team: Team, engine: Engine | None) -> None:
    """An error if the workers and servers of `config` cannot be started, before any work."""
    if not config.service.servers:
        return
    if team.ranks is not None:
        raise UsageError(
            "torchrun and --servers are two ways to train on many processes: start `tapas train` "
            "without torchrun, or with --servers 0."
        )
    check_device(config.loop.device)
    if engine is None:
        the_ray()


def check_layout(config: TrainConfig, num_classes: int) -> None:
    """An error if there are more servers than classes."""
    if config.service.servers:
        for spec in table_specs(config, num_classes).values():
            spec.layout()
