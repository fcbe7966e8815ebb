"""Everything this library raises on purpose.

TapasError
  UsageError(ValueError)    the caller can fix it; the message says how
  DataError(ValueError)     a value of the input data is bad; names where it is
  PeerError(RuntimeError)   another rank is gone, hangs or has stopped; names it
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class TapasError(Exception):
    """The root: `except TapasError` catches all of ours and nothing else."""


class UsageError(TapasError, ValueError):
    """The caller can fix it; the message says how."""


class DataError(TapasError, ValueError):
    """A value of the input data is bad; the message says which and where."""


class PeerError(TapasError, RuntimeError):
    """Another process that this one needs is gone, hangs or has stopped; the message names it."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()):
        super().__init__(message)
        self.ranks = ranks  # who is to blame; empty if that is not known


def choice(
    kind: str, name: str, options: Mapping[str, T], renamed: Mapping[str, str] | None = None
) -> T:
    """Return `options[name]`, or raise a UsageError that lists the known names.

    The error suggests the closest name, or the new one if `name` was `renamed`.
    """
    if name in options:
        return options[name]
    new = (renamed or {}).get(name)
    close = [new] if new else get_close_matches(name, options, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise UsageError(f"unknown {kind} '{name}'.{hint} Known: {', '.join(sorted(options))}.")
