"""Stochastic rounding: a bfloat16 row must be able to take a step smaller than its spacing."""

import torch
from torch import Tensor


def round_to_bfloat16(block: Tensor, generator: torch.Generator) -> Tensor:
    """float32 `block` in bfloat16, up or down so that the mean is `block`.

    bfloat16 is the upper half of a float32. Adding 16 random bits below the cut before
    cutting rounds up with just the probability that the lower half stands for.
    """
    bits = block.view(torch.int32)
    noise = torch.randint(
        0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32, device="cpu"
    )
    rounded = ((bits + noise.to(bits.device)) & -(1 << 16)).view(torch.float32)
    return torch.where(block.isfinite(), rounded, block).bfloat16()
