"""Requests that are answered together get the answers that each gets alone."""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from web.small_runs import NUM_ITEMS, items_of, scores_of

from tapas.errors import DataError
from tapas.web import api as api_module
from tapas.web import batches as batches_module
from tapas.web.batches import Batches, BusyError

KINDS = ("mixture", "network", "rare-mixture", "warp")
ITEMS = st.one_of(st.integers(998, 1000 + NUM_ITEMS), st.just("nothing"))
HISTORIES = st.lists(st.lists(ITEMS, max_size=6), min_size=1, max_size=3)
USERS = st.lists(st.sampled_from(["u0", "u7", "u21", "nobody"]), min_size=1, max_size=3)


@st.composite
def requests(draw):
    """The address and the body of a request, which may be refused."""
    body = {"model": draw(st.sampled_from(KINDS)), "k": draw(st.sampled_from([1, 2, 20, 46]))}
    if draw(st.booleans()) and draw(st.booleans()):
        return "/similar", body | {"items": draw(st.lists(ITEMS, min_size=1, max_size=3))}
    if draw(st.booleans()):
        body["users"] = draw(USERS)
    else:
        body["histories"] = draw(HISTORIES)
    for name, values in (
        ("exclude_seen", st.booleans()), ("explain", st.booleans()),
        ("cold", st.sampled_from(["error", "popular"])),
        ("allow", st.lists(ITEMS, min_size=1, max_size=9)), ("deny", st.lists(ITEMS, max_size=9)),
    ):  # fmt: skip
        if draw(st.booleans()) and (name != "allow" or draw(st.booleans())):
            body[name] = draw(values)
    return "/recommend", body


@settings(max_examples=settings().max_examples // 2)
@given(asked=st.lists(requests(), min_size=2, max_size=9))
def test_requests_that_are_answered_together_get_the_answers_that_each_gets_alone(served, asked):
    sizes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.api._batches, "_on_batch", sizes.append)
        found = served.together(
            lambda client: [client.post(path, json=body) for path, body in asked]
        )
    assert len(sizes) <= 2  # those that were sent while the first was computed
    for answer, (path, body) in zip(found, asked, strict=True):
        alone = served.post(path, **body)
        assert answer.status_code == alone.status_code
        if alone.status_code != 200:
            assert answer.json() == alone.json()
            continue
        same_answer(answer.json(), alone.json())


def same_answer(got, want):
    """Scores differ in their last digits: sums are in another order."""
    lists, wanted = got.pop("lists"), want.pop("lists")
    assert got == want
    assert items_of(lists) == items_of(wanted)
    for one, other in zip(lists, wanted, strict=True):
        for name in ("probability", "score", "cosine"):
            if one["items"] and name in one["items"][0]:
                assert scores_of([one], name)[0] == pytest.approx(
                    scores_of([other], name)[0], rel=1e-4, abs=1e-6
                )
        for item, same in zip(one.pop("items"), other.pop("items"), strict=True):
            assert item.get("parts", {}) == pytest.approx(same.get("parts", {}), rel=1e-3, abs=1e-6)
        assert one == other


def test_a_request_that_fails_does_not_fail_those_beside_it(served, monkeypatch):
    """Whatever goes wrong: each gets another try alone."""
    real = served.models.first.rank

    def rank(queries, k, **how):
        if any(len(query.items) == 3 for query in queries):
            raise RuntimeError("3 items")
        return real(queries, k, **how)

    monkeypatch.setattr(served.models.first, "rank", rank)
    asked = [[1000], [1000, 1001, 1002], [1001]]
    found = served.together(
        lambda client: [client.post("/recommend", json={"histories": [each]}) for each in asked]
    )
    assert [each.status_code for each in found] == [200, 500, 200]


class Work:
    """Doubles numbers, once the test lets it; remembers what it was given."""

    def __init__(self):
        self.given = []
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, jobs):
        self.may_go.wait(10)
        self.given.append(list(jobs))
        return [DataError(job) if isinstance(job, str) else 2 * job for job in jobs]


@pytest.fixture
def work():
    return Work()


def run(work, test, *, most_together=4, most_waiting=9):
    """Run the coroutine `test` with `Batches` of `work`."""

    async def main():
        with ThreadPoolExecutor(1) as executor:
            batches = Batches(
                work, executor, most_together=most_together, most_waiting=most_waiting
            )
            await asyncio.wait_for(test(batches), 10)
            assert batches._running is None

    asyncio.run(main())


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_every_job_gets_its_answer_in_batches_of_bounded_size(sizes):
    work = Work()

    async def test(batches):
        jobs = range(len(sizes))
        found = await asyncio.gather(
            *(batches.submit(job, size) for job, size in zip(jobs, sizes, strict=True))
        )
        assert found == [2 * job for job in jobs]
        assert [job for batch in work.given for job in batch] == list(jobs)  # the oldest first
        for batch in work.given:
            assert sum(sizes[job] for job in batch) <= 4 or len(batch) == 1

    run(work, test, most_waiting=10**6)


def test_jobs_that_arrive_while_others_are_computed_are_computed_together(work):
    async def test(batches):
        work.may_go.clear()
        first = asyncio.create_task(batches.submit(1))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(batches.submit(job)) for job in (2, 3, 4)]
        await asyncio.sleep(0)
        work.may_go.set()
        assert [await each for each in (first, *others)] == [2, 4, 6, 8]
        assert work.given == [[1], [2, 3, 4]]

    run(work, test)


class Sleeper(Work):
    """Takes as long for many jobs as for one."""

    SECONDS = 0.03

    def __call__(self, jobs):
        time.sleep(self.SECONDS)
        return super().__call__(jobs)


def test_clients_that_ask_again_at_once_are_answered_together():
    """Without patience they would be two groups that take turns, whichever came first."""
    work = Sleeper()

    async def client(batches, number):
        await asyncio.sleep(0.4 * Sleeper.SECONDS * (number > 0))
        for _ in range(12):
            assert await batches.submit(number) == 2 * number

    async def test(batches):
        await asyncio.gather(*(client(batches, number) for number in range(4)))

    run(work, test)
    assert len(work.given[0]) == 1
    assert sum(len(batch) == 4 for batch in work.given) >= 9


def test_nobody_waits_long_for_clients_that_do_not_come():
    work = Sleeper()

    async def test(batches):
        await asyncio.gather(*map(batches.submit, [1, 2, 3]))
        start = time.monotonic()
        assert await batches.submit(4) == 8  # two more may come
        assert time.monotonic() - start > 1.4 * Sleeper.SECONDS
        assert batches._patience < batches_module.FIRST_PATIENCE
        await asyncio.gather(*map(batches.submit, [1, 2, 3]))
        await asyncio.sleep(batches_module.MOST_SECONDS)
        wait = asyncio.create_task(batches.submit(5))  # others would have come by now
        await asyncio.sleep(0.01)
        assert batches._all_here is None
        assert await wait == 10

    run(work, test)
    assert [len(batch) for batch in work.given] == [3, 1, 3, 1]


def test_an_exception_of_one_job_is_raised_to_its_client_only(work):
    async def test(batches):
        found = await asyncio.gather(*map(batches.submit, [1, "bad", 3]), return_exceptions=True)
        assert (found[0], found[2]) == (2, 6)
        assert isinstance(found[1], DataError)

    run(work, test)


def test_an_exception_of_the_work_is_raised_to_all_and_others_are_answered_later():
    calls = Counter()

    def fail_first(jobs):
        calls["work"] += 1
        if calls["work"] == 1:
            raise RuntimeError("once")
        return list(jobs)

    async def test(batches):
        found = await asyncio.gather(*map(batches.submit, [1, 2]), return_exceptions=True)
        assert [str(each) for each in found] == ["once", "once"]
        assert await batches.submit(3) == 3

    run(fail_first, test)


def test_jobs_of_clients_that_are_gone_are_not_computed(work):
    async def test(batches):
        work.may_go.clear()
        first = asyncio.create_task(batches.submit(1))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(batches.submit(job)) for job in (2, 3)]
        await asyncio.sleep(0)
        first.cancel()
        tasks[0].cancel()
        work.may_go.set()
        assert await tasks[1] == 6
        assert work.given == [[1], [3]]
        for gone in (first, tasks[0]):
            with pytest.raises(asyncio.CancelledError):
                await gone
        assert await batches.submit(5) == 10

    run(work, test)


def test_where_too_much_waits_further_jobs_are_refused(work):
    async def test(batches):
        work.may_go.clear()
        first = asyncio.create_task(batches.submit(0, 1))
        await asyncio.sleep(0.05)  # it is computed and does not wait
        waiting = [asyncio.create_task(batches.submit(job, 3)) for job in (1, 2, 3)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await batches.submit(4, 1)
        work.may_go.set()
        assert [await each for each in (first, *waiting)] == [0, 2, 4, 6]
        assert await batches.submit(50, 100) == 100  # nothing waits: any size may come

    run(work, test)


def test_a_busy_server_says_when_to_try_again(served, monkeypatch):
    async def refuse(*_):
        raise BusyError

    monkeypatch.setattr(served.api._batches, "submit", refuse)
    answer = served.post("/recommend", histories=[[1000]])
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json() == {"error": "the server has too much to do. Try again in a second."}


def test_the_limits_of_batches_are_those_of_the_api(served):
    batches = served.api._batches
    assert batches._most_together == api_module.TOGETHER
    assert batches._most_waiting == api_module.MOST_WAITING


def test_numbers_are_rounded_to_six_digits_however_small_they_are():
    values = [0.123456789, 1.23456789e-5, 123456789.0, -0.999999999, 0.0, 1e-310, 5e-324, 1e-45]
    found = api_module._round(api_module.np.array(values)).tolist()
    assert found[:5] == [0.123457, 1.23457e-5, 123457000.0, -1.0, 0.0]
    assert found[5:] == pytest.approx(values[5:], abs=1e-300)
