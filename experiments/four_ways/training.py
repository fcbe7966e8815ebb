"""One small encoder, one long-tailed task, trained four ways from the same start.

    sampled softmax   TapasSoftmax with r = 1: n classes drawn from Q
    TAPAS top         r * n drawn, the n kept that the batch scores highest (the paper's rule)
    TAPAS priority    r * n drawn, n kept by priority sampling and weighted (ours)
    full softmax      nn.Linear and cross_entropy over all classes

All four share the encoder's and the rows' first values, the batches, and Adagrad with one
pair of learning rates, which were chosen for sampled softmax. Q is the true frequency of
the classes, which is also what sampled softmax does best with here; biases start at its
logarithm. The full softmax gets torch's fused Adagrad, the fastest there is.

A step is forward, backward and update of encoder and head; drawing the batch and
evaluating are not in it, and neither are a few throw-away steps that warm the process up.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.synthetic.long_tail import Examples, LongTail, LongTailConfig
from tapas.errors import UsageError
from tapas.heads import TapasSoftmax
from tapas.metrics import average_precision_at_k, precision_at_k
from tapas.optim import Adagrad
from tapas.proposals import Squashed
from tapas.proposals.alias import AliasTable
from tapas.rng import stream
from tapas.shapes import check_positive
from tapas.tables import LocalTable

METHODS = ("sampled softmax", "TAPAS top", "TAPAS priority", "full softmax")
RANKED = 20  # the k of MAP@k
EVALUATED_AT = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)  # parts of the steps
INITIAL_SUM = 1e-6  # Adagrad's accumulators start here, for all four
WARM_UP_STEPS = 2
QUERIES_PER_CHUNK = 256  # ranked at once


@dataclass(frozen=True, kw_only=True, slots=True)
class FourWaysConfig:
    """Everything that the outcome depends on, but the machine."""

    task: LongTailConfig = field(default_factory=LongTailConfig)
    steps: int = 300
    batch_size: int = 128
    num_samples: int = 128  # n
    presample_factor: int = 8  # r
    hidden: int = 128  # width of the encoder's one hidden layer
    dim: int = 64  # D, of queries and rows
    encoder_lr: float = 0.02
    row_lr: float = 0.2
    num_held_out: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "steps", "batch_size", "num_samples", "presample_factor", "hidden", "dim",
            "num_held_out",
        ):  # fmt: skip
            check_positive(name, getattr(self, name))
        least = max(self.num_samples, RANKED)
        if self.task.num_classes < least:
            raise UsageError(
                f"{self.task.num_classes} classes are too few: sampling {self.num_samples} of "
                f"them and ranking the best {RANKED} needs at least {least}."
            )


@dataclass(frozen=True, slots=True)
class Score:
    """Exact ranking over all classes, averaged over the held-out examples."""

    precision_at_1: float
    map_at_20: float
    map_at_20_standard_error: float  # from the choice of held-out examples, not of the seed


@dataclass(frozen=True, slots=True)
class Point:
    """How good a method was after so many steps, and so many seconds inside them."""

    step: int
    seconds: float
    score: Score


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One of the four ways."""

    name: str
    step_seconds: float  # median
    curve: tuple[Point, ...]

    @property
    def final(self) -> Score:
        return self.curve[-1].score


@dataclass(frozen=True, slots=True)
class FourWaysResult:
    """What came out, with what it came from."""

    config: FourWaysConfig
    num_threads: int
    torch_version: str
    methods: tuple[MethodResult, ...]  # in the order of METHODS
    bayes: Score  # of the true distribution: no model can rank better on average


@dataclass(frozen=True, slots=True)
class Progress:
    """Said after each step."""

    method: str
    step: int
    seconds: float  # inside the steps of this method so far


class FullSoftmax(nn.Module):
    """What people write today: nn.Linear and cross_entropy, from the rows of a `LocalTable`."""

    def __init__(self, start: LocalTable):
        super().__init__()
        self.linear = _blank_linear(start.dim, start.num_classes)
        with torch.no_grad():
            self.linear.weight.copy_(start.weight)
            self.linear.bias.copy_(start.bias)

    def forward(self, query: Tensor, target: Tensor) -> Tensor:
        """Mean loss of `query` (B, D) with `target` (B,)."""
        return cross_entropy(self.linear(query), target)

    def topk(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best classes for `query` (B, D): (B, k)."""
        best = self.linear(query).topk(k)
        return best.values, best.indices


class Learner:
    """Encoder, head and optimizer of one method; two of the same config start the same."""

    def __init__(self, method: str, config: FourWaysConfig, task: LongTail):
        self.encoder = build_encoder(config)
        self.head = build_head(method, config, task)
        groups = [{"params": list(self.encoder.parameters()), "lr": config.encoder_lr}]
        rows = list(self.head.parameters())  # none where the table moves its own rows
        if rows:
            groups.append({"params": rows, "lr": config.row_lr})
        self.optimizer = torch.optim.Adagrad(
            groups, initial_accumulator_value=INITIAL_SUM, fused=True
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
        size = QUERIES_PER_CHUNK
        chunks = (x[start : start + size] for start in range(0, len(x), size))
        return torch.cat([self.head.topk(self.encoder(rows), RANKED)[1] for rows in chunks])


def build_encoder(config: FourWaysConfig) -> nn.Sequential:
    """An MLP from (B, d) to queries (B, D)."""
    first = _blank_linear(config.task.dim, config.hidden)
    second = _blank_linear(config.hidden, config.dim)
    generator = stream(config.seed, "encoder")
    nn.init.kaiming_uniform_(first.weight, nonlinearity="relu", generator=generator)
    nn.init.kaiming_uniform_(second.weight, nonlinearity="linear", generator=generator)
    nn.init.zeros_(first.bias)
    nn.init.zeros_(second.bias)
    return nn.Sequential(first, nn.ReLU(), second)


def _blank_linear(width_in: int, width_out: int) -> nn.Linear:
    """Values still to come: nn.Linear's own would be drawn from torch's global generator."""
    return nn.Linear(width_in, width_out, device="meta").to_empty(device="cpu")


def build_head(method: str, config: FourWaysConfig, task: LongTail) -> TapasSoftmax | FullSoftmax:
    """The head called `method`, one of METHODS."""
    log_frequency = task.frequency.log().float()
    if method == "full softmax":
        return FullSoftmax(
            LocalTable(task.num_classes, config.dim, bias=log_frequency, seed=config.seed)
        )
    return TapasSoftmax(
        task.num_classes,
        config.dim,
        num_samples=config.num_samples,
        presample_factor=1 if method == "sampled softmax" else config.presample_factor,
        selection="top" if method == "TAPAS top" else "priority",
        proposal=Squashed(task.frequency),
        row_optimizer=Adagrad.fused(lr=config.row_lr, initial_sum=INITIAL_SUM),
        bias=log_frequency,
        seed=config.seed,
    )


def build_task(config: FourWaysConfig) -> LongTail:
    return LongTail(config.task, AliasTable, seed=config.seed)


def batch(task: LongTail, config: FourWaysConfig, step: int) -> Examples:
    """The batch of `step`, the same for every method."""
    return task.sample(config.batch_size, generator=stream(config.seed, "batch", step))


def score(ranked: Tensor, target: Tensor) -> Score:
    """Averages for `ranked` (B, RANKED) ids against `target` (B,)."""
    own = target[:, None]
    average_precision = average_precision_at_k(ranked, own, RANKED).double()
    error = average_precision.std(correction=0) / len(target) ** 0.5
    return Score(
        precision_at_1=float(precision_at_k(ranked, own, 1).double().mean()),
        map_at_20=float(average_precision.mean()),
        map_at_20_standard_error=float(error),
    )


def evaluation_steps(steps: int) -> list[int]:
    """After which of `steps` the methods are evaluated: often at first, when they learn fast.

    >>> evaluation_steps(300)
    [9, 19, 38, 75, 150, 225, 300]
    """
    return sorted({max(1, round(part * steps)) for part in EVALUATED_AT})


def train_four_ways(
    config: FourWaysConfig, *, on_progress: Callable[[Progress], None] = lambda _: None
) -> FourWaysResult:
    """Train and evaluate each of METHODS. Prints nothing; `on_progress` may.

    They take turns, from one evaluation to the next, so that a moment in which the machine
    is busy with something else does not fall on one of them alone.
    """
    task = build_task(config)
    held_out = task.sample(config.num_held_out, generator=stream(config.seed, "held out"))
    for method in METHODS:
        rehearsal = Learner(method, config, task)
        for step in range(WARM_UP_STEPS):
            rehearsal.step(batch(task, config, step))
        del rehearsal
    learners = {method: Learner(method, config, task) for method in METHODS}
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    total = dict.fromkeys(METHODS, 0.0)
    curves: dict[str, list[Point]] = {method: [] for method in METHODS}
    for start, stop in pairwise([0, *evaluation_steps(config.steps)]):
        for method, learner in learners.items():
            for step in range(start + 1, stop + 1):
                seconds[method].append(learner.step(batch(task, config, step)))
                total[method] += seconds[method][-1]
                on_progress(Progress(method, step, total[method]))
            reached = score(learner.rank(held_out.x), held_out.y)
            curves[method].append(Point(stop, total[method], reached))
    return FourWaysResult(
        config=config,
        num_threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        methods=tuple(
            MethodResult(method, statistics.median(seconds[method]), tuple(curves[method]))
            for method in METHODS
        ),
        bayes=score(task.bayes_top(held_out.x, RANKED), held_out.y),
    )
