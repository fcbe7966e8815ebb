"""`default-model`: what each part of a model that `tapas train` chooses is worth.

A run is trained on the events before the validation events and chosen by these, as `tapas train`
does. Its counting parts are taken away one by one, and the shares of the others fitted again.

Then it may learn from the validation events, too, before it is judged by the test events:

    as it is        the run itself
    counts renewed  its counting parts count the validation events, too: what `recommend` uses
    going on        trained on for a tenth, or three tenths, of its steps on all events before the
                    test, from its best checkpoint, with rates that begin at a third
    again           trained anew on these events, as many passes: `tapas train --like`
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from experiments.logs import COMMITS, GROCERIES, told_of
from experiments.options import RESULTS, Draw, Out, Workers
from experiments.published.command import RECIPE, SEEDS
from experiments.trained_runs import Place, Tables, run_study, trained
from tapas.atomic_file import OutputFolder
from tapas.checkpoints.model import load_model_state, load_optimizer_state, read_checkpoint
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import Cache
from tapas.cli.terminal import status
from tapas.comparison.ledger import Ledger, Result, short_key
from tapas.comparison.settings import source_commit
from tapas.data.splits import Split, split_log
from tapas.errors import choice
from tapas.evaluation.evaluate import held_out
from tapas.evaluation.intervals import Interval
from tapas.evaluation.ranked_lists import ranked_lists
from tapas.evaluation.scores import RankedLists, score_together
from tapas.mixture import Mixture
from tapas.page import Block, Command, Heading, Paragraph, Table, as_markdown
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.build import TrainingData, build_mixture, build_training
from tapas.training.config import TrainConfig
from tapas.training.mixture_fit import MixtureFit
from tapas.training.model import SequenceModel
from tapas.training.run_evaluation import list_options, load_model
from tapas.training.run_folder import RunFolder
from tapas.training.step import local_steps
from tapas.training.validation import validation_examples

NAME = "default-model"
ABOUT = {NAME: ("Not a claim of the paper: what each part of a chosen model is worth.", "120")}
AS_IT_IS, RENEWED, AGAIN = "as it is", "counts renewed", "again"
GOING_ON = {"going on, a tenth": 0.1, "going on, three tenths": 0.3}
RATE = 1 / 3  # of the highest learning rates, when it goes on
WITHOUT_COPY, WITHOUT_FOLLOW, SOFTMAX = "without copying", "without following", "softmax alone"
LOGS = (GROCERIES, COMMITS, "bert4rec-beauty")
METRICS = ("map@20", "ndcg@10", "recall@20")


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultModelRun:
    """What decides the outcome; `recipe` as for the published sets."""

    log: str
    seed: int
    recipe: int

    def key(self) -> str:
        return short_key(asdict(self))


def execute(run: DefaultModelRun, place: Place) -> Result:
    """Train, or continue a run that was killed, and judge all models."""
    told: list[Tables] = [told_of(run.log, place), {"loop": {"seed": run.seed}}]
    found, _ = trained(run.key(), told, place)
    return {"key": run.key(), "run": asdict(run), "commit": source_commit(), **compare(found)}


def compare(run: RunFolder) -> dict[str, Any]:
    """Metrics of all models at the test points, and leads over the run as it is."""
    first = split_log(run.log, run.config.split)
    later = split_log(run.log, replace(first.config, validation=0))
    model, best = load_model(run)
    lists = {AS_IT_IS: _lists(model, run, first)}
    renewed, _ = load_model(run)
    counted = build_mixture(run.config.model, TrainingData(None, run.log, later.train_end))
    if counted is not None and model.mixture is not None:
        counted.load_state_dict(model.mixture.state_dict())
        renewed.mixture = counted
        lists[RENEWED] = _lists(renewed, run, first)
    ratio = int(later.train_counts.sum()) / int(first.train_counts.sum())
    steps = {AGAIN: max(1, round(best * ratio))}
    steps |= {name: max(1, round(share * best * ratio)) for name, share in GOING_ON.items()}
    seconds = {}
    for name, number in steps.items():
        start = time.monotonic()
        lists[name] = _lists(_trained(run, later, number, name, best, model), run, first)
        seconds[name] = round(time.monotonic() - start, 1)
    lists |= _taken_apart(run, first)
    target = torch.from_numpy(_held_out(run, first)[1])
    scores, lead = score_together(lists, target, train_counts=torch.from_numpy(first.train_counts))
    return {
        "points": scores[AS_IT_IS].num_examples,
        "steps": {AS_IT_IS: best, **steps},
        "seconds": seconds,
        "scores": {
            name: {metric: _rounded(each.metrics[metric]) for metric in METRICS}
            for name, each in scores.items()
        },
        "lead": {name: _rounded(each) for name, each in lead.items()},  # of the run as it is
    }


def _taken_apart(run: RunFolder, split: Split) -> dict[str, RankedLists]:
    """Lists of the best checkpoint with some of its parts, whose shares are fitted anew."""
    model, _ = load_model(run)
    if model.mixture is None:
        return {}
    copy, follow = model.mixture.copy, model.mixture.follow
    points, target = validation_examples(run.log, run.config, split)
    options = list_options(run)
    fit = MixtureFit(run.log, points, target, options, train_counts=split.train_counts)
    found = {}
    if copy is not None and follow is not None:
        one_part = {
            WITHOUT_COPY: Mixture(follow=follow),
            WITHOUT_FOLLOW: Mixture(copy=copy),
        }
        for name, mixture in one_part.items():
            model.mixture = mixture
            fit.fit(model)
            found[name] = _lists(model, run, split)
    model.mixture = None
    found[SOFTMAX] = _lists(model, run, split)
    return found


def _trained(
    run: RunFolder, split: Split, steps: int, name: str, best: int, example: SequenceModel
) -> SequenceModel:
    """A model trained on the training events of `split`, anew or from the best checkpoint."""
    config = _with_steps(run.config, steps, RATE if name in GOING_ON else 1.0)
    setup = build_training(config, run.log, split)
    if name in GOING_ON:
        checkpoint = read_checkpoint(run.checkpoints, setup.model, best, ONE_PROCESS)
        load_model_state(setup.model, checkpoint)
        load_optimizer_state(setup.optimizer, checkpoint)
    if setup.model.mixture is not None and example.mixture is not None:
        setup.model.mixture.load_state_dict(example.mixture.state_dict())
    runner = local_steps(setup)
    for step in range(steps):
        runner.run_step(step, steps)
    return setup.model.eval()


def _with_steps(config: TrainConfig, steps: int, rate: float) -> TrainConfig:
    optimizer = replace(
        config.optimizer,
        rows_lr=rate * config.optimizer.rows_lr,
        encoder_lr=rate * config.optimizer.encoder_lr,
    )
    loop = replace(config.loop, steps=steps, evaluate_every=steps)
    return replace(config, loop=loop, optimizer=optimizer)


def _held_out(run: RunFolder, split: Split) -> Any:
    num_targets = run.config.head.next_items
    return held_out(run.log, split, list_options(run), num_targets=num_targets)


def _lists(model: SequenceModel, run: RunFolder, split: Split) -> RankedLists:
    points, target = _held_out(run, split)
    return ranked_lists(model, run.log, points, target, list_options(run), with_loss=False)


def _rounded(interval: Interval) -> list[float]:
    return [round(value, 6) for value in (interval.mean, interval.low, interval.high)]


def page(ledger: Ledger, recipe: int, seeds: tuple[int, ...]) -> str:
    blocks: list[Block] = [
        Paragraph(
            "A model that `tapas train` chose and trained, nothing else given, judged by its test "
            "events: as it is, without some of its parts, and after it has learned from the "
            "validation events, too, which were held out to choose it. Leads are over the run as "
            "it is: means over seeds; the intervals are those of the users, of seed 0."
        ),
        Command(f"python -m experiments {NAME} --data FOLDER"),
    ]
    for log in LOGS:
        runs = [DefaultModelRun(log=log, seed=seed, recipe=recipe) for seed in seeds]
        results = [ledger[run] for run in runs if run in ledger]
        if not results:
            continue
        number = len(results)
        seeded = "one seed" if number == 1 else f"{number} seeds"
        blocks.append(Heading(f"{log}: {results[0]['points']:,} test users, {seeded}"))
        rows = []
        for name in results[0]["scores"]:
            value = _mean(result["scores"][name]["map@20"][0] for result in results)
            lead, extra = "", ""
            if name != AS_IT_IS:
                mean = -_mean(result["lead"][name][0] for result in results)
                _, low, high = results[0]["lead"][name]
                lead = f"{mean:+.4f} ({-high:+.4f} to {-low:+.4f})"
            if name in results[0]["steps"] and name != AS_IT_IS:
                share = results[0]["steps"][name] / results[0]["steps"][AS_IT_IS]
                extra = f"{100 * share:.0f} %"
            rows.append((name, f"{value:.4f}", lead, extra))
        blocks.append(Table(("", "MAP@20", "lead", "further steps"), rows))
    return as_markdown("What a chosen model is made of", blocks)


def _mean(values: Any) -> float:
    found = list(values)
    return float(sum(found) / len(found))


def default_model(
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder with rust_commits.parquet and BERT4Rec.")
    ] = Path("data"),
    logs: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Some of {','.join(LOGS)}, separated by commas.")
    ] = ",".join(LOGS),
    out: Out = RESULTS,
    cache: Cache = None,
    draw: Draw = False,
    workers: Workers = 2,
) -> None:
    """Take a chosen model apart, and compare ways to learn from what was held out.

    Three seeds on each log. Finished runs are kept: you can stop at any time, and the same command
    continues.
    """
    with report_errors():
        names = [name.strip() for name in logs.split(",")]
        for name in names:
            choice("log", name, dict.fromkeys(LOGS))
        folder = out / NAME
        ledger = Ledger(folder / "results.jsonl")
        if not draw:
            place = Place.of(NAME, data, cache)
            for name in names:
                told_of(name, place)  # or an error, before anything is trained
            runs = [
                DefaultModelRun(log=name, seed=seed, recipe=RECIPE)
                for seed in SEEDS
                for name in names
            ]
            run_study(NAME, runs, execute, ledger, place, workers=workers)
        OutputFolder(folder).write({"README.md": page(ledger, RECIPE, SEEDS).encode()})
        status(f"Wrote {folder / 'README.md'}.")
