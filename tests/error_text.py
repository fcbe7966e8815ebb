"""`raises_text`: checks the text of an error, which is part of the interface."""

import re

import pytest

from tapas import UsageError


def raises_text(words: str, error: type[Exception] = UsageError):
    """Expect `error` with `words` in its message; if they end in a full stop, at its end."""
    end = r"\Z" if words.endswith(".") else ""
    return pytest.raises(error, match=re.escape(words) + end)
