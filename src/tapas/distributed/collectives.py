"""The ranks that share a table: who they are, and the few ways in which they meet.

Every meeting is one collective of torch.distributed. What goes wrong in one is told as a
`PeerError` that names the rank at fault: one that died, hangs, has stopped with an error of
its own, or makes other calls than the rest.
"""

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tapas.distributed.peer_failure import blame, leave_last_words, named
from tapas.errors import PeerError, UsageError

T = TypeVar("T")
give_way = getattr(os, "sched_yield", lambda: time.sleep(0))  # not every system has it
CPU = torch.device("cpu")
HEADER = 5  # numbers of an announcement: the verb, three more, and one for each rank
AWAKE_SECONDS = 0.005
SMALL = 1024  # numbers whose sum is not worth two meetings
REFUSED = -1  # in place of a verb: this rank's input was bad


class Ranks:
    """This process among those of `group`, by default all of them.

    Counts what it sends and how long meetings take. `last_checkpoint` is what a `PeerError`
    offers to go on from; whoever saves one says so here.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not (dist.is_available() and dist.is_initialized()):
            raise UsageError(
                "there are no ranks to share a table: torch.distributed is not initialized. Start "
                "the program with torchrun, and call tapas.join_ranks() first."
            )
        whole: Any = dist.group.WORLD
        self.group: Any = whole if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise UsageError("this process is not in the group that shares the table.")
        self._store = store_of(self.group)
        self._backend = str(dist.get_backend(self.group))
        self._turns = 0
        self.meetings = 0
        self.sent_bytes = 0
        self.seconds = 0.0
        self.last_checkpoint: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        return self  # a copy of a model meets the same others

    def __reduce__(self) -> tuple[Any, ...]:
        if self.group is not dist.group.WORLD:
            raise UsageError(
                "a table of some of the ranks cannot be pickled: nobody could tell which ranks "
                "they are. Save a checkpoint, and build the table anew."
            )
        return ranks_of, (None,)

    def announce(
        self, verb: str, *numbers: int, each: Sequence[int] | None = None
    ) -> list[list[int]]:
        """What every rank brings to `verb`: its `numbers`, by rank.

        With `each`, a number for every rank, the last one is what that rank has for this one.
        An error on every rank if they are not all at the same verb, or if one refused.
        """
        name = zlib.crc32(verb.encode())
        heard = self._announce([name, *numbers], each)
        refused = tuple(rank for rank, row in enumerate(heard) if row[0] == REFUSED)
        if refused:
            raise PeerError(
                f"{named(refused)} refused the input of `{verb}`; the error there says why. "
                "Nothing was changed here.",
                refused,
            )
        lost = tuple(rank for rank, row in enumerate(heard) if row[0] != name)
        if lost:
            raise self._astray(lost, verb)
        return [
            row[1 : 1 + len(numbers)] + ([row[-1]] if each is not None else []) for row in heard
        ]

    def _astray(self, lost: tuple[int, ...], verb: str) -> PeerError:
        return PeerError(
            f"{named(lost)} came to another meeting than `{verb}`, where rank {self.rank} is. "
            "All ranks must make the same calls in the same order.",
            lost,
        )

    def share(self, verb: str, value: Any) -> list[Any]:
        """The `value` of every rank, by rank; anything that JSON can hold.

        As text, so that nothing that a rank receives can run code in it.
        """
        text = json.dumps(value).encode()
        sizes = [row[0] for row in self.announce(verb, len(text))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device="cpu")
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        heard = self.gather(padded.to(self.device)).cpu().numpy()
        return [json.loads(row[:size].tobytes()) for row, size in zip(heard, sizes, strict=True)]

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error in here, before the first meeting, is told to those who wait in that meeting."""
        before = self.meetings
        try:
            yield
        except PeerError:
            raise
        except Exception:
            if self.meetings == before:
                with suppress(PeerError):
                    self._announce([REFUSED])
            raise

    def _announce(self, row: list[int], each: Sequence[int] | None = None) -> list[list[int]]:
        """Short rows are filled up: a rank that refuses does not know what the others bring."""
        filled = row + [0] * (HEADER - 1 - len(row))
        rows = [[*filled, 0 if each is None else each[rank]] for rank in range(self.size)]
        self.meetings += 1
        sent = torch.tensor(rows, dtype=torch.int64, device=self.device)
        heard: list[list[int]] = self._exchange(sent).tolist()
        return heard

    def in_turn(self, what: str, work: Callable[[], T]) -> T:
        """`work()` on rank 0, then on all others, however long the first takes."""
        self._turns += 1
        key = f"turn/{self._turns}"
        if self.rank == 0:
            try:
                result = work()
            except BaseException:
                self._store.set(key, "failed")
                raise
            self._store.set(key, "done")
            return result
        try:
            while not self._store.check([key]):
                time.sleep(0.05)
            failed = self._store.get(key) == b"failed"
        except RuntimeError as error:
            raise self._blame(error) from error
        if failed:
            raise PeerError(f"rank 0 could not {what}; the error there says why.", (0,))
        return work()

    def gather(self, tensor: Tensor) -> Tensor:
        """(m, *shape) the `tensor` of every rank; shapes must agree."""
        if self._by_gloo(tensor):  # whose all_gather goes round in a ring and takes longer
            return self.exchange("gathered", tensor.expand(self.size, *tensor.shape))
        whole = tensor.new_empty(self.size, *tensor.shape)
        with self.meeting((self.size - 1) * tensor.nbytes):
            all_gather(whole.view(-1), tensor.contiguous().view(-1), group=self.group)
        return whole

    def exchange(self, what: str, parts: Tensor) -> Tensor:
        """(m, N, ...) what every rank has for this one, of `parts` (m, N, ...), one for each.

        Parts carry the name of `what` they are: a rank that has failed in between, and goes on
        with another meeting, must not have its message taken for this one.
        """
        name = torch.tensor([zlib.crc32(what.encode())], dtype=torch.int64, device=parts.device)
        label = name.view(torch.uint8).expand(self.size, 8)
        content = label[:, :0]
        if parts.numel():
            content = parts.contiguous().view(self.size, -1).view(torch.uint8)
        received = self._exchange(torch.cat([label, content], dim=1))
        labels = received[:, :8].reshape(-1).clone().view(torch.int64)
        lost = tuple((labels != name).nonzero()[:, 0].tolist())
        if lost:
            raise self._astray(lost, what)
        return received[:, 8:].reshape(-1).clone().view(parts.dtype).view(parts.shape)

    def _exchange(self, parts: Tensor) -> Tensor:
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        with self.meeting(parts.nbytes // self.size * (self.size - 1)):
            work = dist.all_to_all_single(
                received, parts.contiguous(), group=self.group, async_op=True
            )
            self._finish(work)
        return received

    def exchange_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """The same for `rows` (N, ...) of which send[r] go to rank r, in the order of ranks."""
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        away = len(rows) - send[self.rank]
        with self.meeting(away * rows[:1].nbytes):
            work = dist.all_to_all_single(
                received, rows.contiguous(), [*receive], [*send], group=self.group, async_op=True
            )
            self._finish(work)
        return received

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks of `tensor` (N,), the same bits on each."""
        if not self._by_gloo(tensor):
            with self.meeting(2 * tensor.nbytes * (self.size - 1) // self.size):
                dist.all_reduce(tensor, group=self.group)
            return tensor
        # gloo's all_reduce takes 2.5 times as long as an exchange for few numbers, and 1.5 for many
        if len(tensor) < SMALL:
            return self.gather(tensor).sum(dim=0)
        width = -(-len(tensor) // self.size)
        padded = torch.nn.functional.pad(tensor, (0, width * self.size - len(tensor)))
        part = self.exchange("summed", padded.view(self.size, width)).sum(dim=0)
        return self.gather(part).view(-1)[: len(tensor)]

    def _finish(self, work: Any) -> None:
        """Wait for it; at first awake, as to be woken takes longer than most messages."""
        until = time.perf_counter() + AWAKE_SECONDS
        while not work.is_completed() and time.perf_counter() < until:
            give_way()
        work.wait()

    @property
    def device(self) -> torch.device:
        """Where small tensors must be to travel."""
        if "gloo" in self._backend:
            return CPU
        return torch.device("cuda", torch.cuda.current_device())

    def _by_gloo(self, tensor: Tensor) -> bool:
        """Whether gloo carries `tensor`: a group may have another backend for GPUs."""
        return "nccl" not in self._backend or tensor.device.type == "cpu"

    @contextmanager
    def meeting(self, sent: int) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise self._blame(error) from error
        finally:
            self.seconds += time.perf_counter() - start
        self.sent_bytes += sent

    def last_words(self, error: BaseException) -> None:
        """Tell those who will miss this rank why it stops."""
        leave_last_words(self._store, self.rank, error)

    def _blame(self, error: RuntimeError) -> PeerError:
        last = self.last_checkpoint
        return blame(error, self.group, self._store, self.rank, self.size, last_checkpoint=last)


# names that torch has changed since 2.8
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def store_of(group: Any) -> Any:
    """Where the ranks of `group` leave notes for each other."""
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return dist.distributed_c10d._get_process_group_store(group)


_met: list[Ranks] = []  # whoever asks for all ranks gets the same counters and checkpoint


def ranks_of(group: dist.ProcessGroup | Ranks | None) -> Ranks:
    """`group` if it is that already, else the ranks of it, by default all."""
    if isinstance(group, Ranks):
        return group
    if group is not None:
        return Ranks(group)
    if not _met or not dist.is_initialized() or _met[0].group is not dist.group.WORLD:
        _met[:] = [Ranks()]
    return _met[0]
