"""Who may ask: the token, and the name by which the server is called."""

import base64

import pytest
from web.small_runs import Served, sentence

from tapas.web.server import Address

TOKEN = "0123456789abcdef-secret"
ASKS = "this server asks for its token, as a bearer token."
CALLED = "this server is called by the name of its own machine only."
PLACES = ("/", "/docs", "/metrics", "/items/1000", "/explorer/about", "/nothing", "/healthz/")


@pytest.fixture(scope="module")
def guarded(runs):
    """Listens to other machines, and asks for a token."""
    return Served(runs["network"], address=Address("0.0.0.0", 8321), token=TOKEN)


def basic(password, user="anyone"):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "header",
    [
        f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN} ", basic(TOKEN), basic(TOKEN, ""),
        basic(TOKEN).replace("Basic", "basic"),
    ],
)  # fmt: skip
def test_the_token_is_sent_as_a_bearer_token_or_as_a_password(guarded, header):
    for path in ("/", "/metrics", "/items/1000"):
        assert guarded.get(path, headers={"authorization": header}).status_code == 200


WRONG = {
    "no header": None,
    "an empty one": "",
    "another token": "Bearer 0123456789abcdef-secreT",
    "the beginning": f"Bearer {TOKEN[:-1]}",
    "more": f"Bearer {TOKEN}x",
    "no kind": TOKEN,
    "another kind": f"Digest {TOKEN}",
    "nothing after the kind": "Bearer",
    "not ASCII": f"Bearer {TOKEN}ü".encode(),
    "bytes": b"Bearer \xff\xfe",
    "not base 64": "Basic ???",
    "base 64 of bytes": "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
    "no password": "Basic " + base64.b64encode(TOKEN.encode()).decode(),
    "as the user": basic("", user=TOKEN),
    "a token with a colon": basic(f"x:{TOKEN}"),
    "base 64 cut": basic(TOKEN)[:-3],
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("path", PLACES)
def test_without_the_token_everything_but_healthz_is_refused(guarded, path, header):
    headers = {} if header is None else {"authorization": header}
    answer = guarded.get(path, headers=headers)
    assert sentence(answer, 401) == ASKS
    assert answer.headers["www-authenticate"] == 'Basic realm="tapas", charset="UTF-8"'
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_posts_are_refused_before_their_body_is_read(guarded):
    def body():
        raise AssertionError("it was read")
        yield b""

    answer = guarded.client.post("/recommend", content=body())
    assert sentence(answer, 401) == ASKS


def test_healthz_is_answered_without_a_token(guarded):
    assert guarded.get("/healthz").json()["status"] == "ok"


def test_with_other_machines_any_name_may_be_called(guarded):
    headers = {"host": "shop.example", "authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/docs", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8321",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8321",
        "localhost:",
    ],
)
def test_a_loopback_server_is_called_by_names_of_its_machine(served, host):
    assert served.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8321", "localhost.evil.example", "127.0.0.1.evil.example",
        "", "[::2]", "[::1", "[::1].evil.example", "127.0.0.2", "localhost@evil.example",
        "evil.example#localhost", b"\xff",
    ],
)  # fmt: skip
def test_a_page_whose_name_points_to_this_machine_cannot_ask(served, host):
    """DNS rebinding: the browser thinks that it asks evil.example."""
    for path in ("/", "/healthz", "/items/1000"):
        assert sentence(served.get(path, headers={"host": host}), 421) == CALLED


@pytest.mark.parametrize(
    ("host", "is_loopback", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:80"),
        ("127.9.9.9", True, "http://127.9.9.9:80"),
        ("localhost", True, "http://localhost:80"),
        ("::1", True, "http://[::1]:80"),
        ("0:0:0:0:0:0:0:1", True, "http://[0:0:0:0:0:0:0:1]:80"),
        ("0.0.0.0", False, "http://0.0.0.0:80"),
        ("::", False, "http://[::]:80"),
        ("192.168.0.7", False, "http://192.168.0.7:80"),
        ("shop.example", False, "http://shop.example:80"),
        ("", False, "http://:80"),
        ("127.1", False, "http://127.1:80"),
    ],
)
def test_addresses_of_this_machine_are_known(host, is_loopback, url):
    address = Address(host, 80)
    assert (address.is_loopback, address.url) == (is_loopback, url)


def test_every_loopback_address_can_be_called_by_its_own_name(runs):
    for host, name in (("127.9.9.9", "127.9.9.9"), ("0:0:0:0:0:0:0:1", "[0:0:0:0:0:0:0:1]")):
        other = Served(runs["network"], address=Address(host, 8321))
        assert other.get("/healthz", headers={"host": f"{name}:8321"}).status_code == 200
