"""Class tables: where rows live, how they are read and how they move."""

from tapas.tables.base import ClassTable
from tapas.tables.local import LocalTable

__all__ = [
    "ClassTable",
    "LocalTable",
]
