"""Data with a known answer."""

from tapas.data.long_tail import ClassDraws, Examples, LongTail, LongTailConfig

__all__ = ["ClassDraws", "Examples", "LongTail", "LongTailConfig"]
