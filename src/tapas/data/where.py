"""Conditions on rows, written as COLUMN=VALUE, that choose the events of a log."""

import csv
import re
from dataclasses import dataclass

from tapas.errors import UsageError

OPERATORS = ("=", "!=", ">=", "<=", ">", "<")


@dataclass(frozen=True, slots=True)
class Condition:
    """`column` compared with `values`: = any of them, != none of them, >= <= > < the only one."""

    text: str  # as it was given
    column: str
    operator: str
    values: tuple[str, ...]


def parse_condition(text: str) -> Condition:
    """The condition in `text`. Commas separate values; one with a comma is put in quotes.

    >>> parse_condition("event_type=purchase,cart").values
    ('purchase', 'cart')
    """
    found = re.fullmatch(r"\s*([^=!<>]+?)\s*(!=|>=|<=|==?|>|<)(.*)", text, re.DOTALL)
    if not found:
        raise UsageError(
            f"--where {text!r} is not COLUMN=VALUE, as in event_type=purchase. Beside = there are "
            "!=, >=, <=, > and <."
        )
    column, operator, value = found[1], found[2].replace("==", "="), found[3].strip()
    if operator not in ("=", "!="):
        if not value:
            raise UsageError(f"--where {text!r} has no value to compare {column} with.")
        return Condition(text, column, operator, (value,))
    values = next(csv.reader([value], skipinitialspace=True), []) or [""]
    return Condition(text, column, operator, tuple(values))
