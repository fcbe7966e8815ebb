"""`ids_of` turns multi-hot targets into class ids; targets that look multi-hot are refused."""

import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.shapes import check_tensor

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def ids_of(multi_hot: Tensor, *, ignore_index: int = -100) -> Tensor:
    """(..., L) ascending ids of the classes set in `multi_hot` (..., C), padded to equal length.

    `multi_hot` has 0 and 1 only, of any dtype; dense, sparse COO or sparse CSR. A row without a
    class is all padding.

    >>> ids_of(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]]))
    tensor([[   1,    3],
            [   2, -100]])
    """
    check_tensor("multi_hot", multi_hot)
    shape = multi_hot.shape
    if not shape or not shape[-1]:
        raise UsageError(f"multi_hot has shape {tuple(shape)}; expected (..., C).")
    row, ids = _set_classes(multi_hot)
    if bool((ids == ignore_index).any()):
        raise UsageError(
            f"multi_hot has class {ignore_index}, which is ignore_index: it would be taken for "
            "padding. Choose a negative ignore_index, here and in the head."
        )
    num_rows = shape[:-1].numel()
    count = torch.bincount(row, minlength=num_rows)
    column = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    width = int(count.max()) if num_rows else 0
    found = torch.full((num_rows, width), ignore_index, device=row.device)
    found[row, column] = ids
    return found.view(*shape[:-1], width)


def _set_classes(multi_hot: Tensor) -> tuple[Tensor, Tensor]:
    """Row and class of every 1, (N,) each, by row and then by class."""
    if multi_hot.layout == torch.strided:
        flat = multi_hot.detach().reshape(-1, multi_hot.shape[-1])
        _check_zero_or_one(flat[(flat != 0) & (flat != 1)])
        row, ids = (flat != 0).nonzero(as_tuple=True)
        return row, ids
    if multi_hot.layout not in SPARSE or multi_hot.dense_dim():
        raise UsageError(
            f"multi_hot has layout {multi_hot.layout}; expected a dense tensor, or a sparse one in "
            "COO or CSR without dense dimensions. Convert it with to_sparse_coo()."
        )
    coo = multi_hot.detach().to_sparse(layout=torch.sparse_coo).coalesce()
    values, place = coo.values(), coo.indices()
    _check_zero_or_one(values[(values != 0) & (values != 1)])
    place = place[:, values != 0]
    row = torch.zeros_like(place[-1])
    for size, index in zip(coo.shape[:-1], place[:-1], strict=True):
        row = row * size + index
    return row, place[-1]


def _check_zero_or_one(bad: Tensor) -> None:
    if len(bad):
        raise UsageError(
            f"multi_hot holds {bad[0].item():g}; expected only 0 and 1. For probabilities or "
            "weights pass the ids of the few that matter, and the values as target_weight."
        )


def refuse_multi_hot(target: Tensor, num_classes: int) -> None:
    """Refuse one flag for each class: taken as ids, they would train classes 0 and 1."""
    is_sparse = target.layout != torch.strided
    if not is_sparse and not (target.dtype == torch.bool and target.shape[-1] > 1):
        smallest = 2 if target.is_floating_point() else 3  # (..., 2) of integers may be both ids
        if target.shape[-1] != num_classes or num_classes < smallest:
            return
        if not bool(((target == 0) | (target == 1)).all()):
            if target.is_floating_point():
                raise UsageError(
                    f"target has shape {tuple(target.shape)} and {target.dtype}: probabilities of "
                    "all classes are not supported. Pass the ids of the few that matter, (..., L), "
                    "and their probabilities as target_weight."
                )
            return
    kind = "is sparse" if is_sparse else "holds only 0 and 1"
    raise UsageError(
        f"target has shape {tuple(target.shape)} and {kind}: it looks multi-hot. Pass class ids, "
        "(..., L), padded with ignore_index: tapas.ids_of(target) makes them."
    )
