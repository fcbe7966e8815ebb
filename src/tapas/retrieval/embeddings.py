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
from torch import Tensor

from tapas.errors import DataError, UsageError
from tapas.json_toml import parse_json
from tapas.retrieval.tensor_file import damaged, open_tensors, write_tensors
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
    blob = json.dumps(list(keys), ensure_ascii=False, separators=(",", ":")).encode()
    keys_tensor = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
    write_tensors(Path(path), FORMAT, {"weight": weight, "bias": bias, "keys": keys_tensor})


def load_embeddings(path: Path) -> Embeddings:
    """Read a file written by `export_embeddings`. Raises `DataError` if it is damaged."""
    path = Path(path)
    with open_tensors(path, FORMAT) as file:
        weight, bias, blob = (file.get_tensor(name) for name in ("weight", "bias", "keys"))
    try:
        sizes = check_shape({}, weight=(weight, "C D"), bias=(bias, "C"), keys=(blob, "N"))
        keys = parse_json(blob.numpy().tobytes())
        if len(keys) != sizes["C"] or not (weight.is_floating_point() and weight.numel()):
            raise ValueError(f"{len(keys)} keys and weight {tuple(weight.shape)}, {weight.dtype}")
        _check_keys(keys)
    except DataError:
        raise
    except (ValueError, TypeError) as error:
        raise damaged(path, error) from error
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
