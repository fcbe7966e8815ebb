"""Checks of a Ray cluster before joining it: it must require a token, and accept ours."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tapas.errors import UsageError

MAKE_A_TOKEN = (
    "Make a token with `ray get-auth-token --generate`, copy ~/.ray/auth_token to every host, and "
    "set RAY_AUTH_MODE=token where the cluster is started."
)
TOKEN = {"RAY_AUTH_MODE": "token"}
HIDDEN_VARIABLES = ("RAY_ADDRESS", "RAY_REDIS_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def check_cluster(address: str, timeout_seconds: float) -> str:
    """The host of the cluster at `address`. Raises UsageError if it cannot be joined safely."""
    host = _check_listens(address, timeout_seconds)
    if not _has_token():
        raise UsageError(
            f"joining the Ray cluster at {address} needs a token, but neither RAY_AUTH_TOKEN nor "
            f"RAY_AUTH_TOKEN_PATH is set, and ~/.ray/auth_token does not exist. {MAKE_A_TOKEN}"
        )
    error = _connection_error(address, timeout_seconds, TOKEN)
    if "InvalidAuthToken" in error:
        raise UsageError(
            f"the Ray cluster at {address} does not accept our token. Put the cluster's token into "
            "~/.ray/auth_token or RAY_AUTH_TOKEN."
        )
    if error:
        raise UsageError(
            f"the server at {address} does not answer as Ray: {error}. The port must be that of "
            "the cluster's head node, 6379 by default."
        )
    if accepts_no_token(address, timeout_seconds):
        raise UsageError(
            f"the Ray cluster at {address} requires no token: anyone who can reach its ports can "
            f"run code there. {MAKE_A_TOKEN}"
        )
    return host


def _check_listens(address: str, timeout_seconds: float) -> str:
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit():
        raise UsageError(
            f"the address of a Ray cluster must be HOST:PORT, got '{address}'. "
            "`ray start --head` prints it."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), min(5.0, timeout_seconds)).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"no answer from the Ray address {address} ({error}). Start the cluster with "
            "`RAY_AUTH_MODE=token ray start --head`, or leave the address out."
        ) from error
    return host


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return True
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return Path(path).is_file() and Path(path).stat().st_size > 0


def accepts_no_token(address: str, timeout_seconds: float = 30.0) -> bool:
    """Whether Ray at `address` may answer a process without a token; true if in doubt."""
    error = _connection_error(
        address, timeout_seconds, {"RAY_AUTH_MODE": "disabled"}, HIDDEN_VARIABLES
    )
    return "token" not in error.lower()


def _connection_error(
    address: str, timeout_seconds: float, settings: dict[str, str], hidden: Sequence[str] = ()
) -> str:
    """Why a process with `settings` cannot connect to Ray in time; "" if it can."""
    script = "import sys; from ray._raylet import GcsClient as C; C(address=sys.argv[1])"
    try:
        asked = subprocess.run(
            [sys.executable, "-c", script, address],
            env={k: v for k, v in os.environ.items() if k not in hidden} | settings,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_seconds:g} s"
    return (asked.stderr.strip().splitlines() or ["it ended"])[-1] if asked.returncode else ""
