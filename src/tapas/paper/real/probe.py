"""A look into a model at a few fixed points: what the two passes catch, where its mass lies."""

from dataclasses import asdict

import torch
from torch import Tensor

from tapas.training.model import SequenceModel

CLASSES_PER_CHUNK = 1 << 16
BUCKETS = ("head", "middle", "tail", "unseen")


@torch.no_grad()
def look(
    model: SequenceModel, query: Tensor, target: Tensor, bucket_of: Tensor
) -> dict[str, float]:
    """Diagnoses of the sample, and of each bucket the model's mass and its mean log-probability.

    `query` (B, D), `target` (B, L) negative for padding, `bucket_of` (C,) from 0 to 3. O(C).
    """
    found: dict[str, float] = asdict(
        model.two_passes.diagnose(query, target.masked_fill(target < 0, -100))
    )
    table = model.class_rows
    partition = table.log_partition(query)
    mass, height = (torch.zeros(4, dtype=torch.float64, device=query.device) for _ in range(2))
    for start in range(0, table.num_classes, CLASSES_PER_CHUNK):
        stop = min(start + CLASSES_PER_CHUNK, table.num_classes)
        weight, bias = table.rows(torch.arange(start, stop))
        log_prob = torch.addmm(bias, query, weight.t()).sub_(partition[:, None])
        here = bucket_of[start:stop].to(query.device)
        height.index_add_(0, here, log_prob.mean(dim=0).double())
        mass.index_add_(0, here, log_prob.exp_().mean(dim=0).double())
    size = torch.bincount(bucket_of, minlength=4)
    for place, name in enumerate(BUCKETS):
        found[f"mass of {name}"] = float(mass[place])
        if size[place]:
            found[f"log-probability of {name}"] = float(height[place] / size[place])
    return {name: round(value, 6) for name, value in found.items()}
