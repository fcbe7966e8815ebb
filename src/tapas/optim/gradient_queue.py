"""Gradients of class rows between `backward` and the step that applies them.

A table's rows are too many for a dense `.grad`. In its place every table owns one parameter of
shape (1,), the anchor, that stands for all of its rows:

    anchor.grad = norm of all row gradients that wait, each id summed, over all ranks

Whatever torch does to gradients it does to the anchor: `clip_grad_norm_` counts the rows, a
GradScaler finds infinities in them and unscales them, `requires_grad = False` freezes them. A
step multiplies what waits by anchor.grad / (the norm that was recorded).
"""

import math
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import tapas.native as native
from tapas.errors import UsageError
from tapas.optim.row_store import RowGradients, RowStore
from tapas.optim.row_updates import RowUpdate
from tapas.torch_modes import outside_graphs

if TYPE_CHECKING:
    from tapas.optim.optimizers import RowOptimizer

ROUNDING = 1e-6  # a mean over ranks of equal norms may differ from each by so much
NOBODY = (
    "the class rows have gradients from an earlier backward pass, and no optimizer to take them: "
    "the rows would never move. Make one beside that of the encoder, "
    "tapas.optim.RowwiseAdagrad(head, lr=0.1), and step both; or both as one, "
    "tapas.optim.Combined(...). To train no rows, head.requires_grad_(False)."
)
ANOTHER = (
    "another optimizer moves the table's anchor, too: it lists model.parameters(). A GradScaler "
    "would unscale the rows twice, and its zero_grad drops their gradients before they are used. "
    "Give it encoder.parameters(), or join both: "
    "tapas.optim.Combined(torch.optim.AdamW(model.parameters()), tapas.optim.RowwiseAdagrad(head))."
)
NOT_FINITE = (
    "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning rate, "
    "clip gradients, or use a torch.amp.GradScaler, which leaves out such a step."
)


class GradientQueue(nn.Module):
    """What waits for a step of the rows of one table.

    With a fused update (`row_optimizer=` of the table) nothing waits: rows move at the end of
    the backward pass. A copy of the module starts empty, without an optimizer.
    """

    anchor: nn.Parameter
    state: dict[str, Tensor]  # of the optimizer that moves the rows; see RowStore.move_rows

    def __init__(self, rows: RowStore, device: torch.device | None = None):
        super().__init__()
        self.serve(rows)
        self.anchor = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device))
        self.__dict__.update(_nothing_waits())
        self._set_hook()

    _rows: "weakref.ref[RowStore] | None"
    _lock: threading.Lock
    _pending: dict[
        tuple[int, int], list[RowGradients]
    ]  # of passes that have not reached the anchor
    _mark: float | None  # of the anchor at the first call; who lists it in an optimizer changes it
    _grad: "weakref.ref[Tensor] | None"  # anchor.grad as it was when `_norm` was written to it
    num_passes: int  # backward passes that have brought gradients
    _warned: bool
    _summed: RowGradients | None
    _norm: float  # of `_summed`, as it was written to anchor.grad
    _applied: bool  # whether a step has been made with `_summed`
    _held: list[RowGradients] | None  # inside of `hold`
    _optimizer: "weakref.ref[RowOptimizer] | None"
    _hooked: "weakref.ref[nn.Parameter] | None"

    # A table must go with the last name that it has, not when Python looks for cycles: it may be
    # most of the memory. So nothing here holds what holds it.

    def serve(self, rows: RowStore) -> None:
        """The table whose rows these are; it says so again after it was copied."""
        self._rows = weakref.ref(rows)

    @property
    def serves(self) -> bool:
        return self._rows is not None and self._rows() is not None

    @property
    def rows(self) -> RowStore:
        found = None if self._rows is None else self._rows()
        if found is None:
            raise UsageError("the table of these gradients is gone. Keep its head, or the table.")
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **_nothing_waits(), "_rows": None, "_lock": None}

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
        self.follow()
        if self._pending and torch._C._current_graph_task_id() == -1:
            self._forget_failed()
        anchor = self.anchor
        if torch.is_grad_enabled() and anchor.requires_grad:
            if anchor.grad is None:
                self._summed = None  # somebody's zero_grad; its memory goes, too
            self._check_use(anchor)
        return anchor

    def _forget_failed(self) -> None:
        """This thread is in no backward pass: what it has left here is of one that failed."""
        me = threading.get_ident()
        with self._lock:
            for key in [key for key in self._pending if key[0] == me]:
                del self._pending[key]

    def _check_use(self, anchor: Tensor) -> None:
        if self._hooked is None or self._hooked() is not anchor:
            raise UsageError(
                "the anchor of the class rows was replaced by another parameter, as FSDP does: "
                "their gradients would be lost. Leave it out: fully_shard(model, "
                "ignored_params=tapas.optim.anchors(model))."
            )
        if anchor._backward_hooks and not self._warned:
            self._warned = True
            warnings.warn(
                "the anchor of the class rows has a hook, which sees a gradient of 0 and can "
                "change no row. Leave tapas.optim.anchors(model) out; scale rows by anchor.grad "
                "after backward.",
                stacklevel=2,
            )
        rows = self.rows
        rows.check_training()
        if rows.row_optimizer is not None:
            return
        moved = self._was_moved(anchor)
        if self.optimizer is None and (moved or self.waits):
            raise UsageError(NOBODY)
        if moved:
            raise UsageError(ANOTHER)

    def _was_moved(self, anchor: Tensor) -> bool:
        """Whether something has moved the anchor since it was first looked at.

        Its value tells. To ask a GPU for that is to wait for it; there its version must do, which
        a write to `anchor.data` does not change.
        """
        mark = float(anchor.detach()) if anchor.is_cpu else float(anchor._version)
        if self._mark is None:
            self._mark = mark
        return mark != self._mark

    @property
    def waits(self) -> bool:
        """Whether there are gradients that a step has not been made with."""
        return self._summed is not None and not self._applied

    @property
    def optimizer(self) -> "RowOptimizer | None":
        """The optimizer of `tapas.optim` that was made last for these rows, while it lives."""
        return None if self._optimizer is None else self._optimizer()

    @staticmethod
    def accumulates(anchor: Any) -> bool | None:
        """Whether the backward pass under way reaches the anchor, whose node of the graph it is.

        `torch.autograd.grad` of something else, and `backward(inputs=...)` without it, do not:
        they look at gradients and must not move rows. None if it is the anchor's gradient that
        `autograd.grad` was asked for.
        """
        try:
            return bool(torch._C._will_engine_execute_node(anchor))
        except RuntimeError:
            return None

    def anchor_grad(self, accumulates: bool | None, *gradients: Tensor) -> Tensor:
        """What a Function answers for the anchor: 0, to be filled in at the end of the pass.

        If `autograd.grad` asks for it, the norm of `gradients`: whoever assigns that to
        anchor.grad by hand is told in the next step that rows cannot be moved by it.
        """
        if accumulates is not None:
            return self.anchor.new_zeros(1)
        norms = torch.stack([torch.linalg.vector_norm(part) for part in gradients])
        norm: Tensor = torch.linalg.vector_norm(norms).to(self.anchor).view(1)
        return norm

    def add(self, ids: Tensor, weight_grad: Tensor, bias_grad: Tensor) -> None:
        """In `backward`, if it `accumulates`: gradients (N, D) and (N,) of rows `ids` (N,)."""
        if not self.rows.has_bias:  # or the norm would count what nobody moves
            bias_grad = torch.zeros_like(bias_grad)
        with self._lock:
            found = self._pending.setdefault(_this_pass(), [])
            found.append(RowGradients(ids, weight_grad, bias_grad))

    @outside_graphs
    def _collect(self, anchor: Tensor) -> None:
        """At the end of a backward pass, as it has reached the anchor with a gradient of 0.

        Several passes may be under way: in threads, or one inside another.
        """
        with self._lock:
            found = self._pending.pop(_this_pass(), [])
            if found:
                self.num_passes += 1
                self._take(anchor, found)

    def _take(self, anchor: Tensor, found: list[RowGradients]) -> None:
        if self.rows.row_optimizer is not None:
            self._move_now(self.rows.row_optimizer, found)
            return
        grad: Any = anchor.grad  # which the pass has just made or added to
        if self._summed is not None and float(grad) != 0:  # 0: somebody's zero_grad
            found.insert(0, self._summed.times(self._factor(float(grad))))
        self._summed, square = sum_rows(found, self.rows.num_rows)
        self._applied = False
        grad.fill_(math.sqrt(self.rows.sum_over_ranks(square, self._formula)))
        self._norm, self._grad = float(grad), weakref.ref(grad)

    def _formula(self) -> str:
        """Of the optimizer, in words that ranks can compare."""
        return "" if self.optimizer is None else repr(self.optimizer.update_of(self.anchor))

    def update(self, gradients: RowGradients) -> None:
        """One step with `gradients` alone, now, or at the end of `hold`."""
        if self.rows.row_optimizer is not None:
            self._move_now(self.rows.row_optimizer, [gradients])
            return
        if self.optimizer is None:
            raise UsageError(
                "nothing moves these rows yet. Make an optimizer for them, "
                "tapas.optim.RowwiseAdagrad(table, lr=0.1), or build the table with "
                "row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1)."
            )
        if not gradients.is_finite():
            raise UsageError(NOT_FINITE)
        self.optimizer.move(self, gradients)

    def _move_now(self, update: RowUpdate, found: Sequence[RowGradients]) -> None:
        """By a fused update, each id once."""
        for gradients in found:
            if not gradients.is_finite():
                raise UsageError(NOT_FINITE)
        if self._held is not None:  # copies: the caller is free to reuse its own
            self._held.extend(RowGradients(*(p.clone() for p in each)) for each in found)
            return
        self.rows.move_rows(update, joined(found), None)

    def summed(self) -> RowGradients | None:
        """All that waits, each id once, times what has been done to anchor.grad."""
        if self._summed is None or self.anchor.grad is None:
            return None
        return self._summed.times(self._factor(float(self.anchor.grad)))

    def ready(self) -> RowGradients | None:
        """`summed`, for a step; an error if it is not finite, or another optimizer has it, too."""
        if self.waits and self._was_moved(self.anchor):
            raise UsageError(ANOTHER)
        if self._is_by_hand(self.anchor.grad):
            raise UsageError(
                "anchor.grad was set by hand: it is only the norm of the gradients of class rows, "
                "which `backward` alone brings. Change it in place, as `grad.mul_(0.5)` does, or "
                "assign the gradients of the other parameters only."
            )
        if self._summed is None or self.anchor.grad is None:
            return None
        if not (math.isfinite(self._norm) and math.isfinite(float(self.anchor.grad))):
            raise UsageError(NOT_FINITE)
        return self.summed()

    def forget_marks(self) -> None:
        """Another optimizer may have moved the anchor; from now on it should not."""
        self._mark = None

    def _is_by_hand(self, grad: Tensor | None) -> bool:
        """Whether `grad` is another tensor than the one that the norm was written to.

        DistributedDataParallel may have put it into a bucket, where it is a part of a larger one.
        """
        if grad is None or (self._grad is not None and self._grad() is grad):
            return False
        in_bucket = grad.untyped_storage().nbytes() > grad.nbytes
        return float(grad) != 0 and (self._summed is None or not in_bucket)

    def applied(self) -> None:
        """A step has been made with what waits; it stays for as long as torch keeps a `.grad`."""
        self._applied = True

    def _factor(self, grad: float) -> float:
        """What has been done to anchor.grad since its norm was recorded."""
        factor = grad / self._norm if self._norm else 1.0
        return 1.0 if abs(factor - 1) < ROUNDING else factor

    def discard(self) -> None:
        """Drop all that waits."""
        self._summed = None
        self._pending.clear()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Fused updates inside are applied as one at the end, after an exception not at all.

        Without a fused update nothing is to be held: every step of an optimizer is one update.
        """
        if self._held is not None:
            raise UsageError("this table is accumulating already; leave that block first.")
        self._held = []
        try:
            yield
            held, self._held = self._held, None
            if held and self.rows.row_optimizer is not None:
                self._move_now(self.rows.row_optimizer, held)
        finally:
            self._held = None

    def _apply(self, fn: Any, recurse: bool = True) -> "GradientQueue":
        """A move takes along what waits and the optimizer's state; nothing here is ever cast."""
        device = fn(self.anchor.detach()[:0]).device
        if device != self.anchor.device:
            # what comes from "meta" has no value
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
        """The anchor's value means nothing: it is in no state_dict."""

    def _load_from_state_dict(self, *args: Any) -> None:
        """Nor is it in any that is loaded."""

    def follow(self) -> None:
        """To where the rows are, which a state that was assigned may have brought from "meta"."""
        if self.anchor.is_meta and self.rows.device.type != "meta":
            self.to_empty(device=self.rows.device)


def _this_pass() -> tuple[int, int]:
    """The thread, and which of the backward passes inside of each other it is in."""
    return threading.get_ident(), torch._C._current_graph_task_id()


def _nothing_waits() -> dict[str, Any]:
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
    }


def joined(parts: Sequence[RowGradients]) -> RowGradients:
    """All `parts` in a row."""
    if len(parts) == 1:
        return parts[0]
    return RowGradients(*(torch.cat(column) for column in zip(*parts, strict=True)))


def sum_rows(parts: Sequence[RowGradients], num_rows: int) -> tuple[RowGradients, float]:
    """Each id of `parts` once, rising, with its summed gradient, and the sum of all squares."""
    ids, weight, bias = joined(parts)
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
    """The parameters that stand for class rows: for `ignored_params` of fully_shard."""
    return {queue.anchor for queue in queues_in(model)}
