"""An encoder as one file that runs without its source code, through torch.export.

What a module needs for that:
- no pack_padded_sequence: it wants lengths as Python numbers. Run a GRU over the padded
  rows and pick the state at lengths - 1; what stands behind that never reaches it.
- no `if` on values of a tensor, and no .item() or .tolist().
- items.shape[0], not len(items): len makes the number of rows a constant.
- new tensors made on `items.device`: the file keeps devices as they were written.
Only the number of rows is free; the width T is that of the example.
"""

import json
import warnings
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.atomic_file import atomic_write, check_exists
from tapas.errors import DataError, UsageError
from tapas.shapes import check_shape


class QueryModule(nn.Module):
    """(B, T) items and (B,) lengths to (B, D) queries.

    `encoder(x (B, T, D), lengths)` gives (B, T, D); the state at the last item is the query.
    """

    weight: Tensor  # (C, D)

    def __init__(self, weight: Tensor, encoder: nn.Module):
        super().__init__()
        self.register_buffer("weight", weight.detach().float())
        self.encoder = encoder

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
        x = functional.embedding(items, self.weight) * real[:, :, None]
        states: Tensor = self.encoder(x, lengths)
        last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
        return states.gather(1, last)[:, 0]


ABOUT = "tapas.json"


class ExportedEncoder:
    """`encoder(items, lengths)`: (B, T = history_length) int64 and (B,) to queries (B, D)."""

    def __init__(self, module: nn.Module, history_length: int):
        self.module, self.history_length = module, history_length

    def __call__(self, items: Tensor, lengths: Tensor) -> Tensor:
        check_shape({"T": self.history_length}, items=(items, "B T"), lengths=(lengths, "B"))
        with torch.no_grad():
            query: Tensor = self.module(items, lengths)
        return query


def export_encoder(module: nn.Module, path: Path, example: tuple[Tensor, Tensor]) -> None:
    """Write `module(items (B, T), lengths (B,)) -> query (B, D)` to `path`, for any B.

    It is written as it is in eval mode, read back, and compared with the module on the
    example and on its first row, before the file takes its name.
    """
    path = Path(path)
    items, lengths = example
    sizes = check_shape({}, items=(items, "B T"), lengths=(lengths, "B"))
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with atomic_write(path, ".pt2") as unfinished, torch.no_grad():
            _save(_export(module, items, lengths), unfinished, sizes["T"])
            reloaded = load_encoder(unfinished)
            for rows in (sizes["B"], 1):
                want = module(items[:rows], lengths[:rows])
                got = reloaded(items[:rows], lengths[:rows])
                if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
                    raise UsageError(
                        f"the exported {type(module).__name__} differs from the module by "
                        f"{float((got - want).abs().max()):.2g} on {rows} rows. Its forward must "
                        "compute the same for the same input, whatever the number of rows."
                    )
    finally:
        for part, mode in modes:
            part.training = mode


def load_encoder(path: Path) -> ExportedEncoder:
    """Read what `export_encoder` wrote. It is a program: load only files you trust."""
    check_exists(Path(path))
    about = {ABOUT: ""}
    try:
        program = torch.export.load(path, extra_files=about)
    except Exception as error:  # torch.export raises many kinds
        raise DataError(
            f"{path} is damaged, no exported encoder, or of another version of torch than "
            f"{torch.__version__}. Export it again."
        ) from error
    if not about[ABOUT]:
        raise DataError(f"{path} was not written by `tapas export`: it does not hold {ABOUT}.")
    return ExportedEncoder(program.module(), json.loads(about[ABOUT])["history_length"])


def _export(module: nn.Module, items: Tensor, lengths: Tensor) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=1, max=1 << 24)
    if len(items) == 1:  # torch.export would take a single row for a promise
        items, lengths = items.repeat(2, 1), lengths.repeat(2)
    with warnings.catch_warnings():
        # nn.GRU lists its own weights anew; they are registered all the same
        warnings.filterwarnings("ignore", r"[\s\S]*were assigned during export", UserWarning)
        try:
            return torch.export.export(
                module, (items, lengths), dynamic_shapes=({0: rows}, {0: rows})
            )
        except Exception as error:  # torch.export raises many kinds
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UsageError(
                f"{type(module).__name__} cannot be exported ({reason[0]}). Usual causes: "
                "pack_padded_sequence, len(items) for items.shape[0], an `if` on a tensor's "
                "values, .item()."
            ) from error


def _save(program: torch.export.ExportedProgram, path: Path, history_length: int) -> None:
    about = json.dumps({"history_length": history_length})
    buffer = BytesIO()  # torch's own writer ends the whole process when the disk is full
    torch.export.save(program, buffer, extra_files={ABOUT: about})
    path.write_bytes(buffer.getbuffer())
