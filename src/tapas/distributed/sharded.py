"""`ShardedTable`: class rows sharded over ranks. A step sends queries and answers, not rows.

All ranks must call the same methods in the same order, each with its own examples or ids, any
number of them. Only `select` takes the same arguments on every rank.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from tapas.candidates import Candidates
from tapas.distributed.collectives import GroupRanks, ranks_in
from tapas.distributed.global_batch import (
    ReturnAnswers,
    check_equal,
    combine,
    gather_batch,
    gather_candidates,
    merge_topk_of_ranks,
    return_answers,
)
from tapas.distributed.row_exchange import Route, fetch_rows, send_gradients
from tapas.errors import UsageError
from tapas.exact_state import bits_float, float_bits
from tapas.losses import target_costs
from tapas.optim.gradient_queue import NOT_FINITE
from tapas.optim.row_store import RowGradients
from tapas.optim.row_updates import RowUpdate
from tapas.shapes import check_positive, check_query
from tapas.tables.base import ClassTable, SendGradients
from tapas.tables.exhaustive import log_sum_rows, scaled, topk_by_id
from tapas.tables.gradients import sampled_logits
from tapas.tables.local import check_row_optimizer, initial_bias
from tapas.tables.placement import KINDS, Placement, RowRange
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass, classes_at, select_here, shard_quota
from tapas.tables.shard import Shard, load_rows


class ShardedTable(ClassTable):
    """A class table whose rows are sharded over the ranks of torch.distributed.

    Call `tapas.join_ranks()` or `torch.distributed.init_process_group` first.

    Args:
        num_classes, dim: size of the table on all ranks together, C rows of D numbers.
        row_optimizer: None if an optimizer of `tapas.optim` moves the rows, each rank its own;
            a fused one moves them inside `backward`.
        dtype, bias: as for `LocalTable`; equal on all ranks.
        placement: "random" (by `seed`) spreads frequent classes evenly over shards;
            "contiguous" keeps ids in order.
        seed: of the initial rows and of the placement.
        device: of this rank's rows; torch's default device if left out.
        group: the ranks that share the table; by default all.

    Rows are neither parameters nor buffers, so that wrappers such as DDP and FSDP do not try to
    make them equal on all ranks. `tapas.save_checkpoint` saves them.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        row_optimizer: RowUpdate | None = None,
        dtype: torch.dtype = torch.float32,
        bias: bool | Tensor = True,
        placement: str = "random",
        seed: int = 0,
        device: torch.device | str | None = None,
        group: dist.ProcessGroup | GroupRanks | None = None,
    ):
        num_classes, dim = check_positive("num_classes", num_classes), check_positive("dim", dim)
        super().__init__(num_classes, dim)
        self.ranks = ranks_in(group)
        with self.ranks.share_errors():
            check_row_optimizer(row_optimizer)
            self.placement = Placement(num_classes, self.ranks.size, seed=seed, kind=placement)
            start = initial_bias(bias, num_classes) if isinstance(bias, Tensor) else bias
            settings = (num_classes, dim, row_optimizer, dtype, placement, seed, bias is not False)
            self.ranks.check_equal("the table", settings)
        if isinstance(start, Tensor):
            start = start[self.placement.ids_of(self.ranks.rank)]
        self.__dict__["shard"] = Shard(  # hidden from `modules()`
            self.placement,
            self.ranks.rank,
            dim,
            row_optimizer=row_optimizer,
            dtype=dtype,
            bias=start,
            device=device,
        )
        self.gradients.to(self.device)

    shard: Shard
    ranks: GroupRanks

    @property
    def row_optimizer(self) -> RowUpdate | None:
        return self.shard.row_optimizer

    @row_optimizer.setter
    def row_optimizer(self, update: RowUpdate | None) -> None:
        self.shard.row_optimizer = update

    @property
    def has_bias(self) -> bool:
        return self.shard.has_bias

    @property
    def num_rows(self) -> int:
        return self.shard.num_classes

    @property
    def device(self) -> torch.device:
        return self.shard.device

    @property
    def num_shards(self) -> int:
        return self.ranks.size

    def _select_here(self, pool: Candidates, second_pass: SecondPass) -> Candidates:
        position, mine = self._positions(pool.ids)
        here = mine.nonzero()[:, 0]
        quota = shard_quota(second_pass.keep, self.ranks.size, self.ranks.rank)
        part = second_pass.for_part(here, quota)
        return select_here(self.shard, classes_at(pool, here), position.index_select(0, here), part)

    def select(self, pool: Candidates, second_pass: SecondPass | None) -> Candidates:
        kept = super().select(pool, second_pass)
        if second_pass is None:
            return kept
        gathered = self.ranks.gather_numbers("select", len(kept))
        return gather_candidates(self.ranks, kept, tuple(row[0] for row in gathered))

    def sampled_logits(
        self, batch: GlobalBatch, pool: Candidates, second_pass: SecondPass | None = None
    ) -> tuple[Tensor, Tensor]:
        """As in `ClassTable`; each shard selects and sums among its own rows."""
        with torch.no_grad():
            try:
                kept = self._kept_here(pool, second_pass)
            except Exception:
                # instead of the answers that the others wait for
                size = (self.ranks.size, max(batch.sizes), batch.target.shape[1] + 1)
                self.ranks.refuse(batch.query.new_zeros(size))
                raise
            position, mine = self._positions(kept.ids)
            position, order = position[mine].sort()
            here = Candidates(position, kept.log_q[mine][order])
        target = batch.target
        place = self.placement.permute(target.clamp(min=0))
        owner = self.placement.shard_at(place)
        foreign = (target < 0) | (owner != self.ranks.rank)
        positions = (place - self.placement.start(self.ranks.rank)).masked_fill_(foreign, -1)
        rows = self.shard.stored_rows(positions, here.ids)
        positive, log_sum = sampled_logits(self.gradients, rows, batch.query, positions, here)
        found = torch.cat([positive, log_sum[:, None]], dim=1)
        found = ReturnAnswers.apply(found, batch.sizes, self.ranks)  # type: ignore[no-untyped-call]
        before = sum(batch.sizes[: self.ranks.rank])
        owner = owner[before : before + batch.sizes[self.ranks.rank]]
        return combine(found, owner, batch.num_targets)

    def sampled_costs(
        self,
        batch: GlobalBatch,
        pool: Candidates,
        second_pass: SecondPass | None = None,
        counted: Tensor | None = None,
        factor: float | None = None,
    ) -> Tensor:
        positive, log_sum = self.sampled_logits(batch, pool, second_pass)
        before, mine = sum(batch.sizes[: self.ranks.rank]), batch.sizes[self.ranks.rank]
        target = batch.target[before : before + mine, : batch.num_targets]
        costs = target_costs(positive, log_sum, counted, target < 0)
        return costs if factor is None else costs.sum() * factor

    def _positions(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of `ids` in this shard, and a mask of those that it has."""
        position = self.placement.permute(ids) - self.placement.start(self.ranks.rank)
        return position, (position >= 0) & (position < self.shard.num_classes)

    def _read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        distinct, where = torch.unique(ids, return_inverse=True)
        route = Route.find("rows", distinct, self.placement, self.ranks)
        weight, bias = self.shard._read(route.positions)
        found = route.from_owners(torch.cat([weight, bias[:, None]], dim=1))[where]
        return found[:, :-1], found[:, -1]

    def _fetch(
        self, ids: Tensor, *, biases: bool, trains: bool
    ) -> tuple[Tensor, Tensor, SendGradients]:
        return fetch_rows(
            self.shard,
            self.gradients.add,
            ids,
            self.placement,
            self.ranks,
            biases=biases,
            trains=trains,
            moves_at_once=self.row_optimizer is not None,
        )

    def move_rows(
        self, update: RowUpdate, gradients: RowGradients, state: dict[str, Tensor] | None
    ) -> None:
        self.shard.move_rows(update, gradients, state)
        if state is not None:
            state["layout"] = self.layout()

    @property
    def row_range(self) -> RowRange:
        return RowRange(self.placement, self.ranks.rank)

    def layout(self) -> Tensor:
        """(4,) rank, number of ranks, placement and its seed, to identify the rows of a state."""
        kind = KINDS.index(self.placement.kind)
        here = [self.ranks.rank, self.ranks.size, kind, self.placement.seed]
        return torch.tensor(here, device="cpu")

    def row_state_shapes(self, update: RowUpdate) -> dict[str, tuple[int, ...]]:
        return {**self.shard.row_state_shapes(update), "layout": (4,)}

    def row_state_layout(self) -> dict[str, Tensor]:
        return {"layout": self.layout()}

    def check_row_state(self, update: RowUpdate, state: Mapping[str, Tensor]) -> None:
        super().check_row_state(update, state)
        if state and state["layout"].tolist() != self.layout().tolist():
            raise UsageError(
                "this optimizer state belongs to another rank or layout (rank, ranks, placement, "
                f"seed): {state['layout'].tolist()}, expected {self.layout().tolist()}. Load what "
                "the same rank saved, or use tapas.save_checkpoint."
            )

    def sum_over_ranks(self, value: float, formula: Callable[[], str]) -> float:
        # with an operation name, so that a rank in another call is detected
        gathered = self.ranks.gather_numbers(
            "norm of gradients", float_bits(value), crc32(formula().encode())
        )
        check_equal("the optimizer of the rows, compared by checksum", [row[1] for row in gathered])
        return sum(bits_float(row[0]) for row in gathered)

    def _update(self, gradients: RowGradients) -> None:
        """Gradients that are not finite raise an error before any row has moved on any rank."""
        with self.ranks.share_errors():
            if not gradients.is_finite():
                raise UsageError(NOT_FINITE)
            here = send_gradients(gradients, self.placement, self.ranks)
        if here is not None:
            self.gradients.update(here)

    @torch.no_grad()
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        with self.ranks.share_errors():
            query, exclude = self._check_topk(query, k, exclude)
            # excluded classes are sent as targets
            batch = gather_batch(self.ranks, "topk", query, exclude, agreed=k)
        position, mine = self._positions(batch.target.clamp(min=0))
        excluded = position.masked_fill(~mine | (batch.target < 0), -1)
        start = self.placement.start(self.ranks.rank)
        value, ids = topk_by_id(
            self.shard.weight,
            self.shard.bias_or_none(),
            batch.query,
            min(k, self.shard.num_classes),
            excluded if bool((excluded >= 0).any()) else None,
            lambda rows: self.placement.ids_at(rows + start),
        )
        return merge_topk_of_ranks(self.ranks, value, ids, k, batch.sizes)

    @torch.no_grad()
    def log_partition(self, query: Tensor, *, scale: float = 1.0) -> Tensor:
        with self.ranks.share_errors():
            query = check_query(query, self.dim)
            batch = gather_batch(self.ranks, "log_partition", query)
        bias, everyone = scaled(self.shard.bias_or_none(), batch.query, scale)
        here = log_sum_rows(self.shard.weight, bias, everyone)
        return return_answers(self.ranks, here[:, None], batch.sizes)[:, :, 0].logsumexp(dim=0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.shard._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """The rows of this rank, under the names of a `LocalTable`."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, rows in self.row_tensors().items():
            destination[prefix + name] = rows

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, *lists: Any
    ) -> None:
        rows = self.row_tensors()
        rest = {k: v for k, v in state_dict.items() if k.removeprefix(prefix) not in rows}
        # rows last: an error about another rank must come before any is copied
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, *lists)
        load_rows(rows, state_dict, prefix, missing=lists[0], errors=lists[2])

    def row_tensors(self) -> dict[str, Tensor]:
        """Weights, biases and fused state of this rank, (N, ...) each, ordered by placement."""
        return self.shard.row_tensors()

    def state_numbers(self) -> dict[str, int | float]:
        """Those of a `LocalTable`, and rank and layout of the rows."""
        here = {
            "rank": self.ranks.rank,
            "num_shards": self.ranks.size,
            "placement": KINDS.index(self.placement.kind),
        }
        return {**self.shard.state_numbers(), "seed": self.placement.seed, **here}

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        names = ("rank", "num_shards", "placement", "seed")
        given, expected = (
            {name: found[name] for name in names} for found in (numbers, self.state_numbers())
        )
        if given != expected:
            raise UsageError(
                f"these rows belong to another rank or layout: {given}, expected {expected}. "
                "Load what the same rank saved, or use tapas.save_checkpoint."
            )
        self.shard.load_state_numbers({**numbers, "seed": self.shard.seed})

    def extra_repr(self) -> str:
        return (
            f"{self.num_classes} classes, dim={self.dim}, {self.shard.weight.dtype}, "
            f"{self.placement.kind} rows of rank {self.ranks.rank} of {self.ranks.size}, "
            f"row_optimizer={self.shard.row_optimizer}"
        )
