"""Checkpoints on disk: whole or not there. Nothing in them can run code.

    step-00000400/    its files are those of tapas.checkpoints.files

A checkpoint is written under a hidden name and renamed once it is on the disk, so that a
process killed at any moment leaves either the old ones or the old ones and the new one. Many
ranks save one checkpoint together: each writes what it holds, rank 0 makes and names it. So do
servers with the process that asks them to: see tapas.checkpoints.parts.
"""

import errno
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tapas.atomic_file import sync
from tapas.checkpoints.files import (
    JSON,
    at_work,
    check_json,
    finished_in,
    newest_whole,
    offer_of,
    read_record,
    seal,
    verify,
)
from tapas.checkpoints.rows import ShardRows, read_tensors
from tapas.checkpoints.saving import (
    Elsewhere,
    Saving,
    agree_to_begin,
    begin_writing,
    check_same_step,
    check_way,
    group_aside,
    leads,
    saveable,
    tell,
    together,
)
from tapas.distributed.collectives import Ranks
from tapas.errors import DataError, TapasError, UsageError
from tapas.shapes import check_positive

if TYPE_CHECKING:
    from tapas.checkpoints.pieces import Piece

LEFTOVER = re.compile(r"\.step-(?P<step>\d{8,})\.(?P<pid>\d+)\.(unfinished|replaced|removed)")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved at `step`. Tensors that shared memory come back apart."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointFolder:
    """Checkpoints of one run: whole or not there, the last `keep` and the best.

    One process saves, alone or with servers, or the ranks of one group do together; any number
    may load meanwhile. Nothing is created before the first save.
    """

    def __init__(self, folder: Path, *, keep: int = 2):
        self.folder = Path(folder)
        self.keep = check_positive("keep", keep)
        self._pending: Saving | None = None
        self._apart: dict[Any, Any] = {}  # for saves in the background, by group of ranks

    def save(
        self,
        step: int,
        tensors: "Mapping[str, Tensor | Piece]",
        state: Mapping[str, JSON],
        *,
        best: bool = False,
        ranks: Ranks | None = None,
        background: bool = False,
        elsewhere: Elsewhere | None = None,
    ) -> Path:
        """Save `tensors` and `state` of `step`, and return their folder once it is on the disk.

        A checkpoint of the same step is replaced. Only then are others removed: all but the
        last `keep` and the best, and those of later steps, which belong to a course the run
        has left by resuming before them. If it cannot be saved, earlier ones are untouched.

        With `ranks` all of them call it; tensors may be pieces, the rest is the same on all.
        With `background` the tensors are copied and this returns before they are on the disk:
        the next save, or `finish`, completes the checkpoint or raises what went wrong.
        With `elsewhere` servers write tensors, too: it is called with the folder to write into,
        and answers what `write_shards` has answered each of them, or raises, once none of
        them writes any more.
        """
        self.finish()
        try:
            with together(ranks):
                check_way(ranks, elsewhere, background=background)
                if index(step) < 0:
                    raise UsageError(f"step must be at least 0, got {step}.")
                check_json("state", state := dict(state))
                held = saveable(tensors, pieces=ranks is not None or elsewhere is not None)
                problem = self._prepare(step) if leads(ranks) else None
                leader, problem = agree_to_begin(ranks, index(step), problem)
            if problem is not None:
                raise problem
            folder = self._hidden(step, "unfinished", leader)
            apart = group_aside(ranks, self._apart) if background else None
            work = begin_writing(folder, held, ranks, apart=apart, elsewhere=elsewhere)
            record = {"step": index(step), "best": bool(best), "state": state}
            self._pending = Saving(index(step), folder, record, ranks, work)
        except BaseException as error:
            self._give_up(step, error, ranks)
            raise
        if not background:
            self.finish()
        return self._path(step)

    def finish(self) -> None:
        """Complete a save that goes on in the background; with ranks, all of them call it."""
        saving, self._pending = self._pending, None
        if saving is None:
            return
        try:
            written, problem = saving.written(), None
            if saving.leads:
                try:
                    seal(saving.folder, written.prints, saving.record, sharded=written.sharded)
                    self._put_in_place(saving.step, saving.folder)
                except OSError as error:
                    problem = error
            saving.agree(problem)
        except BaseException as error:
            self._give_up(saving.step, error, saving.ranks)
            raise
        if saving.ranks is not None:
            saving.ranks.last_checkpoint = f"step {saving.step} in {self.folder}"
        if saving.leads:
            with suppress(OSError):  # the checkpoint is safe; the next save tries again
                self._tidy()
                self._prune(saving.step)

    def steps(self) -> list[int]:
        """Steps that were saved to the end, rising. `load` checks their content."""
        return sorted(finished_in(self.folder))

    def best(self) -> int | None:
        """The last step saved with `best=True`; None if there is none."""
        for step, path in sorted(finished_in(self.folder).items(), reverse=True):
            with suppress(TapasError):
                if read_record(path)["best"]:
                    return step
        return None

    def load(
        self,
        step: int | None = None,
        *,
        device: str | torch.device = "cpu",
        shards: Mapping[str, ShardRows] | None = None,
        ranks: Ranks | None = None,
    ) -> Checkpoint:
        """The checkpoint of `step`, by default the newest, checked against size and checksum.

        It does not matter how many ranks saved it. Of the tables that `shards` names, such as
        "model.head.table", the rows of one shard are loaded, of others all rows by id. With
        `ranks` all of them call it, and share the work of checking.
        """
        with together(ranks):
            step, folder = self.find(step)
            if ranks is not None:
                check_same_step("load", ranks.announce("load a checkpoint", step))
        record, problem = {}, None
        try:
            part = {} if ranks is None else {"part": ranks.rank, "parts": ranks.size}
            record = verify(folder, **part)
        except TapasError as error:
            problem = error
        found = [each for each in tell(ranks, problem) if each is not None]
        if found and isinstance(found[0], DataError):
            offer = tell(ranks, self._other_than(step) if leads(ranks) else None)[0]
            raise DataError(f"{found[0]} {offer}") from None
        if found:
            raise found[0]
        tensors = read_tensors(folder, record, device=device, shards=shards)
        return Checkpoint(step, tensors, record["state"])

    def verified(
        self, step: int | None = None, *, part: int = 0, parts: int = 1
    ) -> tuple[int, Path, dict[str, Any]]:
        """`step`, by default the newest, its folder and record, checked as `load` does.

        Of the checksums it is one part of `parts` that is computed, see `verify`.
        """
        step, folder = self.find(step)
        try:
            return step, folder, verify(folder, part=part, parts=parts)
        except DataError as error:
            raise DataError(f"{error} {self._other_than(step)}") from None

    def find(self, step: int | None = None) -> tuple[int, Path]:
        """`step`, by default the newest, and its folder; or an error that says what there is."""
        finished = finished_in(self.folder)
        if not finished:
            raise UsageError(f"no checkpoint in {self.folder}. Start without --resume.")
        step = max(finished) if step is None else step
        if step not in finished:
            known = ", ".join(map(str, sorted(finished)))
            raise UsageError(f"no checkpoint of step {step} in {self.folder}. There are: {known}.")
        return step, finished[step]

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def _hidden(self, step: int, kind: str, process: int | None = None) -> Path:
        return self.folder / f".step-{step:08}.{process or os.getpid()}.{kind}"

    def _prepare(self, step: int) -> OSError | None:
        """Make the hidden folder to write into; or why that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._tidy()
            self._hidden(step, "unfinished").mkdir()
        except OSError as error:
            return error
        return None

    def _put_in_place(self, step: int, folder: Path) -> None:
        target = self._path(step)
        if target.exists():
            os.rename(target, self._hidden(step, "replaced"))
        os.rename(folder, target)
        sync(self.folder)

    def _give_up(self, step: int, error: BaseException, ranks: Ranks | None) -> None:
        """Leave nothing of a checkpoint that could not be saved; all ranks say why."""
        if leads(ranks):
            with suppress(OSError):
                self._tidy()
        if isinstance(error, OSError):
            words = self._cannot_save(step, error) if leads(ranks) else None
            raise UsageError(tell(ranks, words)[0]) from error

    def _tidy(self) -> None:
        """Put back or remove what this process, or one that died, left half done."""
        for path in sorted(self.folder.glob(".step-*")):
            match = LEFTOVER.fullmatch(path.name)
            if match is None or at_work(int(match["pid"])):
                continue
            target = self._path(step := int(match["step"]))
            if path.suffix != ".replaced":
                shutil.rmtree(path, ignore_errors=True)
            elif target.exists():
                self._remove(step, path)
            else:
                os.rename(path, target)

    def _prune(self, step: int) -> None:
        finished = finished_in(self.folder)
        for later in [other for other in finished if other > step]:
            self._remove(later, finished.pop(later))
        kept = {*sorted(finished)[-self.keep :], self.best()}
        for old in finished.keys() - kept:
            self._remove(old, finished[old])

    def _remove(self, step: int, path: Path) -> None:
        """Hide first, so that a checkpoint half removed is never taken for a whole one."""
        os.rename(path, hidden := self._hidden(step, "removed"))
        shutil.rmtree(hidden, ignore_errors=True)

    def _other_than(self, step: int) -> str:
        return offer_of({n: at for n, at in finished_in(self.folder).items() if n != step})

    def _cannot_save(self, step: int, error: OSError) -> str:
        cure = "Free some space" if error.errno in FULL else "Make sure that it can be written to"
        left = f"No checkpoint is whole. {cure} and go on with --resume."
        if (whole := newest_whole(finished_in(self.folder))) is not None:
            left = f"Checkpoint step {whole} is whole. {cure} and go on with --resume."
        return f"cannot save checkpoint step {step} into {self.folder}: {error.strerror}. {left}"
