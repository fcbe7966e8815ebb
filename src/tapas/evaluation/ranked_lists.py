"""Exact ranked lists and full softmax losses of a model at the points of a split."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.windows import gather
from tapas.evaluation.scores import TOP, measure
from tapas.training.model import Outlook, SequenceModel
from tapas.training.parallel import Team

QUERIES_AT_ONCE = 256
Integers = NDArray[np.integer]


@torch.no_grad()
def rank_points(
    model: SequenceModel,
    items: Integers,
    start: Integers,
    point: Integers,
    target: NDArray[np.int64],
    *,
    history: int,
    exclude_seen: bool = False,
    never: int | None = None,
    with_loss: bool = True,
    on_progress: Callable[[int], None] = lambda done: None,
    team: Team | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The 20 best items after items[start:point], (P, 20), and the loss of `target` (P, L).

    -1 fills lists that run out of items; `never` is a class that is no item to recommend. The
    loss is over all classes, in nats, the mean over an example's targets, NaN without any.
    The ranks of a `team` share the work; each gets all of the answer.
    """
    team = team or Team()
    lists, losses = [], []
    for first in range(0, len(point), QUERIES_AT_ONCE):
        size = min(QUERIES_AT_ONCE, len(point) - first)
        part = slice(*(first + bound for bound in team.bounds(size)))
        recent, lengths, _ = gather(items, start[part], point[part], history)
        after = model.after(torch.from_numpy(recent), torch.from_numpy(lengths))
        seen: Tensor | None = None
        barred = [] if never is None else [np.array([never])]
        if exclude_seen:
            pairs = zip(start[part], point[part], strict=True)
            seen = pad([np.concatenate([np.unique(items[s:p]), *barred]) for s, p in pairs])
        elif barred:
            seen = pad(barred * len(recent))
        sizes = team.sizes(size)
        lists.append(team.collect(top_padded(after, TOP, seen), sizes))
        if with_loss:
            losses.append(team.collect(_loss(after, torch.from_numpy(target[part])), sizes))
        on_progress(first + size)
    return torch.cat(lists), torch.cat(losses) if with_loss else None


def top_padded(after: Outlook, k: int, seen: Tensor | None) -> Tensor:
    """(B, k) best ids, also where there are fewer than k classes."""
    _, ids = after.topk(min(k, after.head.num_classes), seen)
    return torch.nn.functional.pad(ids.cpu(), (0, k - ids.shape[1]), value=-1)


def _loss(after: Outlook, target: Tensor) -> Tensor:
    real = (target >= 0).float()
    log_prob = after.log_prob(target.clamp(min=0)).cpu()
    return -(log_prob * real).sum(dim=1) / real.sum(dim=1)


def findable(
    items: Integers, start: Integers, point: Integers, target: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`target` without what the history holds: lists that leave it out can never find it."""
    left = target.copy()
    for row, s, p in zip(left, start, point, strict=True):
        row[np.isin(row, items[s:p])] = -1
    return left


def pad(rows: list[NDArray[np.integer]]) -> Tensor:
    """(B, longest) int64, -1 behind the end of a row."""
    padded = np.full((len(rows), max([1, *map(len, rows)])), -1, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)


def quick_judge(
    items: Integers,
    start: Integers,
    point: Integers,
    target: NDArray[np.int64],
    *,
    history: int,
    exclude_seen: bool,
    never: int | None = None,
    team: Team | None = None,
) -> Callable[[SequenceModel], dict[str, float]]:
    """What a trainer asks for again and again: means of the metrics at a few points."""

    def judge(model: SequenceModel) -> dict[str, float]:
        ranked, loss = rank_points(
            model,
            items,
            start,
            point,
            target,
            history=history,
            exclude_seen=exclude_seen,
            never=never,
            team=team,
        )
        values = measure(ranked, torch.from_numpy(target))
        if loss is not None:
            values["loss"] = loss
        return {name: float(value.double().nanmean()) for name, value in values.items()}

    return judge
