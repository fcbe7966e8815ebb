"""`ray_session`: a context with a local Ray session, or with an existing cluster.

Ray unpickles whatever it receives, so its ports must require a token. A local session listens on
the loopback interface only, and its token is deleted with it.
"""

import importlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tapas.errors import UsageError
from tapas.servers.ray_cluster import HIDDEN_VARIABLES, TOKEN, check_cluster

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
OBJECT_STORE_BYTES = 256 * 2**20
LEAST_STORE_BYTES = 80 * 2**20  # Ray refuses less than 75 MiB
SOCKETS = "/tapas-12345678/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
SOCKET_BYTES = 107  # limit of the length of a socket's path
LOCAL_ENVIRONMENT = TOKEN | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps to the loopback interface, on Linux too
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # would copy the working directory
    "RAY_worker_niceness": "0",  # the default is 15
    "RAY_max_direct_call_object_size": "1000000",  # larger messages go through the object store
}


class RaySession(NamedTuple):
    """The address of Ray, HOST:PORT, and whether it stops with the context."""

    address: str
    is_local: bool


def import_ray() -> Any:
    """The module `ray`. Raises UsageError if it is not installed."""
    if sys.modules.get("ray") is not None:
        return sys.modules["ray"]
    before = dict(os.environ)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            "running workers and servers needs Ray. Install it with "
            "`pip install 'tapas-softmax[ray]'`."
        ) from error
    finally:
        _restore(before)


@contextmanager
def ray_session(
    address: str | None = None,
    *,
    object_store_bytes: int = OBJECT_STORE_BYTES,
    timeout_seconds: float = 30.0,
) -> Iterator[RaySession]:
    """Connect to the Ray cluster at `address`, HOST:PORT, or start a local session.

    A local session keeps at most `object_store_bytes` in shared memory; more goes to a file. If
    the process is already connected to Ray, that connection is used and stays open. Environment
    variables are restored. Enter the context in a thread that outlives it: on Linux the session
    ends with the thread that started it.
    """
    if not timeout_seconds > 0:
        raise UsageError(f"timeout_seconds must be above 0, got {timeout_seconds!r}.")
    if object_store_bytes < LEAST_STORE_BYTES:
        raise UsageError(f"object_store_bytes must be at least 80 MiB, got {object_store_bytes}.")
    ray = import_ray()
    if ray.is_initialized():
        yield _already_connected(ray, address)
        return
    local = _local_session(ray, object_store_bytes)
    with _cluster(ray, address, timeout_seconds) if address is not None else local as found:
        yield found


def _already_connected(ray: Any, address: str | None) -> RaySession:
    here = str(ray.get_runtime_context().gcs_address)
    if address not in (None, here):
        raise UsageError(
            f"this process is already connected to Ray at {here}, not at {address}. "
            "Leave the address out, or call ray.shutdown() first."
        )
    return RaySession(here, False)


@contextmanager
def _local_session(ray: Any, object_store_bytes: int) -> Iterator[RaySession]:
    usual = tempfile.gettempdir()
    where = usual if len(os.fsencode(usual + SOCKETS)) <= SOCKET_BYTES else "/tmp"
    with tempfile.TemporaryDirectory("", "tapas-", where, ignore_cleanup_errors=True) as folder:
        token, inside = Path(folder, "token"), Path(folder, "r")
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        inside.mkdir()  # Ray makes this folder readable for all; the one around it is private
        memory = Path("/dev/shm")
        fits = memory.is_dir() and shutil.disk_usage(memory).free >= object_store_bytes
        with (
            _connected(
                ray,
                "local",
                LOCAL_ENVIRONMENT | {"RAY_AUTH_TOKEN_PATH": str(token)},
                hidden=HIDDEN_VARIABLES,
                loopback=True,
                _node_ip_address=LOOPBACK[0],
                _temp_dir=str(inside),
                _plasma_directory=None if fits else str(inside),
                object_store_memory=object_store_bytes,
                include_dashboard=False,
                num_cpus=1,  # each actor asks for a thousandth
            ) as address,
            _kill_agents_on_exit(ray),
        ):
            yield RaySession(address, True)


@contextmanager
def _cluster(ray: Any, address: str, timeout_seconds: float) -> Iterator[RaySession]:
    host = check_cluster(address, timeout_seconds)
    with _connected(ray, address, TOKEN, loopback=host in LOOPBACK) as found:
        yield RaySession(found, False)


@contextmanager
def _connected(
    ray: Any,
    address: str,
    environment: dict[str, str],
    *,
    hidden: Sequence[str] = (),
    loopback: bool,
    **options: Any,
) -> Iterator[str]:
    """`ray.init` with variables `environment` and without `hidden`; both are restored here."""
    before, on_terminate = dict(os.environ), signal.getsignal(signal.SIGTERM)
    try:
        try:
            for name in hidden:
                os.environ.pop(name, None)
            os.environ.update(environment)
            _read_environment()
            with _quiet_connection(loopback=loopback):
                context = ray.init(address, log_to_driver=False, logging_level="error", **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            why = str(error).splitlines()[0].rstrip(".")
            raise UsageError(
                f"Ray ({address}) cannot be used from this host: {why}. A host must be part of the "
                "cluster that it uses: `RAY_AUTH_MODE=token ray start --address=HOST:PORT`."
            ) from error
        finally:
            _restore(before)
            if on_terminate is not signal.SIG_DFL:  # Ray's handler is better than none
                _on_terminate(on_terminate)
        yield str(context.address_info["address"])
    finally:
        ray.shutdown()
        _on_terminate(on_terminate)
        _read_environment(needs_token=False)


def _read_environment(*, needs_token: bool = True) -> None:
    """Make Ray read environment variables and token again; it does so only once by itself."""
    try:
        native = importlib.import_module("ray._raylet")
        native.Config.initialize("")
        native.AuthenticationTokenLoader.instance().reset_cache()
        on = native.get_authentication_mode() == native.AuthenticationMode.TOKEN
    except (AttributeError, ImportError):
        on = False
    if needs_token and not on:
        raise UsageError(
            "this version of Ray does not support tokens. Install a later one with "
            "`pip install --upgrade 'tapas-softmax[ray]'`."
        )


@contextmanager
def _quiet_connection(*, loopback: bool) -> Iterator[None]:
    """Connect on loopback only, and print no messages about dead processes later."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    worker: Any = importlib.import_module("ray._private.worker")
    clusters, listen = constants.ENABLE_RAY_CLUSTER, worker.listen_error_messages
    if loopback:
        constants.ENABLE_RAY_CLUSTER = False  # else Ray replaces 127.0.0.1 by the host's address
    worker.listen_error_messages = lambda *_: None
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER, worker.listen_error_messages = clusters, listen


def _on_terminate(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _restore(environment: dict[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def dead_parts(seconds: float = 3.0) -> list[str]:
    """Ray's own processes that have died in a session that this process has started.

    Waits for that a little, as Ray ends its actors before itself.
    """
    node = getattr(importlib.import_module("ray._private.worker"), "_global_node", None)
    until = time.monotonic() + seconds
    while node is not None:
        if (dead := [str(kind) for kind, _ in node.dead_processes()]) or time.monotonic() > until:
            return dead
        time.sleep(0.05)
    return []


@contextmanager
def _kill_agents_on_exit(ray: Any) -> Iterator[None]:
    """Let a shell kill Ray's agents if this process is killed; they would live on for a minute."""
    raylet = ray._private.worker._global_node.all_processes["raylet"][0].process.pid
    below = importlib.import_module("psutil").Process(raylet).children()
    agents = [str(each.pid) for each in below if "Agent" in " ".join(each.cmdline())]
    command = ["sh", "-c", 'read _; kill -9 "$@" 2> /dev/null', "sh", *agents]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        shell.kill()
        shell.communicate()
