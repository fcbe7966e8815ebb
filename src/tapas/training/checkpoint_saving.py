"""One checkpoint on its way to the disk: by one process or many ranks, at once or meanwhile.

Whatever a rank cannot do is told to all, so that all of them raise it or none.
"""

import errno
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tapas.errors import UsageError
from tapas.shapes import check_tensor
from tapas.tables.ranks import Ranks
from tapas.training.checkpoint_files import Prints, dense, fingerprint, separate, write_tensors

if TYPE_CHECKING:
    from tapas.engines.pieces import Piece


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint that is not yet whole."""

    step: int
    folder: Path  # under its hidden name
    record: Mapping[str, Any]
    sharded: Mapping[str, Any] | None  # what the record of many ranks has beside
    ranks: Ranks | None
    work: Callable[[], Prints]  # writes, or waits until it is written; the files of this process

    @property
    def leads(self) -> bool:
        """Whether this process is the one that makes, seals and names it."""
        return leads(self.ranks)

    def written(self) -> Prints:
        """All files, once they are on the disk; OSError on all ranks if one could not write."""
        problem, prints = None, {}
        try:
            with meeting(self.ranks):
                prints = self.work()
        except OSError as error:
            problem = error
        heard = self._tell(problem, prints)
        return {name: each for prints in heard for name, each in sorted(prints.items())}

    def agree(self, problem: OSError | None) -> None:
        """Return on all ranks, or raise the first problem on all."""
        self._tell(problem, {})

    def _tell(self, problem: OSError | None, prints: Prints) -> list[Prints]:
        told = None
        if problem is not None:
            words = problem.strerror or str(problem)
            if self.ranks is not None and " on rank " not in words:  # it may be another's
                words = f"{words} on rank {self.ranks.rank}"
            told = problem.errno, words
        heard = tell(self.ranks, (told, prints))
        for failed, _ in heard:
            if failed is not None:
                raise OSError(*failed) from problem
        return [found for _, found in heard]


def leads(ranks: Ranks | None) -> bool:
    return ranks is None or ranks.rank == 0


def together(ranks: Ranks | None) -> AbstractContextManager[None]:
    """An error in here is told to the ranks that wait for this one."""
    return nullcontext() if ranks is None else ranks.together()


def meeting(ranks: Ranks | None) -> AbstractContextManager[None]:
    """A fault of torch.distributed in here becomes a `PeerError` that says whose it is."""
    return nullcontext() if ranks is None else ranks.meeting(0)


def tell(ranks: Ranks | None, value: Any) -> list[Any]:
    """What every rank brings, by rank."""
    if ranks is None:
        return [value]
    from tapas.engines.pieces import tell_all  # slow to import, and needed by ranks alone

    with meeting(ranks):
        return tell_all(value, ranks.group)


def agree_to_begin(
    ranks: Ranks | None, step: int, problem: OSError | None
) -> tuple[int, OSError | None]:
    """The process that leads, and what keeps it from saving, if anything does."""
    if ranks is None:
        return os.getpid(), problem
    number = (problem.errno or errno.EIO) if problem else 0
    heard = ranks.announce("save a checkpoint", step, os.getpid(), number)
    check_same_step("save", heard)
    _, leader, number = heard[0]
    return leader, OSError(number, f"{os.strerror(number)} on rank 0") if number else None


def check_same_step(verb: str, heard: list[list[int]]) -> None:
    """An error on all ranks unless each of them brings the same step, its first number."""
    steps = [row[0] for row in heard]
    if len(set(steps)) > 1:
        raise UsageError(
            f"the ranks would {verb} different steps: {', '.join(map(str, steps))}, by rank. All "
            f"must {verb} the same one, in one folder that all of them see."
        )


def pieces_of(
    tensors: "Mapping[str, Tensor | Piece]", ranks: Ranks | None
) -> dict[str, Any] | None:
    """What the record of many ranks says beside that of one."""
    if ranks is None:
        return None
    pieces = sorted(name for name, value in tensors.items() if not isinstance(value, Tensor))
    return {"ranks": ranks.size, "pieces": pieces}


def saveable(
    tensors: "Mapping[str, Tensor | Piece]", ranks: Ranks | None
) -> "dict[str, Tensor | Piece]":
    """`tensors` as files can hold them, or an error that names one which they cannot."""
    if ranks is None:
        for name, tensor in tensors.items():
            check_tensor(name, tensor)  # a piece is for ranks
        return dict(separate(tensors))  # type: ignore[arg-type]
    from tapas.engines.pieces import Piece

    return {
        name: Piece(dense(name, value.tensor), value.start, value.total)
        if isinstance(value, Piece)
        else dense(name, value)
        for name, value in tensors.items()
    }


def begin_writing(
    folder: Path, tensors: "dict[str, Any]", ranks: Ranks | None, apart: Any
) -> Callable[[], Prints]:
    """What to call to have `tensors` in `folder`.

    With `apart`, a group of its own (anything for one process), they are copied first and
    written in a thread: the call then waits for it.
    """
    if ranks is None:
        if apart is None:
            return partial(write_tensors, folder, tensors)
        return in_thread(partial(write_tensors, folder, {k: v.clone() for k, v in tensors.items()}))
    from tapas.engines.pieces import files_of, save_pieces, save_pieces_later

    wait: Callable[[], None] = partial(save_pieces, folder, tensors, group=ranks.group)
    if apart is not None:
        wait = save_pieces_later(folder, tensors, group=apart).finish

    def work() -> Prints:
        wait()
        return {file.name: fingerprint(file) for file in files_of(folder, ranks.rank)}

    return work if apart is None else in_thread(work)


def in_thread(work: Callable[[], Prints]) -> Callable[[], Prints]:
    """Begin `work` at once; the answer waits for its end."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future.result
