"""`LocalTable`: a class table in one process, which can emulate m shards."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

import tapas.native as native
from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.native.memory import prefer_huge_pages
from tapas.optim.row_store import RowGradients
from tapas.optim.row_updates import RowUpdate, StateSpec, round_to_bfloat16
from tapas.rng import check_seed, stream
from tapas.shapes import (
    all_finite,
    check_device,
    check_positive,
    check_query,
    check_shape,
)
from tapas.tables.base import ClassTable
from tapas.tables.exhaustive import log_sum_rows, scaled, topk_log_prob_rows, topk_rows
from tapas.tables.gradients import StoredRows
from tapas.tables.placement import Placement
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import (
    SecondPass,
    classes_at,
    merge_candidates,
    select_here,
    shard_quota,
)

PARTS = ("weight", "bias")


class LocalTable(ClassTable):
    """All rows in this process.

    Args:
        row_optimizer: None if an optimizer of `tapas.optim` moves the rows. A fused one, such as
            tapas.optim.RowwiseAdagrad.fused(lr=0.1), moves them inside `backward`.
        dtype: float32, or bfloat16 with stochastic rounding. Optimizer state and arithmetic are
            always float32.
        bias: True (starts at 0), False, or the (C,) initial values; the log of the class
            frequencies is a good choice.
        num_shards: number of shards to emulate: each keeps its n/m best classes of the pool, as
            on ranks or servers.
        placement: of classes on shards, "random" by `seed` or "contiguous"; see `Placement`.
        seed: of initial rows and of stochastic rounding; torch.manual_seed has no effect. Give
            the tables of one model different seeds.
        device: of the rows; by default torch's default device.
        independent_ranks: allow training with several ranks of torch.distributed, each with its
            own rows. Use `ShardedTable` to share rows.

    Rows are parameters with requires_grad=False, so that they are counted, averaged and saved
    with the rest of a model; to freeze them, freeze `gradients.anchor`.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        row_optimizer: RowUpdate | None = None,
        dtype: torch.dtype = torch.float32,
        bias: bool | Tensor = True,
        num_shards: int = 1,
        placement: str = "random",
        seed: int = 0,
        device: torch.device | str | None = None,
        independent_ranks: bool = False,
    ):
        num_classes, dim = check_positive("num_classes", num_classes), check_positive("dim", dim)
        super().__init__(num_classes, dim)
        if dtype not in (torch.float32, torch.bfloat16):
            raise UsageError(f"dtype must be float32 or bfloat16, got {dtype}.")
        self._row_optimizer = check_row_optimizer(row_optimizer)
        self._num_updates = 0
        self.seed, self.independent_ranks = check_seed(seed), independent_ranks
        self.placement = Placement(num_classes, num_shards, seed=seed, kind=placement)
        device = check_device("device", device)
        on_meta = device.type == "meta"  # without values
        weight = torch.empty(num_classes, dim, dtype=dtype, device=device if on_meta else "cpu")
        if not on_meta:
            prefer_huge_pages(weight)
            self.init_rows(weight)
        self._has_bias = bias is not False
        start = initial_bias(bias, num_classes, device="meta" if on_meta else "cpu")
        for name, value in (("weight", weight.to(device)), ("bias", start.to(device, dtype))):
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))
        self.gradients.to(device)
        if row_optimizer is not None:
            for name, state in self._new_state(row_optimizer).items():
                self.register_buffer(name, state)

    @property
    def weight(self) -> Tensor:
        """(C, D) the rows, detached. Write into it to change them; use `lookup` to train them."""
        return self._stored("weight")

    @property
    def bias(self) -> Tensor:
        """(C,), or (0,) without biases."""
        return self._stored("bias")

    def _stored(self, name: str) -> Tensor:
        parameter = self._parameters.get(name)
        if parameter is None:
            raise AttributeError(name)
        return parameter.detach()

    def _parameter(self, name: str) -> Tensor:
        """The same without `detach`, for kernels; another tensor if torch has renamed it."""
        found = self._parameters.get(name)
        return getattr(self, name) if found is None else found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARTS and isinstance(value, nn.Parameter):
            present = self._parameters.get(name)
            if present is not None and present.is_meta:  # a loader replaces meta tensors
                value = nn.Parameter(value.detach(), requires_grad=False)
            if value.requires_grad:
                raise UsageError(
                    f"the {name} of a class table cannot be a parameter that another module "
                    "trains, too. To share rows, have the model read its inputs from the table, "
                    f"head.table.lookup(ids); to set them, head.table.{name}.copy_(values)."
                )
            if present is not None and (value.shape, value.dtype) != (present.shape, present.dtype):
                raise UsageError(
                    f"{name} has shape {tuple(value.shape)} and {value.dtype}; expected "
                    f"{tuple(present.shape)} and {present.dtype}, as the table was built."
                )
        super().__setattr__(name, value)

    @property
    def has_bias(self) -> bool:
        return self._has_bias

    @property
    def row_optimizer(self) -> RowUpdate | None:
        return self._row_optimizer

    @row_optimizer.setter
    def row_optimizer(self, update: RowUpdate | None) -> None:
        before, update = self._row_optimizer, check_row_optimizer(update)
        if before is None or update is None:
            raise UsageError(
                "whether rows move in `backward` is decided when the table is built. Build it "
                f"with row_optimizer={'...' if before is None else 'None'} instead."
            )
        if layout(update.state_specs()) != layout(before.state_specs()):
            raise UsageError(
                f"the rows have the state of {before.name}, with which {update.name} cannot "
                f"continue. Build a table with {update.name}; to change a hyperparameter, set "
                "table.row_optimizer.lr = 0.05."
            )
        self._row_optimizer = update

    @property
    def num_updates(self) -> int:
        """Number of updates so far, by the fused update or by the current optimizer."""
        return self._num_updates or int(self.gradients.state.get("step", 0))

    @num_updates.setter
    def num_updates(self, count: int) -> None:
        self._num_updates = count

    def init_rows(self, weight: Tensor) -> None:
        """Fill `weight` (C, D) with initial values."""
        bound = 1 / math.sqrt(self.dim)  # as nn.Linear
        weight.uniform_(-bound, bound, generator=stream(self.seed, "rows"))

    @property
    def device(self) -> torch.device:
        weight = self._parameters.get("weight")
        return (self.weight if weight is None else weight).device

    @property
    def num_shards(self) -> int:
        return self.placement.num_shards

    def _read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight.index_select(0, ids)
        bias = self.bias.index_select(0, ids) if self.has_bias else weight.new_zeros(len(ids))
        if weight.dtype == torch.float32:
            return weight, bias
        return weight.float(), bias.float()

    def _kept_rows(
        self, batch: GlobalBatch, pool: Candidates, second_pass: SecondPass | None
    ) -> tuple[Candidates, StoredRows]:
        kept = self._kept_here(pool, second_pass)
        return kept, self.stored_rows(batch.target, kept.ids)

    def stored_rows(self, target: Tensor, kept: Tensor) -> StoredRows:
        """The rows of classes `target` (B, L) and `kept` (K,), where they are."""
        bias = self._parameter("bias") if self.has_bias else None
        return StoredRows(self._parameter("weight"), bias, target, kept)

    def _select_here(self, pool: Candidates, second_pass: SecondPass) -> Candidates:
        if self.num_shards == 1:
            return select_here(self, pool, pool.ids, second_pass)
        shard = self.placement.shard(pool.ids)
        parts = []
        for j in range(self.num_shards):
            positions = (shard == j).nonzero()[:, 0]
            part = classes_at(pool, positions)
            quota = shard_quota(second_pass.keep, self.num_shards, j)
            mine = second_pass.for_part(positions, quota)
            parts.append(select_here(self, part, part.ids, mine))
        return merge_candidates(parts)

    def move_rows(
        self, update: RowUpdate, gradients: RowGradients, state: dict[str, Tensor] | None
    ) -> None:
        if state is None:
            step = self._num_updates + 1
            self._move_all(update, gradients, self._state_buffers(update), step)
            self._num_updates = step
            return
        if not state:
            begin = torch.zeros((), dtype=torch.int64, device="cpu")
            state.update({"step": begin, **self._new_state(update)})
        self._move_all(update, gradients, state, int(state["step"]) + 1)
        state["step"] += 1

    def row_state_shapes(self, update: RowUpdate) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"step": ()}
        num_biases, one = (self.num_classes, 1) if self.has_bias else (0, 0)
        for key, spec in update.state_specs().items():
            shapes[f"weight_{key}"] = (self.num_classes, self.dim if spec.wide else 1)
            shapes[f"bias_{key}"] = (num_biases, one if spec.wide else 1)
        return shapes

    def _new_state(self, update: RowUpdate) -> dict[str, Tensor]:
        """The initial state of `update` for all rows and biases."""
        shapes, found = self.row_state_shapes(update), {}
        for part in ("weight", "bias"):
            for key, spec in update.state_specs().items():
                shape = shapes[f"{part}_{key}"]
                state = torch.empty(shape, dtype=torch.float32, device=self.device)
                prefer_huge_pages(state)
                found[f"{part}_{key}"] = state.fill_(spec.initial)
        return found

    def _state_buffers(self, update: RowUpdate) -> dict[str, Tensor]:
        """The current state of a fused update."""
        return {
            name: getattr(self, name)
            for key in update.state_specs()
            for name in (f"weight_{key}", f"bias_{key}")
        }

    def row_tensors(self) -> dict[str, Tensor]:
        """Weights, biases and fused state by name, (C, ...) each."""
        return {"weight": self.weight, "bias": self.bias, **dict(self.named_buffers())}

    def _move_all(
        self, update: RowUpdate, gradients: RowGradients, state: dict[str, Tensor], step: int
    ) -> None:
        ids, weight_grad, bias_grad = gradients
        rule, keys = update.native(step), update.state_specs()
        of_weight = [state[f"weight_{key}"] for key in keys]
        of_bias = [state[f"bias_{key}"] for key in keys]
        weight, bias = self._parameter("weight"), self._parameter("bias")
        if rule is not None and native.writable(weight, bias, *of_weight, *of_bias):
            biases = native.Biases(bias, bias_grad, of_bias) if self.has_bias else None
            native.update(*rule, weight, ids, weight_grad, of_weight, biases)
            return
        wanted = self.row_state_shapes(update)
        found = {name: tuple(part.shape) for name, part in state.items() if name in wanted}
        if any(wanted[name] != shape for name, shape in found.items()):
            raise UsageError(
                f"the state of these rows has shapes {found}, expected {wanted} for {update.name}. "
                "No row was changed."
            )
        # Adagrad and Adam are not linear: gradients of a repeated id are summed first
        ids, slot = torch.unique(ids, return_inverse=True)
        self._move("weight", ids, slot, weight_grad, update, state, step)
        if self.has_bias:
            self._move("bias", ids, slot, bias_grad[:, None], update, state, step)

    @torch.no_grad()
    def _move(
        self,
        name: str,
        ids: Tensor,
        slot: Tensor,
        grad: Tensor,
        update: RowUpdate,
        state: dict[str, Tensor],
        step: int,
    ) -> None:
        """Update rows `ids` (N,) of tensor `name`; row i of `grad` belongs to ids[slot[i]]."""
        grad = grad.new_zeros(len(ids), grad.shape[1]).index_add_(0, slot, grad)
        stored = self._stored(name).view(self.num_classes, -1)
        rows = stored.index_select(0, ids).float()
        stored_state = {key: state[f"{name}_{key}"] for key in update.state_specs()}
        touched = {key: part.index_select(0, ids) for key, part in stored_state.items()}
        if update.weight_decay and name == "weight":
            grad.add_(rows, alpha=update.weight_decay)
        update.apply(rows, grad, touched, step)
        if stored.dtype == torch.bfloat16:
            rows = round_to_bfloat16(rows, stream(self.seed, "rounding", name, step))
        stored.index_copy_(0, ids, rows.to(stored.dtype))
        for key, part in stored_state.items():
            part.index_copy_(0, ids, touched[key])

    def check_training(self) -> None:
        if "weight" not in self._parameters:  # torch has renamed it
            raise UsageError(
                "the rows of a class table cannot be parametrized, as by weight_norm: updates "
                "would go into a copy. Exclude the table from it, and build the table again."
            )
        for rows in self._parameters.values():
            if rows is not None and rows.requires_grad:  # only the anchor has a gradient
                rows.requires_grad = False
        if (size := num_processes()) > 1 and not self.independent_ranks:
            raise UsageError(
                f"this table is in one process, but torch.distributed has {size} ranks: each would "
                "train its own rows. Share them with TapasSoftmax(table=tapas.ShardedTable("
                "num_classes, dim), ...). If every rank should train a separate model, build "
                "the table with LocalTable(..., independent_ranks=True)."
            )

    @torch.no_grad()
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        query, exclude = self._check_topk(query, k, exclude)
        return topk_rows(self.weight, self.bias_or_none(), query, k, exclude)

    @torch.no_grad()
    def topk_log_prob(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        query, exclude = self._check_topk(query, k, exclude)
        bias, query = scaled(self.bias_or_none(), query, scale)
        return topk_log_prob_rows(self.weight, bias, query, k, exclude)

    @torch.no_grad()
    def log_partition(self, query: Tensor, *, scale: float = 1.0) -> Tensor:
        bias, query = scaled(self.bias_or_none(), check_query(query, self.dim), scale)
        return log_sum_rows(self.weight, bias, query)

    def bias_or_none(self) -> Tensor | None:
        return self.bias if self.has_bias else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Casts, as by `model.bfloat16()`, apply to the rows only; their state stays float32."""
        if fn(self.weight[:0]).dtype == torch.float16:
            raise UsageError(
                "class rows cannot be float16: small updates would be lost. Use bfloat16, which is "
                "rounded stochastically, or exclude the head from `.half()`."
            )
        return super()._apply(fn, recurse)

    def state_numbers(self) -> dict[str, int | float]:
        if self._row_optimizer is None:
            return {"seed": self.seed}
        return {
            "seed": self.seed, "num_updates": self._num_updates, "lr": self._row_optimizer.lr
        }  # fmt: skip

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        self.seed, mine = numbers["seed"], self.placement
        self.placement = Placement(
            self.num_classes, mine.num_shards, seed=self.seed, kind=mine.kind
        )
        if self._row_optimizer is not None:
            self._num_updates = numbers["num_updates"]
            self._row_optimizer = dataclasses.replace(self._row_optimizer, lr=numbers["lr"])

    def extra_repr(self) -> str:
        shards = f", {self.num_shards} shards" if self.num_shards > 1 else ""
        return (
            f"{self.num_classes} classes, dim={self.dim}, {self.weight.dtype}{shards}, "
            f"row_optimizer={self.row_optimizer}"
        )


def check_row_optimizer(update: RowUpdate | None) -> RowUpdate | None:
    if not isinstance(update, RowUpdate | None):
        raise UsageError(
            "row_optimizer must be a fused one, such as tapas.optim.RowwiseAdagrad.fused(lr=0.1), "
            f"or None to use an optimizer of tapas.optim, got {update!r}."
        )
    # a copy, so that the learning rates of two tables are independent
    return None if update is None else dataclasses.replace(update)


def layout(specs: dict[str, StateSpec]) -> dict[str, bool]:
    return {key: spec.wide for key, spec in specs.items()}


def initial_bias(bias: bool | Tensor, num_classes: int, *, device: str = "cpu") -> Tensor:
    """Initial biases (C,) float32: zeros for True, empty for False, else the given values."""
    if isinstance(bias, bool):
        return torch.zeros(num_classes if bias else 0, dtype=torch.float32, device=device)
    if bias is None:
        raise UsageError("bias must be True, False or the (C,) initial values, got None.")
    start = torch.as_tensor(bias, dtype=torch.float32, device="cpu").detach().clone()
    check_shape({"C": num_classes}, bias=(start, "C"))
    if not all_finite(start):
        raise UsageError(
            f"the bias of class {int((~start.isfinite()).nonzero()[0])} is NaN or inf. For the log "
            "of frequencies, give unseen classes a count: counts.clamp(min=1)."
        )
    return start


def num_processes() -> int:
    """The number of ranks of torch.distributed, whether or not they share a table."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1
