"""Modules with integer and float state that must survive saving and casting exactly."""

import struct
from typing import Any, Self

import torch
from torch import Tensor, nn

from tapas.errors import UsageError


class ExactState(nn.Module):
    """A module with plain numbers in its state, saved as one tensor in its `state_dict`.

    They are a tensor because safetensors can hold nothing else, and not buffers because numbers
    that seed the draws must stay on the CPU. Buffers of the module keep their dtype in casts such
    as `model.bfloat16()`, which would round counts.
    """

    def state_numbers(self) -> dict[str, int | float]:
        """The numbers by name, always in the same order."""
        return {}

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        """Restore the result of `state_numbers`."""

    def get_extra_state(self) -> Tensor:
        """(N,) int64: integers as they are, floats as the bits of a float64."""
        return pack(self.state_numbers())

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the result of `get_extra_state`; UsageError if it does not fit."""
        self.load_state_numbers(unpack(state, self.state_numbers(), type(self).__name__))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self


def pack(numbers: dict[str, int | float]) -> Tensor:
    """(N,) int64 on the CPU: integers as they are, floats as the bits of a float64."""
    packed = [n if isinstance(n, int) else float_bits(n) for n in numbers.values()]
    return torch.tensor(packed, dtype=torch.int64, device="cpu")


def unpack(state: Tensor, like: dict[str, int | float], kind: str) -> dict[str, Any]:
    """The inverse of `pack`; `like` gives the names and types of the numbers.

    Raises UsageError, naming the `kind` of module, if `state` does not match.
    """
    if not (
        isinstance(state, Tensor)
        and (state.dtype, tuple(state.shape)) == (torch.int64, (len(like),))
        and not state.is_meta
    ):
        found = f"{state.dtype}, {tuple(state.shape)}" if isinstance(state, Tensor) else repr(state)
        raise UsageError(
            f"the _extra_state of this {kind} is {found}; expected int64, ({len(like)},) for "
            f"{', '.join(like)}. It was cast, or saved from another kind of head, table or "
            "optimizer: build the same kind as was saved."
        )
    pairs = zip(like.items(), state.tolist(), strict=True)
    return {name: n if isinstance(old, int) else bits_float(n) for (name, old), n in pairs}


def float_bits(number: float) -> int:
    """The bits of a float64 as an int64."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def bits_float(bits: int) -> float:
    """The inverse of `float_bits`."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
