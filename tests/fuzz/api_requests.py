"""Requests built from the OpenAPI schema, and then damaged: only 2xx and 4xx may come back.

    PYTHONPATH=tests:. python -m fuzz.api_requests --number 10000

trains small models, asks the application that serves them so many times, and prints how often each
status came back. The same seed makes the same requests; what is answered wrongly is printed.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from fuzz.mutations import HOSTILE, changed_json, damaged, json_text
from web.small_runs import HOSTILE as HOSTILE_KEYS
from web.small_runs import Runs, Served

from tapas.web import schema as answers
from tapas.web.guard import HEADERS
from tapas.web.openapi import openapi
from tapas.web.schema import MOST_BYTES

KINDS = ("mixture", "text", "rare-mixture", "warp", "huffman", "export")
ITEMS = [*range(998, 1048), "1003", *HOSTILE_KEYS, "item-1001", "(rare)"]
USERS = [*(f"u{n}" for n in range(32)), *HOSTILE_KEYS]
POOLS = {  # good values by the name of their field
    "users": USERS, "user": USERS, "prefix": ["u", "u1", "", *HOSTILE_KEYS],
    "histories": ITEMS, "history": ITEMS, "items": ITEMS, "allow": ITEMS, "deny": ITEMS,
    "key": ITEMS + USERS, "query": ["1", "item", *HOSTILE_KEYS], "model": [*KINDS, "nothing"],
    "limit": ["1", "20", "100"],
}  # fmt: skip
EXPLORER = {  # addresses that the schema does not describe, and their parameters
    "about": (), "users": ("prefix", "limit"), "random-user": (), "user": ("key",),
    "items": ("query", "limit"), "item": ("key",), "map": ("model",),
}  # fmt: skip
LISTS = {
    "type": "object",
    "properties": {
        "history": {"type": "array", "items": {"type": "string"}},
        "model": {"type": "string"},
    },
    "required": ["history"],
}
TYPES = {"/recommend": answers.Recommended, "/similar": answers.SimilarItems}
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get", "", "G ET")
STRANGE_HEADERS = (
    (b"content-type", b"text/plain"), (b"content-type", b"multipart/form-data; boundary=x"),
    (b"content-encoding", b"gzip"), (b"accept-encoding", b"br"), (b"accept", b"text/html"),
    (b"content-length", b"-1"), (b"content-length", b"99999999999"), (b"content-length", b"\xff"),
    (b"authorization", b"Bearer x"), (b"authorization", b"Basic \xff"), (b"cookie", b"a=b"),
    (b"origin", b"http://evil.example"), (b"x-forwarded-proto", b"https"), (b"expect", b"x"),
    (b"range", b"bytes=0-1"), (b"if-none-match", b"*"), (b"", b""), (b"\xff", b"\x00"),
    (b"transfer-encoding", b"gzip"), (b"host", b"[::1]"), (b"host", b"evil.example"),
)  # fmt: skip


class Request(NamedTuple):
    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: tuple[bytes, ...] = (b"",)  # as it arrives

    def __repr__(self) -> str:
        parts = self.method, self.path, self.query, self.headers, [each[:300] for each in self.body]
        return "Request({})".format(", ".join(map(repr, parts)))


class Reply(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class SchemaRequests:
    """Makes requests with `draw`, a `random.Random`."""

    def __init__(self) -> None:
        self._described = openapi()
        self._places = [
            (path, verb, operation)
            for path, verbs in self._described["paths"].items()
            for verb, operation in verbs.items()
        ]

    def request(self, draw: random.Random) -> Request:
        if draw.random() < 0.2:
            return self._explorer(draw)
        path, verb, operation = draw.choice(self._places)
        if verb == "post" or draw.random() < 0.5:
            posts = [place for place in self._places if place[1] == "post"]
            path, verb, operation = draw.choice(posts)
        values = {
            each["name"]: self._value(draw, each["schema"], each["name"])
            for each in operation.get("parameters", ())
            if each["required"] or draw.random() < 0.5
        }
        in_path = {name: str(value) for name, value in values.items() if f"{{{name}}}" in path}
        query = {name: value for name, value in values.items() if name not in in_path}
        body = b""
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            body = self._body(draw, self._value(draw, schema, ""))
        return self._finished(draw, verb.upper(), path.format(**in_path), query, body)

    def _explorer(self, draw: random.Random) -> Request:
        if draw.random() < 0.3:
            body = self._body(draw, self._value(draw, LISTS, ""))
            return self._finished(draw, "POST", "/explorer/lists", {}, body)
        name = draw.choice(sorted(EXPLORER))
        query = {each: draw.choice(POOLS[each]) for each in EXPLORER[name] if draw.random() < 0.8}
        return self._finished(draw, "GET", f"/explorer/{name}", query, b"")

    def _body(self, draw: random.Random, value: Any) -> bytes:
        """JSON that fits, or almost, or not at all."""
        kind = draw.randrange(10)
        if kind < 3:
            return json.dumps(value).encode()
        if kind < 7:
            return json_text(draw, changed_json(draw, value))
        if kind < 9:
            return damaged(draw, json.dumps(value, ensure_ascii=draw.random() < 0.5).encode())
        return draw.choice((
            b'{"histories":[["%s"]]}' % (b"x" * 10**6), b'{"users":["%s"]}' % (b"\\u00e9" * 10**5),
            b'{"histories":[%s]}' % b",".join([b"[1003]"] * 1_001), b" " * MOST_BYTES,
            b" " * (MOST_BYTES + 1), b'{"histories":[[%s]]}' % (b"9" * 10**5), b"\x80" * 10**4,
            b'{"histories":[["\\ud800"]]}', b'{"k":1e999,"histories":[[1003]]}',
            b'{"histories":[[1003]],"deny":[%s]}' % b",".join([b"1"] * 10_000),
        ))  # fmt: skip

    def _finished(
        self, draw: random.Random, method: str, path: str, query: dict[str, Any], body: bytes
    ) -> Request:
        """With other methods, addresses, parameters and headers now and then."""
        if draw.random() < 0.05:
            method = draw.choice(METHODS)
        if draw.random() < 0.05:
            path = draw.choice((
                path + "/", path + "x", "/" + path, path.upper(), path[:-1], "/..", "*", "/\0",
                "/static/../x", "/static/", "/\ufffd", "/" + "a" * 5_000, "/items/" + path,
            ))  # fmt: skip
        text = "&".join(f"{quote(name)}={quote(str(value))}" for name, value in query.items())
        if query and draw.random() < 0.3:
            name = draw.choice(sorted(query))
            value = quote(str(draw.choice(HOSTILE)), errors="replace")
            text = f"{quote(name)}={value}&{text}"
        found = text.encode()
        if draw.random() < 0.1:
            found = damaged(draw, found)
        headers: list[tuple[bytes, bytes]] = [(b"host", b"127.0.0.1:8321")]
        if draw.random() < 0.2:
            headers += draw.sample(STRANGE_HEADERS, draw.randint(1, 3))
        parts = [body]
        if draw.random() < 0.2:
            size = max(1, len(body) // draw.randint(1, 9))
            parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        return Request(method, path, found, tuple(headers), tuple(parts))

    def _value(self, draw: random.Random, schema: dict[str, Any], name: str) -> Any:
        """A value that fits `schema`, of the field `name`."""
        if "$ref" in schema:
            component = schema["$ref"].rpartition("/")[2]
            return self._value(draw, self._described["components"]["schemas"][component], name)
        if "anyOf" in schema:
            return self._value(draw, draw.choice(schema["anyOf"]), name)
        if "enum" in schema:
            return draw.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            needed = schema.get("required", ())
            return {
                field: self._value(draw, each, field)
                for field, each in schema["properties"].items()
                if field in needed or draw.random() < 0.3
            }
        if kind == "array":
            number = draw.choice((schema.get("minItems", 0), 1, 2, 5))
            return [self._value(draw, schema["items"], name) for _ in range(number)]
        if kind == "boolean":
            return draw.random() < 0.5
        if name in POOLS and draw.random() < 0.9:
            return draw.choice(POOLS[name])
        if kind == "integer":
            return draw.randint(schema.get("minimum", -(2**70)), schema.get("maximum", 2**70))
        return "".join(chr(draw.randrange(1, 0xD800)) for _ in range(draw.randrange(9)))


async def ask(app: Any, request: Request) -> Reply:
    """The reply of an application, asked as its server asks it: bytes that are no HTTP get here."""
    parts, sent = list(request.body), []

    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": request.method, "path": request.path, "raw_path": request.path.encode(),
        "root_path": "", "scheme": "http", "query_string": request.query,
        "headers": list(request.headers), "server": ("127.0.0.1", 8321),
        "client": ("127.0.0.1", 50_000),
    }  # fmt: skip
    await app(scope, receive, send)
    start, *rest = sent
    body = b"".join(message.get("body", b"") for message in rest)
    return Reply(start["status"], list(start["headers"]), body)


def wrong(request: Request, reply: Reply, secrets: list[bytes]) -> str | None:
    """What is wrong with a reply; None if nothing is."""
    if not (200 <= reply.status < 300 or 400 <= reply.status < 500):
        return f"status {reply.status}"
    if [secret for secret in secrets if secret in reply.body]:
        return "it shows a path or a traceback"
    if not set(HEADERS) <= set(reply.headers):
        return "headers are missing"
    if request.method == "HEAD":
        return None
    try:
        if reply.status >= 400:
            msgspec.json.decode(reply.body, type=answers.Error, strict=True)
        elif request.path in TYPES:
            msgspec.json.decode(reply.body, type=TYPES[request.path])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"its body is not as described: {error}"
    return None


class Target:
    """Models of every kind, asked in this process."""

    def __init__(self, home: Path):
        runs = Runs(home)
        self.app = Served(*(runs[kind] for kind in KINDS)).app
        self._secrets = [str(home).encode(), b"Traceback", b'.py"', b"site-packages"]
        self._make = SchemaRequests()
        self._runner = asyncio.Runner()

    def attack(self, draw: random.Random) -> tuple[Request, Reply | None, str | None]:
        """A request, its reply, and what is wrong with it."""
        request = self._make.request(draw)
        try:
            reply = self._runner.run(ask(self.app, request))
        except Exception:  # a bug, of which clients read a sentence
            return request, None, traceback.format_exc()
        return request, reply, wrong(request, reply, self._secrets)

    def close(self) -> None:
        self._runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    statuses: Counter[int] = Counter()
    failures, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as home:
        target = Target(Path(home))
        start = time.monotonic()
        for number in range(given.number):
            begin = time.monotonic()
            request, reply, found = target.attack(random.Random(f"{given.seed} {number}"))
            slowest = max(slowest, time.monotonic() - begin)
            statuses[0 if reply is None else reply.status] += 1
            if found is not None:
                failures += 1
                print(f"request {number}: {found}\n  {request}\n  {reply}", file=sys.stderr)
        seconds = time.monotonic() - start
        target.close()
    for status, count in sorted(statuses.items()):
        print(f"{status or 'traceback':>9} {count:7,}")
    print(f"{given.number:,} requests in {seconds:.0f} s, the slowest in {slowest:.2f} s.")
    print(f"Answered wrongly: {failures:,}.")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
