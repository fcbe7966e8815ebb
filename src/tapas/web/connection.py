"""A connection that is slow or silent gives way, so that it keeps nobody else out."""

import resource
from asyncio import AbstractEventLoop, TimerHandle, Transport
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tapas.web.batches import BusyError
from tapas.web.guard import HEADERS
from tapas.web.request_errors import answer_to
from tapas.web.schema import MOST_BYTES, Error

MOST_CONNECTIONS = 1_024
OTHER_FILES = 256  # that the process may open beside connections
REQUEST_SECONDS = 30  # from the first byte of a request to the last
ANSWER_SECONDS = 60  # for a client to read its answer
LAST_SECONDS = 5  # for the rest of a request once the server is to stop
MOST_HEADER_BYTES = 1 << 16
MOST_RAW_BYTES = 8 * MOST_BYTES  # of a request, with its headers and the lengths of its chunks


async def too_busy(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application for requests beyond the limit."""
    await answer_to(BusyError())(scope, receive, send)


class JoinedWrites:
    """A transport that sends what is written in one turn of the event loop at once.

    The head and the body of an answer are then one packet, not two, and wake the client once.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop):
        self._transport, self._loop, self._parts = transport, loop, list[bytes]()

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """A connection of the server.

    It is closed if a request does not arrive in time, or an answer is not read in time. If there
    are too many connections, the one that has been without a request for longest is closed.
    """

    _deadline: TimerHandle | None = None
    _unread: TimerHandle | None = None
    _num_bytes = 0  # of the request so far
    _in_headers = True
    _since = 0.0  # when the request, or the waiting for one, began

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport: Any = JoinedWrites(transport, self.loop)
        self._expect_request()
        if len(self.connections) >= (self.limit_concurrency or MOST_CONNECTIONS):
            self._close_oldest()

    def _close_oldest(self) -> None:
        waiting = [
            each
            for each in self.connections
            if isinstance(each, Connection) and each is not self and each._is_waiting
        ]
        if waiting:
            oldest = min(waiting, key=lambda each: each._since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    @property
    def _is_waiting(self) -> bool:
        """Whether no request is under way that has arrived."""
        return self._deadline is not None or self.cycle is None or self.cycle.response_complete

    def _expect_request(self) -> None:
        if self._deadline is None:
            self._since = self.loop.time()
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_waiting:
            self._expect_request()
        self._num_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_headers and self._num_bytes > MOST_HEADER_BYTES:
            self._refuse(431, f"the headers have more than {MOST_HEADER_BYTES:,} bytes.")
        elif self._num_bytes > MOST_RAW_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._num_bytes = True, 0
        self._expect_request()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._in_headers, self._num_bytes = True, 0
        super().on_message_complete()

    def shutdown(self) -> None:
        super().shutdown()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = self.loop.call_later(LAST_SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        self.transport.flush()
        if self._unread is None and self.transport.get_write_buffer_size():
            self._unread = self.loop.call_later(ANSWER_SECONDS, self._end_unread)
        super().on_response_complete()

    def _end_unread(self) -> None:
        self._unread = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer as everywhere if there are too many requests; uvicorn's own words are no JSON."""
        busy: Any = too_busy
        super()._start_asgi_task(cycle, busy if app is service_unavailable else app)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: such a request is answered as any other."""

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request.")

    def _refuse(self, status: int, words: str) -> None:
        content = msgspec.json.encode(Error(words))
        headers: list[tuple[bytes, Any]] = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
            *HEADERS,
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + content)
        self.transport.close()


def allowed_connections() -> int:
    """How many connections the process may have; raises its limit of open files if that helps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        MOST_CONNECTIONS
        if soft == resource.RLIM_INFINITY
        else max(16, min(wanted, soft) - OTHER_FILES)
    )
