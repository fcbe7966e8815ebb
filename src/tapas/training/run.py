"""`train` starts a run, `resume` continues one, in this process or on the ranks of torchrun.

`tapas.servers.run` has the same two functions for workers and servers.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tapas.checkpoints.folder import Checkpoint
from tapas.checkpoints.model import read_checkpoint
from tapas.data.description import describe_reading, describe_split
from tapas.data.event_log import EventLog
from tapas.data.prepare import prepare_log
from tapas.data.splits import NONE, Split, check_users, split_log
from tapas.errors import UsageError
from tapas.peak_memory import forget_peak, peak_bytes
from tapas.shapes import check_device
from tapas.tables.ranks import ONE_PROCESS, Ranks
from tapas.training.build import TrainingSetup, build_training, check_sizes, resolve_service
from tapas.training.config import ServiceConfig, TrainConfig
from tapas.training.journal import END, SETTING, Journal, NoJournal
from tapas.training.memory_plan import describe_memory
from tapas.training.model import SequenceModel
from tapas.training.recipe import Choice, choose_for_time, choose_settings
from tapas.training.run_folder import (
    RunFolder,
    check_free,
    create_run,
    exclusive,
    open_run,
    write_config,
)
from tapas.training.step import local_steps
from tapas.training.time_budget import TooShortError, fit_to_time
from tapas.training.trainer import Progress, Trainer, TrainResult
from tapas.training.tuned_run import (
    plan_search,
    search_settings,
    unfinished_search,
    write_plan,
)
from tapas.training.validation import describe_training, validation_examples, validator

LONG_HISTORY, MANY_LAYERS = 200, 20  # more may be slow
FASTER = 1.5  # times the steps, for which a full softmax gives way to sampling
Status = Callable[[str], None]
OnProgress = Callable[[Progress], None]
ShouldStop = Callable[[], bool]


def train(
    config: TrainConfig,
    out: Path,
    *,
    cache: Path,
    given: Collection[str] | None = None,
    seconds: float | None = None,
    tune: bool = False,
    ranks: Ranks = ONE_PROCESS,
    status: Status = lambda words: None,
    on_progress: OnProgress = lambda progress: None,
    should_stop: ShouldStop = lambda: False,
) -> TrainResult:
    """Read and split the log, train, and write everything into the new folder `out`.

    All `ranks` must see the same folders. Prepared logs are cached in `cache`. With `given`,
    settings other than these, such as "model.dim", are chosen from the log. With `seconds`, there
    are as many steps as fit into that time, all of this function counted; with `tune`, half of it
    is a search for settings that are not `given`, in one process. `status` is called with messages
    for the user, `should_stop` after every step; if it returns True, training stops with a
    checkpoint.
    """
    check_no_servers(config)
    started = time.monotonic()
    config, log, split, choices = read_log(
        config, out, cache=cache, given=given, status=status, ranks=ranks
    )
    forget_peak()  # that of reading the log
    setup = build_training(config, log, split, ranks)
    plan = None
    if seconds is not None:
        validate = validator(setup.config, log, split, ranks)
        if tune:
            plan = plan_search(setup, validate, seconds, given or (), started=started)
        else:
            config = _in_time(
                setup, validate, seconds, given, choices,
                started=started, status=status, ranks=ranks,
                build=lambda config: build_training(config, log, split, ranks),
            )  # fmt: skip
        setup = build_training(config, log, split, ranks)
    resolved = setup.config
    if plan is not None:
        del setup, validate  # a search needs the memory

    def begin(folder: Path) -> None:
        write_choices(folder, choices)
        if plan is not None:
            write_plan(folder, plan)

    run = ranks.main_first(
        "create the run folder",
        lambda: create_run(out, resolved, log, fill=begin) if ranks.is_main else open_run(out),
    )
    with exclusive(out) if ranks.is_main else nullcontext():
        if plan is not None:
            run = search_settings(run, split, plan, status)
            forget_peak()
            setup = build_training(run.config, log, split, ranks)
        status(describe_start(setup.config, split, ranks))
        with opened_trainer(run, split, setup, None, ranks) as trainer:
            found = run_to_end(trainer, on_progress, should_stop, status)
        if found.reason != "interrupted":
            status(describe_memory(setup.plan, peak_bytes()))
        return found


def run_to_end(
    trainer: Trainer, on_progress: OnProgress, should_stop: ShouldStop, status: Status
) -> TrainResult:
    """Train, and write into the journal how many steps this process made in which time."""
    started, first = time.monotonic(), trainer.state.step
    found = trainer.run(on_progress=on_progress, should_stop=should_stop, status=status)
    if found.step > first:
        trainer.journal.write(
            found.step, END, reason=found.reason, steps=found.step - first,
            seconds=round(time.monotonic() - started, 2), peak_bytes=peak_bytes(),
        )  # fmt: skip
    return found


def write_choices(folder: Path, choices: Sequence[Choice]) -> None:
    """Begin the journal of a new run in `folder` with what was chosen from its log."""
    with Journal(folder, tensorboard=False) as journal:
        for each in choices:
            journal.write(0, SETTING, **each.as_words())


def _in_time(
    setup: TrainingSetup,
    validate: Callable[[SequenceModel], dict[str, float]],
    seconds: float,
    given: Collection[str] | None,
    choices: list[Choice],
    *,
    started: float,
    build: Callable[[TrainConfig], TrainingSetup],
    status: Status,
    ranks: Ranks,
) -> TrainConfig:
    """The configuration of `setup` for a time, with another method if that is better in it.

    That method then replaces the one in `choices`.
    """

    def tell(choice: Choice) -> None:
        status(f"Chosen: {choice}.")
        choices[:] = [each for each in choices if each.name != choice.name] + [choice]

    def instead(epochs: float) -> tuple[TrainConfig, Choice] | None:
        return None if given is None else choose_for_time(setup.config, given, epochs)

    def fitted(config: TrainConfig) -> tuple[TrainConfig, str]:
        return fit_to_time(build(config), validate, seconds, ranks, started=started)

    try:
        config, words = fit_to_time(setup, validate, seconds, ranks, started=started)
    except TooShortError:
        other = instead(0.0)
        if other is None:
            raise
        config, words = fitted(other[0])
        tell(other[1])
    else:
        steps = config.loop.steps or 0
        if (other := instead(steps / setup.windows.steps_per_epoch)) is not None:
            sampled, more = fitted(other[0])
            if (sampled.loop.steps or 0) >= FASTER * steps:
                config, words = sampled, more
                tell(other[1])
    status(words)
    return config


def resume(
    folder: Path,
    *,
    step: int | None = None,
    service: ServiceConfig | None = None,
    restarts: int = 0,
    ranks: Ranks = ONE_PROCESS,
    status: Status = lambda words: None,
    on_progress: OnProgress = lambda progress: None,
    should_stop: ShouldStop = lambda: False,
) -> TrainResult:
    """Continue from the newest checkpoint, or from that of `step`, to the end of the run.

    The result is the same as without the interruption. `service` replaces that of the run:
    `ServiceConfig()` continues a run of servers in this process. `restarts`, how often torchrun
    has restarted this job, is told to the user and the journal.
    """
    run = ranks.main_first(
        "open the run", lambda: reopen(folder, service, everything=ranks.is_main)
    )
    check_no_servers(run.config)
    torch.set_num_threads(run.num_threads)  # another number would change the order of sums
    split = split_log(run.log, run.config.split)
    if run.checkpoints.steps():
        check_sizes(run.config, run.log.num_items, run.checkpoints.find(step)[1])
    forget_peak()
    plan = unfinished_search(run)
    if plan is not None and ranks.is_distributed:
        raise UsageError(
            f"the search for settings in {folder} is not finished, and it runs in one process: "
            "continue without torchrun."
        )
    with exclusive(folder) if ranks.is_main else nullcontext():
        if plan is not None:
            if step is not None:
                run.checkpoints.find(step)  # there is none yet
            run = search_settings(run, split, plan, status)
            forget_peak()
        setup = build_training(run.config, run.log, split, ranks)
        checkpoint = None
        if run.checkpoints.steps() or step is not None:
            checkpoint = read_checkpoint(run.checkpoints, setup.model, step, ranks)
            ranks.last_checkpoint = f"step {checkpoint.step} in {run.checkpoints.folder}"
        if service is not None and ranks.is_main:
            write_config(run)
        if restarts:
            status(f"Warning: torchrun has restarted all ranks (restart {restarts}).")
        warn_of_unreadable(run, status)
        status(describe_resume(checkpoint, run.checkpoints.steps()))
        status(describe_start(setup.config, split, ranks))
        with opened_trainer(run, split, setup, checkpoint, ranks) as trainer:
            if restarts:
                number = checkpoint.step if checkpoint else 0
                trainer.journal.write(number, "restart", process="all ranks", restarts=restarts)
            found = run_to_end(trainer, on_progress, should_stop, status)
        if found.reason != "interrupted":
            status(describe_memory(setup.plan, peak_bytes()))
        return found


def read_log(
    config: TrainConfig,
    out: Path,
    *,
    cache: Path,
    given: Collection[str] | None = None,
    status: Status,
    ranks: Ranks,
) -> tuple[TrainConfig, EventLog, Split, list[Choice]]:
    """The log of a new run and its split, and `config` with the absolute paths and columns of it.

    With `given`, settings other than these are chosen from the log; the last value returned are
    these choices. Raises UsageError early if `out` or the device cannot be used.
    """
    if config.split.kind == NONE:
        raise UsageError(
            "a run that holds out nothing cannot choose its best checkpoint. Train one that does, "
            "and then `tapas train --like RUN --out FOLDER` on the whole log."
        )
    if config.split.validation == 0:
        raise UsageError(
            "split.validation is 0, but training chooses the best checkpoint on validation data. "
            "Set it above 0."
        )
    check_device("loop.device", config.loop.device)

    def prepared() -> EventLog:
        if ranks.is_main:
            check_free(out)
        return prepare_log(config.log, cache, status=status)

    log = ranks.main_first("read the log", prepared)
    split = split_log(log, config.split)
    for words in (*describe_reading(log.report), *describe_split(log, split)):
        status(words)
    if warning := check_users(log, split):
        status(warning)
    choices: list[Choice] = []
    if given is not None:
        config, choices = choose_settings(config, log, split, given)
        for words in map(str, choices):
            status(f"Chosen: {words}.")
    longest = int(np.diff(log.offsets).max())
    if config.model.history > max(longest, LONG_HISTORY):
        status(
            f"Slow: model.history is {config.model.history:,}, but no user has more than "
            f"{longest:,} events. A smaller one reads as much and is faster."
        )
    if config.model.layers > MANY_LAYERS and config.model.encoder != "mean":
        status(f"Slow: model.layers is {config.model.layers:,}. Most models have 1 to 4.")
    validation_examples(log, config, split)  # or an error, before there is a run
    columns = cast("dict[str, Any]", log.report["columns"])
    return replace(config, log=config.log.resolved(columns)), log, split, choices


def reopen(folder: Path, service: ServiceConfig | None, *, everything: bool = True) -> RunFolder:
    """The run in `folder`, with `service` in place of the saved settings if given.

    `everything` of its log is checked, as training goes on with it.
    """
    run = open_run(folder, everything=everything)
    if service is None:
        return run
    if service.servers and unfinished_search(run) is not None:
        raise UsageError(
            f"the search for settings in {folder} is not finished, and it runs in one process: "
            "continue without --servers."
        )
    return replace(run, config=replace(run.config, service=resolve_service(service)))


def warn_of_unreadable(run: RunFolder, status: Status) -> None:
    """Name the checkpoints that cannot be read; saving keeps them, as one may be the best."""
    for path in run.checkpoints.unreadable():
        status(f"Warning: {path} cannot be read and is kept. Check it with `tapas verify`.")


def describe_resume(checkpoint: Checkpoint | None, steps: Sequence[int]) -> str:
    """Where training goes on, and which of the saved `steps` are given up for it."""
    if checkpoint is None:
        return "There is no checkpoint yet: starting again from step 0."
    words = f"Continuing from step {checkpoint.step:,}."
    later = [f"{step:,}" for step in steps if step > checkpoint.step]
    if later:
        what = "Checkpoints of later steps" if len(later) > 1 else "The checkpoint of a later step"
        words += f" {what} ({', '.join(later)}) will be removed by the next save."
    return words


def describe_start(config: TrainConfig, split: Split, ranks: Ranks) -> str:
    where = "" if ranks.size == 1 else f", rows on {ranks.size} ranks"
    return f"{describe_training(config, split)}{where}."


@contextmanager
def opened_trainer(
    run: RunFolder, split: Split, setup: TrainingSetup, checkpoint: Checkpoint | None, ranks: Ranks
) -> Iterator[Trainer]:
    """A trainer of `run` that continues from `checkpoint`, with an open journal."""
    config, step = setup.config, checkpoint.step if checkpoint else 0
    validate = validator(config, run.log, split, ranks) if len(split.validation) else None
    steps = local_steps(setup, ranks)
    with Journal(run.path, resume_at=step) if ranks.is_main else NoJournal() as journal:
        trainer = Trainer(
            setup.model, steps, validate, run.checkpoints, journal, loop=config.loop, ranks=ranks
        )
        if checkpoint is not None:
            trainer.resume(checkpoint)
        yield trainer


def check_no_servers(config: TrainConfig) -> None:
    if config.service.servers:
        raise UsageError(
            f"service.servers is {config.service.servers}; expected 0 for a run without servers. "
            "`tapas.servers.run` trains with servers."
        )
