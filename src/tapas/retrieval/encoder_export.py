"""Export of an encoder to one file that runs without its source code, by torch.export.

Requirements on the module:
- No pack_padded_sequence, which needs lengths as Python numbers. Run a GRU over the padded rows
  and take the state at lengths - 1; padding comes later and cannot change it.
- No `if` on the values of a tensor, no .item() and no .tolist().
- items.shape[0] instead of len(items), which makes the number of rows a constant.
- New tensors are created on `items.device`, because devices are stored in the file.
The number of rows may vary; the width T is fixed to that of the example.
"""

import json
import warnings
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from tapas.atomic_file import atomic_write
from tapas.errors import DataError, UsageError
from tapas.json_toml import parse_json
from tapas.regular_file import check_given
from tapas.shapes import check_shape


class QueryModule(nn.Module):
    """Computes queries (B, D) from items (B, T) and lengths (B,).

    `encoder(x (B, T, D), lengths)` returns states (B, T, D); the state at the last item is the
    query.
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


METADATA_FILE = "tapas.json"


class ExportedEncoder:
    """A loaded encoder: `encoder(items, lengths)` returns queries (B, D).

    `items` is (B, T = history_length) int64, padded at the end, `lengths` (B,) its real items.
    """

    def __init__(self, module: nn.Module, history_length: int):
        self.module, self.history_length = module, history_length

    def __call__(self, items: Tensor, lengths: Tensor) -> Tensor:
        check_shape({"T": self.history_length}, items=(items, "B T"), lengths=(lengths, "B"))
        with torch.no_grad():
            query: Tensor = self.module(items, lengths)
        return query


def export_encoder(module: nn.Module, path: Path, example: tuple[Tensor, Tensor]) -> None:
    """Export `module(items (B, T), lengths (B,)) -> query (B, D)` to `path`, for any B.

    The module is exported in eval mode, loaded again, and compared with the original on the
    `example` and on its first row; only then is the file written. Raises `UsageError` if the
    module cannot be exported or the results differ.
    """
    path = Path(path)
    items, lengths = example
    sizes = check_shape({}, items=(items, "B T"), lengths=(lengths, "B"))
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with atomic_write(path, ".pt2") as unfinished, torch.no_grad():
            packed = _packed(_export(module, items, lengths), sizes["T"])
            reloaded = _unpacked(path, packed)  # from memory: nobody can exchange it
            for rows in (sizes["B"], 1):
                want = module(items[:rows], lengths[:rows])
                got = reloaded(items[:rows], lengths[:rows])
                if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
                    raise UsageError(
                        f"the exported {type(module).__name__} differs from the module by "
                        f"{float((got - want).abs().max()):.2g} on {rows} rows. Its forward must "
                        "give the same result for the same input, for any number of rows."
                    )
            unfinished.write_bytes(packed.getbuffer())
    finally:
        for child, mode in modes:
            child.training = mode


def load_encoder(path: Path, *, trust: bool = False) -> ExportedEncoder:
    """Load an encoder written by `export_encoder`, if you `trust` whoever made the file.

    The file contains a program, which can do whatever you can. Raises `UsageError` without
    `trust`, `DataError` if the file is damaged.
    """
    check_given(path := Path(path))
    if not trust:
        raise UsageError(
            f"{path} contains a program, which could do anything that you can. Load it with "
            "trust=True if you know who made it."
        )
    return _unpacked(path, path)


def _unpacked(path: Path, file: Path | BytesIO) -> ExportedEncoder:
    """The encoder in `file`, which is called `path` in errors."""
    about = {METADATA_FILE: ""}
    try:
        program = torch.export.load(file, extra_files=about)
    except Exception as error:  # torch.export raises many kinds
        raise DataError(
            f"{path} is damaged, not an exported encoder, or from another version of torch than "
            f"{torch.__version__}. Export it again."
        ) from error
    try:
        history_length = int(parse_json(about[METADATA_FILE])["history_length"])
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{path} was not written by `tapas export`: {METADATA_FILE} in it is missing or "
            "damaged."
        ) from None
    return ExportedEncoder(program.module(), history_length)


def _export(module: nn.Module, items: Tensor, lengths: Tensor) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=1, max=1 << 24)
    if len(items) == 1:  # torch.export would make a single row a constant
        items, lengths = items.repeat(2, 1), lengths.repeat(2)
    with warnings.catch_warnings():
        # nn.GRU reassigns its list of weights, which are registered anyway
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


def _packed(program: torch.export.ExportedProgram, history_length: int) -> BytesIO:
    about = json.dumps({"history_length": history_length})
    buffer = BytesIO()  # torch's file writer aborts the process when the disk is full
    torch.export.save(program, buffer, extra_files={METADATA_FILE: about})
    buffer.seek(0)
    return buffer
