"""What tables refuse, in the words of all of them."""

from typing import TYPE_CHECKING

from torch import Tensor

from tapas.errors import UsageError
from tapas.shapes import (
    check_ids,
    check_integer,
    check_positive,
    check_query,
    check_shape,
)

if TYPE_CHECKING:
    from tapas.tables.base import ClassTable


def check_topk(
    table: "ClassTable", query: Tensor, k: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What `topk` is asked, as (B, D) float32 and (B, E) int64, or an error."""
    query = check_query(query, table.dim)
    check_positive("k", k)
    if k > table.num_classes:
        raise UsageError(f"k is {k}, but there are only {table.num_classes} classes.")
    if exclude is not None:
        check_shape({"B": query.shape[0]}, exclude=(exclude, "B E"))
        exclude = check_integer("exclude", exclude).to(table.device)
        check_ids("exclude", exclude.clamp(min=0), table.num_classes)
    return query, exclude
