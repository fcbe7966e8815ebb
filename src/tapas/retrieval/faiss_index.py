"""FAISS indexes over the class rows, which find the best classes without scoring all of them.

FAISS builds graphs and cells that find small distances, and the best class is the one with the
largest query . weight + bias. Two more dimensions turn one into the other, the second of which
gives all rows the same length:

    row    (weight, bias, sqrt(longest^2 - |weight|^2 - bias^2))
    query  (query, 1, 0)

    row . query        = query . weight + bias
    |row - query|^2    = constant - 2 (query . weight + bias)

Graphs and cells are built over distances and searched by products, so that scores are logits. The
index appends (1, 0) itself: `scores, ids = faiss.read_index(file).search(query, k)` in any program.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.atomic_file import atomic_write
from tapas.errors import DataError, UsageError, choice
from tapas.regular_file import check_given
from tapas.shapes import all_finite, check_integer, check_positive, check_query, check_shape

WANTED_RECALL = 0.95
MEASURED_AT = 20  # recall@20
CLASS_QUERIES = 512  # class rows that stand in for queries where there are none
# neighbours of each class and efConstruction of a graph: the second if the first is not enough
GRAPHS = ((32, 80), (64, 200))
# the search parameter of each approximate kind and its first value
EFFORT = {"hnsw": ("efSearch", 32), "ivf": ("nprobe", 1)}
LARGEST_EF = 4096
Builder = Callable[[NDArray[np.float32]], Any]


class FaissIndex:
    """An index on the CPU; `topk` is that of a table, exact or approximate.

    An index from `build_index` knows its `recall`, and with how many queries it was measured.
    """

    def __init__(self, index: Any, recall: float | None = None, num_queries: int = 0):
        self.index, self.recall, self.num_queries = index, recall, num_queries
        self.num_classes, self.dim = int(index.ntotal), int(index.d)

    @property
    def effort(self) -> dict[str, int]:
        """The search parameter, such as {"efSearch": 256}; empty for an exact index.

        A graph that had to be built again also has its "neighbours".
        """
        inner = _faiss().downcast_index(self.index.index)
        if hasattr(inner, "hnsw"):
            neighbours = int(inner.hnsw.nb_neighbors(1))
            more = {"neighbours": neighbours} if neighbours != GRAPHS[0][0] else {}
            return {"efSearch": int(inner.hnsw.efSearch), **more}
        return {"nprobe": int(inner.nprobe)} if hasattr(inner, "nprobe") else {}

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
        with atomic_write(Path(path)) as unfinished:
            self.write(unfinished)

    def write(self, path: Path) -> None:
        """As `save`, but a failure may leave part of the file."""
        faiss = _faiss()
        # by a Python file: FAISS's writer does not notice if its last block is not written
        with path.open("wb") as file:
            faiss.write_index(self.index, faiss.PyCallbackIOWriter(file.write))

    def _search(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        _faiss()  # limits its threads
        scores, ids = self.index.search(_array(query), k)
        return torch.from_numpy(scores), torch.from_numpy(ids)


def build_index(
    weight: Tensor,
    bias: Tensor,
    kind: str = "exact",
    *,
    query: Tensor | None = None,
    recall: float = WANTED_RECALL,
) -> FaissIndex:
    """Build an index over `weight` (C, D) and `bias` (C,).

    "exact" scores every class; "ivf" searches the nearest of sqrt(C) cells; "hnsw" searches a
    graph with 32 neighbours per class, which is slow to build and, with several threads, slightly
    different each time; if it misses the recall, a graph with 64 is built. The effort of the last
    two is doubled until they find `recall` of the exact top 20 of `query` (Q, D): in each half of
    the queries. The recall of the second half is reported, also that of an exact index. Pass
    queries of the encoder; without any, class rows are used, for which the search may be easier.

    Raises `DataError` if rows contain NaN or inf or a graph does not reach the recall,
    `UsageError` if FAISS is not installed.
    """
    faiss = _faiss()
    sizes = check_shape({}, weight=(weight, "C D"), bias=(bias, "C"))
    check_positive("the number of classes", sizes["C"])
    if not 0 < recall <= 1:
        raise UsageError(f"recall must be above 0 and at most 1, got {recall}.")
    if not (all_finite(weight) and all_finite(bias)):
        raise DataError(
            "weight or bias contains NaN or inf. The model has diverged: use an earlier checkpoint."
        )
    rows = _rows(weight, bias)
    graphs: list[Builder] = [partial(_graph, *graph) for graph in GRAPHS]
    known: dict[str, list[Builder]] = {"exact": [_flat], "hnsw": graphs, "ivf": [_cells]}
    builders = choice("index kind", kind, known)
    if query is None:
        query = weight[:: max(1, len(weight) // CLASS_QUERIES)]
    query = check_query(query.detach(), sizes["D"])
    halves = [
        (half, _kth_score(half, weight, bias)) for half in (query[::2], query[1::2]) if len(half)
    ]
    best = 0.0
    for build in builders:
        built = FaissIndex(faiss.IndexPreTransform(_extend(sizes["D"]), build(rows)))
        best = max(best, _tune_effort(built, kind, halves, recall))
        if built.recall is not None:
            return built
    (name, effort), *_ = built.effort.items()
    again = f", also with {GRAPHS[-1][0]} neighbours per class" if kind == "hnsw" else ""
    raise DataError(
        f"this {kind} index finds {best:.3f} of the exact top {min(MEASURED_AT, len(rows))} at "
        f"{name} {effort:,}, the largest{again}; wanted was {recall}. Choose --index ivf or "
        "exact, or a lower --recall."
    )


def load_index(path: Path) -> FaissIndex:
    """Load an index written by `FaissIndex.save`. Raises `DataError` if it is damaged."""
    faiss = _faiss()
    check_given(Path(path))
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise DataError(f"{path} is damaged or not a FAISS index. Export it again.") from error
    if not isinstance(index, faiss.IndexPreTransform):
        raise DataError(
            f"{path} is not from this version of `tapas export`: it does not append the 1 for the "
            "bias to its queries. Export it again."
        )
    return FaissIndex(index)


def _rows(weight: Tensor, bias: Tensor) -> NDArray[np.float32]:
    """(weight, bias, what is missing to the longest), (C, D+2)."""
    rows = torch.cat([weight.detach().cpu().float(), bias.detach().cpu().float()[:, None]], dim=1)
    squared = rows.double().square().sum(dim=1, keepdim=True)
    return _array(torch.cat([rows, (squared.max() - squared).sqrt().float()], dim=1))


def _extend(dim: int) -> Any:
    """FAISS's transformation of queries (B, D) to (query, 1, 0), (B, D+2)."""
    faiss = _faiss()
    transform = faiss.LinearTransform(dim, dim + 2, True)
    matrix = np.eye(dim + 2, dim, dtype=np.float32)
    offset = np.eye(1, dim + 2, dim, dtype=np.float32)
    faiss.copy_array_to_vector(matrix.ravel(), transform.A)
    faiss.copy_array_to_vector(offset.ravel(), transform.b)
    transform.is_trained = True
    return transform


def _flat(rows: NDArray[np.float32]) -> Any:
    index = _faiss().IndexFlatIP(rows.shape[1])
    index.add(rows)
    return index


def _cells(rows: NDArray[np.float32]) -> Any:
    faiss = _faiss()
    size, dim = rows.shape
    num_cells = max(1, min(math.isqrt(size), size // 39))  # FAISS wants 39 rows per cell
    by_distance = faiss.IndexFlatL2(dim)
    index = faiss.IndexIVFFlat(by_distance, dim, num_cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.spherical = False  # the default for inner products
    index.cp.min_points_per_centroid = 1  # no warning for a small table
    index.train(rows)
    index.add(rows)
    return index


def _graph(neighbours: int, ef_construction: int, rows: NDArray[np.float32]) -> Any:
    faiss = _faiss()
    by_distance = faiss.IndexHNSWFlat(rows.shape[1], neighbours, faiss.METRIC_L2)
    by_distance.hnsw.efConstruction = ef_construction
    by_distance.add(rows)
    index = faiss.IndexHNSWFlat(rows.shape[1], neighbours, faiss.METRIC_INNER_PRODUCT)
    index.storage.add(rows)
    index.ntotal = len(rows)
    for name in ("levels", "offsets", "neighbors", "entry_point", "max_level"):
        setattr(index.hnsw, name, getattr(by_distance.hnsw, name))
    return index


def _tune_effort(
    built: FaissIndex, kind: str, halves: list[tuple[Tensor, Tensor]], wanted: float
) -> float:
    """Double the search parameter until the wanted recall is reached; returns the best found.

    Sets `built.recall` if it is reached. `halves` are queries and the scores of their 20th best
    classes. An exact index is measured only.
    """
    faiss = _faiss()
    name, first, most = "", 1, 1
    if kind in EFFORT:
        name, first = EFFORT[kind]
        inner = faiss.downcast_index(built.index.index)
        most = int(inner.nlist) if kind == "ivf" else min(LARGEST_EF, built.num_classes)
    best = 0.0
    for effort in _doubled(first, most):
        if name:
            faiss.ParameterSpace().set_index_parameter(built.index, name, effort)
        recalls = [_recall(built, *half) for half in halves]
        if min(recalls) >= wanted or not name:
            built.recall, built.num_queries = recalls[-1], len(halves[-1][0])
            return min(recalls)
        best = max(best, min(recalls))
    return best


def _doubled(first: int, most: int) -> Iterator[int]:
    """first, 2 first, 4 first, ... and `most` at the end."""
    while first < most:
        yield first
        first *= 2
    yield most


def _kth_score(query: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The score of the 20th best class of each query, (B,), without FAISS."""
    weight, bias = weight.detach().float(), bias.detach().float()
    k = min(MEASURED_AT, len(bias))
    parts = [query[i : i + 16].to(weight) for i in range(0, len(query), 16)]  # 16 C scores each
    return torch.cat([(part @ weight.T + bias).topk(k).values[:, -1] for part in parts]).cpu()


def _recall(index: FaissIndex, query: Tensor, kth_score: Tensor) -> float:
    """Share of the exact top 20 that the index finds; of classes that tie, any will do."""
    scores, _ = index.topk(query, min(MEASURED_AT, index.num_classes))
    rounding = 1e-5 * kth_score.abs().clamp(min=1)
    return float((scores >= (kth_score - rounding)[:, None]).double().mean())


def _array(matrix: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = matrix.detach().cpu().float().contiguous().numpy()
    return array


def _faiss() -> Any:
    """Import FAISS, limited to as many threads as torch."""
    try:
        import faiss
    except ImportError:
        raise UsageError('FAISS is not installed. pip install "tapas-softmax[faiss]"') from None
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss
