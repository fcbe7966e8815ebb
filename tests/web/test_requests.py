"""What does not fit is refused with one sentence: limits, types, addresses, and bugs of ours."""

import json
import logging
from pathlib import Path

import pytest
from web.small_runs import NUM_ITEMS, sentence

from tapas.errors import DataError
from tapas.web import api
from tapas.web.guard import HEADERS
from tapas.web.schema import MOST_BYTES

HISTORY = [[1000, 1001]]
ONE = {"histories": HISTORY}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "give one of users and histories."),
        ({"users": ["u1"], **ONE}, "give one of users and histories."),
        ({"users": []}, "users: expected `array` of length >= 1."),
        ({"histories": []}, "histories: expected `array` of length >= 1."),
        ({**ONE, "k": 0}, "k: expected `int` >= 1."),
        ({**ONE, "k": -1}, "k: expected `int` >= 1."),
        ({**ONE, "k": 1001}, "k: expected `int` <= 1000."),
        ({**ONE, "k": 10**30}, "k: expected `int` <= 1000."),
        ({**ONE, "k": NUM_ITEMS + 1}, f"k is {NUM_ITEMS + 1}, but the model can list only "
                                      f"{NUM_ITEMS} items."),
        ({**ONE, "k": "5"}, "k: expected `int`, got `str`."),
        ({**ONE, "k": 5.5}, "k: expected `int`, got `float`."),
        ({**ONE, "k": True}, "k: expected `int`, got `bool`."),
        ({**ONE, "k": None}, "k: expected `int`, got `null`."),
        ({"histories": 1000}, "histories: expected `array`, got `int`."),
        ({"histories": [1000]}, "histories[0]: expected `array`, got `int`."),
        ({"histories": [[1000.5]]}, "histories[0][0]: expected `int | str`, got `float`."),
        ({"histories": [[None]]}, "histories[0][0]: expected `int | str`, got `null`."),
        ({"histories": [[[1000]]]}, "histories[0][0]: expected `int | str`, got `array`."),
        ({"histories": [["x" * 1001]]}, "histories[0][0]: expected `str` of length <= 1000."),
        ({"users": [{"key": "u1"}]}, "users[0]: expected `int | str`, got `object`."),
        ({"users": ["u1"] * 1001}, "users: expected `array` of length <= 1000."),
        ({"histories": HISTORY * 1001}, "histories: expected `array` of length <= 1000."),
        ({"histories": [[1000] * 10_001]}, "histories[0]: expected `array` of length <= 10000."),
        ({"histories": [[1000] * 10_000] * 11}, "histories have more than 100,000 items in all."),
        ({**ONE, "allow": []}, "allow: expected `array` of length >= 1."),
        ({**ONE, "deny": [1] * 10_001}, "deny: expected `array` of length <= 10000."),
        ({**ONE, "cold": "skip"}, "cold: invalid enum value 'skip'."),
        ({**ONE, "explain": 1}, "explain: expected `bool`, got `int`."),
        ({**ONE, "exclude_seen": "yes"}, "exclude_seen: expected `bool`, got `str`."),
        ({**ONE, "model": 7}, "model: expected `str`, got `int`."),
        ({**ONE, "modle": "x"}, "Object contains unknown field `modle`. Did you mean 'model'?"),
        ({**ONE, "exclude-seen": True}, "Object contains unknown field `exclude-seen`. "
                                        "Did you mean 'exclude_seen'?"),
        ({**ONE, "<b>": 1}, "Object contains unknown field `<b>`."),
        ([], "Expected `object`, got `array`."),
        (None, "Expected `object`, got `null`."),
    ],
)  # fmt: skip
def test_a_request_for_lists_that_does_not_fit_is_told_why(served, body, words):
    answer = served.client.post("/recommend", content=json.dumps(body))
    assert sentence(answer, 422) == words


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Object missing required field `items`."),
        ({"items": []}, "items: expected `array` of length >= 1."),
        ({"items": [1000] * 1001}, "items: expected `array` of length <= 1000."),
        ({"items": [1000], "k": NUM_ITEMS}, f"k is {NUM_ITEMS}, but the model can list only "
                                            f"{NUM_ITEMS - 1} items."),
        ({"items": "1000"}, "items: expected `array`, got `str`."),
        ({"items": [1000], "users": []}, "Object contains unknown field `users`."),
        ({"item": [1000]}, "Object contains unknown field `item`. Did you mean 'items'?"),
    ],
)  # fmt: skip
def test_a_request_for_similar_items_that_does_not_fit_is_told_why(served, body, words):
    assert served.error(422, "/similar", **body) == words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the request is not JSON: Input data was truncated."),
        (b"{", "the request is not JSON: Input data was truncated."),
        (b"\xff", "the request is not JSON: JSON is malformed: invalid character (byte 0)."),
        (b"\xef\xbb\xbf{}",
         "the request is not JSON: JSON is malformed: invalid character (byte 0)."),
        (b'{"histories":[[NaN]]}',
         "the request is not JSON: JSON is malformed: invalid character (byte 15)."),
        (b'{"histories":[["\\ud800"]]}', "the request is not JSON: Input data was truncated."),
        (b"{} {}", "the request is not JSON: JSON is malformed: trailing characters (byte 4)."),
    ],
)  # fmt: skip
def test_what_is_not_json_is_told_why(served, content, words):
    assert sentence(served.client.post("/recommend", content=content), 400) == words
    for path in ("/similar", "/explorer/lists"):
        assert served.client.post(path, content=content).status_code in (400, 422)


def test_text_that_is_not_utf_8_is_told(served):
    content = b'{"histories":[["\xff"]]}'
    words = sentence(served.client.post("/recommend", content=content), 400)
    assert words.startswith("the request is not JSON: 'utf-8' codec can't decode byte 0xff")


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"histories":' + b"[" * 100_000])
def test_deep_nesting_is_refused(served, content):
    assert served.client.post("/recommend", content=content).status_code in (400, 422)


def test_a_key_with_thousands_of_digits_is_refused(served):
    content = b'{"histories":[[1000, %s]]}'
    lists = served.client.post("/recommend", content=content % (b"9" * 4000))
    assert lists.json()["lists"][0]["unknown_items"] == [int("9" * 4000)]
    words = sentence(served.client.post("/recommend", content=content % (b"9" * 5000)), 422)
    assert words == "histories[0][1]: integer value out of range."


def test_the_content_type_of_a_request_does_not_matter(served):
    content = b'{"histories":[[1000]],"k":1}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense", ""):
        answer = served.client.post("/recommend", content=content, headers={"content-type": kind})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/recommend", "POST"),
        ("PUT", "/similar", "POST"),
        ("POST", "/items/1000", "GET, HEAD"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("TRACE", "/metrics", "GET, HEAD"),
        ("OPTIONS", "/", "GET, HEAD"),
        ("BREW", "/explorer/user", "GET, HEAD"),
    ],
)
def test_another_method_is_refused_with_those_that_are_allowed(served, method, path, allowed):
    answer = served.client.request(method, path)
    assert sentence(answer, 405) == "use another method here."
    assert sorted(answer.headers["allow"].split(", ")) == sorted(allowed.split(", "))


@pytest.mark.parametrize(
    "path",
    [
        "/nothing", "/recommend/", "/healthz/", "/explorer", "/explorer/", "/explorer/nothing",
        "/static/", "/static/nothing.js", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
        "/static/..%2f..%2f..%2f..%2fetc%2fpasswd", "/static/explorer.html", "/..%2fetc/passwd",
        "/%00", "/docs/", "/openapi.json/x",
    ],
)  # fmt: skip
def test_other_addresses_are_not_found_and_lead_nowhere(served, path):
    answer = served.get(path, follow_redirects=False)
    assert sentence(answer, 404) == "there is nothing at this address."


def test_files_of_the_explorer_are_served_and_no_others(served):
    for name, kind in (
        ("explorer.js", "text/javascript"), ("page.js", "text/javascript"),
        ("explorer.css", "text/css"),
        ("favicon.svg", "image/svg+xml"), ("docs.css", "text/css"),
    ):  # fmt: skip
        answer = served.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == kind
    assert "<html" in served.get("/").text


@pytest.mark.parametrize("length", [True, False], ids=["content-length", "chunked"])
def test_a_body_that_is_too_long_is_refused(served, length):
    """With a length not a byte is read; without one, reading ends at the limit."""
    read = 0

    def body():
        nonlocal read
        for _ in range(20):
            read += MOST_BYTES // 8
            yield b" " * (MOST_BYTES // 8)

    content = b" " * (MOST_BYTES + 1) if length else body()
    words = sentence(served.client.post("/recommend", content=content), 413)
    assert words == "the request has more than 2,097,152 bytes."
    whole = b'{"histories":[[1000]],"k":1}'.ljust(MOST_BYTES)
    assert served.client.post("/recommend", content=whole).status_code == 200


@pytest.mark.parametrize("length", ["-1", "", "x", "9" * 30, "²"])
def test_a_nonsensical_length_is_no_length(served, length):
    headers = {"content-length": length.encode()}
    content = b'{"histories":[[1000]],"k":1}'
    assert served.client.post("/recommend", content=content, headers=headers).status_code == 200


FAILURES = {
    "a bug": RuntimeError("in /home/someone/secret.py"),
    "an error of the library": DataError("the scores of the model are NaN: it has diverged."),
    "no memory": MemoryError(),
    "no memory in torch": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
}


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        ("a bug", 500, "the server failed; its own output says why."),
        ("an error of the library", 500, "the scores of the model are NaN: it has diverged."),
        ("no memory", 503, "there is too little memory for this request. Ask for less."),
        ("no memory in torch", 503, "there is too little memory for this request. Ask for less."),
    ],
)
def test_a_failure_of_ours_is_one_sentence(served, monkeypatch, failure, status, words):
    def fail(*_, **__):
        raise FAILURES[failure]

    model = served.models.first
    monkeypatch.setattr(model, "predict", fail)
    monkeypatch.setattr(model.model, "neighbours", fail)
    for path, body in (
        ("/recommend", ONE), ("/recommend", {"users": ["u1"]}), ("/similar", {"items": [1000]}),
        ("/explorer/lists", {"history": ["1000"], "model": "mixture"}),
    ):  # fmt: skip
        assert served.error(status, path, **body) == words
    for path in ("/items/1000", "/explorer/item?key=1000"):
        assert sentence(served.get(path), status) == words
    monkeypatch.undo()
    assert served.recommend(**ONE)


ANSWERS = (
    ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/healthz"),
    ("GET", "/metrics"), ("GET", "/items/1000"), ("GET", "/items/nothing"), ("GET", "/nothing"),
    ("GET", "/static/explorer.js"), ("GET", "/explorer/about"), ("GET", "/recommend"),
    ("POST", "/recommend"), ("POST", "/similar"), ("HEAD", "/healthz"),
)  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ANSWERS)
def test_every_answer_has_security_headers(served, method, path):
    answer = served.client.request(method, path)
    for name, value in HEADERS:
        assert answer.headers.get_list(name.decode()) == [value.decode()]
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "server" not in answer.headers


def test_answers_to_failures_have_security_headers_too(served, monkeypatch):
    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(served.api.measurements, "as_text", fail)
    answer = served.get("/metrics")
    assert sentence(answer, 500) == "the server failed; its own output says why."
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_answer_has_a_path_of_the_machine(served, runs):
    places = [str(runs.home), str(Path(api.__file__).parent), str(Path.home()), "Traceback"]
    bodies = ({}, ONE, {"users": ["x"]}, {"items": [1]}, {"histories": [["x"]]}, {"k": "x"})
    answers = [
        *(served.client.request(method, path) for method, path in ANSWERS),
        *(served.post(path, **body) for path in ("/recommend", "/similar") for body in bodies),
        *(served.get(f"/explorer/{path}") for path in (
            "about", "users", "user", "user?key=u1", "item?key=x", "map", "random-user", "items"
        )),
    ]  # fmt: skip
    for answer in answers:
        assert not [place for place in places if place in answer.text + str(answer.headers)]


def test_a_client_that_leaves_before_its_request_is_whole_is_no_bug(served, caplog):
    """Its request is forgotten without a traceback in the output."""

    async def leave():
        sent = []

        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/recommend", "raw_path": b"/recommend",
            "query_string": b"", "headers": [(b"host", b"localhost")], "http_version": "1.1",
        }  # fmt: skip
        await served.app(scope, receive, send)
        return sent[0]["status"]

    with caplog.at_level(logging.DEBUG):
        assert served.together(lambda _: [leave()]) == [400]
    assert "Traceback" not in caplog.text
