"""Finding the rank at fault after a failed collective.

After a failure each rank reports in the shared store that it is alive, and a rank that stops with
an error records it there. A rank that does neither has died or hangs.
"""

import re
import time
from contextlib import suppress
from typing import Any

from tapas.errors import PeerError

GRACE_SECONDS = 5.0  # for the others to report that they are alive


def record_failure(store: Any, rank: int, error: BaseException) -> None:
    """Store why `rank` stops, for the errors of the others."""
    with suppress(Exception):
        store.set(f"failure/{rank}", f"{type(error).__name__}: {error}")


def peer_error(
    error: RuntimeError,
    group: Any,
    store: Any,
    rank: int,
    size: int,
    *,
    last_checkpoint: str | None,
) -> PeerError:
    """The PeerError to raise on `rank` after a collective of `group` failed with `error`.

    It names the ranks at fault, found by the `store` within `GRACE_SECONDS`, and
    `last_checkpoint`.
    """
    cause = f"{error or type(error).__name__}".splitlines()[0]
    cause = re.sub(r"^\[\S+\] ", "", cause).partition(". ")[0]  # without advice
    hint = _checkpoint_hint(last_checkpoint)
    try:
        silent, failures = _poll_alive(group, store, rank, size)
    except RuntimeError:
        return PeerError(
            f"the process with the ranks' shared store is gone ({cause}); that is rank 0 or "
            f"torchrun.{hint}",
            (0,),
        )
    if failures:
        stopped = "; ".join(
            f"rank {gone} stopped: {why.rstrip('.')}" for gone, why in sorted(failures.items())
        )
        return PeerError(f"{stopped}.{hint}", tuple(sorted(failures)))
    if silent:
        how = "hangs or is lost" if "timed out" in cause.lower() else "died or hangs"
        return PeerError(f"{rank_names(silent)} {how}: no answer ({cause}).{hint}", silent)
    return PeerError(f"the ranks have lost their connection: {cause}.{hint}")


def _poll_alive(
    group: Any, store: Any, rank: int, size: int
) -> tuple[tuple[int, ...], dict[int, str]]:
    """The ranks that did not report in time, and the recorded errors of the others."""
    silent = set(range(size)) - {rank}
    failures: dict[int, str] = {}
    store.set(f"alive/{rank}", "1")
    with suppress(Exception):  # ends the collectives in which others wait for this rank
        group.abort()
    deadline = time.monotonic() + GRACE_SECONDS
    while silent and time.monotonic() < deadline:
        for other in sorted(silent):
            if store.check([f"failure/{other}"]):
                failures[other] = store.get(f"failure/{other}").decode()
            if other in failures or store.check([f"alive/{other}"]):
                silent.discard(other)
        time.sleep(0.05)
    return tuple(sorted(silent)), failures


def rank_names(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _checkpoint_hint(checkpoint: str | None) -> str:
    if checkpoint is None:
        return " No checkpoint was saved."
    return f" The last checkpoint is {checkpoint}."
