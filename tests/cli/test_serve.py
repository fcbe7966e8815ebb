"""`tapas serve`: its address, its signals, its refusals. tests/web/ is about what it answers."""

import http.client
import json
import os
import signal
import socket
import sys
import time
from contextlib import contextmanager

import pytest
from forked import Forked
from oracle.command_line import ENVIRONMENT, invoke, last_line
from web.server_process import SECONDS, ask, connect, kill, serving, wait

TOKEN = "0123456789abcdef"


def ended(server):
    """Exit code, stdout and stderr of a server that was told to stop."""
    done = server.end(SECONDS)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_the_address_is_printed_alone_on_stdout_once_requests_are_answered(run):
    with serving("run") as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        status, health = ask(server)
        assert (status, health["status"]) == (200, "ok")
        assert [each["name"] for each in health["models"]] == ["run"]
        assert ask(server, "POST", "/recommend", {"users": ["u1"], "k": 3})[0] == 200
        step = health["models"][0]["step"]
        os.kill(server.pid, signal.SIGTERM)
        assert ended(server) == (
            0,
            f"{server.url}\n",
            f"Serving run run, step {step}: 30 items.\n"
            f"Explorer: {server.url}/, API: {server.url}/docs. Ctrl-C stops.\n"
            "Stopping: requests under way are answered first.\n",
        )


@contextmanager
def half_sent(server):
    """A request whose body is not there yet, and a function that sends it."""
    body = b'{"users":["u1"],"k":3}'
    with connect(server) as half:
        head = f"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        half.sendall(head.encode() + body[:5])
        time.sleep(0.2)  # until the server has read it

        def finish():
            half.sendall(body[5:])
            answer = http.client.HTTPResponse(half)
            answer.begin()
            return answer.status, json.loads(answer.read())

        yield finish


def refuses_connections(server):
    try:
        connect(server).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_lets_requests_under_way_be_answered(run, number):
    """New ones are refused, connections without a request are closed, and all is well: code 0."""
    with serving("run") as server, half_sent(server) as finish:
        idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        idle.request("GET", "/healthz")
        assert idle.getresponse().read()
        os.kill(server.pid, number)
        wait(lambda: refuses_connections(server))
        assert idle.sock.recv(1) == b""
        idle.close()
        assert server.is_alive()
        status, answer = finish()
        assert status == 200
        assert len(answer["lists"][0]["items"]) == 3
        code, _, talk = ended(server)
        assert code == 0
        assert talk.endswith("Stopping: requests under way are answered first.\n")
        assert "Traceback" not in talk


@pytest.mark.slow
def test_requests_that_are_not_answered_in_time_are_told_that_the_server_stops(run):
    """Also those that wait for the one that takes too long."""
    body = b'{"users":["u1"]}'
    head = f"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with (
        serving("run", before=never_rank) as server,
        connect(server) as first,
        connect(server) as second,
    ):
        first.sendall(head.encode() + body)
        server.wait_for("ranking")
        second.sendall(b"GET /items/1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.2)  # until it has arrived
        os.kill(server.pid, signal.SIGTERM)
        for waiting in (first, second):
            answer = http.client.HTTPResponse(waiting)
            answer.begin()
            assert answer.status == 503
            assert json.loads(answer.read()) == {"error": "the server is stopping."}
        code, _, talk = ended(server)
        assert code == 0
        assert "Traceback" not in talk


def never_rank():
    """Or after more seconds than the server waits for."""
    from tapas.web import served_model, server

    server.DRAIN_SECONDS = 1
    rank = served_model.ServedModel.rank

    def slow(self, queries, k, **how):
        print("ranking", file=sys.stderr, flush=True)
        time.sleep(4)
        return rank(self, queries, k, **how)

    served_model.ServedModel.rank = slow


@pytest.mark.slow
def test_a_second_signal_does_not_wait(run):
    with serving("run") as server, half_sent(server):
        os.kill(server.pid, signal.SIGTERM)
        wait(lambda: refuses_connections(server))
        start = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert ended(server)[0] == 0
        assert time.monotonic() - start < 5


@pytest.mark.slow
def test_a_request_that_never_becomes_whole_is_not_waited_for_when_the_server_stops(run):
    with serving("run", before=hurry) as server, half_sent(server):
        os.kill(server.pid, signal.SIGTERM)
        code, _, talk = ended(server)
        assert code == 0
        assert talk.endswith("Stopping: requests under way are answered first.\n")


def hurry():
    from tapas.web import connection

    connection.LAST_SECONDS = 1


def test_a_signal_while_models_are_loaded_ends_at_once(run):
    server = Forked("serve", "run", "--port", 0, env=ENVIRONMENT, before=load_for_ever)
    server.wait_for("loading")
    os.kill(server.pid, signal.SIGTERM)
    code, said, talk = ended(server)
    assert (code, said) == (143, "")
    assert talk.splitlines()[-1] == "tapas: stopped by SIGTERM."


def load_for_ever():
    from tapas.web import models

    def load(*_, **__):
        print("loading", file=sys.stderr, flush=True)
        time.sleep(60)

    models.load = load


def test_a_port_that_is_taken_is_refused_also_while_the_other_loads_its_models(run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        words = last_line(invoke("serve", "run", "--port", port))
    assert words == (
        f"cannot listen on 127.0.0.1, port {port}: Address already in use. Choose another with "
        "--port (0 takes a free one) or --host."
    )
    first = Forked("serve", "run", "--port", port, env=ENVIRONMENT, before=load_for_ever)
    try:
        first.wait_for("loading")
        assert "Address already in use" in last_line(invoke("serve", "run", "--port", port))
    finally:
        kill(first)


@pytest.mark.slow
def test_the_same_port_can_be_taken_again_at_once(run):
    with serving("run") as server:
        assert ask(server)[0] == 200
        os.kill(server.pid, signal.SIGTERM)
        assert ended(server)[0] == 0
    with serving("run", port=server.port) as again:
        assert again.url == server.url
        assert ask(again)[0] == 200


@pytest.mark.parametrize(
    "host", ["nowhere.invalid", "256.256.256.256", "a" * 300, "x y", "ü.invalid"]
)
def test_a_host_that_does_not_exist_is_refused(run, at, host):
    (at / "token").write_text(TOKEN)
    (at / "token").chmod(0o600)
    words = last_line(invoke("serve", "run", "--host", host, "--token", "token", "--port", 0))
    assert words.startswith(f"cannot listen on {host[:50]}")
    assert words.endswith("Choose another with --port (0 takes a free one) or --host.")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.7.7", "shop.example", "", "127.1"])
def test_other_machines_may_ask_only_with_a_token(run, host):
    assert last_line(invoke("serve", "run", "--host", host)) == (
        f"--host {host} lets other machines ask. Add --token FILE, a file with a token that "
        "clients must send, or leave --host out."
    )


def test_with_a_token_any_address_may_be_listened_on(run, at):
    (at / "token").write_text(f"  {TOKEN} \nmore lines\n")
    (at / "token").chmod(0o400)
    with serving("run", "--host", "0.0.0.0", "--token", "token") as server:
        assert server.url == f"http://0.0.0.0:{server.port}"
        assert ask(server)[0] == 200
        assert ask(server, path="/items/1003") == (
            401, {"error": "this server asks for its token, as a bearer token."}
        )  # fmt: skip
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert ask(server, path="/items/1003", headers=headers)[0] == 200
        assert TOKEN not in server.err.read_text()


SHORT = (
    "token has no token in its first line: expected at least 16 printable ASCII characters, for "
    "example from `openssl rand -hex 32`."
)
READABLE = "token can be read by others. `chmod 600` it, and write a new token."


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (TOKEN[:15], 0o600, SHORT),
        ("", 0o600, SHORT),
        (f"\n{TOKEN}", 0o600, SHORT),
        (f"{TOKEN}é", 0o600, SHORT),
        (f"{TOKEN}\x07x", 0o600, SHORT),
        (b"\xff" * 20, 0o600, SHORT),
        (TOKEN, 0o644, READABLE),
        (TOKEN, 0o640, READABLE),
        (TOKEN, 0o602, READABLE),
    ],
)
def test_a_file_without_a_good_token_is_refused(run, at, content, mode, words):
    data = content if isinstance(content, bytes) else content.encode()
    (at / "token").write_bytes(data)
    (at / "token").chmod(mode)
    assert last_line(invoke("serve", "run", "--token", "token")) == words


def test_a_token_that_is_no_file_is_refused(run, at):
    (at / "folder").mkdir()
    os.mkfifo(at / "pipe")
    for name, words in (
        ("nothing", "there is no file nothing."),
        ("folder", "folder is a folder; expected a file. Name a file in it."),
        ("pipe", "pipe is a pipe; expected a file. Write what comes out of it to a file, and name "
                 "that."),
    ):  # fmt: skip
        assert last_line(invoke("serve", "run", "--token", name)) == words


def test_what_is_no_run_is_refused(run, at):
    assert last_line(invoke("serve", "nothing", "--port", 0)) == (
        "nothing holds no run (run.json is missing). There is no such folder. Create one with "
        "`tapas train ... --out nothing`."
    )
    (at / "empty").mkdir()
    assert last_line(invoke("serve", "run", "empty", "--port", 0)).startswith(
        "empty holds no run (run.json is missing)."
    )


def test_names_of_items_are_read_from_a_table(run, at):
    rows = "".join(f"{n},Item {n},aisle {n % 3}\n" for n in range(1000, 1020))
    (at / "items.csv").write_text(f"sku,title,aisle\n{rows}")
    with serving("run", "--items", "items.csv", "--column", "item=sku") as server:
        facts = ask(server, path="/items/1003")[1]
        assert (facts["name"], facts["columns"]) == ("Item 1003", {"aisle": "aisle 1"})
        found = "items.csv: names, on the map aisle for 20 of 30 items."
        assert found in server.err.read_text().splitlines()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--items", "nothing.csv"), "there is no file nothing.csv."),
        (("--items", "other.csv"),
         "no column of other.csv looks like the items of the model, such as '{item}'. Name it: "
         "--column item=NAME. Columns: a, b."),
        (("--items", "other.csv", "--column", "item=c"),
         "other.csv has no column 'c'. Columns: a, b."),
        (("--items", "other.csv", "--column", "itme=a"),
         "unknown role of a column 'itme'. Did you mean 'item'? Known: item, name."),
        (("--items", "other.csv", "--column", "a"),
         "--column a: expected item=NAME or name=NAME, for a column of --items FILE."),
        (("--column", "item=a"),
         "--column item=a: expected item=NAME or name=NAME, for a column of --items FILE."),
    ],
)  # fmt: skip
def test_a_table_of_items_that_does_not_fit_is_refused(run, at, options, words):
    (at / "other.csv").write_text("a,b\nx,y\n")
    from tapas import load

    words = words.format(item=load("run").items[0])
    assert last_line(invoke("serve", "run", "--port", 0, *options)) == words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prot", "0"), "No such option: --prot"),
        (("--port", "65536"), "Invalid value for '--port': "),
        (("--port", "x"), "Invalid value for '--port': "),
    ],
)
def test_a_mistyped_option_is_refused(run, options, words):
    done = invoke("serve", "run", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())


def test_a_run_is_needed():
    done = invoke("serve")
    assert done.returncode == 2
    assert "Missing argument 'RUN...'" in done.stderr


def test_without_the_extra_it_is_said_how_to_install_it(run):
    done = Forked("serve", "run", env=ENVIRONMENT, before=without_uvicorn).end()
    assert (done.returncode, done.stdout, done.stderr) == (
        1, "", 'tapas: this needs uvicorn. Install it with `pip install "tapas-softmax[serve]"`.\n'
    )  # fmt: skip


def without_uvicorn():
    for name in [name for name in sys.modules if name.startswith(("tapas.web", "uvicorn"))]:
        del sys.modules[name]
    sys.modules["uvicorn"] = None


@pytest.mark.slow
def test_a_newer_model_is_taken_with_reload(run, at):
    """Every 2 seconds the server looks."""
    with serving("run", "--reload") as server:
        (at / "run/run.json").touch()
        server.wait_for("run was replaced by what is in its folder now, step ")
        assert ask(server, "POST", "/recommend", {"users": ["u1"]})[0] == 200
        os.kill(server.pid, signal.SIGTERM)
        code, _, talk = ended(server)
        assert code == 0
        assert "Traceback" not in talk


def test_the_loopback_address_of_ip_6_is_served(run):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving("run", "--host", "::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        assert ask(server, host="::1")[0] == 200
