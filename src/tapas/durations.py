"""Durations as people write and read them."""

import math
import re
from collections.abc import Mapping

from tapas.errors import UsageError

_UNITS: Mapping[str, float] = {"": 1, "s": 1, "m": 60, "h": 3_600}


def parse_duration(words: str) -> float:
    """Seconds of "90s", "10m", "1h", or of a plain number of seconds.

    >>> parse_duration("10m"), parse_duration("1.5h"), parse_duration("600")
    (600.0, 5400.0, 600.0)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([smh]?)\s*", words)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"cannot read '{words}' as a time above 0. Write 90s, 10m, 1h, or a number of seconds."
        )
    return seconds


def duration(seconds: float) -> str:
    """
    >>> duration(90), duration(600), duration(6300)
    ('90 s', '10 min', '1.8 h')
    """
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
