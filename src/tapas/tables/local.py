"""The class table of one process, which can also behave like m shards."""

import math
from collections.abc import Callable
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

import tapas.native as native
from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.native.memory import prefer_huge_pages
from tapas.rng import stream
from tapas.shapes import (
    all_finite,
    check_positive,
    check_query,
    check_shape,
)
from tapas.tables.base import ClassTable
from tapas.tables.checks import check_top
from tapas.tables.exhaustive import best_classes, log_of_all
from tapas.tables.placement import Placement
from tapas.tables.rounding import round_to_bfloat16
from tapas.tables.row_optimizers import RowOptimizer, native_rule
from tapas.tables.second_pass import Question, SecondPass, joined, keep_of, share_of


class LocalTable(ClassTable):
    """All rows in this process.

    Args:
        row_optimizer: moves the rows in `backward`, touched ones only. None makes `weight`
            and `bias` parameters with sparse gradients, for torch.optim.SGD, Adagrad or
            SparseAdam.
        dtype: of the rows; bfloat16 rows are rounded stochastically when they move.
            Optimizer state and all arithmetic are float32.
        bias: True (start at 0), False, or the (C,) values to start at; the log of the
            class frequencies is a good start.
        num_shards: emulate so many shards: each keeps the best n/m of its part of the
            pool, as the distributed engines do.
        placement: of classes on shards, "random" by `seed` or "contiguous"; see `Placement`.
    """

    exact_reads = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        row_optimizer: RowOptimizer | None = None,
        dtype: torch.dtype = torch.float32,
        bias: bool | Tensor = True,
        num_shards: int = 1,
        placement: str = "random",
        seed: int = 0,
        device: torch.device | str | None = None,
    ):
        super().__init__(check_positive("num_classes", num_classes), check_positive("dim", dim))
        if dtype not in (torch.float32, torch.bfloat16):
            raise UsageError(f"dtype must be float32 or bfloat16, got {dtype}.")
        if not isinstance(row_optimizer, RowOptimizer | None):
            raise UsageError(
                "row_optimizer must be one such as tapas.SGD(lr=0.1), or None for sparse "
                f"gradients, got {row_optimizer!r}."
            )
        self.row_optimizer = row_optimizer
        self.num_updates = 0
        self.seed = index(seed)
        self.placement = Placement(num_classes, num_shards, seed=seed, kind=placement)
        weight = torch.empty(num_classes, dim, dtype=dtype, device="cpu")
        prefer_huge_pages(weight)
        self.draw_rows(weight)
        self.has_bias = bias is not False
        start = start_bias(bias, num_classes)
        for name, value in (("weight", weight.to(device)), ("bias", start.to(device, dtype))):
            if row_optimizer is None:
                self.register_parameter(name, nn.Parameter(value))
                continue
            self.register_buffer(name, value)
            for key, spec in row_optimizer.state_specs().items():
                width = value[:1].numel() if spec.wide else 1
                state = value.new_empty((len(value), width), dtype=torch.float32)
                prefer_huge_pages(state)
                self.register_buffer(f"{name}_{key}", state.fill_(spec.initial))
        if row_optimizer is None and not self.has_bias:
            self.bias.requires_grad_(False)

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,), or (0,) without biases

    def draw_rows(self, weight: Tensor) -> None:
        """Fill `weight` (C, D) with what rows start at."""
        bound = 1 / math.sqrt(self.dim)  # as nn.Linear
        weight.uniform_(-bound, bound, generator=stream(self.seed, "rows"))

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def num_shards(self) -> int:
        return self.placement.num_shards

    def read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight.index_select(0, ids)
        bias = self.bias.index_select(0, ids) if self.has_bias else weight.new_zeros(len(ids))
        if weight.dtype == torch.float32:
            return weight, bias
        return weight.float(), bias.float()

    def pick(self, ask: SecondPass) -> Candidates:
        if ask.is_settled:
            return ask.pool
        num_shards = self.placement.num_shards
        if num_shards == 1:
            return self.keep_of(ask.pool, ask.pool.ids, ask.noise, ask.keep, ask.question)
        shard = self.placement.shard(ask.pool.ids)
        parts = []
        for j in range(num_shards):
            part, noise = ask.part((shard == j).nonzero()[:, 0])
            share = share_of(ask.keep, num_shards, j)
            parts.append(self.keep_of(part, part.ids, noise, share, ask.question))
        return joined(parts)

    def keep_of(
        self, part: Candidates, places: Tensor, noise: Tensor, share: int, question: Question
    ) -> Candidates:
        """The `share` of `part` that the rule picks; its classes are in the rows `places`."""
        return keep_of(
            part,
            places,
            noise,
            share,
            question,
            weight=self.weight,
            bias=self.stored_bias(),
            read=self.read,
        )

    def write(self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor) -> None:
        if self.row_optimizer is None:
            raise UsageError(
                "this table has no row optimizer: its rows are parameters, moved by torch.optim. "
                "Pass row_optimizer=tapas.RowwiseAdagrad() for rows that `update` moves."
            )
        self.num_updates += 1
        rule = native_rule(self.row_optimizer, self.num_updates)
        if rule is not None and native.writable(*self.buffers(recurse=False)):
            self._move_natively(*rule, "weight", ids, weight_grad)
            if self.has_bias:
                kind, (lr, _, *rest) = rule  # a bias does not decay
                self._move_natively(kind, (lr, 0.0, *rest), "bias", ids, bias_grad[:, None])
            return
        # Adagrad and Adam are not linear: gradients of a repeated id are summed first
        ids, slot = torch.unique(ids, return_inverse=True)
        self._move("weight", ids, slot, weight_grad, self.row_optimizer)
        if self.has_bias:
            self._move("bias", ids, slot, bias_grad[:, None], self.row_optimizer)

    def _move_natively(
        self, kind: int, numbers: tuple[float, ...], name: str, ids: Tensor, grad: Tensor
    ) -> None:
        keys = self.row_optimizer.state_specs() if self.row_optimizer else ()
        state = [getattr(self, f"{name}_{key}") for key in keys]
        native.update(kind, numbers, getattr(self, name), ids, grad, state)

    def _move(
        self, name: str, ids: Tensor, slot: Tensor, grad: Tensor, optimizer: RowOptimizer
    ) -> None:
        """One step of the rows `ids` (N,) of `name`; row i of `grad` belongs to ids[slot[i]]."""
        grad = grad.new_zeros(len(ids), grad.shape[1]).index_add_(0, slot, grad)
        stored = getattr(self, name).view(self.num_classes, -1)
        rows = stored.index_select(0, ids).float()
        state = {key: getattr(self, f"{name}_{key}") for key in optimizer.state_specs()}
        touched = {key: whole.index_select(0, ids) for key, whole in state.items()}
        if optimizer.weight_decay and name == "weight":
            grad.add_(rows, alpha=optimizer.weight_decay)
        optimizer.step(rows, grad, touched, self.num_updates)
        if stored.dtype == torch.bfloat16:
            rows = round_to_bfloat16(rows, stream(self.seed, "rounding", name, self.num_updates))
        stored.index_copy_(0, ids, rows.to(stored.dtype))
        for key, whole in state.items():
            whole.index_copy_(0, ids, touched[key])

    @torch.no_grad()
    def top(self, query: Tensor, k: int, *, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        query, exclude = check_top(self, query, k, exclude)
        return best_classes(self.weight.detach(), self.stored_bias(), query, k, exclude)

    @torch.no_grad()
    def log_partition(self, query: Tensor) -> Tensor:
        query = check_query(query, self.dim)
        return log_of_all(self.weight.detach(), self.stored_bias(), query)

    def stored_bias(self) -> Tensor | None:
        return self.bias.detach() if self.has_bias else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "LocalTable":
        """A cast, as by `model.bfloat16()`, is one of the rows: their state stays float32."""
        if fn(self.weight.detach()[:0]).dtype == torch.float16:
            raise UsageError(
                "class rows cannot be float16: small updates would be lost. Use bfloat16, whose "
                "updates are rounded stochastically, or leave the head out of `.half()`."
            )
        state = {k: v for k, v in self._buffers.items() if k not in ("weight", "bias")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in state.items():
            after = self._buffers[name]
            if before is not None and after is not None and after.dtype != before.dtype:
                self._buffers[name] = before.to(after.device)
        return self

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "num_updates": self.num_updates,
            "seed": self.seed,
            "num_shards": self.placement.num_shards,
            "placement": self.placement.kind,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.num_updates, self.seed = state["num_updates"], state["seed"]
        kind = state.get("placement", "random")  # version 0.1 knew no other
        self.placement = Placement(self.num_classes, state["num_shards"], seed=self.seed, kind=kind)

    def extra_repr(self) -> str:
        shards = f", {self.placement.num_shards} shards" if self.placement.num_shards > 1 else ""
        return (
            f"{self.num_classes} classes, dim={self.dim}, {self.weight.dtype}{shards}, "
            f"row_optimizer={self.row_optimizer}"
        )


def start_bias(bias: bool | Tensor, num_classes: int) -> Tensor:
    """(C,) float32 to start at: zeros for True, (0,) for False, or the values given."""
    if isinstance(bias, bool):
        return torch.zeros(num_classes if bias else 0, dtype=torch.float32, device="cpu")
    if bias is None:
        raise UsageError("bias must be True, False or the (C,) values to start at, got None.")
    start = torch.as_tensor(bias, dtype=torch.float32, device="cpu").detach().clone()
    check_shape({"C": num_classes}, bias=(start, "C"))
    if not all_finite(start):
        raise UsageError(
            f"bias starts class {int((~start.isfinite()).nonzero()[0])} at NaN or inf. For the log "
            "of frequencies, give classes never seen a count: counts.clamp(min=1)."
        )
    return start
