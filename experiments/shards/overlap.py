"""The share of the best n that is in the union of each shard's best n/m: measured, and expected."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.synthetic.long_tail import Examples
from tapas.errors import UsageError
from tapas.heads import TapasSoftmax
from tapas.rng import stream
from tapas.shapes import check_positive
from tapas.tables import LocalTable
from tapas.tables.placement import Placement

SHARDS = (1, 2, 3, 5, 10, 20, 50, 100)
IN_ORDER = (2, 10, 50)  # numbers of shards that are also measured with contiguous placement
QUERIES = 128  # in each draw


@dataclass(frozen=True, slots=True)
class Draw:
    """One batch: queries, targets, and the classes that a single shard keeps."""

    number: int
    query: Tensor  # (B, D)
    target: Tensor  # (B,)
    exact: Tensor  # (n,) ids


def measure_overlap(
    encoder: nn.Module, head: TapasSoftmax, split: Examples, *, draws: int
) -> list[dict[str, Any]]:
    """A row for each kind of placement and number of shards, means over `draws`.

    overlap         share of the classes kept by a single shard that several shards keep, too
    kept            classes kept, relative to n
    kept_mass       share of the pool's softmax mass on the kept classes
    gradient_cosine sampled against exact gradient of the queries
    pool_load       pool of the fullest shard (rows it scores) relative to the mean
    row_load        kept and target rows of the busiest shard relative to the mean
    """
    table = head.table
    if not isinstance(table, LocalTable):
        raise UsageError(f"virtual shards need a LocalTable, got {type(table).__name__}.")
    placement, num_samples = table.placement, head.num_samples
    with _restored(head, table):
        batches = list(_draws(encoder, head, table, split, draws))
        if placement.num_shards > 1:
            return [_row(head, table, [(draw, placement) for draw in batches])]
        wanted = [("random", m) for m in SHARDS] + [("contiguous", m) for m in IN_ORDER]
        return [
            _row(
                head,
                table,
                [
                    (draw, Placement(placement.num_classes, m, seed=_seed(head, draw), kind=kind))
                    for draw in batches
                ],
            )
            for kind, m in wanted
            if m <= num_samples
        ]


@contextmanager
def _restored(head: TapasSoftmax, table: LocalTable) -> Iterator[None]:
    """Restore step and placement afterwards."""
    step, placement = head.step, table.placement
    try:
        yield
    finally:
        head.step, table.placement = step, placement


def _seed(head: TapasSoftmax, draw: Draw) -> int:
    return stream(head.seed, "looked at", draw.number).initial_seed()


@torch.no_grad()
def _draws(
    encoder: nn.Module, head: TapasSoftmax, table: LocalTable, split: Examples, count: int
) -> Iterator[Draw]:
    first = head.step  # pools continue after those of training
    table.placement = Placement(table.num_classes, 1)
    for number in range(first, first + count):
        order = stream(head.seed, "looked at", "queries", number)
        rows = torch.randint(len(split.y), (QUERIES,), generator=order)
        query, target = encoder(split.x[rows]), split.y[rows]
        head.step = number
        yield Draw(number, query, target, head.sample(query, target).ids)


def _row(
    head: TapasSoftmax, table: LocalTable, draws: list[tuple[Draw, Placement]]
) -> dict[str, Any]:
    placement = draws[0][1]
    found = [_measure(head, table, draw, placed) for draw, placed in draws]
    means = {name: sum(row[name] for row in found) / len(found) for name in found[0]}
    return {
        "placement": placement.kind,
        "shards": placement.num_shards,
        **{name: round(mean, 6) for name, mean in means.items()},
    }


def _measure(
    head: TapasSoftmax, table: LocalTable, draw: Draw, placement: Placement
) -> dict[str, float]:
    head.step, table.placement = draw.number, placement
    kept = head.sample(draw.query, draw.target).ids
    diagnosis = head.diagnose(draw.query, draw.target)
    size = min(head.presample_factor * head.num_samples, table.num_classes)
    pool = head.proposal.sample(size, generator=stream(head.seed, "looked at", "pool", draw.number))
    rows = torch.cat([kept, torch.unique(draw.target)])
    return {
        "overlap": float(torch.isin(draw.exact, kept).double().mean()),
        "kept": len(kept) / head.num_samples,
        "kept_mass": diagnosis.kept_mass,
        "gradient_cosine": diagnosis.gradient_cosine,
        "pool_load": busiest(placement, pool.ids),
        "row_load": busiest(placement, rows),
    }


def busiest(placement: Placement, ids: Tensor) -> float:
    """How many of `ids` (N,) are on the fullest shard, relative to the mean.

    >>> busiest(Placement(10, 2, kind="contiguous"), torch.tensor([0, 1, 2, 9]))
    1.5
    """
    count = torch.bincount(placement.shard(ids), minlength=placement.num_shards)
    return float(count.max() * placement.num_shards / len(ids))


def expected_overlap(num_classes: int, num_samples: int, num_shards: int) -> float:
    """Expected share of the best n that m shards keep together, computed exactly.

    >>> round(expected_overlap(2, 1, 1), 3)
    1.0
    >>> round(expected_overlap(4, 2, 2), 3)  # both in one shard with probability 1/3
    0.833
    """
    n = check_positive("num_samples", num_samples)
    placement = Placement(num_classes, num_shards)
    share, extra = divmod(n, num_shards)
    alike = Counter((placement.size(j), share + (j < extra)) for j in range(num_shards))
    total = 0.0
    for (size, keep), count in alike.items():
        hits = torch.arange(min(n, size) + 1, dtype=torch.float64)
        chance = _hypergeometric(hits, n, size, num_classes)
        total += count * float((chance * hits.clamp(max=keep)).sum())
    return total / n


def _hypergeometric(hits: Tensor, num_best: int, size: int, num_classes: int) -> Tensor:
    """P(`hits` of the `num_best` of C classes are in a shard of `size`), shaped like `hits`."""
    possible = num_best - hits <= num_classes - size
    inside = torch.where(possible, hits, hits.new_tensor(float(min(num_best, size))))
    log_chance = (
        _log_choose(hits.new_tensor(float(size)), inside)
        + _log_choose(hits.new_tensor(float(num_classes - size)), num_best - inside)
        - _log_choose(hits.new_tensor(float(num_classes)), hits.new_tensor(float(num_best)))
    )
    return torch.where(possible, log_chance.exp(), 0.0)


def _log_choose(total: Tensor, chosen: Tensor) -> Tensor:
    return (total + 1).lgamma() - (chosen + 1).lgamma() - (total - chosen + 1).lgamma()
