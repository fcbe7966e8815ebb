"""The exceptions of this library.

TapasError
  UsageError(ValueError)    the caller can fix it; the message says how
  DataError(ValueError)     bad input data; the message says where
  PeerError(RuntimeError)   another rank or server died, hangs or stopped; the message names it
"""

import errno
from collections.abc import Mapping
from typing import TypeVar

from tapas.phrases import did_you_mean

T = TypeVar("T")
OUT_OF_MEMORY = (  # words of libraries
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "memory allocation",
    "Storage size calculation overflowed",
    "can't start new thread",
    "could not spawn threads",
    "can't spawn worker thread",
    "failed to map segment",
)


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out in Python, numpy, torch, polars or the system, or for a thread."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    # torch raises a plain RuntimeError, polars a PanicException, which is no Exception
    is_library = isinstance(error, RuntimeError | ImportError) or not isinstance(error, Exception)
    return is_library and any(words in str(error) for words in OUT_OF_MEMORY)


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
