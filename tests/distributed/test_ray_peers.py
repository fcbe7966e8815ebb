"""Peers on Ray: calls, errors, restarts, hangs, tokens and cleaning up.

The contract tests of `ClassTable` are run once more for a table on two such servers. One Ray
session serves all tests; drivers that are killed or have no token run in their own process.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from contracts import test_table_answers, test_tables
from contracts.tables import C, D
from distributed.crashing_peers import is_alive, processes_below, wait_until

from tapas import PeerError, UsageError
from tapas.optim import Adagrad
from tapas.servers.channel import ServerChannel
from tapas.servers.row_server import RowServer
from tapas.servers.served_table import ServedTable
from tapas.tables.shard import TableSpec

ray = pytest.importorskip("ray")
from tapas.servers import ray_calls, ray_peers  # noqa: E402
from tapas.servers.ray_cluster import accepts_no_token  # noqa: E402
from tapas.servers.ray_peers import RayPeers  # noqa: E402
from tapas.servers.ray_session import ray_session  # noqa: E402

pytestmark = pytest.mark.slow

SLACK_SECONDS = 60.0  # for a busy machine: a restarted process imports torch again
TALK = "from ray._raylet import GcsClient; GcsClient(address={!r}).internal_kv_get(b'x', None)"


class TooManyWordsError(UsageError):
    def __init__(self, first, second):
        super().__init__(f"{first}, {second}")


class CountingPeer:
    """A peer for tests; counts in `folder` how often it was built."""

    def __init__(self, folder, number):
        self.folder, self.number = Path(folder), number
        with (self.folder / f"built-{number}").open("a") as file:
            file.write("x")

    def pid(self):
        return os.getpid()

    def add(self, a, b):
        return a + b

    def echo(self, value):
        return value

    def process(self):
        import torch

        return torch.get_num_threads(), os.nice(0), signal.getsignal(signal.SIGINT)

    def nap(self, seconds):
        time.sleep(seconds)
        return seconds

    def fail(self, how):
        if how == "exit":
            sys.exit(3)
        if how == "odd":
            raise TooManyWordsError("one", "two")
        raise {
            "ours": UsageError("num_samples must be above 0, got -1."),
            "peer": PeerError("server 7 hangs.", (7,)),
            "theirs": ZeroDivisionError("division by zero"),
        }[how]

    def linger(self, name):
        """How often it was called; the first call never returns."""
        file = self.folder / name
        with file.open("a") as opened:
            opened.write("x")
        times = len(file.read_text())
        if times == 1:
            time.sleep(600)
        return times

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Asker:
    def __init__(self, clerks):
        self.clerks = clerks

    def relay(self, number, a, b):
        return self.clerks.call(number, "add", a, b).answer()

    def close_them(self):
        self.clerks.close()


class TablesServer:
    """Server `number` of many tables in one process, because starting a process takes seconds."""

    def __init__(self, number):
        self.number, self.servers = number, {}

    def put(self, key, spec):
        self.servers[key] = RowServer(self.number, {"rows": spec.shard(self.number)})

    def ask(self, key, method, *args):
        return getattr(self.servers[key], method)(*args)


class ServersOfTable:
    """The servers of the table `key`."""

    def __init__(self, peers, key):
        self.peers, self.key = peers, key
        self.kind, self.size, self.share = peers.kind, peers.size, peers.share

    def call(self, number, method, *args):
        return self.peers.call(number, "ask", self.key, method, *args)

    def close(self):
        """Nothing: other tables use the same processes."""


def fails_to_build(how):
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    raise UsageError("no rows.") if how == "ours" else OSError("no space left on device")


def slow_to_build(folder, seconds):
    time.sleep(seconds)
    return CountingPeer(folder, "slow")


# opens a session and closes it, then opens another one with a peer, in which it is killed
DRIVER = """
import os, signal, sys, time
from tapas.servers.ray_peers import RayPeers
from tapas.servers.ray_session import ray_session
before = dict(os.environ), signal.getsignal(signal.SIGTERM)
with ray_session():
    inside = dict(os.environ)
assert inside == before[0] == dict(os.environ), "the environment has changed"
assert signal.getsignal(signal.SIGTERM) == before[1], "SIGTERM is handled by another"
print("closed", flush=True)
sys.stdin.readline()
with ray_session():
    peers = RayPeers.start("list", [list])
    print("open again", flush=True)
    time.sleep(600)
"""
# another process that knows the address of the session
JOINER = """
import sys
from tapas import UsageError
from tapas.servers.ray_session import ray_session
try:
    with ray_session(sys.argv[1], timeout_seconds=40) as session:
        print("joined", session.address, session.is_local)
except UsageError as error:
    print(error)
"""


def python(script, *args, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", script, *args],
        env={k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


REFUSED = [
    (
        {"address": "ray://here:10001"},
        r"^the address of a Ray cluster must be HOST:PORT, got 'ray://here:10001'\. ",
    ),
    ({"address": "127.0.0.1:1"}, r"^no answer from the Ray address 127\.0\.0\.1:1 \("),
    ({"object_store_bytes": 1000}, r"must be at least 80 MiB, got 1000\.$"),
    ({"timeout_seconds": 0}, r"^timeout_seconds must be above 0, got 0\.$"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_a_session_that_cannot_be_opened_is_an_error_at_once(options, words):
    began = time.monotonic()
    with pytest.raises(UsageError, match=words):
        ray_session(**options).__enter__()
    assert time.monotonic() - began < 10


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = r"needs Ray\. Install it with `pip install 'tapas-softmax\[ray\]'`\.$"
    with pytest.raises(UsageError, match=words):
        ray_session().__enter__()


@pytest.fixture(scope="module")
def driver():
    """Runs while other tests do, because it mostly waits."""
    process = python(DRIVER)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def session(driver):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # peers cannot import it
    with ray_session(object_store_bytes=100 * 2**20) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clerks")


@pytest.fixture(scope="module")
def clerks(session, folder):
    peers = RayPeers.start(
        "clerk",
        [partial(CountingPeer, str(folder), n) for n in range(2)],
        threads=2,
        seconds=SLACK_SECONDS,
    )
    yield peers
    peers.close()
    peers.close()


def pid_of(peers, number):
    return peers.call(number, "pid").answer()


def test_calls_are_answered_by_the_peer_of_that_number(clerks):
    first, second = pid_of(clerks, 0), pid_of(clerks, 1)
    assert len({first, second, os.getpid()}) == 3
    assert clerks.describe(1) == f"clerk 1 (pid {second} on host 127.0.0.1)"
    calls = [clerks.call(n % 2, "add", n, 1) for n in range(20)]
    assert [call.answer() for call in calls] == list(range(1, 21))
    assert [call.number for call in calls] == [0, 1] * 10
    assert clerks.restarts() == [0, 0]


def test_small_large_and_shared_arrays_arrive_unchanged(clerks):
    for size in (3, 400_000):
        array = np.arange(size, dtype=np.float32)
        for sent in (array, clerks.share(array)):
            back = clerks.call(0, "echo", sent).answer()
            assert back.dtype == array.dtype
            assert np.array_equal(back, array)


def test_a_call_is_done_when_it_is_answered(clerks):
    slow, quick = clerks.call(0, "nap", 1.5), clerks.call(1, "nap", 0.0)
    assert clerks.any_done([slow, quick], 20.0) == [quick]
    assert not slow.done()
    assert clerks.any_done([slow], 0.1) == []
    assert clerks.any_done([slow], 20.0) == [slow]
    assert slow.done()
    assert slow.answer() == slow.answer() == 1.5
    assert clerks.any_done([], 1.0) == []


def test_two_threads_may_call_at_the_same_time(clerks):
    answers = {}

    def ask(name):
        answers[name] = [clerks.call(n % 2, "add", n, name).answer() for n in range(30)]

    threads = [threading.Thread(target=ask, args=(k,)) for k in (100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SLACK_SECONDS)
    assert answers == {k: [n + k for n in range(30)] for k in (100, 200)}


def test_a_peer_has_one_torch_thread_normal_priority_and_ignores_ctrl_c(clerks):
    assert clerks.call(0, "process").answer() == (1, os.nice(0), signal.SIG_IGN)


def test_errors_of_tapas_keep_their_type(clerks):
    with pytest.raises(UsageError) as caught:
        clerks.call(1, "fail", "ours").answer()
    assert str(caught.value) == "num_samples must be above 0, got -1."
    assert "in fail" in caught.value.__notes__[0]  # where, in the peer
    with pytest.raises(PeerError) as caught:
        clerks.call(1, "fail", "peer").answer()
    assert str(caught.value) == "server 7 hangs."
    assert caught.value.ranks == (7,)
    with pytest.raises(UsageError, match=r"^there is no clerk 2\. Numbers are 0 to 1\.$"):
        clerks.call(2, "pid")


def test_other_errors_name_the_peer(clerks):
    pid = pid_of(clerks, 1)
    for method, args, last_line in (
        ("fail", ("theirs",), "ZeroDivisionError: division by zero"),
        ("fail", ("odd",), r".*TooManyWordsError: one, two"),
        ("fail", ("exit",), "SystemExit: 3"),
        ("wave", (), "AttributeError: 'CountingPeer' object has no attribute 'wave'"),
    ):
        words = rf"^clerk 1 \(pid {pid} on host 127\.0\.0\.1\) failed in '{method}': {last_line}\n"
        with pytest.raises(PeerError, match=words):
            clerks.call(1, method, *args).answer()
    assert pid_of(clerks, 1) == pid


def test_peers_can_be_passed_to_other_peers_which_cannot_stop_them(clerks):
    askers = RayPeers.start("asker", [partial(Asker, clerks)])
    assert askers.call(0, "relay", 1, 20, 3).answer() == 23
    askers.call(0, "close_them").answer()
    assert askers.call(0, "relay", 1, 20, 4).answer() == 24
    pid = ray.get(askers._actors[0].ping.remote())[0].pid
    askers.close()
    wait_until(lambda: not is_alive(pid))
    with pytest.raises(PeerError, match=rf"^asker 0 \(pid {pid} .* has ended and is not restarted"):
        askers.call(0, "relay", 1, 2, 3).answer()
    assert clerks.call(1, "add", 2, 3).answer() == 5


def test_a_killed_peer_is_restarted_and_called_again(clerks, folder):
    victim, other = pid_of(clerks, 0), pid_of(clerks, 1)
    built = len((folder / "built-0").read_text())
    call = clerks.call(0, "linger", "killed")
    wait_until((folder / "killed").exists, SLACK_SECONDS)
    os.kill(victim, signal.SIGKILL)
    later = clerks.call(0, "add", 1, 2)
    assert clerks.any_done([call], SLACK_SECONDS) == [call]
    assert call.answer() == 2
    assert later.answer() == 3
    assert pid_of(clerks, 0) not in (victim, other)
    assert pid_of(clerks, 1) == other
    assert clerks.restarts() == [1, 0]
    assert len((folder / "built-0").read_text()) == built + 1


def test_a_method_that_kills_its_process_is_not_called_for_ever(clerks, monkeypatch):
    monkeypatch.setattr(ray_calls, "MAX_DEATHS", 2)
    words = r"^clerk 1 \(pid \d+ .*\) has died 2 times in a row while running 'die': "
    with pytest.raises(PeerError, match=words) as caught:
        clerks.call(1, "die").answer()
    assert caught.value.ranks == (1,)
    assert clerks.call(1, "add", 1, 1).answer() == 2


def test_a_hanging_peer_is_reported_in_time_and_used_again_afterwards(clerks, monkeypatch):
    monkeypatch.setattr(clerks, "seconds", 2.0)
    pid = pid_of(clerks, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        words = (
            rf"^clerk 1 \(pid {pid} on host 127\.0\.0\.1\) has not answered for 2 s: it hangs or "
            r"is unreachable\.$"
        )
        with pytest.raises(PeerError, match=words):
            clerks.call(1, "add", 1, 2).answer()
        assert 2 <= time.monotonic() - began < 3.5
        assert clerks.call(0, "add", 1, 2).answer() == 3
    finally:
        os.kill(pid, signal.SIGCONT)
    assert pid_of(clerks, 1) == pid


def test_a_peer_that_works_for_too_long_is_not_reported_as_hanging(clerks, monkeypatch):
    monkeypatch.setattr(clerks, "seconds", 1.0)
    words = r"has been running 'nap' for 1 s\. If it needs that long, raise the limit\.$"
    with pytest.raises(PeerError, match=words):
        clerks.call(1, "nap", 3.0).answer()


def test_a_peer_may_take_longer_to_build_than_to_answer(session, folder):
    peers = RayPeers.start("clerk", [partial(slow_to_build, str(folder), 2.0)], seconds=1.0)
    assert peers.call(0, "add", 1, 2).answer() == 3
    peers.close()


def test_starting_a_peer_has_a_time_limit(session, folder):
    words = r"^clerk 0( \(pid .*\))? is not ready after 0\.5 s\.$"
    with pytest.raises(PeerError, match=words):
        RayPeers.start("clerk", [partial(slow_to_build, str(folder), 60)], start_seconds=0.5)


def test_a_factory_that_fails_is_an_error_with_its_cause(session, monkeypatch):
    monkeypatch.setattr(ray_peers.signal, "signal", lambda *_: None)  # this process keeps Ctrl-C
    with pytest.raises(UsageError) as caught:
        RayPeers.start("clerk", [partial(fails_to_build, "ours")])
    assert str(caught.value) == "no rows."
    make = ray.cloudpickle.dumps(partial(fails_to_build, "theirs"))
    host = ray_peers.ActorHost("clerk 1", make)
    name = rf"clerk 1 \(pid {os.getpid()} on host 127\.0\.0\.1\)"
    for method in ("", "add"):
        _, _, error = host.call(method)
        with pytest.raises(PeerError, match=rf"^{name} could not be built: OSError: no space left"):
            raise error


def test_a_factory_that_kills_its_process_is_not_called_for_ever(session, monkeypatch):
    monkeypatch.setattr(ray_calls, "MAX_DEATHS", 1)  # the start of each process takes seconds
    words = r"^clerk 0( \(pid .*\))? has died 1 times in a row while being built: "
    with pytest.raises(PeerError, match=words):
        RayPeers.start("clerk", [partial(fails_to_build, "dies")])


def test_limits_must_be_above_zero(session):
    for name in ("threads", "seconds", "start_seconds"):
        with pytest.raises(UsageError, match=rf"^{name} must be above 0, got 0\.$"):
            RayPeers.start("clerk", [], **{name: 0})


def token_file():
    return Path(ray._private.worker._global_node.get_temp_dir_path()).parent / "token"


def test_a_client_without_the_token_is_refused(session):
    """Ray refuses connections without it, and `ray_session` explains why."""
    address = session.address
    home = {"HOME": str(token_file().parent)}  # no token lies there
    processes = (
        python(JOINER, address, RAY_AUTH_TOKEN_PATH=str(token_file())),
        python(JOINER, address, **home),
        python(JOINER, address, RAY_AUTH_TOKEN="f" * 64),
        python(TALK.format(address)),
    )
    friend, stranger, liar, talker = (process.communicate(timeout=120) for process in processes)
    assert friend[0] == f"joined {address} False\n", friend
    assert stranger[0].startswith(
        f"joining the Ray cluster at {address} needs a token, but neither RAY_AUTH_TOKEN nor "
    ), stranger
    assert "`ray get-auth-token --generate`" in stranger[0]
    assert liar[0] == (
        f"the Ray cluster at {address} does not accept our token. Put the cluster's token into "
        "~/.ray/auth_token or RAY_AUTH_TOKEN.\n"
    ), liar
    assert processes[3].returncode != 0
    assert "InvalidAuthToken" in talker[1]
    assert not accepts_no_token(address)


def test_the_token_and_the_sockets_are_private_to_this_user(session):
    assert token_file().stat().st_mode & 0o777 == 0o600
    assert token_file().parent.stat().st_mode & 0o777 == 0o700
    assert len(token_file().read_text()) == 64


def test_an_existing_connection_is_used_and_stays_open(session):
    with ray_session() as found:
        assert found == (session.address, False)
    assert ray.is_initialized()
    words = rf"^this process is already connected to Ray at {session.address}, not at other:1\. "
    with pytest.raises(UsageError, match=words), ray_session("other:1"):
        pass


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's list of sockets")
def test_only_this_machine_can_reach_the_session(clerks):
    ours = set()
    for pid in processes_below(os.getpid()) | {os.getpid()}:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                ours.add(os.readlink(link))
            except OSError:
                continue
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    listening = {
        row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in ours
    }
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, as IPv4 and in IPv6
    assert listening
    assert listening <= loopback


def test_a_session_leaves_nothing_behind_and_a_killed_driver_no_processes(driver):
    assert driver.stdout.readline() == "closed\n", driver.stderr.read()
    assert processes_below(driver.pid) == set()
    driver.stdin.write("go on\n")
    driver.stdin.flush()
    assert driver.stdout.readline() == "open again\n", driver.stderr.read()
    below = processes_below(driver.pid)
    assert len(below) > 3  # Ray's own, and a peer
    driver.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in below), 30.0)


@pytest.fixture(scope="module")
def shelves(session):
    peers = RayPeers.start("server", [partial(TablesServer, number) for number in range(2)])
    yield peers
    peers.close()


KEYS = count()


@pytest.fixture
def make(shelves):
    def build(formula=Adagrad.fused(), *, fused=True):  # noqa: B008
        key, spec = next(KEYS), TableSpec(C, D, shelves.size, formula)
        for number in range(shelves.size):
            shelves.call(number, "put", key, spec).answer()
        return ServedTable(ServerChannel(ServersOfTable(shelves, key)), "rows", spec, fused=fused)

    return build


IN_THIS_PROCESS_ONLY = {  # inspects its selection rule, of which a server has a copy
    "test_select_draws_one_number_for_each_class_of_the_pool_from_the_generator_alone",
}
globals().update(
    (name, test)
    for module in (test_tables, test_table_answers)
    for name, test in vars(module).items()
    if name.startswith("test_") and name not in IN_THIS_PROCESS_ONLY
)
