"""State of a module that saving, loading and casting must not change."""

import struct
from typing import Any, Self

import torch
from torch import Tensor, nn

from tapas.errors import UsageError


class ExactState(nn.Module):
    """A module with plain numbers that belong to its state, as one tensor in its `state_dict`.

    A tensor, because that is all that safetensors and the frameworks that write it can hold; not
    buffers, because a number that decides what a step draws must not live on a GPU. Its buffers
    keep their dtype in a cast such as `model.bfloat16()`, which would round what was counted.
    """

    def state_numbers(self) -> dict[str, int | float]:
        """By name, always the same names in the same order."""
        return {}

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        """Take over what `state_numbers` has said, here or in another process."""

    def get_extra_state(self) -> Tensor:
        """(N,) int64: whole numbers as they are, others by the bits of a float64."""
        return pack(self.state_numbers())

    def set_extra_state(self, state: Tensor) -> None:
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
    words = [n if isinstance(n, int) else float_bits(n) for n in numbers.values()]
    return torch.tensor(words, dtype=torch.int64, device="cpu")


def unpack(state: Tensor, like: dict[str, int | float], kind: str) -> dict[str, Any]:
    """The numbers that `pack` has made `state` of; `like` has their names and kinds."""
    if not (
        isinstance(state, Tensor)
        and (state.dtype, tuple(state.shape)) == (torch.int64, (len(like),))
        and not state.is_meta
    ):
        found = f"{state.dtype}, {tuple(state.shape)}" if isinstance(state, Tensor) else repr(state)
        raise UsageError(
            f"the state of this {kind} has other numbers than {', '.join(like)}: its _extra_state "
            f"is {found}; expected int64, ({len(like)},). It was cast, or is of another kind of "
            "head, table or optimizer: build what it was saved from."
        )
    words = zip(like.items(), state.tolist(), strict=True)
    return {name: word if isinstance(own, int) else bits_float(word) for (name, own), word in words}


def float_bits(number: float) -> int:
    """A float64 as the int64 of the same bits."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def bits_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
