"""One training run of a synthetic experiment: its settings, training and evaluation."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.shards.overlap import measure_overlap
from experiments.synthetic.long_tail import Examples
from experiments.synthetic.tasks import Task, load_task
from tapas.comparison.ledger import short_key
from tapas.errors import UsageError
from tapas.heads import TapasSoftmax
from tapas.optim import Adagrad
from tapas.optim.row_updates import AdagradUpdate
from tapas.proposals import Squashed, Uniform
from tapas.rng import stream
from tapas.schedule import Anneal, Schedule
from tapas.tables import LocalTable
from tapas.tables.placement import Placement

QUERIES_PER_CHUNK = 1000
ALPHA = 0.75  # of the proposal, where labels are not uniform
# later settings, unknown to older ledgers: at these values they are left out of a key
LATER = {"num_shards": 1, "moving": False, "looks": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything that decides the outcome of a run; two equal ones give equal numbers."""

    task: str
    method: str  # "full", "top" or "priority"; r=1 of the last two is sampled softmax
    num_samples: int = 0  # n
    presample_factor: int = 1  # r
    lr: float
    temperature: float = 1.0
    anneal_to: float | None = None  # linear over the run, from `temperature`
    steps: int
    seed: int
    batch: int
    l2: float = 0.0
    hidden: int | None = None  # units of the encoder's one layer; None: the query is x itself
    evaluate_every: int
    judge: str = "test"  # or "validation", for choosing settings
    num_shards: int = 1  # m, of the second pass
    moving: bool = False  # classes change shards in every step, which no real table could do
    looks: int = 0  # draws that measure the trained model; see shards/overlap.py

    def __post_init__(self) -> None:
        if self.method not in ("full", "top", "priority"):
            raise UsageError(f"method must be full, top or priority, got {self.method!r}.")
        if self.judge not in ("test", "validation"):
            raise UsageError(f"judge must be test or validation, got {self.judge!r}.")

    def key(self) -> str:
        """A short name for all settings."""
        settings = asdict(self)
        for name, default in LATER.items():
            if settings[name] == default:
                del settings[name]
        return short_key(settings)

    def schedule(self) -> float | Schedule:
        if self.anneal_to is None:
            return self.temperature
        return Anneal(start=self.temperature, end=self.anneal_to, steps=self.steps)


def execute(run: Run) -> dict[str, object]:
    """Train and evaluate, on one thread, so that several runs fit on one machine."""
    torch.set_num_threads(1)
    task = load_task(run.task)
    examples = task.test if run.judge == "test" else task.validation
    few = Examples(examples.x[:10_000], examples.y[:10_000])
    encoder, head, table = _build(run, task)
    optimizer = _Adagrad(list(encoder.parameters()), run.lr)
    curve: list[tuple[int, float, float]] = []
    seconds = 0.0
    order = stream(run.seed, "order")
    batches: Iterator[Tensor] = iter(())
    for step in range(1, run.steps + 1):
        start = time.perf_counter()
        rows = next(batches, None)
        if rows is None:
            batches = iter(
                torch.split(torch.randperm(len(task.train.y), generator=order), run.batch)
            )
            rows = next(batches)
        if run.moving:
            table.placement = Placement(task.num_classes, run.num_shards, seed=step)
        head(encoder(task.train.x[rows]), task.train.y[rows]).backward()
        optimizer.step()
        seconds += time.perf_counter() - start
        if step % run.evaluate_every == 0 or step == run.steps:
            accuracy, loss = evaluate(encoder, table, few)
            curve.append((step, accuracy, loss))
    if len(examples.y) > len(few.y):
        accuracy, loss = evaluate(encoder, table, examples)
    looks = (
        {"looks": measure_overlap(encoder, head, examples, draws=run.looks)} if run.looks else {}
    )
    return {
        "key": run.key(),
        "run": asdict(run),
        "accuracy": accuracy,
        "cross_entropy": loss,
        "train_seconds": round(seconds, 3),
        "torch": torch.__version__,
        "curve": [[s, round(a, 5), round(c, 5)] for s, a, c in curve],
        **looks,
    }


@torch.no_grad()
def evaluate(encoder: nn.Module, table: LocalTable, split: Examples) -> tuple[float, float]:
    """Precision@1 and full softmax loss on all of `split`, exact."""
    hits, loss = 0, 0.0
    for start in range(0, len(split.y), QUERIES_PER_CHUNK):
        x, y = (part[start : start + QUERIES_PER_CHUNK] for part in (split.x, split.y))
        logits = torch.addmm(table.bias, encoder(x), table.weight.t())
        hits += int((logits.argmax(dim=1) == y).sum())
        loss += float(functional.cross_entropy(logits, y, reduction="sum"))
    return hits / len(split.y), loss / len(split.y)


def _build(run: Run, task: Task) -> tuple[nn.Module, TapasSoftmax, LocalTable]:
    dim = task.train.x.shape[1]
    encoder: nn.Module = nn.Identity()
    if run.hidden is not None:
        layer = nn.Linear(dim, run.hidden, device="meta").to_empty(device="cpu")
        bound = 1 / math.sqrt(dim)
        for parameter in layer.parameters():
            parameter.data.uniform_(-bound, bound, generator=stream(run.seed, "encoder"))
        encoder, dim = nn.Sequential(layer, nn.ReLU()), run.hidden
    table = LocalTable(
        task.num_classes,
        dim,
        row_optimizer=Adagrad.fused(lr=run.lr, weight_decay=run.l2),
        num_shards=run.num_shards,
        seed=run.seed,
    )
    full = run.method == "full"
    head = TapasSoftmax(
        table=table,
        num_samples=task.num_classes if full else run.num_samples,
        presample_factor=run.presample_factor,
        selection="top" if full else run.method,
        temperature=run.schedule(),
        proposal=(
            Uniform(task.num_classes) if task.counts is None else Squashed(task.counts, alpha=ALPHA)
        ),
        seed=run.seed,
    )
    return encoder, head, table


class _Adagrad:
    """Dense Adagrad for the encoder, with the same start as the rows' and no overhead."""

    def __init__(self, parameters: list[nn.Parameter], lr: float):
        self.rule = AdagradUpdate(lr=lr)
        start = self.rule.initial_sum
        self.moved = [(p, torch.full_like(p, start)) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, total in self.moved:
            if parameter.grad is not None:
                self.rule.apply(parameter.data, parameter.grad, {"sum": total}, 0)
                parameter.grad = None
