"""An exported encoder as weights and settings, from which this library rebuilds it.

encoder.safetensors   encoder.* are the weights; inputs (C, D), the vectors that it reads, is left
                      out if these are the class rows
settings              a JSON object: kind, dim, history, layers, attention_heads, precision

Unlike the program that `encoder_export` writes, these contain no code that could be run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tapas.encoders import ENCODERS, Encoder, build_encoder, num_parameters
from tapas.errors import DataError, TapasError
from tapas.retrieval.encoder_export import QueryModule
from tapas.retrieval.tensor_file import open_tensors, write_tensors
from tapas.shapes import all_finite

FORMAT = "tapas-encoder-1"
INPUTS, PREFIX = "inputs", "encoder."
SIZES = ("dim", "history", "layers", "attention_heads")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class WeightsEncoder(nn.Module):
    """A rebuilt encoder: `encoder(items, lengths)` returns queries (B, D).

    `items` (B, T) are int64, T is at most `history_length`, `lengths` (B,) counts the real ones.
    The queries are those of the run, bit for bit on the same device.
    """

    def __init__(self, module: QueryModule, history_length: int, precision: torch.dtype):
        super().__init__()
        self.module, self.history_length, self.precision = module, history_length, precision

    @torch.no_grad()
    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        device = self.module.weight.device
        half = self.precision != torch.float32
        with torch.autocast(device.type, dtype=self.precision, enabled=half):
            query: Tensor = self.module(items.to(device), lengths.to(device))
        return query.float()


def write_encoder(path: Path, encoder: Encoder, inputs: Tensor | None) -> None:
    """Write the weights of `encoder`, and `inputs` (C, D) unless it reads the class rows.

    A failed export leaves no file. Raises DataError if there are NaN or inf.
    """
    tensors = {f"{PREFIX}{name}": value for name, value in encoder.state_dict().items()}
    if inputs is not None:
        tensors[INPUTS] = inputs
    write_tensors(path, FORMAT, tensors)


def read_encoder(path: Path, settings: object, rows: Tensor) -> WeightsEncoder:
    """Rebuild the encoder of an export whose class rows are `rows` (C, D).

    Sizes in `settings` are compared with those in the file before anything of such a size is
    made. Raises DataError if they do not fit or the file is damaged.
    """
    known = _checked(path, settings, rows.shape[1])
    with open_tensors(path, FORMAT) as file:
        sizes = {name: known[name] for name in ("kind", "dim", "layers", "attention_heads")}
        if 4 * num_parameters(**sizes) > path.stat().st_size:
            raise _misfit(path)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    inputs = tensors.pop(INPUTS, rows)
    if inputs.shape != rows.shape or not all_finite(inputs):
        raise _misfit(path)
    try:
        encoder = build_encoder(
            known["kind"],
            known["dim"],
            history=known["history"],
            layers=known["layers"],
            attention_heads=known["attention_heads"],
        )
        weights = {name.removeprefix(PREFIX): value for name, value in tensors.items()}
        encoder.load_state_dict(weights)
    except (TapasError, RuntimeError):  # torch raises one for other names or shapes
        raise _misfit(path) from None
    module = QueryModule(inputs, encoder.eval())
    return WeightsEncoder(module, known["history"], PRECISIONS[known["precision"]])


def _checked(path: Path, settings: object, dim: int) -> Mapping[str, Any]:
    """`settings`, or DataError if something is missing or of another type."""
    if (
        not isinstance(settings, dict)
        or any(type(settings.get(name)) is not int or settings[name] < 1 for name in SIZES)
        or settings.get("kind") not in list(ENCODERS)
        or settings.get("precision") not in list(PRECISIONS)
        or settings["dim"] != dim
    ):
        raise _misfit(path)
    return settings


def _misfit(path: Path) -> DataError:
    return DataError(
        f"{path} does not fit the settings of the encoder in export.json, or the class rows. "
        "Export it again."
    )
