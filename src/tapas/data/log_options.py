"""Options of a log that are given as text, checked: conditions, time formats, separators."""

import csv
import re
from dataclasses import dataclass

from tapas.errors import UsageError

UNITS = ("s", "ms", "us", "ns")
DIRECTIVES = "aAbBdDefFGHIjmMpRSTuUVwWyYzZ%"
WITH_YEAR = "yYDFG"
NAMED_SEPARATORS = {"tab": "\t", "\\t": "\t", "space": " "}


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
    try:
        values = next(csv.reader([value], skipinitialspace=True), []) or [""]
    except csv.Error:
        raise UsageError(
            f"--where {text!r} has a line break in a value. Put the value in double quotes."
        ) from None
    return Condition(text, column, operator, tuple(values))


def quoted_value(value: str) -> str:
    """`value` as `parse_condition` takes it for one value."""
    if value == value.strip() and not re.search(r'[,"\r\n]', value):
        return value
    return '"' + value.replace('"', '""') + '"'


def check_time_format(given: str) -> None:
    """Raise `UsageError` unless `given` is a unit of epoch times or a format with a year."""
    if given in UNITS:
        return
    used = re.findall(r"%[-.:]?(.?)", given)
    if not used:
        raise UsageError(
            f"time_format must be a format such as '%d.%m.%Y %H:%M', or s, ms, us or ns for "
            f"numbers since 1970, got {given!r}."
        )
    unknown = [letter for letter in used if letter not in DIRECTIVES or not letter]
    if unknown:
        raise UsageError(
            f"time_format {given!r} has '%{unknown[0]}', which is not known. Use %Y %m %d %H %M "
            "%S, and %y (two digits), %b (Jan), %p (AM), %f (fraction), %z (zone)."
        )
    if not set(used) & set(WITH_YEAR):
        raise UsageError(f"time_format {given!r} has no year: add %Y (2024) or %y (24).")


def check_separator(given: str) -> str:
    """The separator itself, of one that may be given by name. Raises `UsageError`."""
    found = NAMED_SEPARATORS.get(given, given)
    if not found or any(character in found for character in '"\r\n'):
        raise UsageError(
            f"separator must be one or more characters other than quotes and line ends, or tab or "
            f"space, got {given!r}."
        )
    return found
