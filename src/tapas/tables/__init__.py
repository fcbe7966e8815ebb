"""Class tables: one weight row and one bias for each class."""

from tapas.tables.base import ClassTable
from tapas.tables.local import LocalTable

__all__ = [
    "ClassTable",
    "LocalTable",
]
