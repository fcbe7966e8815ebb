"""Class rows in one safetensors file, which can be read from many languages.

weight (C, D)   as trained
bias   (C,)     as trained; the score of a class is query . weight + bias
keys   (N,)     uint8: the C keys, strings or integers, as a JSON list in UTF-8

The keys are in the same file so that they cannot get separated from the rows, and stored as a
tensor because the header of a safetensors file is limited to 100 MB.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tapas.atomic_file import atomic_write, usual_mode
from tapas.errors import DataError, UsageError
from tapas.regular_file import check_given
from tapas.shapes import all_finite, check_shape

FORMAT = "tapas-embeddings-1"

Key = str | int


class Embeddings(NamedTuple):
    """The content of a file written by `export_embeddings`."""

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,)
    keys: list[Key]  # the raw key of each row's class


def export_embeddings(path: Path, weight: Tensor, bias: Tensor, keys: Sequence[Key]) -> None:
    """Write `weight` (C, D), `bias` (C,) and C distinct `keys` to `path`.

    A failed export leaves no file. Raises `UsageError` for wrong shapes or types, `DataError` for
    duplicate keys, NaN or inf.
    """
    sizes = check_shape({}, weight=(weight, "C D"), bias=(bias, "C"))
    if len(keys) != sizes["C"]:
        raise UsageError(
            f"there are {len(keys)} keys but {sizes['C']} classes; expected one key per class."
        )
    _check_keys(keys)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if not all_finite(tensor):
            raise DataError(
                f"{name} contains NaN or inf. The model has diverged: export an earlier checkpoint."
            )
    blob = json.dumps(list(keys), ensure_ascii=False, separators=(",", ":")).encode()
    tensors = {
        "weight": weight.detach().cpu().contiguous(),
        "bias": bias.detach().cpu().contiguous(),
        "keys": torch.frombuffer(bytearray(blob), dtype=torch.uint8),
    }
    if (
        tensors["weight"].untyped_storage().data_ptr()
        == tensors["bias"].untyped_storage().data_ptr()
    ):
        tensors["bias"] = tensors["bias"].clone()  # safetensors rejects tensors that share memory
    with atomic_write(Path(path), ".safetensors") as unfinished:
        try:
            with usual_mode(unfinished):
                save_file(tensors, unfinished, metadata={"format": FORMAT})
        except SafetensorError as error:
            raise OSError(f"safetensors failed: {error}") from error


def load_embeddings(path: Path) -> Embeddings:
    """Read a file written by `export_embeddings`. Raises `DataError` if it is damaged."""
    check_given(path := Path(path))
    try:
        with safe_open(path, framework="pt") as file:
            found = (file.metadata() or {}).get("format")
            if found != FORMAT:
                raise DataError(
                    f"{path} has format {found}; expected {FORMAT}, as `tapas export` writes it."
                )
            weight, bias, blob = (file.get_tensor(name) for name in ("weight", "bias", "keys"))
        sizes = check_shape({}, weight=(weight, "C D"), bias=(bias, "C"), keys=(blob, "N"))
        keys = json.loads(blob.numpy().tobytes())
        if len(keys) != sizes["C"] or not (weight.is_floating_point() and weight.numel()):
            raise ValueError(f"{len(keys)} keys and weight {tuple(weight.shape)}, {weight.dtype}")
        _check_keys(keys)
    except DataError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}). Export it again.") from error
    for name, tensor in (("weight", weight), ("bias", bias)):
        if not all_finite(tensor):
            raise DataError(
                f"{name} in {path} contains NaN or inf. The model had diverged: export an earlier "
                "checkpoint."
            )
    return Embeddings(weight, bias, keys)


def _check_keys(keys: Sequence[Key]) -> None:
    seen: dict[Key, int] = {}
    for position, key in enumerate(keys):
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise UsageError(
                f"key {position} is {key!r}, a {type(key).__name__}; expected str or int. "
                "Convert a numpy array with .tolist()."
            )
        if seen.setdefault(key, position) != position:
            raise DataError(f"key {key!r} belongs to both class {seen[key]} and class {position}.")
