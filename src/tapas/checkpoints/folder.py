"""The checkpoints of one run: saved whole or not at all, the newest and the best kept.

    step-00000400/    its files are those of tapas.checkpoints.files

A checkpoint is written under a hidden name and renamed once it is on the disk, so that a
process killed at any moment leaves either the old ones or the old ones and the new one. Ranks,
or servers and the process that asks them, save one checkpoint together: each writes the rows
that it keeps, rank 0 or that process the rest.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor

from tapas.atomic_file import sync
from tapas.checkpoints.files import (
    DENSE,
    JSON,
    check_json,
    complete_in,
    is_running,
    newest_valid,
    read_record,
    suggest_other,
    unshare,
    verify,
    write_file,
    write_state,
)
from tapas.checkpoints.rows import (
    RowsFile,
    TableRows,
    WriteFailed,
    Written,
    join_tables,
    read_rows,
)
from tapas.errors import DataError, TapasError, UsageError
from tapas.shapes import check_positive
from tapas.tables.placement import RowRange
from tapas.tables.ranks import ONE_PROCESS, Ranks

LEFTOVER = re.compile(r"\.step-(?P<step>\d{8,})\.(?P<pid>\d+)\.(unfinished|replaced|removed)")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
Servers: TypeAlias = Callable[[Path], Sequence[Written | WriteFailed]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What one process has to save."""

    tensors: Mapping[str, Tensor]  # the same in every process
    tables: Mapping[str, TableRows] = field(default_factory=dict)  # rows that this one keeps
    numbers: Mapping[str, JSON] = field(default_factory=dict)  # of parts of a model, by name
    optimizers: Sequence[JSON] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved at `step`, rows among the tensors. Tensors that shared memory come back
    apart."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    numbers: dict[str, Any] = field(default_factory=dict)
    optimizers: list[Any] = field(default_factory=list)


class CheckpointFolder:
    """Checkpoints of one run: whole or not there, the last `keep` and the best.

    One process saves, alone or with servers, or the ranks of one group do together; any number
    may load meanwhile. Nothing is created before the first save.
    """

    def __init__(self, folder: Path, *, keep: int = 2):
        self.folder = Path(folder)
        self.keep = check_positive("keep", keep)

    def save(
        self,
        step: int,
        contents: Contents | Mapping[str, Tensor],
        state: Mapping[str, JSON],
        *,
        best: bool = False,
        ranks: Ranks = ONE_PROCESS,
        servers: Servers | None = None,
    ) -> Path:
        """Save `contents` and `state` of `step`, and return their folder once it is on the disk.

        A checkpoint of the same step is replaced. Only then are others removed: all but the
        last `keep` and the best, and those of later steps, which belong to a course the run
        has left by resuming before them. If it cannot be saved, earlier ones are untouched.

        With `ranks` all of them call it, each with the rows that it keeps; a table that is whole
        in each is saved by rank 0. With `servers` others write rows: it is called with the
        folder to write into, and returns what `write_rows` has answered each of them, or
        raises, once none of them writes any more.
        """
        try:
            with ranks.share_errors():
                if servers is not None and ranks.size > 1:
                    raise UsageError(
                        "what servers write is saved by one process that waits for them. Leave "
                        "out `servers` or `ranks`."
                    )
                if index(step) < 0:
                    raise UsageError(f"step must be at least 0, got {step}.")
                check_json("state", state := dict(state))
                given = contents if isinstance(contents, Contents) else Contents(contents)
                check_json("numbers", numbers := dict(given.numbers))
                check_json("optimizers", optimizers := list(given.optimizers))
                tables = {
                    name: rows
                    for name, rows in given.tables.items()
                    if ranks.rank == 0 or not rows.range.has_all_rows
                }
                rows = RowsFile.of(tables)
                dense = unshare(given.tensors)
                problem = self._prepare(step) if ranks.rank == 0 else None
                leader = self._agree_to_begin(ranks, index(step), problem)
            folder = self._hidden(step, "unfinished", leader)
            written = _write(folder, rows, dense, ranks, servers)
            files = {name: each for one in written for name, each in one.files.items()}
            record = {
                "step": index(step),
                "best": bool(best),
                "processes": max(1, sum(name != DENSE for name in files)),
                "files": files,
                "tables": join_tables(written),
                "numbers": numbers,
                "optimizers": optimizers,
                "state": state,
            }
            self._finish(step, folder, record, ranks)
        except BaseException as error:
            self._give_up(step, error, ranks)
            raise
        ranks.last_checkpoint = f"step {step} in {self.folder}"
        if ranks.rank == 0:
            with suppress(OSError):  # the checkpoint is safe; the next save tries again
                self._tidy()
                self._prune(step)
        return self._path(step)

    def steps(self) -> list[int]:
        """Steps that were saved to the end, rising. `load` checks their content."""
        return sorted(complete_in(self.folder))

    def best(self) -> int | None:
        """The last step saved with `best=True`; None if there is none.

        A checkpoint that may be the best, but cannot be read, is an error: nobody should get a
        worse model without being told.
        """
        for step, path in sorted(complete_in(self.folder).items(), reverse=True):
            try:
                if read_record(path)["best"]:
                    return step
            except DataError as error:
                raise DataError(
                    f"{error} It may be the best checkpoint. {self._other_than(step)}"
                ) from None
        return None

    def load(
        self,
        step: int | None = None,
        *,
        ranges: Mapping[str, RowRange] | None = None,
        device: str | torch.device = "cpu",
        ranks: Ranks = ONE_PROCESS,
    ) -> Checkpoint:
        """The checkpoint of `step`, by default the newest, checked against size and checksum.

        It does not matter how many processes saved it. Of the tables that `ranges` names, such as
        "model.head.table", these rows are loaded, of others all rows by id. With `ranks` all of
        them call it, and share the work of checking.
        """
        with ranks.share_errors():
            step, folder = self.find(step)
            _check_same_step("load", ranks.gather_numbers("load a checkpoint", step))
        record, told = {}, None
        try:
            record = verify(folder, part=ranks.rank, parts=ranks.size)
        except TapasError as error:
            told = [isinstance(error, DataError), str(error)]
        for each in ranks.gather_json("check a checkpoint", told):
            if each is not None:
                is_damaged, words = each
                if not is_damaged:
                    raise UsageError(words)
                offer = self._other_than(step) if ranks.rank == 0 else None
                raise DataError(f"{words} {ranks.gather_json('offer another', offer)[0]}")
        tensors = load_file(folder / DENSE, device=str(device))
        tensors |= read_rows(folder, record, ranges or {}, device=device)
        return _checkpoint(step, record, tensors)

    def load_rows(
        self, step: int | None, ranges: Mapping[str, RowRange], *, part: int = 0, parts: int = 1
    ) -> Checkpoint:
        """The rows of `ranges` in the checkpoint of `step`, by default the newest; no other tensor.

        `parts` processes that load at once share the work of checking, and this is number `part`
        of them: a server that loads what as many have saved checks the file that it wrote itself.
        """
        step, folder, record = self._verified(step, part, parts)
        return _checkpoint(step, record, read_rows(folder, record, ranges, only_these=True))

    def load_dense(self, step: int | None = None, *, part: int = 0, parts: int = 1) -> Checkpoint:
        """The tensors of the checkpoint that belong to no table; no rows are read.

        Checks its share of the files, as in `load_rows`; all of them if `parts` is 1.
        """
        step, folder, record = self._verified(step, part, parts)
        return _checkpoint(step, record, load_file(folder / DENSE))

    def _verified(
        self, step: int | None, part: int, parts: int
    ) -> tuple[int, Path, dict[str, Any]]:
        step, folder = self.find(step)
        try:
            return step, folder, verify(folder, part=part, parts=parts)
        except DataError as error:
            raise DataError(f"{error} {self._other_than(step)}") from None

    def find(self, step: int | None = None) -> tuple[int, Path]:
        """`step`, by default the newest, and its folder; or an error that says what there is."""
        finished = complete_in(self.folder)
        if not finished:
            raise UsageError(f"no checkpoint in {self.folder}.")
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

    def _agree_to_begin(self, ranks: Ranks, step: int, problem: OSError | None) -> int:
        """The process id of rank 0; what keeps it from saving is raised by all ranks."""
        number = (problem.errno or errno.EIO) if problem else 0
        heard = ranks.gather_numbers("save a checkpoint", step, os.getpid(), number)
        _check_same_step("save", heard)
        _, leader, number = heard[0]
        if number:
            raise _os_error(ranks, 0, number, os.strerror(number)) from problem
        return leader

    def _finish(self, step: int, folder: Path, record: Mapping[str, Any], ranks: Ranks) -> None:
        """Seal and name it; all ranks return once that is done, or raise what went wrong."""
        problem = None
        if ranks.rank == 0:
            try:
                write_state(folder, record)
                self._put_in_place(step, folder)
            except OSError as error:
                problem = error
        _agree(ranks, "name a checkpoint", problem, None)

    def _put_in_place(self, step: int, folder: Path) -> None:
        target = self._path(step)
        if target.exists():
            os.rename(target, self._hidden(step, "replaced"))
        os.rename(folder, target)
        sync(self.folder)

    def _give_up(self, step: int, error: BaseException, ranks: Ranks) -> None:
        """Leave nothing of a checkpoint that could not be saved; all ranks say why."""
        if ranks.rank == 0:
            with suppress(OSError):
                self._tidy()
        if isinstance(error, OSError):
            words = self._cannot_save(step, error) if ranks.rank == 0 else None
            raise UsageError(ranks.gather_json("give up a checkpoint", words)[0]) from error

    def _tidy(self) -> None:
        """Put back or remove what this process, or one that died, left half done."""
        for path in sorted(self.folder.glob(".step-*")):
            match = LEFTOVER.fullmatch(path.name)
            if match is None or is_running(int(match["pid"])):
                continue
            target = self._path(step := int(match["step"]))
            if path.suffix != ".replaced":
                shutil.rmtree(path, ignore_errors=True)
            elif target.exists():
                self._remove(step, path)
            else:
                os.rename(path, target)

    def _prune(self, step: int) -> None:
        """Remove later steps, and all but the last, the best and those that may be the best."""
        finished = complete_in(self.folder)
        for later in [other for other in finished if other > step]:
            self._remove(later, finished.pop(later))
        kept = set(sorted(finished)[-self.keep :])
        for old in sorted(finished, reverse=True):
            try:
                if read_record(finished[old])["best"]:
                    kept.add(old)
                    break
            except TapasError:
                kept.add(old)
        for old in finished.keys() - kept:
            self._remove(old, finished[old])

    def _remove(self, step: int, path: Path) -> None:
        """Hide first, so that a checkpoint half removed is never taken for a whole one."""
        os.rename(path, hidden := self._hidden(step, "removed"))
        shutil.rmtree(hidden, ignore_errors=True)

    def _other_than(self, step: int) -> str:
        return suggest_other({n: at for n, at in complete_in(self.folder).items() if n != step})

    def _cannot_save(self, step: int, error: OSError) -> str:
        cure = "Free some space" if error.errno in FULL else "Make sure that it can be written to"
        left = f"No checkpoint is whole. {cure} and go on with --resume."
        if (whole := newest_valid(complete_in(self.folder))) is not None:
            left = f"Checkpoint step {whole} is whole. {cure} and go on with --resume."
        words = error.strerror or str(error)
        return f"cannot save checkpoint step {step} into {self.folder}: {words}. {left}"


def _checkpoint(step: int, record: Mapping[str, Any], tensors: dict[str, Tensor]) -> Checkpoint:
    return Checkpoint(step, tensors, record["state"], record["numbers"], record["optimizers"])


def _write(
    folder: Path,
    rows: RowsFile,
    dense: dict[str, Tensor],
    ranks: Ranks,
    servers: Servers | None,
) -> list[Written]:
    """What all processes have written, `dense` by rank 0; OSError on all if one could not."""
    written, problem = [], None
    try:
        written = [] if servers is None else _ask(servers, folder)
        written.append(rows.write(folder, ranks.rank + len(written)))
        if ranks.rank == 0:
            written.append(Written(-1, write_file(folder, DENSE, dense), {}))
    except OSError as error:
        problem = error
    heard = _agree(ranks, "write a checkpoint", problem, written)
    every = [Written(*each) for found in heard for each in found]
    return sorted(every, key=lambda each: DENSE in each.files)  # rows first, by process


def _ask(servers: Servers, folder: Path) -> list[Written]:
    """Have servers write into `folder`; OSError if one of them could not."""
    found: list[Written] = []
    for answer in sorted(servers(folder), key=lambda answer: answer.number):
        if isinstance(answer, WriteFailed):
            raise OSError(answer.errno, f"{answer.words} on server {answer.number}")
        found.append(answer)
    numbers = [each.number for each in found]
    if not numbers:
        raise UsageError("no server has written rows of the checkpoint; expected at least one.")
    if numbers != list(range(len(numbers))):
        raise UsageError(
            f"the servers that have written have the numbers {', '.join(map(str, numbers))}; "
            f"expected each of 0 to {len(numbers) - 1} once. Give every one a number of its own."
        )
    return found


def _agree(ranks: Ranks, verb: str, problem: OSError | None, value: Any) -> list[Any]:
    """The `value` of every rank, or on all of them the first problem that one has."""
    told = None
    if problem is not None:
        told = problem.errno or errno.EIO, problem.strerror or str(problem)
    heard = ranks.gather_json(verb, [told, value])
    for rank, (failed, _) in enumerate(heard):
        if failed is not None:
            raise _os_error(ranks, rank, *failed) from problem
    return [found for _, found in heard]


def _os_error(ranks: Ranks, rank: int, number: int, words: str) -> OSError:
    return OSError(number, words if ranks.size == 1 else f"{words} on rank {rank}")


def _check_same_step(verb: str, heard: list[list[int]]) -> None:
    """An error on all ranks unless each of them brings the same step, its first number."""
    steps = [row[0] for row in heard]
    if len(set(steps)) > 1:
        raise UsageError(
            f"the ranks would {verb} different steps: {', '.join(map(str, steps))}, by rank. All "
            f"must {verb} the same one, in one folder that all of them see."
        )
