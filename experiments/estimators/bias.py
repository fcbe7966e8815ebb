"""The bias of every estimator at a known truth: does training stay there?

Eight contexts g, 200 classes y with a long tail, true p(y | g). A table is put AT the truth:

    row of y at g  =  log p(y | g),      query of g  =  the g-th unit vector

so that the logits are the true log-probabilities. There the expected gradient of the full
softmax is exactly 0, and that of any other loss is its bias: the way it would leave the
truth. Over targets the mean is exact (every pair (g, y) once, with its probability as its
weight); over the draws of a method it is a mean over steps, with standard errors.

    bias   sum over g, y of |mean gradient|
    noise  what the standard errors alone would add up to: sum of se * sqrt(2 / pi)
    pull   minus the gradient, summed over the classes of the head, the middle or the tail:
           above 0, they are pushed up

Methods that use other examples of a batch get batches drawn from the truth instead; the gradient
of the full softmax on the same batch, whose mean is 0, is subtracted. Trees and adaptive softmax
compute normalised probabilities exactly: nothing is estimated.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.estimators.step_times import pairs_feed
from tapas.comparison.contenders import CONTENDERS, by_name
from tapas.data.windows import Windows
from tapas.errors import UsageError
from tapas.evaluation.scores import bucket_classes
from tapas.heads import FlatHead, Head
from tapas.heads.facts import BuildContext
from tapas.optim import SGD
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.training.build import TrainingData

NUM_CONTEXTS, NUM_CLASSES = 8, 200
EVENTS_PER_CONTEXT = 4_000
TILT = 1.5  # how much contexts differ: standard deviation of log p around the common tail
BATCH = 128  # of methods that learn from their batch
SETTLING = 200  # steps before anything is counted, for methods that adapt
BUCKETS = ("head", "middle", "tail")


@dataclass(frozen=True, slots=True)
class BiasRun:
    """One estimator."""

    contender: str
    num_samples: int  # 0 where nothing is sampled
    steps: int

    def key(self) -> str:
        return f"bias of {self.contender} with {self.num_samples} samples, {self.steps} steps"


class Truth(NamedTuple):
    """A distribution given by integer counts, so that a log can have exactly its frequencies."""

    counts: NDArray[np.int64]  # (G, C), all above 0

    @property
    def joint(self) -> Tensor:
        """(G, C) p(g, y), float64."""
        return torch.from_numpy(self.counts / self.counts.sum())

    @property
    def log_prob(self) -> Tensor:
        """(G, C) log p(y | g), float64."""
        return torch.from_numpy(np.log(self.counts / self.counts.sum(axis=1, keepdims=True)))

    def feed(self, batch: int) -> tuple[TrainingData, Windows]:
        """Each pair (g, y) as often as its count; class g represents the context g."""
        num_contexts, num_classes = self.counts.shape
        pairs = np.stack(np.divmod(np.arange(num_contexts * num_classes), num_classes), axis=1)
        return pairs_feed(np.repeat(pairs, self.counts.reshape(-1), axis=0), num_classes, batch)


def make_truth() -> Truth:
    """Zipf's law, tilted at random in each context."""
    tilt = torch.randn(NUM_CONTEXTS, NUM_CLASSES, generator=stream(0, "truth")).double()
    share = (TILT * tilt - torch.arange(1, NUM_CLASSES + 1).log()).softmax(dim=1)
    return Truth((EVENTS_PER_CONTEXT * share).round().long().clamp(min=1).numpy())


def bias_runs(
    contenders: Sequence[str] = tuple(CONTENDERS),
    samples: Sequence[int] = (16, 64),
    steps: int = 4_000,
) -> list[BiasRun]:
    """Each estimator with every n of `samples`; once if it does not sample."""
    return [
        BiasRun(contender.name, num_samples, steps)
        for contender in by_name(contenders)
        for num_samples in (samples if contender.draws else (0,))
    ]


def measure_bias(run: BiasRun) -> dict[str, Any]:
    """Bias, noise and pulls of one estimator."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "key": run.key(),
        "run": asdict(run),
        "aims_at_softmax": CONTENDERS[run.contender].kind.targets_softmax,
    }
    if not issubclass(CONTENDERS[run.contender].kind, FlatHead):
        return {**found, "exact": "normalised by construction"}
    truth = make_truth()
    try:
        head, table, windows = at_the_truth(run, truth)
    except UsageError as refusal:
        return {**found, "skipped": str(refusal)}
    return {**found, **summarise(gradients(run, truth, head, table, windows), truth)}


def at_the_truth(run: BiasRun, truth: Truth) -> tuple[Head, LocalTable, Windows]:
    """A head whose logits are the true log-probabilities; its rows never move."""
    num_contexts, num_classes = truth.counts.shape
    table = LocalTable(num_classes, num_contexts)  # whose gradients wait, to be read
    with torch.no_grad():
        table.weight.copy_(truth.log_prob.T)
    contender, (feed, windows) = CONTENDERS[run.contender], truth.feed(BATCH)
    config = contender.head(run.num_samples, contender.trials(1)[0].knob)
    context = BuildContext(
        counts=torch.from_numpy(truth.counts.sum(axis=0)),
        dim=num_contexts,
        seed=0,
        steps=run.steps,
        table=table,
        row_optimizer=SGD.fused(lr=1.0),  # the table has none
        pairs=partial(feed.pairs, config.next_items),
        upcoming=feed.upcoming,
    )
    return contender.kind.from_options(config.options, context), table, windows


def gradients(
    run: BiasRun, truth: Truth, head: Head, table: LocalTable, windows: Windows
) -> Iterator[Tensor]:
    """(G, C) of each step: the gradient by the logits, its mean over targets taken out."""
    kind = CONTENDERS[run.contender].kind
    take = _drawn_batch(truth, windows) if kind.learns_from_batch else _every_pair(truth)
    settling = SETTLING if kind.learns_state else 0
    for number in range(settling + run.steps):
        context, target, weight, at_rest = take(number)
        query = torch.eye(table.dim)[context]
        before = context if head.wants_context else None
        loss = head(query, target, weight, context=before)
        (loss * len(target) if weight is not None else loss).backward()
        gradient = _dense(table).double().T - at_rest
        head.zero_grad()
        if number >= settling:
            yield gradient


Take = Callable[[int], tuple[Tensor, Tensor, Tensor | None, Tensor]]


def _every_pair(truth: Truth) -> Take:
    """Contexts, targets and weights of all pairs; their full softmax has no gradient."""
    num_contexts, num_classes = truth.counts.shape
    context = torch.arange(num_contexts).repeat_interleave(num_classes)
    target = torch.arange(num_classes).repeat(num_contexts)
    weight = truth.joint.reshape(-1).float()
    nothing = torch.zeros(num_contexts, num_classes, dtype=torch.float64)
    return lambda number: (context, target, weight, nothing)


def _drawn_batch(truth: Truth, windows: Windows) -> Take:
    """A batch of the log, and the gradient of its full softmax: the mean of p - 1[y]."""
    prob = truth.log_prob.exp()

    def take(number: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        batch = windows.batch(number)
        context, target = batch.items[:, 0], batch.target[:, 0]
        rest = torch.zeros_like(prob).index_add_(0, context, prob[context])
        one = torch.ones(len(target), dtype=torch.float64)
        rest.index_put_((context, target), -one, accumulate=True)
        return context, target, None, rest / len(target)

    return take


def _dense(table: LocalTable) -> Tensor:
    dense, found = torch.zeros_like(table.weight), table.gradients.summed()
    return dense if found is None else dense.index_copy_(0, found.ids, found.weight)


def summarise(each: Iterator[Tensor], truth: Truth) -> dict[str, Any]:
    """Mean over steps of gradients (G, C), with standard errors."""
    bucket_of = bucket_classes(torch.from_numpy(truth.counts.sum(axis=0)))
    steps, total, squares = 0, torch.zeros_like(truth.joint), torch.zeros_like(truth.joint)
    pulls: list[list[float]] = []
    for gradient in each:
        steps += 1
        total += gradient
        squares += gradient**2
        by_class = -gradient.sum(dim=0)
        pulls.append([float(by_class[bucket_of == place].sum()) for place in range(len(BUCKETS))])
    mean = total / steps
    variance = (squares / steps - mean**2).clamp(min=0) * steps / max(1, steps - 1)
    error = (variance / steps).sqrt()
    pull = np.array(pulls)
    spread = pull.std(axis=0, ddof=1 if steps > 1 else 0) / math.sqrt(steps)
    return {
        "bias": float(f"{float(mean.abs().sum()):.6g}"),
        "noise": float(f"{float(error.sum()) * math.sqrt(2 / math.pi):.6g}"),
        "pull": {
            name: {
                "mean": float(f"{pull[:, place].mean():.6g}"),
                "standard_error": float(f"{spread[place]:.6g}"),
            }
            for place, name in enumerate(BUCKETS)
        },
        "classes": {name: int((bucket_of == at).sum()) for at, name in enumerate(BUCKETS)},
    }
