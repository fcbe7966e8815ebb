"""Class tables: one weight row and one bias for each class."""

from tapas.tables.base import ClassTable
from tapas.tables.local import LocalTable
from tapas.tables.serving import serving_state_dict

__all__ = [
    "ClassTable",
    "LocalTable",
    "serving_state_dict",
]
