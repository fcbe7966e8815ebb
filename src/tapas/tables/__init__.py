"""Class tables: where rows live, how they are read and how they move."""

from tapas.tables.base import ClassTable
from tapas.tables.local import LocalTable
from tapas.tables.sharded import ShardedTable

__all__ = [
    "ClassTable",
    "LocalTable",
    "ShardedTable",
]
