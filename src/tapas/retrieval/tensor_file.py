"""Safetensors files of an export, which carry the name of their format."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tapas.atomic_file import atomic_write, usual_mode
from tapas.errors import DataError
from tapas.regular_file import check_given
from tapas.shapes import all_finite


def write_tensors(path: Path, format: str, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors`; a failure leaves no file. Raises DataError if there are NaN or inf."""
    stored: dict[str, Tensor] = {}
    memory = set()
    for name, tensor in tensors.items():
        if not all_finite(tensor):
            raise DataError(
                f"{name} contains NaN or inf. The model has diverged: export an earlier checkpoint."
            )
        plain = tensor.detach().cpu().contiguous()
        shared = plain.untyped_storage().data_ptr() in memory  # which safetensors rejects
        memory.add(plain.untyped_storage().data_ptr())
        stored[name] = plain.clone() if shared else plain
    with atomic_write(path, ".safetensors") as unfinished:
        try:
            with usual_mode(unfinished):
                save_file(stored, unfinished, metadata={"format": format})
        except SafetensorError as error:
            raise OSError(f"safetensors failed: {error}") from error


@contextmanager
def open_tensors(path: Path, format: str) -> Iterator[Any]:
    """The file that `write_tensors` wrote, as `safe_open` opens it; DataError if it is damaged."""
    check_given(path)
    try:
        with safe_open(path, framework="pt") as file:
            found = (file.metadata() or {}).get("format")
            if found != format:
                raise DataError(
                    f"{path} has format {found}; expected {format}, as `tapas export` writes it."
                )
            yield file
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, reason: Exception) -> DataError:
    return DataError(f"{path} is damaged ({reason}). Export it again.")
