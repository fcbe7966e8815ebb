"""`serving_state_dict`: the state of a model without what fused row optimizers keep."""

from torch import Tensor, nn

from tapas.errors import UsageError
from tapas.exact_state import pack
from tapas.tables.base import ClassTable
from tapas.tables.local import LocalTable


def serving_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """`model.state_dict()` without the state of fused row optimizers.

    A head that was trained with `row_optimizer=...fused(...)` saves that optimizer's state beside
    its rows, up to twice their size. This leaves it out. The result fits, with strict=True, the
    same model built without `row_optimizer`. Without a fused one it is `model.state_dict()`:
    optimizers of `tapas.optim` have a `state_dict` of their own.
    """
    state: dict[str, Tensor] = model.state_dict()
    for prefix, table in model.named_modules():
        if not isinstance(table, ClassTable):
            continue
        if not isinstance(table, LocalTable):
            raise UsageError(
                f"the rows of a {type(table).__name__} are not all in this process. Save them with "
                "tapas.save_checkpoint and load them into a model with a LocalTable."
            )
        if table.row_optimizer is not None:
            start = f"{prefix}." if prefix else ""
            for name, _ in table.named_buffers():
                del state[start + name]
            state[f"{start}_extra_state"] = pack({"seed": table.seed})
    return state
