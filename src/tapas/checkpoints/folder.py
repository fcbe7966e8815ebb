"""The folder with the checkpoints of one run: saving, loading and pruning them.

    step-00000400/    one checkpoint; its files are described in tapas.checkpoints.files

A checkpoint is written in a private folder and renamed once it is on disk: a process that is
killed at any moment leaves only complete checkpoints. Ranks, or servers and their driver, save
one checkpoint together: each process writes the rows that it keeps, and rank 0 or the driver
writes everything else.
"""

import errno
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tapas.atomic_file import make_folder, private_folder, remove_leftovers, sync
from tapas.checkpoints.files import (
    DENSE,
    FINISHED,
    JSON,
    check_json,
    complete_in,
    newest_valid,
    read_dense,
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

UNFINISHED = "checkpoint"  # its name in the private folder
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
Servers: TypeAlias = Callable[[Path], Sequence[Written | WriteFailed]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What one process saves."""

    tensors: Mapping[str, Tensor]  # the same in every process
    tables: Mapping[str, TableRows] = field(default_factory=dict)  # rows of this process
    numbers: Mapping[str, JSON] = field(default_factory=dict)  # by name of the module
    optimizers: Sequence[JSON] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint; `tensors` includes rows. Tensors no longer share memory."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    numbers: dict[str, Any] = field(default_factory=dict)
    optimizers: list[Any] = field(default_factory=list)
    origin: str = ""  # folder and version, for errors


class CheckpointFolder:
    """The checkpoints of one run; keeps the last `keep` and the best.

    One process saves, alone or with servers, or the ranks of one group save together. Any number
    of processes may load at the same time. The folder is created by the first save.
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
        """Save `contents` and `state` of `step`; returns the folder of the checkpoint.

        A checkpoint of the same step is replaced. Afterwards others are removed: all but the last
        `keep` and the best, and those of later steps, which are obsolete after resuming from an
        earlier one. Raises UsageError if it cannot be saved; earlier checkpoints are unchanged.

        With several `ranks` all of them must call this, each with the rows that it keeps; tables
        that are complete on every rank are saved by rank 0. `servers` is called with the folder;
        it must let every server call `write_rows` there and return the results, or raise once no
        server is writing any more.
        """
        with ExitStack() as held:
            self._save(step, contents, state, best, ranks, servers, held)
        ranks.last_checkpoint = f"step {step} in {self.folder}"
        if ranks.rank == 0:
            with suppress(OSError):  # the checkpoint is safe; the next save tries again
                self._tidy()
                self._prune(step)
        return self._path(step)

    def _save(
        self,
        step: int,
        contents: Contents | Mapping[str, Tensor],
        state: Mapping[str, JSON],
        best: bool,
        ranks: Ranks,
        servers: Servers | None,
        held: ExitStack,
    ) -> None:
        """Write the checkpoint and put it in place. `held` removes what is unfinished."""
        try:
            with ranks.share_errors():
                if servers is not None and ranks.size > 1:
                    raise UsageError(
                        f"servers were passed together with {ranks.size} ranks, but only one "
                        "process can save for servers. Leave out `servers` or `ranks`."
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
                folder = self._begin(ranks, index(step), held)
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

    def steps(self) -> list[int]:
        """Steps of complete checkpoints, ascending. Their files are verified by `load`."""
        return sorted(complete_in(self.folder))

    def unreadable(self) -> list[Path]:
        """Folders of checkpoints whose state.json is damaged, or of a newer version."""
        found = []
        for _, path in sorted(complete_in(self.folder).items()):
            try:
                read_record(path)
            except TapasError:
                found.append(path)
        return found

    def best(self) -> int | None:
        """The last step saved with `best=True`; None if there is none.

        Raises DataError or UsageError if a newer checkpoint is damaged or of a newer version, as
        it might be the best.
        """
        for step, path in sorted(complete_in(self.folder).items(), reverse=True):
            try:
                if read_record(path)["best"]:
                    return step
            except (DataError, UsageError) as error:
                raise type(error)(
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
        everything: bool = True,
        to_train: bool = True,
    ) -> Checkpoint:
        """Load the checkpoint of `step`, by default the newest, and verify its checksums.

        Any number of processes may have saved it. For tables in `ranges`, such as
        "model.head.table", only these rows are loaded, for others all rows, by id. With several
        `ranks` all of them must call this; they share the work of verifying. Unless `everything`
        is to be verified, only some blocks of files above 64 MB are. Unless it is `to_train`, the
        state of row optimizers is not read, and rows on the CPU that are in one file, in order of
        their ids, are memory-mapped. Raises DataError if a file is damaged, UsageError if there
        is no such checkpoint.
        """
        with ranks.share_errors():
            step, folder = self.find(step)
            _check_same_step("load", ranks.gather_numbers("load a checkpoint", step))
        record, problem = {}, None
        try:
            record = verify(
                folder, reader=ranks.rank, num_readers=ranks.size, everything=everything
            )
        except TapasError as error:
            problem = [isinstance(error, DataError), str(error)]
        for each in ranks.gather_json("check a checkpoint", problem):
            if each is not None:
                is_damaged, words = each
                if not is_damaged:
                    raise UsageError(words)
                other = self._other_than(step) if ranks.rank == 0 else None
                raise DataError(f"{words} {ranks.gather_json('offer another', other)[0]}")
        tensors = read_dense(folder, device)
        tensors |= read_rows(folder, record, ranges or {}, device=device, to_train=to_train)
        return _checkpoint(step, folder, record, tensors)

    def load_rows(
        self,
        step: int | None,
        ranges: Mapping[str, RowRange],
        *,
        reader: int = 0,
        num_readers: int = 1,
    ) -> Checkpoint:
        """Load only the rows in `ranges` of the checkpoint of `step`, by default the newest.

        If `num_readers` processes load at the same time, they share the work of verifying; this is
        number `reader` of them.
        """
        step, folder, record = self._verified(step, reader, num_readers)
        return _checkpoint(step, folder, record, read_rows(folder, record, ranges, only_these=True))

    def load_dense(
        self, step: int | None = None, *, reader: int = 0, num_readers: int = 1
    ) -> Checkpoint:
        """Load all tensors of the checkpoint except rows.

        Verifies its share of the files, as in `load_rows`; all of them if `num_readers` is 1.
        """
        step, folder, record = self._verified(step, reader, num_readers)
        return _checkpoint(step, folder, record, read_dense(folder))

    def _verified(
        self, step: int | None, reader: int, num_readers: int
    ) -> tuple[int, Path, dict[str, Any]]:
        step, folder = self.find(step)
        try:
            return step, folder, verify(folder, reader=reader, num_readers=num_readers)
        except DataError as error:
            raise DataError(f"{error} {self._other_than(step)}") from None

    def find(self, step: int | None = None) -> tuple[int, Path]:
        """Return `step`, by default the newest, and its folder; UsageError if there is none."""
        complete = complete_in(self.folder)
        if not complete:
            raise UsageError(f"there is no checkpoint in {self.folder}.")
        step = max(complete) if step is None else step
        if step not in complete:
            known = ", ".join(map(str, sorted(complete)))
            raise UsageError(
                f"there is no checkpoint of step {step} in {self.folder}. Known steps: {known}."
            )
        return step, complete[step]

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def _begin(self, ranks: Ranks, step: int, held: ExitStack) -> Path:
        """Create the folder to write into on rank 0; an error there is raised on all ranks."""
        name, number, problem = "", 0, None
        if ranks.rank == 0:
            try:
                make_folder(self.folder)
                self._tidy()
                private = held.enter_context(private_folder(self._path(step)))
                (private / UNFINISHED).mkdir()
                name = private.name
            except OSError as error:
                number, problem = error.errno or errno.EIO, error
        gathered = ranks.gather_json("save a checkpoint", [step, name, number])
        _check_same_step("save", gathered)
        _, name, number = gathered[0]
        if number:
            raise _os_error(ranks, 0, number, os.strerror(number)) from problem
        return Path(self.folder, name, UNFINISHED)

    def _finish(self, step: int, folder: Path, record: Mapping[str, Any], ranks: Ranks) -> None:
        """Write state.json and rename the folder; an error on rank 0 is raised on all ranks."""
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
            aside = f".{target.name}.{secrets.token_hex(8)}.replaced"
            os.rename(target, self.folder / aside)
        os.rename(folder, target)
        sync(self.folder)

    def _give_up(self, step: int, error: BaseException, ranks: Ranks) -> None:
        """Remove a checkpoint that could not be saved; all ranks raise the same error."""
        if ranks.rank == 0:
            with suppress(OSError):
                self._tidy()
        if isinstance(error, OSError):
            words = self._cannot_save(step, error) if ranks.rank == 0 else None
            raise UsageError(ranks.gather_json("give up a checkpoint", words)[0]) from error

    def _tidy(self) -> None:
        """Restore a checkpoint that was not replaced, and remove what killed processes left."""
        remove_leftovers(self.folder)
        for path in sorted(self.folder.glob(".step-*.replaced")):
            if match := FINISHED.fullmatch(path.name):
                target = self._path(int(match["replaced"]))
                if target.exists():
                    self._remove(path)
                else:
                    os.rename(path, target)

    def _prune(self, step: int) -> None:
        """Remove later steps, and all others but the last, the best and unreadable ones."""
        complete = complete_in(self.folder)
        for later in [other for other in complete if other > step]:
            self._remove(complete.pop(later))
        kept = set(sorted(complete)[-self.keep :])
        for old in sorted(complete, reverse=True):
            try:
                if read_record(complete[old])["best"]:
                    kept.add(old)
                    break
            except TapasError:  # it may be the best
                kept.add(old)
        for old in complete.keys() - kept:
            self._remove(complete[old])

    def _remove(self, path: Path) -> None:
        """Rename first, so that a partly removed checkpoint never looks complete."""
        with private_folder(path) as private:
            os.rename(path, private / "removed")

    def _other_than(self, step: int) -> str:
        return suggest_other({n: at for n, at in complete_in(self.folder).items() if n != step})

    def _cannot_save(self, step: int, error: OSError) -> str:
        cure = "Free some space" if error.errno in FULL else "Make sure that it can be written to"
        left = f"There is no valid checkpoint. {cure} and continue with --resume."
        if (valid := newest_valid(complete_in(self.folder))) is not None:
            left = f"Checkpoint step {valid} is valid. {cure} and continue with --resume."
        words = error.strerror or str(error)
        return f"cannot save checkpoint step {step} into {self.folder}: {words}. {left}"


def _checkpoint(
    step: int, folder: Path, record: Mapping[str, Any], tensors: dict[str, Tensor]
) -> Checkpoint:
    return Checkpoint(
        step,
        tensors,
        record["state"],
        record["numbers"],
        record["optimizers"],
        f"{folder}, saved by tapas {record['tapas']}",
    )


def _write(
    folder: Path,
    rows: RowsFile,
    dense: dict[str, Tensor],
    ranks: Ranks,
    servers: Servers | None,
) -> list[Written]:
    """Write rows, and `dense` on rank 0; returns what all processes have written.

    Raises OSError on all ranks if one could not write.
    """
    written, problem = [], None
    try:
        written = [] if servers is None else _ask(servers, folder)
        written.append(rows.write(folder, ranks.rank + len(written)))
        if ranks.rank == 0:
            written.append(Written(-1, write_file(folder, DENSE, dense), {}))
    except OSError as error:
        problem = error
    gathered = _agree(ranks, "write a checkpoint", problem, written)
    every = [Written(*each) for found in gathered for each in found]
    return sorted(every, key=lambda each: DENSE in each.files)  # rows first, by process


def _ask(servers: Servers, folder: Path) -> list[Written]:
    """Let servers write into `folder`; OSError if one of them could not."""
    found: list[Written] = []
    for answer in sorted(servers(folder), key=lambda answer: answer.number):
        if isinstance(answer, WriteFailed):
            raise OSError(answer.errno, f"{answer.words} on server {answer.number}")
        found.append(answer)
    numbers = [each.number for each in found]
    if not numbers:
        raise UsageError("no server has written rows; expected at least one.")
    if numbers != list(range(len(numbers))):
        raise UsageError(
            f"servers {', '.join(map(str, numbers))} have written rows; expected each of 0 to "
            f"{len(numbers) - 1} once. Give every server a different number."
        )
    return found


def _agree(ranks: Ranks, verb: str, problem: OSError | None, value: Any) -> list[Any]:
    """Gather `value` from all ranks; if one has a problem, all raise the first one."""
    reason = None
    if problem is not None:
        reason = problem.errno or errno.EIO, problem.strerror or str(problem)
    gathered = ranks.gather_json(verb, [reason, value])
    for rank, (failed, _) in enumerate(gathered):
        if failed is not None:
            raise _os_error(ranks, rank, *failed) from problem
    return [found for _, found in gathered]


def _os_error(ranks: Ranks, rank: int, number: int, words: str) -> OSError:
    return OSError(number, words if ranks.size == 1 else f"{words} on rank {rank}")


def _check_same_step(verb: str, gathered: Sequence[Sequence[Any]]) -> None:
    """Raise UsageError on all ranks if their steps, the first numbers, differ."""
    steps = [row[0] for row in gathered]
    if len(set(steps)) > 1:
        raise UsageError(
            f"the ranks would {verb} different steps: {', '.join(map(str, steps))} (by rank). All "
            f"must {verb} the same step, in a folder that all of them share."
        )
