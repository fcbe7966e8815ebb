"""FAISS indexes over the class rows, which find the best classes without scoring all of them.

    query . weight + bias = (query, 1) . (weight, bias)

so the bias becomes one more dimension of an index over inner products.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.atomic_file import atomic_write, check_exists
from tapas.errors import DataError, UsageError, choice
from tapas.metrics import recall_at_k
from tapas.shapes import all_finite, check_integer, check_positive, check_query, check_shape

WANTED_RECALL = 0.95
TUNED_AT = 20  # recall@20 is tuned
TUNING_QUERIES = 256
# the search parameter of each kind of index, its first and its largest value
EFFORT = {"hnsw": ("efSearch", 128, 4096), "ivf": ("nprobe", 8, 1 << 16)}


class FaissIndex:
    """An index on the CPU; `topk` is that of a table, exact or approximate."""

    def __init__(self, index: Any):
        self.index = index
        self.num_classes, self.dim = int(index.ntotal), int(index.d) - 1

    def topk(self, query: Tensor, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids (B, k) of the k best classes for each row of `query` (B, D).

        Ties are in any order. `exclude` (B, E) are classes to leave out of each row (negative is
        padding). Where fewer than k classes are found, ids end in -1 and scores in -inf.
        """
        query = check_query(query, self.dim)
        check_positive("k", k)
        if exclude is None:
            exclude = torch.empty(len(query), 0, dtype=torch.int64)
        check_shape({"B": len(query)}, exclude=(exclude, "B E"))
        exclude = check_integer("exclude", exclude).cpu()
        scores, ids = self._search(query, min(k + exclude.shape[1], self.num_classes))
        row = self.num_classes * torch.arange(len(query))[:, None]
        excluded = torch.isin(row + ids, (row + exclude)[exclude >= 0]) | (ids < 0)
        order = excluded.sort(dim=1, stable=True).indices[:, :k]
        missing = excluded.gather(1, order)
        scores = scores.gather(1, order).masked_fill(missing, -torch.inf)
        ids = ids.gather(1, order).masked_fill(missing, -1)
        short = (0, k - ids.shape[1])
        return (
            torch.nn.functional.pad(scores, short, value=-torch.inf),
            torch.nn.functional.pad(ids, short, value=-1),
        )

    def save(self, path: Path) -> None:
        """Write the index in FAISS's format; a failure leaves no file."""
        faiss = _faiss()
        # by a Python file: FAISS's writer does not notice if its last block is not written
        with atomic_write(Path(path)) as unfinished, unfinished.open("wb") as file:
            faiss.write_index(self.index, faiss.PyCallbackIOWriter(file.write))

    def _search(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        _faiss()  # limits its threads
        scores, ids = self.index.search(_with_column(query, torch.ones(len(query))), k)
        return torch.from_numpy(scores), torch.from_numpy(ids)


def build_index(
    weight: Tensor, bias: Tensor, kind: str = "exact", *, query: Tensor | None = None
) -> FaissIndex:
    """Build an index over `weight` (C, D) and `bias` (C,).

    "exact" scores every class; "ivf" searches the nearest of sqrt(C) cells; "hnsw" searches a
    graph with 32 neighbours per class, which is slow to build and, with several threads, slightly
    different each time. The effort of the last two is raised until they find 95 % of the exact top
    20 of `query` (Q, D). "hnsw" may stay below that, because a graph over inner products does not
    always reach every class: check `measured_recall`. Pass queries of the encoder; without any,
    class rows are used, for which the search may be easier.

    Raises `DataError` if rows contain NaN or inf, `UsageError` if FAISS is not installed.
    """
    faiss = _faiss()
    sizes = check_shape({}, weight=(weight, "C D"), bias=(bias, "C"))
    check_positive("the number of classes", sizes["C"])
    if not (all_finite(weight) and all_finite(bias)):
        raise DataError(
            "weight or bias contains NaN or inf. The model has diverged: use an earlier checkpoint."
        )
    rows = _with_column(weight, bias)
    # FAISS wants at least 39 rows per cell
    num_cells = max(1, min(math.isqrt(sizes["C"]), sizes["C"] // 39))
    layout = choice(
        "index kind", kind, {"exact": "Flat", "hnsw": "HNSW32,Flat", "ivf": f"IVF{num_cells},Flat"}
    )
    index = faiss.index_factory(rows.shape[1], layout, faiss.METRIC_INNER_PRODUCT)
    if kind == "hnsw":
        index.hnsw.efConstruction = 80
    if kind == "ivf":
        index.cp.min_points_per_centroid = 1  # no warning for a small table
    index.train(rows)
    index.add(rows)
    built = FaissIndex(index)
    if kind in EFFORT:
        query = weight[:: max(1, len(weight) // TUNING_QUERIES)] if query is None else query
        _tune_effort(built, rows, query[:TUNING_QUERIES], *EFFORT[kind])
    return built


def load_index(path: Path) -> FaissIndex:
    """Load an index written by `FaissIndex.save`. Raises `DataError` if it is damaged."""
    check_exists(Path(path))
    try:
        return FaissIndex(_faiss().read_index(str(path)))
    except RuntimeError as error:
        raise DataError(f"{path} is damaged or not a FAISS index. Export it again.") from error


def measured_recall(index: FaissIndex, query: Tensor, exact_ids: Tensor, k: int) -> float:
    """Recall@k of the index: mean share of the first k `exact_ids` (B, >= k) that it finds."""
    _, ids = index.topk(query, k)
    return float(recall_at_k(ids, exact_ids[:, :k].cpu(), k).mean())


def _tune_effort(
    built: FaissIndex, rows: NDArray[np.float32], query: Tensor, name: str, effort: int, most: int
) -> None:
    """Double the search parameter until the recall is reached or everything is searched."""
    faiss = _faiss()
    query = check_query(query.detach(), built.dim)
    k = min(TUNED_AT, built.num_classes)
    extended = _with_column(query, torch.ones(len(query)))
    _, exact = faiss.knn(extended, rows, k, metric=faiss.METRIC_INNER_PRODUCT)
    while True:
        faiss.ParameterSpace().set_index_parameter(built.index, name, effort)
        found = measured_recall(built, query, torch.from_numpy(exact), k)
        effort *= 2
        if found >= WANTED_RECALL or effort > min(most, built.num_classes):
            return


def _with_column(matrix: Tensor, column: Tensor) -> NDArray[np.float32]:
    """(N, D) and (N,) as one float32 array (N, D+1)."""
    joined = torch.cat([matrix.detach().cpu().float(), column.detach().cpu().float()[:, None]], 1)
    array: NDArray[np.float32] = joined.numpy()
    return array


def _faiss() -> Any:
    """Import FAISS, limited to as many threads as torch."""
    try:
        import faiss
    except ImportError:
        raise UsageError('FAISS is not installed. pip install "tapas-softmax[faiss]"') from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
