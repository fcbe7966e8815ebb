"""`tapas train`: train a model on a log."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from math import isnan
from pathlib import Path
from types import ModuleType
from typing import Annotated

import torch
import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import (
    AsJson,
    Cache,
    Layer,
    LogOptions,
    cache_folder,
    parse_settings,
    with_log_options,
)
from tapas.cli.progress import EvaluationLines, progress_bar, short_loss
from tapas.cli.stop_request import stop_on_signal
from tapas.cli.terminal import print_json, status, warn_only
from tapas.cli.torchrun import (
    default_threads,
    mark_started,
    ranks_of_this_job,
    restarts_of,
    slow_threads,
)
from tapas.durations import parse_duration
from tapas.errors import UsageError, choice
from tapas.escapes import shell_path, shell_word
from tapas.heads import import_method
from tapas.heads.own_method import is_own
from tapas.tables.ranks import Ranks
from tapas.threads import MOST_THREADS
from tapas.training.advice import whole_log_command
from tapas.training.config import (
    JSON,
    PROTOCOLS,
    ServiceConfig,
    TrainConfig,
    build_config,
    names_in,
    read_toml,
    without_replaced,
)
from tapas.training.report import try_to_report
from tapas.training.run_folder import RECORD, open_run
from tapas.training.trainer import Progress, TrainResult
from tapas.training.whole_log import train_whole_log

MOST_MINUTES = 1e6


@with_log_options
def train(
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to write the run to. Must be new.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Continue the run in FOLDER after it was stopped or killed.",
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Train a model with the settings and the best length of RUN on its whole log, to "
            "recommend with. It is not judged: the numbers of RUN are.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --resume: continue from the checkpoint of step N. Default: the newest.",
        ),
    ] = None,
    log_options: LogOptions,
    cache: Cache = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML",
            help="TOML file of settings (docs/training.md). Options given here override it.",
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="mean|gru|transformer",
            help="Network that turns a history into a query. Default: transformer, or mean where "
            "many items have the same time.",
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Dimensions of the vectors of items. Default: 128, or 64 for more than 200,000 "
            "items.",
        ),
    ] = None,
    copy: Annotated[
        bool | None,
        typer.Option(
            "--copy/--no-copy",
            help="Also offer items of the user's history, by how often and how long ago. Default: "
            "if at least 1 % of the events repeat an item.",
        ),
    ] = None,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--no-follow",
            help="Also offer what followed the user's latest items in training, as counted. "
            "Default: yes.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|MODULE:CLASS",
            help="Training method: a name of `tapas compare --list`, or a class of your own "
            "(docs/methods.md). Default: full for up to 20,000 items, else tapas.",
        ),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Sampled classes (n) that each batch is trained with. Default: 1,000, but "
            "at most an eighth of the items.",
        ),
    ] = None,
    presample_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="TAPAS draws N times as many classes (r), scores them and keeps n. 1: plain "
            "sampled softmax. Default: 8.",
        ),
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            metavar="priority|top",
            help="How the second pass chooses n classes: at random, by weight (priority), or "
            "the highest scores (top). Default: priority.",
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Passes over the training events. Default: 1 to 30, fewer for longer logs.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of training steps, instead of --epochs.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Train as well as possible in N minutes, reading the log included: the pace is "
            "measured, and the number of steps fixed by it.",
        ),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Search for better settings in half of TIME, such as 30m, and train the best in "
            "the other half. Settings that are given are kept; run/search.html shows what was "
            "tried.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of histories in a batch. Default: 16 to 512, about 2,000 events.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="auto|time|last|group",
            help="What to hold out for validation and test: the end of the log (time), the last "
            "two events of each user (last), or some users (group). Default: auto, which is time; "
            "last for a log without times, group for text.",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="leave-one-out",
            help="Judge as published tables do: the last event of each user for test, the one "
            "before it for validation, the next item only, without items that the user had, and "
            "events of equal time in the order of the file (docs/training.md).",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Random seed: the same seed gives the same numbers.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_THREADS,
            metavar="N",
            help="Number of CPU threads. Default: OMP_NUM_THREADS, or all cores that this process "
            "may use.",
        ),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train on Ray with N processes that store the class vectors (docs/scaling.md).",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --servers: number of processes that compute the steps.",
        ),
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --servers: how many earlier steps' updates a step may not have seen. "
            "0: synchronous. Default: twice the workers, minus one.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --servers: address of a Ray cluster. Default: Ray on this machine only.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="Any other setting (docs/training.md), such as head.alpha=0.5. May be repeated.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda",
            help="Torch device to train on. Default: cpu.",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(hidden=True, help="Refused: there are two learning rates."),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            help="Print errors and warnings only.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model that predicts the next items of a user.

    The log is split into training, validation and test events: by time, or by the last events of
    each user if there are no times or a split by time leaves fewer than 10 users. Training stops
    when the recommendations for the validation users no longer improve; the test events are left
    to `tapas evaluate`. All results go into one folder, which the other commands read.

    Ctrl-C and SIGTERM save a checkpoint and stop. `tapas train --resume FOLDER` continues such a
    run, also after a crash, and ends with the same model as a run that was never stopped (on
    servers only with --max-staleness 0).

    `torchrun --nproc-per-node 2 -m tapas train ...` trains one model on two processes (ranks),
    each of which stores half of the class vectors. With --servers 2 --workers 2 the vectors are
    stored by servers and trained by asynchronous workers, on Ray. See docs/scaling.md.
    """
    with report_errors():
        if lr is not None:
            raise UsageError(
                f"--lr {lr:g}: there are two learning rates. Use --set optimizer.rows_lr={lr:g} "
                f"for the class vectors (default 0.1) or --set optimizer.encoder_lr={lr:g} for the "
                "encoder (default 0.002)."
            )
        own = method if method is not None and is_own(method) else None
        if own is not None:
            import_method(own)
        flags: Layer = {
            "log": log_options,
            "model": {"encoder": encoder, "dim": dim, "copy": copy, "follow": follow},
            "head": {
                "method": method,
                "num_samples": num_samples,
                "presample_factor": presample_factor,
                "selection": selection,
            },
            "loop": {
                "epochs": epochs,
                "steps": steps,
                "batch": batch,
                "device": device,
                "seed": seed,
            },
            "split": {"kind": split},
            "service": {"servers": servers, "workers": workers, "max_staleness": max_staleness},
        }
        flags = {s: {k: v for k, v in t.items() if v is not None} for s, t in flags.items()}
        other = flags.pop("service") if resume is not None else {}
        if resume is not None:
            if own is not None:
                del flags["head"]["method"]
            _refuse_beside(
                "--resume continues a run with its saved settings", flags, like=like, out=out,
                config=config, cache=cache, set=settings, threads=threads, protocol=protocol,
                minutes=minutes, tune=tune,
            )  # fmt: skip
            folder, built = resume, None
            run = open_run(resume)
            saved, num_threads = run.config, run.num_threads
            if own not in (None, saved.head.method):
                raise UsageError(
                    f"--method is {own}, but the run in {resume} was trained with "
                    f"{saved.head.method}, which cannot be changed. Leave out --method."
                )
            service = saved.service
            changed = _changed(service, other) if other else None
            service = changed or service
            go = partial(_run_of(service).resume, resume, step=step, service=changed)
        elif like is not None:
            if out is None:
                raise UsageError("name a folder for the new run with --out FOLDER.")
            _refuse_beside(
                "--like trains with the settings of a run", flags, config=config, cache=cache,
                set=settings, protocol=protocol, minutes=minutes, tune=tune, step=step,
            )  # fmt: skip
            folder, built = out, None
            example = open_run(like)
            service, num_threads = example.config.service, threads or default_threads()
            torch.set_num_threads(num_threads)
            go = partial(train_whole_log, example, out)
        else:
            if out is None:
                raise UsageError("name a folder for the run with --out FOLDER.")
            if step is not None:
                raise UsageError("--step can be used with --resume only.")
            if epochs is not None and steps is None:
                flags["loop"]["steps"] = None  # those of a TOML file
            given = [flags, parse_settings(settings or [])]
            seconds = None
            if minutes is not None:
                seconds = 60 * _checked_minutes(minutes)
                if tune is not None:
                    raise UsageError(
                        "--minutes and --tune both say how long to train. Use one of them."
                    )
            elif tune is not None:
                seconds = parse_duration(tune)
            if protocol is not None:
                given.insert(0, choice("protocol", protocol, PROTOCOLS))
            tables = read_toml(config) if config is not None else {}
            wanted = [without_replaced(tables, *given), *given]
            if not any(layer.get("log", {}).get("files") for layer in wanted):
                raise UsageError(
                    "no log given. Try `tapas train purchases.parquet --out run`, or --resume."
                )
            folder, built = out, build_config(*wanted)
            service = built.service
            if seconds is not None:
                _check_alone("--tune" if tune else "--minutes", built, *given)
            go = partial(
                _run_of(service).train, built, out, cache=cache_folder(cache),
                given=names_in(*wanted),
            )  # fmt: skip
            if seconds is not None:
                go = partial(go, seconds=seconds, tune=tune is not None)
            num_threads = threads or default_threads()
            torch.set_num_threads(num_threads)
        with (
            ranks_of_this_job(folder, built) as ranks,
            progress_bar("training", "steps", shown=ranks.is_main and not quiet) as advance,
            stop_on_signal(ranks) as stop,
            _processes(service, ranks, ray_address) as processes,
        ):
            if built is not None and (restarts := restarts_of(folder)):
                go = partial(_run_of(service).resume, folder, restarts=restarts)
            if tune is not None and ranks.is_distributed:
                raise UsageError(
                    "--tune searches in one process: start it without torchrun, and then train "
                    "with the settings that it found, --config run/config.toml."
                )
            say = (warn_only if quiet else status) if ranks.is_main else _say_nothing
            lines = EvaluationLines(say)
            if (slow := slow_threads(num_threads)) is not None:
                say(slow)

            def show(tick: Progress) -> None:
                if not stop.training:
                    stop.training = True
                    mark_started(ranks, folder)
                lines.show(tick)
                best = "" if tick.best is None else f"  best MAP@20 {tick.best:.4f}"
                words = "" if isnan(tick.loss) else f"loss {short_loss(tick.loss, 3)}{best}"
                advance(tick.step, tick.steps, words)

            try:
                outcome = go(
                    status=say, on_progress=show, should_stop=stop.should_stop, **processes
                )
            except (KeyboardInterrupt, SystemExit):
                if (folder / RECORD).exists():
                    say(f"Continue with `tapas train --resume {shell_path(folder)}`.")
                raise
        if ranks.is_main:
            if as_json:
                print_json({"run": str(folder), **asdict(outcome)})
            say(_describe_end(outcome))
            if outcome.reason != "interrupted":
                alone = not ranks.is_distributed and not service.servers
                try_to_report(folder, say, judge=alone)
            for words in _next_commands(folder, outcome, own):
                say(words)
        if outcome.reason == "interrupted":
            raise typer.Exit(128 + (stop.signal or signal.SIGINT))


def _run_of(service: ServiceConfig) -> ModuleType:
    """The module with `train` and `resume` for such a run: on ranks, or on servers."""
    if service.servers:
        from tapas.servers import run as on_servers

        return on_servers
    from tapas.training import run

    return run


@contextmanager
def _processes(
    service: ServiceConfig, ranks: Ranks, ray_address: str | None
) -> Iterator[dict[str, object]]:
    """The processes that train, as keyword arguments for `train` and `resume`."""
    if not service.servers:
        if ray_address is not None:
            raise UsageError(
                "--ray-address is for training with servers: add --servers, such as --servers 2."
            )
        yield {"ranks": ranks}
    elif ranks.is_distributed:
        raise UsageError(
            "torchrun and --servers are two ways to train on many processes: start `tapas train` "
            "without torchrun, or with --servers 0."
        )
    elif ray_address is None:
        yield {}  # Ray on this machine, once the log is read
    else:
        from tapas.servers.run import on_ray

        with on_ray(ray_address) as start_peers:
            yield {"start_peers": start_peers}


def _changed(service: ServiceConfig, flags: dict[str, JSON]) -> ServiceConfig:
    """`service` with the settings in `flags`; a default staleness is computed again."""
    if flags.get("servers") == 0:
        flags = {"workers": 1, "max_staleness": None, **flags}
    elif service.max_staleness == 2 * service.workers - 1:
        flags = {"max_staleness": None, **flags}
    return replace(service, **flags)  # type: ignore[arg-type]


def _say_nothing(words: str) -> None:
    """Status lines of ranks other than the main one are dropped: they are the same."""


def _describe_end(outcome: TrainResult) -> str:
    words = {
        "finished": f"Finished after {outcome.step:,} steps.",
        "no_improvement": f"Stopped at step {outcome.step:,}: MAP@20 no longer improves.",
        "interrupted": f"Interrupted at step {outcome.step:,}; a checkpoint is saved.",
    }[outcome.reason]
    if outcome.best is not None:
        words += f" Best MAP@20: {outcome.best:.4f}, at step {outcome.best_step:,}."
    return words


def _next_commands(folder: Path, outcome: TrainResult, own: str | None) -> list[str]:
    """What to do after training; commands need the name of an `own` method."""
    named = shell_path(folder) + ("" if own is None else f" --method {shell_word(own)}")
    if outcome.reason == "interrupted":
        return [f"Continue with `tapas train --resume {named}`."]
    recommend = f"`tapas recommend {named} --user ...`"
    if outcome.best is None:  # it is not judged
        return [f"Next: {recommend}."]
    return [
        f"Next: `tapas evaluate {named}`, {recommend}, or look into it: `tapas serve {named}`.",
        f"To learn from the held-out events, too: `{whole_log_command(folder, own)}`.",
    ]


def _checked_minutes(minutes: float) -> float:
    """Refuse a time that is no time."""
    if not 0 < minutes < MOST_MINUTES:
        raise UsageError(
            f"--minutes must be above 0 and below {MOST_MINUTES:,.0f}, got {minutes:g}."
        )
    return minutes


def _check_alone(flag: str, config: TrainConfig, *given: Layer) -> None:
    """Refuse what else says how long to train, and servers."""
    for name in ("epochs", "steps"):
        if any(layer.get("loop", {}).get(name) is not None for layer in given):
            raise UsageError(f"{flag} and --{name} both say how long to train. Use one of them.")
    if config.service.servers:
        raise UsageError(
            f"{flag} measures the pace of this process, and --servers trains in others. Use "
            "--epochs or --steps."
        )


def _refuse_beside(what: str, flags: Layer, **others: object) -> None:
    """Refuse settings beside --resume and --like, whose settings are those of a run."""
    named = {"files": "LOG", "kind": "--split"}
    given = [name for table in flags.values() for name in table]
    given += [name for name, value in others.items() if value is not None]
    if given:
        words = [named.get(name, f"--{name.replace('_', '-')}") for name in given]
        raise UsageError(f"{what}; {', '.join(words)} cannot be changed.")
