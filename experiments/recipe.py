"""`recipe`: the trials behind what `tapas train` chooses, on validation users of four logs.

Each trial changes a setting or two of the recipe at its time. Test users are not looked at.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.logs import COMMITS, GROCERIES, title_of, told_of
from experiments.options import RESULTS, Draw, Out, Workers
from experiments.trained_runs import Place, Tables, run_study, trained
from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import Cache
from tapas.cli.terminal import status
from tapas.comparison.ledger import Ledger, Result, short_key
from tapas.comparison.settings import source_commit
from tapas.page import Block, Command, Heading, Paragraph, Table, as_markdown
from tapas.training.config import JSON
from tapas.training.run_evaluation import evaluate_run
from tapas.training.settings_search import in_words

NAME = "recipe"
ABOUT = {NAME: ("Not a claim of the paper: trials behind what `tapas train` chooses.", "150")}
METRICS = ("ndcg@10", "recall@10", "map@20")
DECAY = "optimizer.weight_decay"
TAPAS: dict[str, JSON] = {"head.method": "tapas", "head.num_samples": 1_000, DECAY: 0.0}
MIXED: dict[str, JSON] = TAPAS | {"head.method": "mixed"}
HYBRID: dict[str, JSON] = MIXED | {"head.presample_factor": 8}
FULL: dict[str, JSON] = {"head.method": "full", DECAY: 0.0}
SEEDS: list[dict[str, JSON]] = [{}, {"loop.seed": 1}, {"loop.seed": 2}]
TRIALS: dict[str, list[dict[str, JSON]]] = {
    "beauty": [
        FULL,
        FULL | {"loop.epochs": 10.0},
        FULL | {DECAY: 0.001},
        TAPAS,
        TAPAS | {"head.num_samples": 256},
        TAPAS | {"model.dim": 256},
        TAPAS | {"model.dropout": 0.3},
        TAPAS | {"loop.epochs": 40.0},
        TAPAS | {DECAY: 0.01},
        MIXED,
        MIXED | {DECAY: 0.001},
        HYBRID,
        HYBRID | {DECAY: 0.001},
    ],
    "bert4rec-beauty": [
        TAPAS,
        TAPAS | {DECAY: 0.01},
        TAPAS | {"loop.epochs": 20.0},
        TAPAS | {"loop.epochs": 20.0, "model.dropout": 0.3},
        TAPAS | {"head.num_samples": 256},
        TAPAS | {"head.num_samples": 64},
        TAPAS | {"head.num_samples": 3_000},
        TAPAS | {"loop.seed": 1},
        TAPAS | {"loop.seed": 2},
        MIXED | {"head.num_samples": 64},
        MIXED | {"head.num_samples": 256},
        MIXED,
        MIXED | {"loop.seed": 1},
        MIXED | {"loop.seed": 2},
        HYBRID | {"head.num_samples": 64},
        HYBRID | {"head.num_samples": 256},
        HYBRID,
    ],
    GROCERIES: [method | seed for method in (TAPAS, MIXED, HYBRID) for seed in SEEDS],
    COMMITS: [method | seed for method in (TAPAS, MIXED, HYBRID) for seed in SEEDS],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeTrial:
    """A set, a seed, and what is changed, by names such as "model.dim"."""

    set: str
    seed: int
    changes: dict[str, JSON] = field(hash=False)

    def key(self) -> str:
        return short_key(asdict(self))


def execute(trial: RecipeTrial, place: Place) -> Result:
    """Train, or continue a trial that was killed, and judge by all validation users."""
    told: list[Tables] = [
        told_of(trial.set, place),
        {"loop": {"seed": trial.seed}},
        as_sections(trial.changes),
    ]
    run, seconds = trained(trial.key(), told, place)
    found, step = evaluate_run(run, split="validation")
    scores = found.scores["model"]
    return {
        "key": trial.key(),
        "run": asdict(trial),
        "commit": source_commit(),
        "seconds": seconds,  # of one thread, beside other runs
        "best_step": step,
        "users": scores.num_examples,
        "scores": {name: asdict(scores.metrics[name]) for name in METRICS},
    }


def as_sections(changes: dict[str, JSON]) -> Tables:
    """
    >>> as_sections({"model.dim": 8, "loop.seed": 1})
    {'model': {'dim': 8}, 'loop': {'seed': 1}}
    """
    found: Tables = {}
    for name, value in changes.items():
        section, _, setting = name.partition(".")
        found.setdefault(section, {})[setting] = value
    return found


def page(ledger: Ledger) -> str:
    """All trials in the ledger, best first; also those that are no longer in `TRIALS`."""
    blocks: list[Block] = [
        Paragraph(
            "Trials behind the rules of `tapas train` (docs/training.md), judged by all "
            "validation users, with 95 % intervals over users. Seed 0 where no other is named; a "
            "difference below about .002 between single seeds may be luck. Everything else is what "
            "was chosen from the log by the code of that commit. Times are those of one thread "
            "beside other work. The trials of 8afcf2e were made with `tapas train` and these "
            "settings as flags, before this command was written."
        ),
        Command(f"python -m experiments {NAME} --data FOLDER"),
    ]
    for name in TRIALS:
        found = [each for each in ledger.results.values() if each["run"]["set"] == name]
        if not found:
            continue
        found.sort(key=lambda each: -float(each["scores"]["ndcg@10"]["mean"]))
        blocks.append(Heading(f"{title_of(name)}: {found[0]['users']:,} validation users"))
        rows = [
            (
                in_words(each["run"]["changes"]),
                *(_cell(each["scores"][metric]) for metric in METRICS),
                "" if each["seconds"] is None else f"{each['seconds'] / 60:.0f}",
                each["commit"] or "",
            )
            for each in found
        ]
        blocks.append(Table(("", "NDCG@10", "recall@10", "MAP@20", "minutes", "commit"), rows))
    return as_markdown("Trials behind the recipe", blocks)


def _cell(interval: dict[str, Any]) -> str:
    return f"{interval['mean']:.4f} ({interval['low']:.4f} to {interval['high']:.4f})"


def recipe(
    data: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder with clones of ICLRec and BERT4Rec, and rust_commits.parquet.",
        ),
    ] = Path("data"),
    out: Out = RESULTS,
    cache: Cache = None,
    draw: Draw = False,
    workers: Workers = 2,
) -> None:
    """Try settings on the validation users of four logs.

    Finished trials are kept: you can stop at any time, and the same command continues.
    """
    with report_errors():
        folder = out / NAME
        ledger = Ledger(folder / "results.jsonl")
        if not draw:
            place = Place.of(NAME, data, cache)
            for name in TRIALS:
                told_of(name, place)  # or an error, before anything is trained
            trials = [
                RecipeTrial(set=name, seed=0, changes=changes)
                for name, each in TRIALS.items()
                for changes in each
            ]
            run_study(NAME, trials, execute, ledger, place, workers=workers)
        OutputFolder(folder).write({"README.md": page(ledger).encode()})
        status(f"Wrote {folder / 'README.md'}.")
