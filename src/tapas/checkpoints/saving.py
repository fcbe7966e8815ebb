"""One checkpoint on its way to the disk: by one process, ranks or servers, at once or meanwhile.

Whatever a rank cannot do is told to all, so that all of them raise it or none. Servers only
write; the process that saves joins what they have written with what it holds itself.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from torch import Tensor

from tapas.atomic_file import fingerprint
from tapas.checkpoints.files import (
    CONTENTS,
    Prints,
    dense,
    separate,
    write_tensors,
)
from tapas.distributed.collectives import Ranks
from tapas.errors import UsageError
from tapas.shapes import check_tensor

if TYPE_CHECKING:
    from tapas.checkpoints.piece_plans import Part
    from tapas.checkpoints.pieces import Piece


class Unwritten(NamedTuple):
    """What server `number` answers if it could not write: an OSError that crosses processes."""

    number: int
    errno: int
    words: str


Elsewhere: TypeAlias = Callable[[Path], "Sequence[Part | Unwritten]"]


class Written(NamedTuple):
    """What this process, and servers for it, have on the disk."""

    prints: Prints
    sharded: dict[str, Any] | None = None  # as `seal` has it


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint that is not yet whole."""

    step: int
    folder: Path  # under its hidden name
    record: Mapping[str, Any]
    ranks: Ranks | None
    work: Callable[[], Written]  # writes, or waits until it is written

    @property
    def leads(self) -> bool:
        """Whether this process is the one that makes, seals and names it."""
        return leads(self.ranks)

    def written(self) -> Written:
        """All files, once they are on the disk; OSError on all ranks if one could not write."""
        problem, mine = None, Written({})
        try:
            with meeting(self.ranks):
                mine = self.work()
        except OSError as error:
            problem = error
        heard = self._tell(problem, mine.prints)
        return Written({k: each for prints in heard for k, each in prints.items()}, mine.sharded)

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
    from tapas.checkpoints.pieces import tell_all  # slow to import, and needed by ranks alone

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


def check_way(ranks: Ranks | None, elsewhere: Elsewhere | None, *, background: bool) -> None:
    """An error unless what servers write is saved by one process that waits for them."""
    if elsewhere is not None and (ranks is not None or background):
        other = "background" if ranks is None else "ranks"
        raise UsageError(
            "what servers write is saved by one process that waits for them. Leave out "
            f"`elsewhere` or `{other}`."
        )


def saveable(
    tensors: "Mapping[str, Tensor | Piece]", *, pieces: bool
) -> "dict[str, Tensor | Piece]":
    """`tensors` as files can hold them, or an error that names one which they cannot."""
    if not pieces:
        for name, tensor in tensors.items():
            check_tensor(name, tensor)  # a piece is for many processes
        return dict(separate(tensors))  # type: ignore[arg-type]
    from tapas.checkpoints.pieces import Piece

    return {
        name: Piece(dense(name, value.tensor), value.start, value.total)
        if isinstance(value, Piece)
        else dense(name, value)
        for name, value in tensors.items()
    }


def begin_writing(
    folder: Path,
    tensors: "dict[str, Any]",
    ranks: Ranks | None,
    *,
    apart: Any,
    elsewhere: Elsewhere | None,
) -> Callable[[], Written]:
    """What to call to have `tensors` in `folder`, and what servers write `elsewhere`.

    With `apart`, a group of its own (anything for one process), they are copied first and
    written in a thread: the call then waits for it.
    """
    if elsewhere is not None:
        return partial(_write_with_servers, folder, tensors, elsewhere)
    if ranks is None:
        if apart is None:
            return partial(_write_alone, folder, tensors)
        return in_thread(partial(_write_alone, folder, {k: v.clone() for k, v in tensors.items()}))
    from tapas.checkpoints.pieces import files_of, save_pieces, save_pieces_later

    wait: Callable[[], None] = partial(save_pieces, folder, tensors, group=ranks.group)
    if apart is not None:
        wait = save_pieces_later(folder, tensors, group=apart).finish

    def work() -> Written:
        wait()
        prints = {file.name: fingerprint(file) for file in sorted(files_of(folder, ranks.rank))}
        pieces = sorted(name for name, value in tensors.items() if not isinstance(value, Tensor))
        return Written(prints, {"ranks": ranks.size, "pieces": pieces})

    return work if apart is None else in_thread(work)


def _write_with_servers(
    folder: Path, tensors: "dict[str, Tensor | Piece]", elsewhere: Elsewhere
) -> Written:
    """Have servers write into `folder`, then write `tensors` and what makes all of it one."""
    from tapas.checkpoints.piece_plans import check_numbers
    from tapas.checkpoints.pieces import join_parts, write_part

    parts: list[Part] = []
    for answer in sorted(elsewhere(folder), key=lambda answer: answer.number):
        if isinstance(answer, Unwritten):
            raise OSError(answer.errno, f"{answer.words} on server {answer.number}")
        parts.append(answer)
    if not parts:
        raise UsageError("no server has written a part of the checkpoint; expected at least one.")
    check_numbers(parts)  # before a file of theirs is taken for this one's
    every = parts + ([write_part(folder, len(parts), tensors)] if tensors else [])
    join_parts(folder, every)
    prints = {name: each for part in every for name, each in part.files.items()}
    prints[CONTENTS] = fingerprint(folder / CONTENTS)
    pieces = sorted(set().union(*(part.names(pieces=True) for part in every)))
    return Written(prints, {"ranks": len(parts), "pieces": pieces})


def _write_alone(folder: Path, tensors: dict[str, Tensor]) -> Written:
    return Written(write_tensors(folder, tensors))


def in_thread(work: Callable[[], Written]) -> Callable[[], Written]:
    """Begin `work` at once; the answer waits for its end."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future.result


def group_aside(ranks: Ranks | None, known: dict[Any, Any]) -> Any:
    """One for meetings in the background, which must not mix with those of training.

    Made once for each group, and kept in `known`.
    """
    if ranks is None:
        return True
    if ranks.group not in known:
        from tapas.checkpoints.pieces import group_apart

        with meeting(ranks):
            known[ranks.group] = group_apart(ranks.group)
    return known[ranks.group]
