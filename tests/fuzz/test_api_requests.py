"""Requests to `tapas serve` that are almost right: a list or one sentence, 2xx or 4xx."""

import asyncio
import random
from collections import Counter

import pytest
from fuzz.api_requests import Reply, Request, SchemaRequests, Target, ask, wrong
from fuzz.readers import DRAWS
from hypothesis import given, settings

EXAMPLES = 4  # requests for each example of Hypothesis, which takes as long as they do


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    target = Target(tmp_path_factory.mktemp("api"))
    yield target
    target.close()


@pytest.mark.slow
@settings(max_examples=2 * settings().max_examples)
@given(draw=DRAWS)
def test_requests_are_answered_with_a_list_or_a_sentence(target, draw):
    for _ in range(EXAMPLES):
        request, reply, found = target.attack(draw)
        assert found is None, (request, reply)


def test_requests_are_of_all_kinds(target):
    """Else they would test little."""
    statuses, paths = Counter(), Counter()
    for seed in range(400):
        request, reply, found = target.attack(random.Random(seed))
        assert found is None, (request, reply)
        statuses[reply.status] += 1
        paths[request.path.partition("/items/")[0] or "/items/"] += 1
    assert {200, 400, 404, 405, 413, 421, 422} <= statuses.keys()
    assert statuses[200] > 80
    assert {"/recommend", "/similar", "/items/", "/healthz", "/metrics"} <= paths.keys()


def test_the_same_seed_makes_the_same_requests():
    first, second = [SchemaRequests().request(random.Random(7)) for _ in range(2)]
    assert first == second


def test_wrong_replies_are_noticed(target):
    request = Request("GET", "/healthz", headers=((b"host", b"localhost"),))
    good = asyncio.run(ask(target.app, request))
    assert wrong(request, good, []) is None
    assert wrong(request, good._replace(status=307), []) == "status 307"
    assert wrong(request, good._replace(status=500), []) == "status 500"
    assert wrong(request, good, [b"models"]) == "it shows a path or a traceback"
    assert wrong(request, good._replace(headers=[]), []) == "headers are missing"
    described = "its body is not as described: "
    assert wrong(request, good._replace(status=404), []).startswith(described)
    recommend = Request("POST", "/recommend")
    bad = Reply(200, good.headers, b'{"model": 1}')
    assert wrong(recommend, bad, []).startswith(described)
