"""Damage and malice for files: bytes, JSON and safetensors headers that are almost right.

`draw` is a `random.Random`: of Hypothesis, which then shrinks what it finds, or one with a seed.
"""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", " ", "\0", "a\nb", "\x1b[2J", "é", "‮x", "😀", "../..",
    "/dev/zero", "/etc/hostname", "[head]", "*", "1", "nan", "x" * 5_000, [], {}, [[]], [{}],
    {"": None}, [None] * 20,
)  # fmt: skip
DEEP = 3_000  # more than Python can recurse


def damaged(draw: random.Random, content: bytes) -> bytes:
    """`content` after one to three accidents: wrong bits, bytes lost, doubled or put in."""
    for _ in range(draw.randint(1, 3)):
        content = draw.choice(ACCIDENTS)(draw, content)
    return content


def _flip(draw: random.Random, content: bytes) -> bytes:
    if not content:
        return content
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def _truncate(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _cut(draw: random.Random, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + content[at + draw.randint(1, 40) :]


def _double(draw: random.Random, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[: at + draw.randint(1, 40)] + content[at:]


def _insert(draw: random.Random, content: bytes) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + _some_bytes(draw) + content[at:]


def _overwrite(draw: random.Random, content: bytes) -> bytes:
    at, piece = draw.randrange(len(content) + 1), _some_bytes(draw)
    return content[:at] + piece + content[at + len(piece) :]


def _zeros(draw: random.Random, content: bytes) -> bytes:
    """What a power cut leaves in a file that was not flushed."""
    at = draw.randrange(len(content) + 1)
    return content[:at] + bytes(len(content) - at)


def _anything(draw: random.Random, content: bytes) -> bytes:
    return draw.choice(
        [b"", b"\n", b"{}", b"[]", b"null", b"[" * DEEP, b'{"a":' * DEEP, b"PAR1", b"\x93NUMPY",
         b"\xef\xbb\xbf" + content, content.hex().encode()]
    )  # fmt: skip


def _some_bytes(draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return draw.choice(
            [b"\n", b'"', b"\0", b"\xff", b"-", b"9" * 30, b"NaN", b"\\ud800", b"}", b"[", b",",
             b"\xff" * 8, b"\x7f\xff\xff\xff"]
        )  # fmt: skip
    return bytes(draw.randrange(256) for _ in range(draw.randint(1, 12)))


ACCIDENTS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip, _flip, _flip, _truncate, _cut, _double, _insert, _overwrite, _zeros, _anything
)  # fmt: skip


def changed_json(draw: random.Random, value: Any) -> Any:
    """`value` with one to three changes: fields dropped, renamed, nested, of other types."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.randint(1, 3)):
        value = _change(draw, value)
    return value


def _change(draw: random.Random, value: Any) -> Any:
    """`value` with one change somewhere inside."""
    if isinstance(value, dict | list) and value and draw.random() < 0.8:
        place = draw.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
        kind = draw.randrange(7)
        if kind == 0:
            del value[place]
        elif kind == 1 and isinstance(value, dict):
            value[draw.choice(["", "x", place.upper(), place + " ", "../" + place])] = value[place]
        elif kind == 1:
            value.insert(place, value[place])
        elif kind == 2:
            other = draw.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
            value[place], value[other] = value[other], value[place]
        else:
            value[place] = _change(draw, value[place])
        return value
    kind = draw.randrange(6)
    if kind == 0:
        return [value]
    if kind == 1:
        return {"x": value}
    if kind == 2 and type(value) in (int, float):
        return draw.choice([value + 1, value - 1, -value, value * 10**6, str(value), value + 0.5])
    if kind == 3 and isinstance(value, str):
        return draw.choice([value + "x", value[1:], value * 2, value.upper(), value.encode().hex()])
    return copy.deepcopy(draw.choice(HOSTILE))  # which is changed later


def json_text(draw: random.Random, value: Any) -> bytes:
    """`value` as JSON, sometimes with a field twice, or nested too deeply."""
    text = json.dumps(value)
    kind = draw.randrange(12)
    if kind == 0 and text.startswith("{") and len(value) > 0:
        again = {draw.choice(sorted(value)): draw.choice(HOSTILE)}
        text = text[:-1] + ", " + json.dumps(again)[1:]
    elif kind == 1:
        text = "[" * DEEP + text + "]" * DEEP
    return text.encode()


def changed_header(draw: random.Random, content: bytes) -> bytes:
    """A safetensors file whose header says something else."""
    size = int.from_bytes(content[:8], "little")
    header = json_text(draw, changed_json(draw, json.loads(content[8 : 8 + size])))
    length = draw.choice([len(header), len(header), len(header), len(header) + 1, 0, 2**40, 2**63])
    return length.to_bytes(8, "little") + header + content[8 + size :]
