"""Softmax heads in plain PyTorch: sampled softmax by hand, and the full softmax in two ways.

All have weights (C, D) and biases (C,) as parameters for torch.optim.Adagrad.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEARNING_RATE = 0.1
CHUNK_ROWS = 256  # examples of a chunk of a full softmax: see bench_full.py


class PlainSampledSoftmax(nn.Module):
    """n log-uniform draws with replacement, all logits in one matrix, sparse gradients.

        loss_b = log(exp(s_b) + sum_k exp(s_bk - log(n Q(k)))) - s_b

    Ids must be ranks: 0 is the most frequent class.
    """

    def __init__(self, num_classes: int, dim: int, *, num_samples: int, seed: int = 0):
        super().__init__()
        self.num_classes, self.num_samples = num_classes, num_samples
        self.generator = torch.Generator().manual_seed(seed)
        rows = start_rows(num_classes, dim, self.generator)
        self.weight = nn.Embedding.from_pretrained(rows, freeze=False, sparse=True)
        self.bias = nn.Embedding.from_pretrained(
            torch.zeros(num_classes, 1), freeze=False, sparse=True
        )

    def forward(self, query: Tensor, target: Tensor) -> Tensor:
        """Mean loss of `query` (B, D) and `target` (B,)."""
        draws = torch.rand(self.num_samples, generator=self.generator, dtype=torch.float64)
        drawn = torch.expm1(draws * math.log1p(self.num_classes)).long()
        drawn.clamp_(max=self.num_classes - 1)  # rounding can reach C
        chance = torch.log1p(1 / (drawn + 1.0)) / math.log1p(self.num_classes)
        positive = (query * self.weight(target)).sum(dim=1) + self.bias(target)[:, 0]
        offset = self.bias(drawn)[:, 0] - (chance * self.num_samples).log().float()
        others = torch.addmm(offset, query, self.weight(drawn).t())
        others = others.masked_fill(drawn == target[:, None], -torch.inf)
        logits = torch.cat([positive[:, None], others], dim=1)
        return F.cross_entropy(logits, torch.zeros_like(target))


class FullSoftmax(nn.Module):
    """A linear layer and cross-entropy over all classes."""

    def __init__(self, num_classes: int, dim: int, *, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(start_rows(num_classes, dim, generator))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, query: Tensor, target: Tensor) -> Tensor:
        """Mean loss of `query` (B, D) and `target` (B,)."""
        return F.cross_entropy(F.linear(query, self.weight, self.bias), target)


class ChunkedFullSoftmax(FullSoftmax):
    """`linear_cross_entropy` of torch in chunks of `rows` examples; torch chooses if None.

    With many classes torch chooses a single example at a time, which is slow on a CPU.
    """

    def __init__(self, num_classes: int, dim: int, *, rows: int | None = CHUNK_ROWS, seed: int = 0):
        super().__init__(num_classes, dim, seed=seed)
        self.options = nn.LinearCrossEntropyOptions()
        if rows is not None:
            self.options = nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None)

    def forward(self, query: Tensor, target: Tensor) -> Tensor:
        return F.linear_cross_entropy(
            query, self.weight, target, linear_bias=self.bias, options=self.options
        )


def start_rows(num_classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """(C, D), initialized as in nn.Linear."""
    bound = 1 / math.sqrt(dim)
    return torch.empty(num_classes, dim).uniform_(-bound, bound, generator=generator)
