"""A real server under attack at its socket: it answers with a sentence, and goes on for others."""

import asyncio
import json
import os
import resource
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from web.server_process import ask, connect, read_all, serving, wait

from tapas.web import connection as connection_module
from tapas.web.guard import HEADERS

REQUEST_SECONDS, ANSWER_SECONDS = 1, 2  # in the server of these tests
MOST_CONNECTIONS = 100
MOST_RAW_BYTES = 1 << 18
HOST = b"Host: localhost\r\n"
NO_HTTP = (400, "this is no HTTP request.")
NOTHING_THERE = (404, "there is nothing at this address.")
CALLED = (421, "this server is called by the name of its own machine only.")


def impatient():
    """Makes the limits of a server so short that tests can wait for them."""
    from tapas.web import connection

    connection.REQUEST_SECONDS = REQUEST_SECONDS
    connection.ANSWER_SECONDS = ANSWER_SECONDS
    connection.MOST_CONNECTIONS = MOST_CONNECTIONS
    connection.MOST_RAW_BYTES = MOST_RAW_BYTES


@pytest.fixture(scope="module")
def server(runs):
    with serving(runs["mixture"], before=impatient) as server:
        yield server


@pytest.fixture(autouse=True)
def _still_well(server):
    """After each attack others are answered, and nothing was a bug."""
    yield
    start = time.monotonic()
    status, answer = ask(server, "POST", "/recommend", {"histories": [[1000]], "k": 3})
    assert (status, len(answer["lists"][0]["items"])) == (200, 3)
    assert time.monotonic() - start < 5
    assert "Traceback" not in server.err.read_text()


def answers(content: bytes) -> list[tuple[int, bytes, dict[bytes, bytes]]]:
    """Status, body and headers of each answer in what a server sent."""
    found = []
    while content:
        head, _, content = content.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = dict(each.split(b": ", 1) for each in lines)
        size = int(headers[b"content-length"])
        found.append((int(line.split(b" ")[1]), content[:size], headers))
        content = content[size:]
    return found


def sent(server, *parts: bytes, pause: float = 0) -> list[tuple[int, bytes, dict[bytes, bytes]]]:
    """The answers to bytes that are sent as they are, until the server closes."""
    with connect(server) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(pause)
        return answers(read_all(connection))


def get(path: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n" + lines + b"\r\n"


def post(*headers: bytes, body: bytes = b"") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST /recommend HTTP/1.1\r\n" + HOST + lines + b"\r\n" + body


ATTACKS = {
    "no HTTP": (b"garbage\r\n\r\n", *NO_HTTP),
    "zeros": (bytes(100), *NO_HTTP),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", *NO_HTTP),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *NO_HTTP),
    "a strange version": (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", *NO_HTTP),
    "a strange method": (b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n", *NO_HTTP),
    "a tunnel": (b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n", *NO_HTTP),
    "bytes that are no UTF-8": (get(b"/\xff\xfe"), *NO_HTTP),
    "escaped bytes that are no UTF-8": (get(b"/items/%ff%fe"), 404, "unknown item '\ufffd\ufffd'."),
    "half an escape": (get(b"/items/%f"), 404, "unknown item '%f'."),
    "control characters": (get(b"/items/a%00b%0d%0ac"), 404, "unknown item 'a\0b\r\nc'."),
    "a surrogate": (get(b"/items/%ed%a0%80"), 404, "unknown item '\ufffd\ufffd\ufffd'."),
    "parent folders": (get(b"/../../etc/passwd"), *NOTHING_THERE),
    "parents of static files": (get(b"/static/../server.py"), *NOTHING_THERE),
    "escaped parents": (get(b"/static/%2e%2e%2fserver.py"), *NOTHING_THERE),
    "parents escaped twice": (get(b"/static/%252e%252e%252fserver.py"), *NOTHING_THERE),
    "parents as an item": (get(b"/items/../../etc"), 404, "unknown item '../../etc'."),
    "backslashes": (get(b"/static/..\\server.py"), *NOTHING_THERE),
    "two slashes": (get(b"//evil.example/healthz"), *NOTHING_THERE),
    "no path": (b"GET ? HTTP/1.1\r\n" + HOST + b"\r\n", *NO_HTTP),
    "no host": (b"GET / HTTP/1.0\r\n\r\n", *CALLED),
    "another host": (b"GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n", *CALLED),
    "a long address": (get(b"/" + b"a" * 100_000), *NO_HTTP),
    "a long header": (
        get(b"/healthz", b"X: " + b"a" * 200_000),
        431,
        "the headers have more than 65,536 bytes.",
    ),
    "many headers": (
        get(b"/healthz", *[b"X: y"] * 50_000),
        431,
        "the headers have more than 65,536 bytes.",
    ),
    "a header that does not end": (
        b"GET / HTTP/1.1\r\nX: " + b"a" * 400_000,
        431,
        "the headers have more than 65,536 bytes.",
    ),
    "a length below 0": (post(b"Content-Length: -1"), *NO_HTTP),
    "a length that is too long": (post(b"Content-Length: " + b"9" * 30), *NO_HTTP),
    "two lengths": (post(b"Content-Length: 1", b"Content-Length: 2"), *NO_HTTP),
    "a length and chunks": (
        post(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        *NO_HTTP,
    ),
    "chunks without a length": (post(b"Transfer-Encoding: chunked", body=b"zz\r\n"), *NO_HTTP),
    "a body above the limit": (
        post(b"Content-Length: 3000000"), 413, "the request has more than 2,097,152 bytes."
    ),
    "spaces before a colon": (get(b"/healthz", b"X : y"), *NO_HTTP),
    "a header of several lines": (get(b"/healthz", b"X: y\r\n z"), *NO_HTTP),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_malformed_is_answered_with_a_sentence(server, attack):
    content, status, words = ATTACKS[attack]
    found = sent(server, content)
    assert [(each[0], json.loads(each[1])) for each in found] == [(status, {"error": words})]
    for name, value in HEADERS:
        assert found[0][2][name] == value


def test_an_upgrade_is_answered_as_any_other_request(server):
    for kind in (b"websocket", b"h2c"):
        request = get(b"/healthz", b"Upgrade: " + kind).replace(b"close", b"Upgrade, close")
        assert [each[0] for each in sent(server, request)] == [200]


def test_requests_that_are_sent_at_once_are_answered_in_order(server):
    paths = [b"/healthz", b"/items/1003", b"/nothing", b"/items/1004"] * 20
    many = b"".join(get(path).replace(b"Connection: close\r\n", b"") for path in paths)
    found = sent(server, many + get(b"/docs"))
    assert [each[0] for each in found] == [200, 200, 404, 200] * 20 + [200]
    items = [json.loads(each[1])["item"] for each in found[1:-1:2] if each[0] == 200]
    assert items == [1003, 1004] * 20


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(server):
    body = b'{"histories":[[1000]],"k":3}'
    head = post(b"Connection: close", b"Expect: 100-continue", b"Content-Length: %d" % len(body))
    with connect(server) as connection:
        connection.sendall(head)
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert [each[0] for each in answers(read_all(connection))] == [200]


class Written:
    """A transport that keeps what is written, and whether it was closed."""

    def __init__(self):
        self.sent, self.closed = [], False

    def write(self, data):
        self.sent.append(data)

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


def test_what_is_written_in_one_turn_of_the_loop_is_sent_at_once():
    transport = Written()

    async def turns():
        joined = connection_module.JoinedWrites(transport, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        assert transport.sent == []
        await asyncio.sleep(0)
        assert transport.sent == [b"head body"]
        joined.write(b"last")
        joined.close()
        assert joined.is_closing()
        await asyncio.sleep(0)
        assert (transport.sent, transport.closed) == ([b"head body", b"last"], True)

    asyncio.run(turns())


def test_half_a_request_and_no_more_is_no_harm(server):
    for content in (b"", b"G", b"GET / HT", post(b"Content-Length: 50", body=b'{"hist')):
        with connect(server) as connection:
            connection.sendall(content)
    with connect(server) as connection:
        connection.sendall(post(b"Content-Length: 50", body=b'{"hist'))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nX: ", b"a"),
        (b"", b"\r\n"),
        (post(b"Content-Length: 50", body=b"{"), b" "),
        (post(b"Transfer-Encoding: chunked"), b"1\r\n \r\n"),
        (get(b"/healthz").replace(b"close", b"keep-alive") + b"GET / HTTP/1.1\r\nX: ", b"a"),
        (get(b"/healthz").replace(b"close", b"keep-alive"), b"\r\n"),
    ],
    ids=["nothing", "headers", "line ends", "body", "chunks", "a second request", "ends after it"],
)
def test_a_request_that_does_not_arrive_in_time_is_not_waited_for(server, first, then):
    """However often a little more of it comes."""
    start = time.monotonic()
    with connect(server) as connection:
        connection.sendall(first)
        connection.settimeout(0.05)
        while time.monotonic() < start + 10 * REQUEST_SECONDS:
            try:
                if then:
                    connection.sendall(then[:1])
                    then = then[1:] + then[:1]
                if connection.recv(1 << 16) == b"":
                    break
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
    assert 0.5 * REQUEST_SECONDS < time.monotonic() - start < 6 * REQUEST_SECONDS


def num_sockets(server) -> int:
    """How many sockets the server has open."""
    files = Path(f"/proc/{server.pid}/fd").iterdir()
    return sum(str(link).startswith("socket:") for link in map(os.readlink, files))


@pytest.mark.slow
def test_an_answer_that_is_not_read_is_not_kept_for_ever(server):
    """It is longer than what the kernel keeps."""
    body = json.dumps({"users": ["u1"] * 1000, "k": 45, "explain": True}).encode()
    time.sleep(0.5)  # until earlier connections are gone
    before = num_sockets(server)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(post(b"Content-Length: %d" % len(body), body=body))
        connection.recv(1)
        assert num_sockets(server) == before + 1
        start = time.monotonic()
        wait(lambda: num_sockets(server) == before)
        assert time.monotonic() - start > ANSWER_SECONDS / 2


def slow_and_small():
    from tapas.web import connection, served_model

    connection.MOST_CONNECTIONS = 16
    rank = served_model.ServedModel.rank
    served_model.ServedModel.rank = lambda *a, **k: (time.sleep(1), rank(*a, **k))[1]


@pytest.mark.slow
def test_requests_beyond_the_limit_are_told_in_json_to_come_back(runs):
    body = b'{"histories":[["1000"]],"k":3}'
    request = post(b"Connection: close", b"Content-Length: %d" % len(body), body=body)
    with serving(runs["warp"], before=slow_and_small) as other:
        held = flood(other, 24, request)
        found = [answers(read_all(connection))[0] for connection in held]
        for connection in held:
            connection.close()
    statuses = [status for status, *_ in found]
    assert statuses[0] == 200
    assert set(statuses) == {200, 503}
    for status, content, headers in found:
        if status == 503:
            words = "the server has too much to do. Try again in a second."
            assert json.loads(content) == {"error": words}
            assert headers[b"retry-after"] == b"1"


def little():
    from tapas.web import connection

    connection.MOST_RAW_BYTES = MOST_RAW_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [(b"", b"1\r\n \r\n"), (b"0\r\n", b"X: y\r\n")], ids=["chunks", "trailers"]
)
def test_what_surrounds_a_body_is_limited_too(runs, first, then):
    start = time.monotonic()
    with serving(runs["warp"], before=little) as other, connect(other) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(post(b"Transfer-Encoding: chunked") + first)
            connection.sendall(then * (2 * MOST_RAW_BYTES // len(then)))
        assert read_all(connection) == b""
        assert ask(other)[0] == 200
    assert time.monotonic() - start < connection_module.REQUEST_SECONDS


def flood(server, number: int, content: bytes) -> list[socket.socket]:
    found = []
    for _ in range(number):
        connection = connect(server)
        connection.sendall(content)
        found.append(connection)
    return found


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\nX: ", b"\r\n"])
def test_connections_that_ask_for_nothing_keep_nobody_out(server, content):
    """Those that have waited longest are closed first; requests under way are not."""
    with connect(server) as busy:
        body = b'{"histories":[[1000]],"k":3}'
        busy.sendall(post(b"Connection: close", b"Content-Length: %d" % len(body), body=body))
        held = flood(server, 3 * MOST_CONNECTIONS, content)
        try:
            for _ in range(3):
                start = time.monotonic()
                assert ask(server)[0] == 200
                assert time.monotonic() - start < 2
            assert answers(read_all(busy))[0][0] == 200
        finally:
            for connection in held:
                connection.close()


@pytest.mark.slow
def test_two_thousand_idle_connections_keep_nobody_out(runs):
    """With the limits that users have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_500:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_500), hard))
    with serving(runs["mixture"]) as other:
        held = flood(other, 2_000, b"GET / HTTP/1.1\r\nX: ")
        try:
            start = time.monotonic()
            assert ask(other)[0] == 200
            assert time.monotonic() - start < 5
            for connection in held:
                connection.close()
            assert ask(other)[0] == 200
        finally:
            for connection in held:
                connection.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "Traceback" not in other.err.read_text()


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "raised"),
    [
        (1024, 4096, 1024, 1280),
        (64, 64, 16, 64),
        (256, 1000, 744, 1000),
        (20_000, 20_000, 1024, 20_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1024, resource.RLIM_INFINITY),
        (1024, resource.RLIM_INFINITY, 1024, 1280),
    ],
)
def test_connections_leave_files_for_the_models(monkeypatch, soft, hard, wanted, raised):
    limits = [soft, hard]
    monkeypatch.setattr(connection_module.resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(
        connection_module.resource, "setrlimit", lambda _, new: limits.__setitem__(slice(2), new)
    )
    assert connection_module.allowed_connections() == wanted
    assert limits == [raised, hard]
