"""`tapas serve` in a process of its own, which listens."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from forked import Forked
from oracle.command_line import ENVIRONMENT

SECONDS = 30  # until a server must have started, answered or ended


@contextmanager
def serving(*arguments: Any, port: int = 0, before: Any = None) -> Iterator[Any]:
    """A server that answers; it is ended with the block, if it has not ended before."""
    server: Any = Forked("serve", *arguments, "--port", port, env=ENVIRONMENT, before=before)
    try:
        wait(lambda: server.out.read_text().endswith("\n") or not server.is_alive())
        assert server.is_alive(), server.err.read_text()
        server.url = server.out.read_text().strip()
        server.port = int(server.url.rpartition(":")[2])
        yield server
    finally:
        kill(server)


def kill(server: Any) -> None:
    if server.out.exists():  # it was not ended
        server.process.kill()
        server.end()


def wait(until: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < limit
        time.sleep(0.01)


def ask(
    server: Any,
    method: str = "GET",
    path: str = "/healthz",
    body: Any = None,
    headers: dict[str, str] | None = None,
    host: str = "127.0.0.1",
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    connection = http.client.HTTPConnection(host, server.port, timeout=SECONDS)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def connect(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)


def read_all(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection, however it does."""
    found = b""
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found
