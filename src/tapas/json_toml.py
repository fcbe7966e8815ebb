"""Parsing JSON and TOML that strangers may have written: whatever is wrong is a ValueError.

Python's own parsers raise RecursionError for text that is nested too deeply, read integers that
are too long to be printed, and keep the last of two values with the same name.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tapas.escapes import short

HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character beyond 16 bits, as JSON escapes it
MAX_DEPTH = 100  # of lists and tables inside each other


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, of UTF-8 if it is bytes. Raises ValueError."""
    text = text.decode() if isinstance(text, bytes) else text
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise _TOO_DEEP from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    if HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _NO_CHARACTER from None
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML document, whose integers have at most 64 bits. Raises ValueError."""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise _TOO_DEEP from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # thousands of digits
        raise _TOO_LONG from None
    _check_depth(document)
    if any(type(leaf) is int and not -(2**63) <= leaf < 2**63 for leaf in _leaves(document)):
        raise _TOO_LONG
    return document


_TOO_DEEP = ValueError(f"nested more than {MAX_DEPTH} levels deep")
_NO_CHARACTER = ValueError("a text has half a character, such as \\ud83d without \\ude00")
_TOO_LONG = ValueError("an integer has more than 64 bits")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has {short(twice)} twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise _TOO_DEEP


def _inside(value: Any) -> list[Any]:
    found = value.values() if isinstance(value, dict) else value
    return list(found) if isinstance(value, dict | list) else []


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in _inside(value):
            yield from _leaves(inner)
    else:
        yield value
