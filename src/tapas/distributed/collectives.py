"""The ranks of a torch.distributed group, and the few collectives by which they share tables.

What goes wrong in a collective is raised as a `PeerError` that names the rank at fault: one that
died, hangs, has stopped with an error of its own, or makes other calls than the rest.
"""

import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tapas.distributed.global_batch import check_equal, gather_batch, unpad
from tapas.distributed.peer_failure import peer_error, rank_names, record_failure
from tapas.errors import PeerError, UsageError
from tapas.optim.gradient_queue import GradientQueue
from tapas.tables.ranks import GlobalBatch, Ranks

T = TypeVar("T")
yield_cpu = getattr(os, "sched_yield", lambda: time.sleep(0))  # not every system has it
CPU = torch.device("cpu")
HEADER = 5  # numbers that are gathered at once: the operation, three more, and one for each rank
SPIN_SECONDS = 0.005
SMALL = 1024  # numbers whose sum is not worth two collectives
REFUSED = -1  # in place of the name of a call: what this rank was given is bad


class GroupRanks(Ranks):
    """This process among those of `group`, by default all of them.

    Counts what it sends and how long collectives take. `last_checkpoint` is what a `PeerError`
    offers to go on from; whoever saves one says so here.
    """

    is_distributed = True

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
        self._num_main_first = 0
        self.num_collectives = 0
        self.sent_bytes = 0
        self.seconds = 0.0
        self.last_checkpoint: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "GroupRanks":
        return self  # a copy of a model has the same peers

    def __reduce__(self) -> tuple[Any, ...]:
        if self.group is not dist.group.WORLD:
            raise UsageError(
                "a table of some of the ranks cannot be pickled: nobody could tell which ranks "
                "they are. Save a checkpoint, and build the table anew."
            )
        return ranks_in, (None,)

    def batch(
        self,
        query: Tensor,
        target: Tensor,
        context: Tensor | None = None,
        *,
        step: int = 0,
        gradients: GradientQueue | None = None,
    ) -> GlobalBatch:
        trains = False
        if gradients is not None:
            gradients.input()  # what it refuses is sent to those who wait
            trains = torch.is_grad_enabled() and gradients.anchor.requires_grad
        return gather_batch(self, "batch", query, target, context, agreed=step, trains=trains)

    def check_equal(self, what: str, value: object) -> None:
        words = re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # of objects without words of their own
        gathered = self.gather_numbers(f"compare {what}", zlib.crc32(words.encode()))
        check_equal(f"{what}, here by checksum", [row[0] for row in gathered])

    def mean(self, number: int) -> float:
        return sum(row[0] for row in self.gather_numbers("mean", number)) / self.size

    def sum_numbers(self, *numbers: float) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        summed: list[float] = self.sum(total).tolist()
        return summed

    def gather_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        carried = rows.to(self.device) if rows.is_cpu else rows  # NCCL alone carries none of CPUs
        padded = carried.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = carried
        return unpad(self.gather(padded), sizes).to(rows.device)

    def gather_numbers(
        self, operation: str, *numbers: int, each: Sequence[int] | None = None
    ) -> list[list[int]]:
        """What every rank brings to `operation`: its `numbers`, by rank.

        With `each`, a number for every rank, the last one is what that rank has for this one.
        An error on every rank if they are not all at the same operation, or if one refused.
        """
        name = zlib.crc32(operation.encode())
        gathered = self._gather_header([name, *numbers], each)
        refused = tuple(rank for rank, row in enumerate(gathered) if row[0] == REFUSED)
        if refused:
            raise _refused(refused, operation)
        lost = tuple(rank for rank, row in enumerate(gathered) if row[0] != name)
        if lost:
            raise self._out_of_step(lost, operation)
        return [
            row[1 : 1 + len(numbers)] + ([row[-1]] if each is not None else []) for row in gathered
        ]

    def _out_of_step(self, lost: tuple[int, ...], operation: str) -> PeerError:
        return PeerError(
            f"{rank_names(lost)} made another call than `{operation}`, where rank {self.rank} is. "
            "All ranks must make the same calls in the same order.",
            lost,
        )

    def gather_json(self, operation: str, value: Any) -> list[Any]:
        """The `value` of every rank, by rank; anything that JSON can hold.

        As text, so that nothing that a rank receives can run code in it.
        """
        text = json.dumps(value).encode()
        sizes = [row[0] for row in self.gather_numbers(operation, len(text))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device="cpu")
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        gathered = self.gather(padded.to(self.device)).cpu().numpy()
        return [json.loads(row[:size].tobytes()) for row, size in zip(gathered, sizes, strict=True)]

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        before = self.num_collectives
        try:
            yield
        except PeerError:
            raise
        except Exception:
            if self.num_collectives == before:
                with suppress(PeerError):
                    self._gather_header([REFUSED])
            raise

    def _gather_header(self, row: list[int], each: Sequence[int] | None = None) -> list[list[int]]:
        """Short rows are filled up: a rank that refuses does not know what the others bring."""
        filled = row + [0] * (HEADER - 1 - len(row))
        rows = [[*filled, 0 if each is None else each[rank]] for rank in range(self.size)]
        self.num_collectives += 1
        sent = torch.tensor(rows, dtype=torch.int64, device=self.device)
        gathered: list[list[int]] = self._exchange(sent).tolist()
        return gathered

    def main_first(self, what: str, work: Callable[[], T]) -> T:
        self._num_main_first += 1
        key = f"turn/{self._num_main_first}"
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
            raise self._peer_error(error) from error
        if failed:
            raise PeerError(f"rank 0 could not {what}; the error there says why.", (0,))
        return work()

    def gather(self, tensor: Tensor) -> Tensor:
        """(m, *shape) the `tensor` of every rank; shapes must agree."""
        if self._by_gloo(tensor):  # whose all_gather goes round in a ring and takes longer
            return self.exchange("gathered", tensor.expand(self.size, *tensor.shape))
        whole = tensor.new_empty(self.size, *tensor.shape)
        with self.collective((self.size - 1) * tensor.nbytes):
            all_gather(whole.view(-1), tensor.contiguous().view(-1), group=self.group)
        return whole

    def refuse(self, parts: Tensor) -> None:
        """In place of an `exchange` of tensors of this shape: the others are told of an error."""
        with suppress(PeerError):
            self._exchange_named(REFUSED, parts)

    def exchange(self, what: str, parts: Tensor) -> Tensor:
        """(m, N, ...) what every rank has for this one, of `parts` (m, N, ...), one for each.

        Parts carry the name of `what` they are: a rank that has failed in between, and goes on
        with another call, must not have its message taken for this one.
        """
        name = zlib.crc32(what.encode())
        labels, received = self._exchange_named(name, parts)
        if refused := tuple((labels == REFUSED).nonzero()[:, 0].tolist()):
            raise _refused(refused, what)
        lost = tuple((labels != name).nonzero()[:, 0].tolist())
        if lost:
            raise self._out_of_step(lost, what)
        return received.reshape(-1).clone().view(parts.dtype).view(parts.shape)

    def _exchange_named(self, name: int, parts: Tensor) -> tuple[Tensor, Tensor]:
        """The names (m,) that came with what every rank has sent, and the bytes of that."""
        label = torch.tensor([name], dtype=torch.int64, device=parts.device).view(torch.uint8)
        label = label.expand(self.size, 8)
        content = label[:, :0]
        if parts.numel():
            content = parts.contiguous().view(self.size, -1).view(torch.uint8)
        received = self._exchange(torch.cat([label, content], dim=1))
        return received[:, :8].reshape(-1).clone().view(torch.int64), received[:, 8:]

    def _exchange(self, parts: Tensor) -> Tensor:
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        with self.collective(parts.nbytes // self.size * (self.size - 1)):
            work = dist.all_to_all_single(
                received, parts.contiguous(), group=self.group, async_op=True
            )
            self._finish(work)
        return received

    def exchange_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """The same for `rows` (N, ...) of which send[r] go to rank r, in the order of ranks."""
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        away = len(rows) - send[self.rank]
        with self.collective(away * rows[:1].nbytes):
            work = dist.all_to_all_single(
                received, rows.contiguous(), [*receive], [*send], group=self.group, async_op=True
            )
            self._finish(work)
        return received

    def sum(self, tensor: Tensor) -> Tensor:
        if not self._by_gloo(tensor):
            with self.collective(2 * tensor.nbytes * (self.size - 1) // self.size):
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
        until = time.perf_counter() + SPIN_SECONDS
        while not work.is_completed() and time.perf_counter() < until:
            yield_cpu()
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
    def collective(self, sent: int) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise self._peer_error(error) from error
        finally:
            self.seconds += time.perf_counter() - start
        self.sent_bytes += sent

    def record_failure(self, error: BaseException) -> None:
        """Leave word for those who will wait for this rank why it stops."""
        record_failure(self._store, self.rank, error)

    def _peer_error(self, error: RuntimeError) -> PeerError:
        last = self.last_checkpoint
        return peer_error(
            error, self.group, self._store, self.rank, self.size, last_checkpoint=last
        )


def _refused(ranks: tuple[int, ...], operation: str) -> PeerError:
    return PeerError(
        f"{rank_names(ranks)} refused the input of `{operation}`; the error there says why. "
        "Nothing was changed here.",
        ranks,
    )


# names that torch has changed since 2.8
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def store_of(group: Any) -> Any:
    """Where the ranks of `group` leave notes for each other."""
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return dist.distributed_c10d._get_process_group_store(group)


_of_groups: dict[Any, GroupRanks] = {}  # who asks for a group again gets the same counters


def ranks_in(group: dist.ProcessGroup | GroupRanks | None) -> GroupRanks:
    """`group` if it is that already, else the ranks of it, by default all."""
    if isinstance(group, GroupRanks):
        return group
    world: Any = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if world not in _of_groups:  # the groups of a world that is gone
        _of_groups.clear()
        _of_groups[world] = GroupRanks()
    wanted = world if group is None else group
    if wanted not in _of_groups:
        _of_groups[wanted] = GroupRanks(wanted)
    return _of_groups[wanted]
