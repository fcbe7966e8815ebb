"""A map of items: the two directions in which their vectors differ most."""

import torch
from torch import Tensor


def principal_components(vectors: Tensor, number: int = 2) -> Tensor:
    """Coordinates (N, number) of `vectors` (N, D) along their first principal components.

    Each direction points to where its largest weight is positive, so that a map is always drawn
    the same way round. Coordinates are divided by the largest of all, so they are from -1 to 1.

    >>> principal_components(torch.tensor([[0.0, 1.0], [4.0, 1.0], [2.0, 1.0]]), 1).tolist()
    [[-1.0], [1.0], [0.0]]
    """
    exact = vectors.double()
    centred = exact - exact.mean(dim=0)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # the last is the first component
    first = directions.flip(1)[:, :number]
    largest = first.abs().argmax(dim=0)
    first = first * first.gather(0, largest[None]).sign()
    found = centred @ first
    found = torch.nn.functional.pad(found, (0, number - found.shape[1]))
    return found / found.abs().max().clamp(min=1e-12)
