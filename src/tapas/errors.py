"""The exceptions of this library.

TapasError
  UsageError(ValueError)    the caller can fix it; the message says how
  DataError(ValueError)     bad input data; the message says where
  PeerError(RuntimeError)   another rank or server died, hangs or stopped; the message names it
"""

from collections.abc import Mapping
from typing import TypeVar

from tapas.phrases import did_you_mean

T = TypeVar("T")


class TapasError(Exception):
    """Base class of all exceptions that this library raises."""


class UsageError(TapasError, ValueError):
    """An error that the caller can fix; the message says how."""


class DataError(TapasError, ValueError):
    """Bad or damaged input data; the message says which value and where."""


class PeerError(TapasError, RuntimeError):
    """Another process that this one needs died, hangs or stopped; the message names it."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()):
        super().__init__(message)
        self.ranks = ranks  # the ranks that failed; empty if unknown


def choice(
    kind: str, name: str, options: Mapping[str, T], renamed: Mapping[str, str] | None = None
) -> T:
    """Return `options[name]`, or raise a UsageError that lists the known names.

    The error suggests the closest name, or the new one if `name` was `renamed`.
    """
    if name in options:
        return options[name]
    new = (renamed or {}).get(name)
    hint = f" Did you mean '{new}'?" if new else did_you_mean(name, options)
    raise UsageError(f"unknown {kind} '{name}'.{hint} Known: {', '.join(sorted(options))}.")
