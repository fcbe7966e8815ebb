"""Who may ask, and how much at once: the outermost layer of the server."""

import asyncio
import base64
import binascii
import hmac
import re
import time
from collections.abc import Collection
from functools import lru_cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tapas.web.api import RequestError, as_error
from tapas.web.measurements import Measurements
from tapas.web.schema import MOST_BYTES

OPEN = ("/healthz",)  # answered without a token
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
ROUTES = ("/recommend", "/similar", "/items", "/healthz", "/metrics", "/explorer", "/docs")


class Guard:
    """Checks a request before `app` gets it, counts it, and adds headers to the answer.

    Args:
        token: what clients must send, as a bearer token or as the password of a browser; None
            lets everybody in.
        hosts: names by which clients may call the server, None for any. A page of the web that
            has its name point to this machine cannot ask then.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Collection[str] | None,
        measurements: Measurements,
    ):
        self.app, self.token, self.hosts = app, token, hosts
        self.measurements = measurements

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            await self._answer(scope, receive, send_guarded)
        except asyncio.CancelledError:  # the server stops, and has waited for long enough
            if not status:
                await as_error(503, "the server is stopping.")(scope, receive, send_guarded)
        finally:
            self.measurements.add(route_of(scope["path"]), status, time.perf_counter() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        known = self.token is None or scope["path"] in OPEN
        if self.hosts is not None and _host(headers.get(b"host", b"")) not in self.hosts:
            words = "this server is called by the name of its own machine only."
            await as_error(421, words)(scope, receive, send)
        elif not known and not _has_token(headers.get(b"authorization", b""), self.token or ""):
            response = as_error(401, "this server asks for its token, as a bearer token.")
            response.headers["www-authenticate"] = 'Basic realm="tapas", charset="UTF-8"'
            await response(scope, receive, send)
        else:
            await self.app(scope, _limited(receive, headers), send)


@lru_cache(64)
def _host(header: bytes) -> str:
    """The name by which the client called the server, without the port; "" for nonsense."""
    found = re.fullmatch(r"(\[[^\]]*\]|[^:\[]*)(:[0-9]*)?", header.decode("latin-1").lower())
    return "" if found is None else found[1]


def route_of(path: str) -> str:
    """The end point of a path, one of few names."""
    first = "/" + path.lstrip("/").partition("/")[0]
    return first if first in ROUTES else "other"


def _limited(receive: Receive, headers: dict[bytes, bytes]) -> Receive:
    """`receive` for a body of at most MOST_BYTES."""
    length = headers.get(b"content-length", b"0")
    size = int(length) if length.isdigit() and len(length) < 19 else 0
    if 0 < size <= MOST_BYTES and b"transfer-encoding" not in headers:
        return receive  # the parser reads no more than that
    too_large = RequestError(413, f"the request has more than {MOST_BYTES:,} bytes.")
    if size > MOST_BYTES:  # not a byte of it is read

        async def refused() -> Message:
            raise too_large

        return refused
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MOST_BYTES:
            raise too_large
        return message

    return limited


def _has_token(authorization: bytes, token: str) -> bool:
    """Whether the header has the token: "Bearer TOKEN", or Basic with it as the password."""
    kind, _, value = authorization.partition(b" ")
    if kind.lower() == b"basic":
        try:
            _, _, value = base64.b64decode(value.strip(), validate=True).partition(b":")
        except binascii.Error:
            return False
    elif kind.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), token.encode())
