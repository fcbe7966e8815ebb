"""Which rank failed when a collective has: one that died, hangs, or has said why it stops.

Ranks that live say so in the store that they share, and one that stops with an error of its
own records it there.
"""

import re
import time
from contextlib import suppress
from typing import Any

from tapas.errors import PeerError

GRACE_SECONDS = 5.0  # for the others to say that they are alive, once a collective has failed


def record_failure(store: Any, rank: int, error: BaseException) -> None:
    """Leave word for those who will wait for `rank` why it stops."""
    with suppress(Exception):
        store.set(f"last words/{rank}", f"{type(error).__name__}: {error}")


def peer_error(
    error: RuntimeError,
    group: Any,
    store: Any,
    rank: int,
    size: int,
    *,
    last_checkpoint: str | None,
) -> PeerError:
    """What to raise where a collective of `group` failed with `error`: it names who is at fault.

    `rank` of `size` asks in the `store`, and gives the others `GRACE_SECONDS`. What is raised
    offers to go on from `last_checkpoint`.
    """
    cause = f"{error or type(error).__name__}".splitlines()[0]
    cause = re.sub(r"^\[\S+\] ", "", cause).partition(". ")[0]  # without advice
    hint = _checkpoint_hint(last_checkpoint)
    try:
        silent, words = _poll_alive(group, store, rank, size)
    except RuntimeError:
        return PeerError(
            f"the process that introduced the ranks to each other is gone ({cause}); that is "
            f"rank 0, or torchrun itself.{hint}",
            (0,),
        )
    if words:
        told = "; ".join(
            f"rank {gone} stopped: {why.rstrip('.')}" for gone, why in sorted(words.items())
        )
        return PeerError(f"{told}.{hint}", tuple(sorted(words)))
    if silent:
        how = "hangs or is lost" if "timed out" in cause.lower() else "died or hangs"
        return PeerError(f"{rank_names(silent)} {how}: no answer ({cause}).{hint}", silent)
    return PeerError(f"the ranks have lost each other: {cause}.{hint}")


def _poll_alive(
    group: Any, store: Any, rank: int, size: int
) -> tuple[tuple[int, ...], dict[int, str]]:
    """Those who have not said in time that they are alive, and the recorded errors of the rest."""
    silent = set(range(size)) - {rank}
    words: dict[int, str] = {}
    store.set(f"alive/{rank}", "1")
    with suppress(Exception):  # so that nobody waits for this rank any longer
        group.abort()
    deadline = time.monotonic() + GRACE_SECONDS
    while silent and time.monotonic() < deadline:
        for other in sorted(silent):
            if store.check([f"last words/{other}"]):
                words[other] = store.get(f"last words/{other}").decode()
            if other in words or store.check([f"alive/{other}"]):
                silent.discard(other)
        time.sleep(0.05)
    return tuple(sorted(silent)), words


def rank_names(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _checkpoint_hint(checkpoint: str | None) -> str:
    if checkpoint is None:
        return " No checkpoint was saved."
    return f" The last checkpoint is {checkpoint}."
