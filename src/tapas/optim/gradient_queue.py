"""Gradients of class rows between `backward` and the step that applies them.

A table's rows are too many for a dense `.grad`. In its place every table owns one parameter of
shape (1,), the anchor, that stands for all of its rows:

    anchor.grad = norm of the queued row gradients of all ranks, summed for each id

What torch does to the anchor takes effect on the rows: `clip_grad_norm_` counts their norm, a
GradScaler finds infinities in them and unscales them, `requires_grad = False` freezes them. A
step multiplies the queued gradients by anchor.grad / (the norm that was recorded).
"""

import math
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

import tapas.native as native
from tapas.errors import UsageError
from tapas.optim.row_store import RowGradients, RowStore
from tapas.optim.row_updates import RowUpdate
from tapas.torch_modes import outside_graphs

if TYPE_CHECKING:
    from tapas.optim.optimizers import RowOptimizer

QueuedGradients: TypeAlias = tuple[RowGradients, float | None]  # with the sum of squares if known
ROUNDING = 1e-6  # the mean of equal norms over ranks may differ from them by rounding
NO_OPTIMIZER = (
    "the class rows have gradients from an earlier backward pass, but no optimizer: the rows would "
    "never move. Create one beside the encoder's, tapas.optim.RowwiseAdagrad(head, lr=0.1), and "
    "step both, or combine both with tapas.optim.Combined(...). To train no rows, call "
    "head.requires_grad_(False)."
)
SECOND_OPTIMIZER = (
    "another optimizer also has the table's anchor among its parameters, as with "
    "model.parameters(). A GradScaler would unscale the rows twice, and that optimizer's zero_grad "
    "drops their gradients before they are used. Give it encoder.parameters(), or combine both: "
    "tapas.optim.Combined(torch.optim.AdamW(model.parameters()), tapas.optim.RowwiseAdagrad(head))."
)
NOT_FINITE = (
    "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning rate, "
    "clip gradients, or use a torch.amp.GradScaler, which skips such a step."
)


class GradientQueue(nn.Module):
    """The row gradients of one table that wait for an optimizer's step.

    With a fused update (`row_optimizer=` of the table) nothing waits: rows move at the end of
    the backward pass. A copy of the module starts empty, without an optimizer.
    """

    anchor: nn.Parameter
    state: dict[str, Tensor]  # of the optimizer that moves the rows; see RowStore.move_rows
    moved: dict[str, Tensor] | None  # the state of the last step, which needs no check again

    def __init__(self, rows: RowStore, device: torch.device | None = None):
        super().__init__()
        self.set_table(rows)
        self.anchor = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device))
        self.__dict__.update(_empty_state())
        self._set_hook()

    _rows: "weakref.ref[RowStore] | None"
    _lock: threading.Lock
    _pending: dict[tuple[int, int], list[QueuedGradients]]  # of passes not yet at the anchor
    _mark: float | None  # value of the anchor at the first call; another optimizer would change it
    _grad: "weakref.ref[Tensor] | None"  # the tensor anchor.grad to which `_norm` was written
    num_passes: int  # backward passes that brought gradients
    _warned: bool
    _summed: RowGradients | None
    _norm: float  # of `_summed`, as it was written to anchor.grad
    _applied: bool  # whether a step has been made with `_summed`
    _held: list[QueuedGradients] | None  # inside of `hold`
    _optimizer: "weakref.ref[RowOptimizer] | None"
    _hooked: "weakref.ref[nn.Parameter] | None"

    def __setattr__(self, name: str, value: Any) -> None:
        # all but the anchor are plain attributes, which a module sets ten times as slowly
        if name == "anchor":
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    # A table may be most of the memory, so it must be freed with its last reference and not
    # when Python collects cycles: everything here refers to it weakly.

    def set_table(self, rows: RowStore) -> None:
        """Set the table of these gradients; a table calls it again after it was copied."""
        self._rows = weakref.ref(rows)

    @property
    def has_table(self) -> bool:
        return self._rows is not None and self._rows() is not None

    @property
    def rows(self) -> RowStore:
        found = None if self._rows is None else self._rows()
        if found is None:
            raise UsageError(
                "the table of these gradients no longer exists. Keep a reference to the table or "
                "its head."
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **_empty_state(), "_rows": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._set_hook()  # copies of a parameter have none

    def _set_hook(self) -> None:
        me, self._lock = weakref.ref(self), threading.Lock()

        def collect(anchor: Tensor) -> None:
            if (queue := me()) is not None:
                queue._collect(anchor)

        self.anchor.register_post_accumulate_grad_hook(collect)  # type: ignore[no-untyped-call]
        self._hooked = weakref.ref(self.anchor)

    def input(self) -> Tensor:
        """The anchor, for an autograd Function whose `backward` hands its gradients to `add`."""
        self.follow_rows()
        if self._pending and torch._C._current_graph_task_id() == -1:
            self._forget_failed()
        anchor = self.anchor
        if torch.is_grad_enabled() and anchor.requires_grad:
            if anchor.grad is None:
                self._summed = None  # zero_grad was called
            self._check_use(anchor)
        return anchor

    def _forget_failed(self) -> None:
        """Drop what a failed backward pass of this thread left; it is in none now."""
        me = threading.get_ident()
        with self._lock:
            for key in [key for key in self._pending if key[0] == me]:
                del self._pending[key]

    def _check_use(self, anchor: Tensor) -> None:
        if self._hooked is None or self._hooked() is not anchor:
            raise UsageError(
                "the anchor of the class rows was replaced by another parameter, as FSDP does: "
                "their gradients would be lost. Exclude it: fully_shard(model, "
                "ignored_params=tapas.optim.anchors(model))."
            )
        if anchor._backward_hooks and not self._warned:
            self._warned = True
            warnings.warn(
                "the anchor of the class rows has a hook, which sees a gradient of 0 and cannot "
                "change any row. Register no hooks on tapas.optim.anchors(model); to scale the "
                "gradients of rows, scale anchor.grad after backward.",
                stacklevel=2,
            )
        rows = self.rows
        rows.check_training()
        if rows.row_optimizer is not None:
            return
        moved = self._was_moved(anchor)
        if self.optimizer is None and (moved or self.has_unapplied):
            raise UsageError(NO_OPTIMIZER)
        if moved:
            raise UsageError(SECOND_OPTIMIZER)

    def _was_moved(self, anchor: Tensor) -> bool:
        """Whether another optimizer has changed the anchor since the first call.

        On the CPU by its value. Reading a value from a GPU would synchronize, so there by the
        tensor's version, which misses writes to `anchor.data`.
        """
        mark = anchor.item() if anchor.is_cpu else float(anchor._version)
        if self._mark is None:
            self._mark = mark
        return mark != self._mark

    @property
    def has_unapplied(self) -> bool:
        """Whether there are gradients that no step has applied yet."""
        return self._summed is not None and not self._applied

    @property
    def optimizer(self) -> "RowOptimizer | None":
        """The newest optimizer of `tapas.optim` for these rows, if it still exists."""
        return None if self._optimizer is None else self._optimizer()

    @staticmethod
    def accumulates(anchor: Any) -> bool | None:
        """Whether the current backward pass reaches `anchor`, the anchor's node in the graph.

        `torch.autograd.grad` of other tensors and `backward(inputs=...)` without the anchor do
        not, and must not move rows. None if `autograd.grad` was asked for the anchor's gradient.
        """
        try:
            return bool(torch._C._will_engine_execute_node(anchor))
        except RuntimeError:
            return None

    def anchor_grad(self, accumulates: bool | None, *gradients: Tensor) -> Tensor:
        """The gradient that a Function returns for the anchor: 0, filled in after the pass.

        For `autograd.grad` of the anchor, the norm of `gradients`. Assigning that to anchor.grad
        by hand moves no rows; the next step raises an error.
        """
        if accumulates is not None:
            return self.anchor.new_zeros(1)
        norms = torch.stack([torch.linalg.vector_norm(part) for part in gradients])
        norm: Tensor = torch.linalg.vector_norm(norms).to(self.anchor).view(1)
        return norm

    def add(
        self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor, square: float | None = None
    ) -> None:
        """Queue gradients (N, D) and (N,) of rows `ids` (N,), in a pass that `accumulates`.

        `square` is the sum of all squares if it is known and ids do not repeat; biases that the
        table does not have then have gradients of 0.
        """
        if square is None and not self.rows.has_bias:
            # else the norm would count gradients that move nothing
            bias_grad = torch.zeros_like(bias_grad)
        with self._lock:
            found = self._pending.setdefault(_this_pass(), [])
            found.append((RowGradients(ids, weight_grad, bias_grad), square))

    @outside_graphs
    def _collect(self, anchor: Tensor) -> None:
        """Called at the end of a backward pass, when the anchor gets its gradient of 0.

        Several passes may run at once, in threads or nested.
        """
        with self._lock:
            found = self._pending.pop(_this_pass(), [])
            if found:
                self.num_passes += 1
                self._take(anchor, found)

    def _take(self, anchor: Tensor, found: list[QueuedGradients]) -> None:
        if self.rows.row_optimizer is not None:
            self._move_now(self.rows.row_optimizer, found)
            return
        grad: Any = anchor.grad  # which this pass has created or added to
        if self._summed is not None and float(grad) != 0:  # 0: zero_grad was called
            found.insert(0, (self._summed.times(self._factor(float(grad))), None))
        self._summed, square = sum_rows(found, self.rows.num_rows)
        self._applied = False
        norm = math.sqrt(self.rows.sum_over_ranks(square, self._formula))
        grad.fill_(norm if norm <= torch.finfo(grad.dtype).max else math.inf)
        self._norm, self._grad = float(grad), weakref.ref(grad)

    def _formula(self) -> str:
        """The optimizer's formula as text, for ranks to compare."""
        return "" if self.optimizer is None else repr(self.optimizer.update_of(self.anchor))

    def update(self, gradients: RowGradients) -> None:
        """Apply one step with only `gradients`, now or at the end of `hold`."""
        if self.rows.row_optimizer is not None:
            self._move_now(self.rows.row_optimizer, [(gradients, None)])
            return
        if self.optimizer is None:
            raise UsageError(
                "these rows have no optimizer yet. Create one, tapas.optim.RowwiseAdagrad(table, "
                "lr=0.1), or build the table with "
                "row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1)."
            )
        if not gradients.is_finite():
            raise UsageError(NOT_FINITE)
        self.optimizer.move(self, gradients)

    def _move_now(self, update: RowUpdate, found: Sequence[QueuedGradients]) -> None:
        """Move rows by a fused update, each id once."""
        for gradients, square in found:
            if not (gradients.is_finite() if square is None else math.isfinite(square)):
                raise UsageError(NOT_FINITE)
        if self._held is not None:  # copies: the caller may reuse its tensors
            self._held.extend((RowGradients(*(p.clone() for p in each)), s) for each, s in found)
            return
        self.rows.move_rows(update, concatenate(found), None)

    def summed(self) -> RowGradients | None:
        """The queued gradients, each id once, scaled by the changes made to anchor.grad."""
        if self._summed is None or self.anchor.grad is None:
            return None
        return self._summed.times(self._factor(float(self.anchor.grad)))

    def prepare_step(self) -> RowGradients | None:
        """`summed` for a step; an error if not finite, or if another optimizer has the anchor."""
        if self.has_unapplied and self._was_moved(self.anchor):
            raise UsageError(SECOND_OPTIMIZER)
        if self._is_by_hand(self.anchor.grad):
            raise UsageError(
                "anchor.grad was assigned: it is only the norm of the gradients of class rows, "
                "which come from `backward` alone. Change it in place, as `grad.mul_(0.5)` does, "
                "and assign gradients only to other parameters."
            )
        if self._summed is None or self.anchor.grad is None:
            return None
        if not (math.isfinite(self._norm) and math.isfinite(float(self.anchor.grad))):
            raise UsageError(NOT_FINITE)
        return self.summed()

    def reset_mark(self) -> None:
        """Accept the anchor's present value: another optimizer may have changed it before."""
        self._mark = None

    def _is_by_hand(self, grad: Tensor | None) -> bool:
        """Whether `grad` is not the tensor to which the norm was written.

        A view of a larger tensor is fine: DistributedDataParallel puts gradients into buckets.
        """
        if grad is None or (self._grad is not None and self._grad() is grad):
            return False
        in_bucket = grad.untyped_storage().nbytes() > grad.nbytes
        return float(grad) != 0 and (self._summed is None or not in_bucket)

    def mark_applied(self) -> None:
        """Note that a step has applied the queue; it stays until `zero_grad`, as a `.grad` does."""
        self._applied = True

    def _factor(self, grad: float) -> float:
        """The factor by which anchor.grad was scaled since its norm was recorded."""
        factor = grad / self._norm if self._norm else 1.0
        return 1.0 if abs(factor - 1) < ROUNDING else factor

    def discard(self) -> None:
        """Drop the queued gradients."""
        self._summed = None
        self._pending.clear()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Apply fused updates made inside as one at the end; none after an exception.

        Without a fused update this does nothing: a step of an optimizer is one update anyway.
        """
        if self._held is not None:
            raise UsageError("this table is already accumulating; leave that block first.")
        self._held = []
        try:
            yield
            held, self._held = self._held, None
            if held and self.rows.row_optimizer is not None:
                self._move_now(self.rows.row_optimizer, held)
        finally:
            self._held = None

    def _apply(self, fn: Any, recurse: bool = True) -> "GradientQueue":
        """Move queue and optimizer state with the module; nothing here is ever cast."""
        device = fn(self.anchor.detach()[:0]).device
        if device != self.anchor.device:
            # a tensor on "meta" has no values to copy
            super()._apply(lambda t: torch.zeros(1, device=device) if t.is_meta else t.to(device))  # type: ignore[no-untyped-call]
            if self._hooked is None or self._hooked() is not self.anchor:
                self._set_hook()
            self._mark = None
            self._grad = None if self.anchor.grad is None else weakref.ref(self.anchor.grad)
            if self._summed is not None:
                self._summed = RowGradients(*(part.to(device) for part in self._summed))
            for name, part in self.state.items():
                if name != "step":
                    self.state[name] = part.to(device)
        return self

    def _save_to_state_dict(self, *args: Any) -> None:
        """Save nothing: the anchor's value has no meaning."""

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load nothing, but move to rows that have just been loaded."""
        self.follow_rows()

    def follow_rows(self) -> None:
        """Move the anchor to the device of the rows, after these were loaded on "meta"."""
        if self.anchor.is_meta and self.rows.device.type != "meta":
            self.to_empty(device=self.rows.device)


def _this_pass() -> tuple[int, int]:
    """The current thread and its innermost backward pass."""
    return threading.get_ident(), torch._C._current_graph_task_id()


def _empty_state() -> dict[str, Any]:
    return {
        "_pending": {},
        "_summed": None,
        "_norm": 0.0,
        "_applied": False,
        "_held": None,
        "_optimizer": None,
        "_hooked": None,
        "_mark": None,
        "_grad": None,
        "num_passes": 0,
        "_warned": False,
        "state": {},
        "moved": None,
    }


def concatenate(parts: Sequence[QueuedGradients]) -> RowGradients:
    """All `parts`, one after the other."""
    if len(parts) == 1:
        return parts[0][0]
    columns = zip(*(gradients for gradients, _ in parts), strict=True)
    return RowGradients(*(torch.cat(column) for column in columns))


def sum_rows(parts: Sequence[QueuedGradients], num_rows: int) -> tuple[RowGradients, float]:
    """Distinct ids of `parts` with summed gradients, and the sum of all squares."""
    if len(parts) == 1 and parts[0][1] is not None:
        return parts[0][0], parts[0][1]
    ids, weight, bias = concatenate(parts)
    if native.readable(weight, bias):
        *summed, square = native.sum_rows(ids, weight, bias, num_rows)
        return RowGradients(*summed), square
    distinct, slot = torch.unique(ids, return_inverse=True)
    weight = weight.new_zeros(len(distinct), weight.shape[1]).index_add_(0, slot, weight)
    bias = bias.new_zeros(len(distinct)).index_add_(0, slot, bias)
    square = torch.linalg.vector_norm(weight, dtype=torch.float64).square()
    square += torch.linalg.vector_norm(bias, dtype=torch.float64).square()
    return RowGradients(distinct, weight, bias), float(square)


def queues_in(modules: nn.Module | Iterable[nn.Module]) -> list[GradientQueue]:
    """The queues of all tables in `modules`, each once."""
    several = [modules] if isinstance(modules, nn.Module) else modules
    found = (part for module in several for part in module.modules())
    return list(dict.fromkeys(part for part in found if isinstance(part, GradientQueue)))


def anchors(model: nn.Module) -> set[nn.Parameter]:
    """The parameters that stand for class rows, as for `ignored_params` of fully_shard."""
    return {queue.anchor for queue in queues_in(model)}
