"""What only the model itself can tell: which of its parts lists come from, and if n was enough."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.event_log import EventLog
from tapas.data.splits import EvalPoints
from tapas.evaluation.ranked_lists import ListOptions, excluded_at, histories_at, point_chunks
from tapas.evaluation.scores import LIST_LENGTH
from tapas.heads import TapasSoftmax
from tapas.training.model import SequenceModel

MOST_POINTS = 1_000  # whose lists are taken apart
MOST_DIAGNOSED = 256  # points whose gradients are compared


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Shares of the parts of a model in its lists, and how close its sampled gradients are."""

    num_lists: int
    listed: dict[str, float]  # share of the listed items to which a part gave most probability
    hits: dict[str, float]  # the same of those that were right; empty without any
    gradients: str = ""  # sampled beside exact ones, in words; "" for methods that do not say it


@torch.no_grad()
def inspect_model(
    model: SequenceModel,
    log: EventLog,
    points: EvalPoints,
    target: NDArray[np.int64],
    options: ListOptions,
) -> ModelFacts:
    """Look at the lists of `model` at some of `points`; `target` (P, L) are the next items."""
    some = np.linspace(0, len(points) - 1, min(MOST_POINTS, len(points))).astype(int)
    points, target = points[some], target[some]
    start, point = np.asarray(log.offsets)[points.user], points.point
    listed = hits = torch.zeros(0)
    names: Sequence[str] = ()
    gradients = ""
    for chunk in point_chunks(point - start, options):
        history = histories_at(log, start[chunk], point[chunk], options.history)
        exclude = excluded_at(log, start[chunk], point[chunk], options)
        wanted = torch.from_numpy(target[chunk])
        prediction = model.predict(*history)
        if not names:
            names = prediction.part_names
            listed = hits = torch.zeros(len(names), dtype=torch.int64)
            last = history[0].gather(1, history[1][:, None] - 1)[:, 0]
            gradients = _gradients(model, prediction.query, wanted, last)
        best = prediction.topk(min(LIST_LENGTH, prediction.num_classes), exclude)[1].cpu()
        part = prediction.contributions(best, exclude).argmax(dim=2)
        real = best >= 0
        hit = real & (best[:, :, None] == wanted[:, None, :]).any(dim=2)
        listed = listed + torch.bincount(part[real], minlength=len(names))
        hits = hits + torch.bincount(part[hit], minlength=len(names))
    return ModelFacts(len(points), _shares(names, listed), _shares(names, hits), gradients)


def _shares(names: Sequence[str], count: Tensor) -> dict[str, float]:
    total = int(count.sum())
    return dict(zip(names, (count / total).tolist(), strict=True)) if total else {}


def _gradients(model: SequenceModel, query: Tensor, target: Tensor, last: Tensor) -> str:
    """How good the samples are for `query` (B, D), whose latest items are `last` (B,)."""
    head = model.head
    real = (target >= 0).any(dim=1).nonzero()[:MOST_DIAGNOSED, 0]
    if not isinstance(head, TapasSoftmax) or not len(real):
        return ""
    found = head.diagnose(
        query[real.to(query.device)],
        target[real].masked_fill(target[real] < 0, head.ignore_index).to(query.device),
        context=last[real].to(query.device) if head.wants_context else None,
    )
    return found.verdict
