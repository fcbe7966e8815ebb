"""What a call says of a peer that is gone for good."""

import sys
import time
from types import SimpleNamespace

import pytest

from tapas.servers import ray_calls
from tapas.servers.ray_calls import PeerState, RayCall
from tapas.servers.ray_session import dead_parts


@pytest.mark.parametrize(
    ("dead", "words"),
    [
        (["raylet"], "has ended because Ray has died on this machine (raylet)."),
        ([], "has ended and is not restarted: The actor died unexpectedly."),
    ],
)
def test_the_death_of_ray_is_not_blamed_on_the_peer(monkeypatch, dead, words):
    """Who kills an agent of Ray ends Ray on that machine, and so all peers."""
    monkeypatch.setattr(ray_calls, "dead_parts", lambda: dead)
    call = object.__new__(RayCall)
    call.number, call._state, call._is_sent, call._outcome = 0, PeerState(), False, None
    call._deaths, call._lost_since, call._method = 1, time.monotonic(), "step"
    call._peers = SimpleNamespace(start_seconds=60, describe=lambda number: f"worker {number}")
    call._lost(RuntimeError("The actor died unexpectedly."), is_final=True)
    assert str(call._outcome[1]) == f"worker 0 {words}"


@pytest.mark.parametrize(
    ("looks", "seconds", "found"),
    [([[], [("raylet", object())]], 9, ["raylet"]), ([[], []], 0.01, []), (None, 9, [])],
)
def test_parts_of_ray_that_die_are_waited_for_a_little(monkeypatch, looks, seconds, found):
    """Ray ends its actors before itself; a session that others have started is not asked."""
    left = iter(looks or [])
    node = SimpleNamespace(dead_processes=lambda: next(left)) if looks is not None else None
    worker = SimpleNamespace(_global_node=node)
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    assert dead_parts(seconds) == found
