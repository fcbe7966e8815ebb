"""`four-ways`: one small encoder trained with four losses on one long-tailed task.

    sampled softmax   TapasSoftmax with r = 1: n classes drawn from Q
    TAPAS top         r * n drawn, the n kept that the batch scores highest (the paper's rule)
    TAPAS priority    r * n drawn, n kept by priority sampling and weighted (ours)
    full softmax      FullSoftmax over all classes

All four share the encoder's and the rows' first values, the batches, and Adagrad with one
pair of learning rates, which were chosen for sampled softmax. Q is the true frequency of
the classes, which is also what sampled softmax does best with here; biases start at its
logarithm.

A step is forward, backward and update of encoder and head; drawing the batch and
evaluating are not in it, and neither are a few throw-away steps that warm the process up.
"""

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from experiments.options import RESULTS, Out, Quick, home_of
from experiments.quick import GENERATED_POINTS, quick_page, say_quick
from experiments.synthetic.long_tail import Examples, LongTail, LongTailConfig
from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.progress import run_progress
from tapas.cli.terminal import print_table, say, status
from tapas.comparison.figure_style import as_png
from tapas.comparison.ledger import Ledger, Result, short_key
from tapas.comparison.process_pool import run_missing
from tapas.comparison.tables import NONE
from tapas.errors import UsageError
from tapas.evaluation.scores import metrics_per_example
from tapas.heads import FullSoftmax, Head, TapasSoftmax
from tapas.optim import Adagrad
from tapas.page import Block, Command, Paragraph, Picture, Table, as_markdown
from tapas.proposals import Squashed
from tapas.rng import stream

NAME, BAYES = "four-ways", "Bayes-optimal"
ABOUT = {NAME: ("Not a claim of the paper: the figure of README.md, one model four ways.", "1")}
METHODS = ("sampled softmax", "TAPAS top", "TAPAS priority", "full softmax")
RANKED = 20  # the k of MAP@k
MOMENTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)  # shares of the steps, denser at first
INITIAL_SUM = 1e-6  # Adagrad's accumulators start here, for all four
WARM_UP_STEPS = 2
CLASSES, STEPS = 100_000, 300
QUICK_CLASSES, QUICK_STEPS = 2_000, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FourWaysRun:
    """Everything that the outcome depends on, except the machine."""

    method: str  # one of METHODS, or BAYES, which is not trained
    classes: int = CLASSES
    steps: int = STEPS
    batch: int = 128
    num_samples: int = 128  # n
    presample_factor: int = 8  # r
    hidden: int = 128  # width of the encoder's one hidden layer
    dim: int = 64  # D, of queries and rows
    encoder_lr: float = 0.02
    row_lr: float = 0.2
    num_held_out: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        least = max(self.num_samples, RANKED)
        if self.classes < least:
            raise UsageError(
                f"{self.classes} classes are too few: sampling {self.num_samples} of "
                f"them and ranking the best {RANKED} needs at least {least}."
            )

    def key(self) -> str:
        return short_key(asdict(self))


class Learner:
    """Encoder, head and optimizer of one method; two of the same seed start the same."""

    def __init__(self, run: FourWaysRun, task: LongTail):
        self.encoder, self.head = build_encoder(run, task.config.dim), build_head(run, task)
        self.optimizer = torch.optim.Adagrad(
            self.encoder.parameters(),
            lr=run.encoder_lr,
            initial_accumulator_value=INITIAL_SUM,
            fused=True,
        )

    def step(self, batch: Examples) -> float:
        """Forward, backward, update. Returns the seconds it took."""
        start = time.perf_counter()
        self.head(self.encoder(batch.x), batch.y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start

    @torch.no_grad()
    def rank(self, x: Tensor) -> Tensor:
        """The best RANKED of all classes for each row of `x` (B, d): (B, RANKED)."""
        return self.head.topk(self.encoder(x), RANKED)[1]


def build_encoder(run: FourWaysRun, width: int) -> nn.Sequential:
    """An MLP from (B, d) to queries (B, D)."""
    first, second = (
        nn.Linear(*sizes, device="meta").to_empty(
            device="cpu"
        )  # skips torch's random initialization
        for sizes in ((width, run.hidden), (run.hidden, run.dim))
    )
    generator = stream(run.seed, "encoder")
    nn.init.kaiming_uniform_(first.weight, nonlinearity="relu", generator=generator)
    nn.init.kaiming_uniform_(second.weight, nonlinearity="linear", generator=generator)
    nn.init.zeros_(first.bias)
    nn.init.zeros_(second.bias)
    return nn.Sequential(first, nn.ReLU(), second)


def build_head(run: FourWaysRun, task: LongTail) -> Head:
    rows = Adagrad.fused(lr=run.row_lr, initial_sum=INITIAL_SUM)
    bias = task.frequency.log().float()
    if run.method == "full softmax":
        return FullSoftmax(run.classes, run.dim, row_optimizer=rows, bias=bias, seed=run.seed)
    return TapasSoftmax(
        run.classes,
        run.dim,
        num_samples=run.num_samples,
        presample_factor=1 if run.method == "sampled softmax" else run.presample_factor,
        selection="top" if run.method == "TAPAS top" else "priority",
        proposal=Squashed(task.frequency, alpha=1.0),
        row_optimizer=rows,
        bias=bias,
        seed=run.seed,
    )


def scores(ranked: Tensor, target: Tensor) -> dict[str, float]:
    """Of `ranked` (B, RANKED) ids against `target` (B,); the error is that of MAP@20."""
    found = metrics_per_example(ranked, target[:, None])
    precision = found["map@20"].double()
    return {
        "precision@1": float(found["precision@1"].double().mean()),
        "map@20": float(precision.mean()),
        "standard_error": float(precision.std(correction=0) / len(target) ** 0.5),
    }


def execute(run: FourWaysRun) -> Result:
    """Train one of the four and evaluate it exactly, over all classes, several times."""
    task = LongTail(LongTailConfig(num_classes=run.classes), seed=run.seed)
    held_out = task.sample(run.num_held_out, generator=stream(run.seed, "held out"))
    found: Result = {"key": run.key(), "run": asdict(run), "torch": torch.__version__}
    if run.method == BAYES:
        return found | scores(task.bayes_top(held_out.x, RANKED), held_out.y)

    def batch(step: int) -> Examples:
        return task.sample(run.batch, generator=stream(run.seed, "batch", step))

    rehearsal = Learner(run, task)
    for step in range(WARM_UP_STEPS):
        rehearsal.step(batch(step))
    learner, seconds = Learner(run, task), []
    moments = {max(1, round(part * run.steps)) for part in MOMENTS}
    curve = []
    for step in range(1, run.steps + 1):
        seconds.append(learner.step(batch(step)))
        if step in moments:
            reached = scores(learner.rank(held_out.x), held_out.y)
            curve.append({"step": step, "seconds": sum(seconds), **reached})
    return {
        **found,
        **reached,
        "step_seconds": statistics.median(seconds),
        "threads": torch.get_num_threads(),
        "curve": curve,
    }


def table(results: Sequence[Result]) -> Table:
    reference = results[0]["step_seconds"]
    rows = []
    for result in results:
        times = [NONE, NONE]
        if "step_seconds" in result:
            step = result["step_seconds"]
            times = [f"{1000 * step:.2f} ms", f"{step / reference:.1f}x"]
        scored = [f"{result[name]:.3f}" for name in ("precision@1", "map@20")]
        rows.append([result["run"]["method"], *scored, *times])
    return Table(("", "precision@1", "MAP@20", "step time", "vs sampled"), rows)


def remarks(results: Sequence[Result]) -> list[str]:
    run, threads = results[0]["run"], results[0]["threads"]
    pool = min(run["presample_factor"] * run["num_samples"], run["classes"])
    return [
        f"{run['classes']:,} classes, {run['steps']:,} steps of {run['batch']} examples, one seed "
        f"({run['seed']}), {threads} thread{'s' if threads > 1 else ''}.",
        f"Sampled softmax draws n = {run['num_samples']} classes for each batch; TAPAS draws "
        f"{pool:,} (r = {run['presample_factor']}) and keeps {run['num_samples']}. Scores: "
        f"{run['num_held_out']:,} held-out examples ranked over all classes; the standard error of "
        f"MAP@20 is {max(r['standard_error'] for r in results):.3f}. Step time: median of forward, "
        "backward and update. One seed: repeat with --seed before you trust a small difference.",
    ]


def four_ways(
    classes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of classes. Time and memory grow with it, because of the full softmax. "
            f"Default: {CLASSES:,}; with --quick: {QUICK_CLASSES:,}.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Training steps of each method, with batches of 128. "
            f"Default: {STEPS}; with --quick: {QUICK_STEPS}.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", help="Seed of the task, the initial weights and all random draws."
        ),
    ] = 0,
    out: Out = RESULTS,
    quick: Quick = False,
) -> None:
    """Train one small model four ways and compare.

    Sampled softmax, TAPAS with the paper's rule (top), TAPAS with this library's rule
    (priority), and full softmax, with the same initial weights and the same batches.

    The task is synthetic: Zipf frequencies, a centroid for each class, noise. Its true
    distribution is known, so the best score that any model can reach (Bayes-optimal) is printed,
    too. Finished runs are kept, and the same command redraws them. Needs an idle machine for
    meaningful step times. Less than a minute on two cores.
    """
    with report_errors():
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        from experiments.four_ways_figure import four_ways_figure

        classes = classes or (QUICK_CLASSES if quick else CLASSES)
        steps = steps or (QUICK_STEPS if quick else STEPS)
        runs = [
            FourWaysRun(method=method, classes=classes, steps=steps, seed=seed)
            for method in (*METHODS, BAYES)
        ]
        if quick:
            say_quick(GENERATED_POINTS)
        out = home_of(out, quick)
        folder, ledger = OutputFolder(out / NAME), Ledger(out / NAME / "results.jsonl")
        with run_progress() as follow:  # one at a time, as times are measured
            run_missing(ledger, runs, execute, follow(NAME), workers=1)
        results = [ledger[run] for run in runs]
        found, (what, note) = table(results), remarks(results)
        parts: list[Block] = [
            Paragraph(what),
            Command(f"python -m experiments {NAME}"),
            Picture("figure.png", "MAP@20 of one encoder trained four ways"),
            found,
            Paragraph(note),
        ]
        page = as_markdown("Four ways to train a softmax", parts)
        figure = four_ways_figure(results, quick=quick)
        page = quick_page(page, GENERATED_POINTS) if quick else page
        folder.write({"figure.png": as_png(figure), "README.md": page.encode()})
        say(what)
        print_table(found.heading, found.rows)
        say(note)
        status(f"Wrote {out / NAME / 'figure.png'} and {out / NAME / 'README.md'}.")
