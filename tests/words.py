"""The words of errors are part of the interface, so tests pin them."""

import re

import pytest

from tapas import UsageError


def told(words: str, error: type[Exception] = UsageError):
    """Inside, `error` must be raised with these words; a full stop ends the message."""
    end = r"\Z" if words.endswith(".") else ""
    return pytest.raises(error, match=re.escape(words) + end)
