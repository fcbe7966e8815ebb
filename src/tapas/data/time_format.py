"""The format of times that a user may give, checked."""

import re

from tapas.errors import UsageError

UNITS = ("s", "ms", "us", "ns")
DIRECTIVES = "aAbBdDefFGHIjmMpRSTuUVwWyYzZ%"
WITH_YEAR = "yYDFG"


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
