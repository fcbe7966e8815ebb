"""`GroupRanks`: the collectives by which the ranks of a torch.distributed group share tables.

A failed collective raises a `PeerError` that names the rank at fault: one that died, hangs,
stopped with an error, or called something else than the others.
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
from tapas.errors import DataError, PeerError, UsageError
from tapas.optim.gradient_queue import GradientQueue
from tapas.tables.ranks import GlobalBatch, Ranks

T = TypeVar("T")
yield_cpu = getattr(os, "sched_yield", lambda: time.sleep(0))  # not every system has it
CPU = torch.device("cpu")
HEADER = 5  # numbers in a header: the operation, three more, and one for the receiving rank
SPIN_SECONDS = 0.005
SMALL = 1024  # sums of fewer numbers take one collective instead of two
MISTAKES = {"UsageError": UsageError, "DataError": DataError}  # the same error on every rank
REFUSED = -1  # instead of the operation: this rank raised an error


class GroupRanks(Ranks):
    """The ranks of `group`, by default all.

    Counts the bytes sent and the time spent in collectives. Set `last_checkpoint` after saving
    one: errors name it.
    """

    is_distributed = True

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not (dist.is_available() and dist.is_initialized()):
            raise UsageError(
                "sharing a table needs ranks, but torch.distributed is not initialized. Start the "
                "program with torchrun, and call tapas.join_ranks() first."
            )
        world: Any = dist.group.WORLD
        self.group: Any = world if group is None else group
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
                "a table shared by a subgroup of the ranks cannot be pickled. Save a checkpoint, "
                "and build the table again."
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
            gradients.input()  # raises before the other ranks wait for this one
            trains = torch.is_grad_enabled() and gradients.anchor.requires_grad
        return gather_batch(self, "batch", query, target, context, agreed=step, trains=trains)

    def check_equal(self, what: str, value: object) -> None:
        words = re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # addresses in a default repr
        gathered = self.gather_numbers(f"compare {what}", zlib.crc32(words.encode()))
        check_equal(f"{what}, compared by checksum", [row[0] for row in gathered])

    def mean(self, number: int) -> float:
        return sum(row[0] for row in self.gather_numbers("mean", number)) / self.size

    def sum_numbers(self, *numbers: float) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        summed: list[float] = self.sum(total).tolist()
        return summed

    def gather_rows(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        carried = rows.to(self.device) if rows.is_cpu else rows  # NCCL cannot send CPU tensors
        padded = carried.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = carried
        return unpad(self.gather(padded), sizes).to(rows.device)

    def gather_numbers(
        self, operation: str, *numbers: int, each: Sequence[int] | None = None
    ) -> list[list[int]]:
        """The `numbers` of every rank, by rank.

        With `each`, one number for every rank, the last number of a row is the one for this rank.
        Raises PeerError on every rank if they are not all at `operation`, or if one failed.
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
            f"{rank_names(lost)} made another call while rank {self.rank} is in `{operation}`. All "
            "ranks must make the same calls in the same order.",
            lost,
        )

    def gather_json(self, operation: str, value: Any) -> list[Any]:
        """The JSON `value` of every rank, by rank; not pickled, so it cannot run code."""
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
        """All headers have the same length: a rank that fails does not know what others send."""
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
            except BaseException as error:
                kind = next((k for k, known in MISTAKES.items() if isinstance(error, known)), "")
                self._store.set(key, json.dumps([kind, str(error)]))
                raise
            self._store.set(key, "")
            return result
        try:
            while not self._store.check([key]):
                time.sleep(0.05)
            failure = self._store.get(key)
        except RuntimeError as error:
            raise self._peer_error(error) from error
        if failure:
            kind, words = json.loads(failure)
            if kind in MISTAKES:
                raise MISTAKES[kind](words)
            raise PeerError(f"rank 0 could not {what}; the error there says why.", (0,))
        return work()

    def gather(self, tensor: Tensor) -> Tensor:
        """The `tensor` of every rank, (m, *shape); shapes must be equal."""
        if self._by_gloo(tensor):  # its all_gather is slower, because it uses a ring
            return self.exchange("gathered", tensor.expand(self.size, *tensor.shape))
        gathered = tensor.new_empty(self.size, *tensor.shape)
        with self.collective((self.size - 1) * tensor.nbytes):
            all_gather(gathered.view(-1), tensor.contiguous().view(-1), group=self.group)
        return gathered

    def refuse(self, parts: Tensor) -> None:
        """Call instead of an `exchange` of this shape, to tell the others of an error."""
        with suppress(PeerError):
            self._exchange_named(REFUSED, parts)

    def exchange(self, what: str, parts: Tensor) -> Tensor:
        """Send parts[r] of `parts` (m, N, ...) to rank r; returns the received parts, (m, N, ...).

        Each part carries the name `what`, so that the message of a rank that has failed and
        continued with another call is not taken for this one.
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
        """The names (m,) and the bytes that the ranks have sent."""
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
        """Send send[r] of `rows` (N, ...) to rank r, in the order of ranks; returns what came."""
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
        # gloo's all_reduce takes 2.5 times as long as an exchange for few numbers, 1.5 for many
        if len(tensor) < SMALL:
            return self.gather(tensor).sum(dim=0)
        width = -(-len(tensor) // self.size)
        padded = torch.nn.functional.pad(tensor, (0, width * self.size - len(tensor)))
        part = self.exchange("summed", padded.view(self.size, width)).sum(dim=0)
        return self.gather(part).view(-1)[: len(tensor)]

    def _finish(self, work: Any) -> None:
        """Wait for `work`; spin at first, because waking up takes longer than most messages."""
        until = time.perf_counter() + SPIN_SECONDS
        while not work.is_completed() and time.perf_counter() < until:
            yield_cpu()
        work.wait()

    @property
    def device(self) -> torch.device:
        """The device from which the backend can send small tensors."""
        if "gloo" in self._backend:
            return CPU
        return torch.device("cuda", torch.cuda.current_device())

    def _by_gloo(self, tensor: Tensor) -> bool:
        """Whether gloo sends `tensor`; a group may have another backend for GPUs."""
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
        """Store why this rank stops, for the errors of the others."""
        record_failure(self._store, self.rank, error)

    def _peer_error(self, error: RuntimeError) -> PeerError:
        last = self.last_checkpoint
        return peer_error(
            error, self.group, self._store, self.rank, self.size, last_checkpoint=last
        )


def _refused(ranks: tuple[int, ...], operation: str) -> PeerError:
    return PeerError(
        f"{rank_names(ranks)} raised an error in `{operation}`; see the message there. Nothing was "
        "changed here.",
        ranks,
    )


# names that torch has changed since 2.8
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def store_of(group: Any) -> Any:
    """The key-value store that the ranks of `group` share."""
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return dist.distributed_c10d._get_process_group_store(group)


_of_groups: dict[Any, GroupRanks] = {}  # one object for each group, so that counters are shared


def ranks_in(group: dist.ProcessGroup | GroupRanks | None) -> GroupRanks:
    """The `GroupRanks` of `group`, by default of all ranks."""
    if isinstance(group, GroupRanks):
        return group
    world: Any = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if world not in _of_groups:  # torch.distributed was initialized again
        _of_groups.clear()
        _of_groups[world] = GroupRanks()
    wanted = world if group is None else group
    if wanted not in _of_groups:
        _of_groups[wanted] = GroupRanks(wanted)
    return _of_groups[wanted]
