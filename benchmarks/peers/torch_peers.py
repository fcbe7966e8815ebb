"""Heads in plain PyTorch: sampled softmax by hand, full softmax, adaptive softmax."""

import math
from abc import abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from peers.contender import LEARNING_RATE, Contender, Floats, Sizes, make_batches


class TorchContender(Contender):
    """A contender with torch tensors; a subclass implements the update and names its tensors."""

    def __init__(self, batches: list[tuple[Floats, NDArray[np.int64]]]):
        self.versions = {"torch": torch.__version__}
        self.batches = [
            (torch.from_numpy(query).requires_grad_(), torch.from_numpy(target))
            for query, target in batches
        ]

    @abstractmethod
    def update(self, query: Tensor, target: Tensor) -> Tensor:
        """Loss, gradients and update; returns the loss."""

    @abstractmethod
    def parameters(self) -> tuple[Tensor, Tensor]:
        """Weights (C, D) and biases (C,)."""

    @abstractmethod
    def state(self) -> list[Tensor]:
        """The table and its row state."""

    def step(self, number: int) -> float:
        self.last, target = self.batches[number % len(self.batches)]
        self.last.grad = None
        return float(self.update(self.last, target).detach())

    def query_grad(self) -> Floats:
        return self.last.grad.numpy()

    def table(self) -> tuple[Floats, Floats]:
        weight, bias = self.parameters()
        return weight.detach().clone().numpy(), bias.detach().flatten().clone().numpy()

    def state_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state())


class WithAdagrad(TorchContender):
    """A module whose parameters torch.optim.Adagrad updates."""

    def __init__(self, sizes: Sizes, module: nn.Module):
        super().__init__(make_batches(sizes))
        self.module = module
        self.optimizer = torch.optim.Adagrad(module.parameters(), lr=LEARNING_RATE)

    @abstractmethod
    def loss(self, query: Tensor, target: Tensor) -> Tensor: ...

    def update(self, query: Tensor, target: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(query, target)
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self) -> list[Tensor]:
        sums = [state["sum"] for state in self.optimizer.state.values()]
        return [*self.module.parameters(), *sums]


class Sampled(WithAdagrad):
    """Sampled softmax: n log-uniform draws with replacement, all logits in one matrix."""

    def __init__(self, sizes: Sizes, *, num_samples: int):
        weight = nn.Embedding(sizes.num_classes, sizes.dim, sparse=True)
        bias = nn.Embedding(sizes.num_classes, 1, sparse=True)
        bound = 1 / math.sqrt(sizes.dim)
        nn.init.uniform_(weight.weight, -bound, bound)
        nn.init.zeros_(bias.weight)
        super().__init__(sizes, nn.ModuleDict({"weight": weight, "bias": bias}))
        self.num_samples, self.num_classes = num_samples, sizes.num_classes
        self.weight, self.bias = weight, bias

    def draw(self) -> tuple[Tensor, Tensor]:
        """Ids (n,) and the log expected count of each."""
        scale = math.log1p(self.num_classes)
        ids = torch.expm1(torch.rand(self.num_samples, dtype=torch.float64) * scale).long()
        ids.clamp_(max=self.num_classes - 1)  # rounding can reach C
        return ids, (torch.log1p(1 / (ids + 1)) * (self.num_samples / scale)).log()

    def loss(self, query: Tensor, target: Tensor) -> Tensor:
        ids, log_count = self.draw()
        positive = (query * self.weight(target)).sum(dim=1, keepdim=True) + self.bias(target)
        offset = self.bias(ids).squeeze(1) - log_count
        drawn = torch.addmm(offset, query, self.weight(ids).t())
        drawn = drawn.masked_fill(target[:, None] == ids, -torch.inf)
        return F.cross_entropy(torch.cat([positive, drawn], dim=1), torch.zeros_like(target))

    def parameters(self) -> tuple[Tensor, Tensor]:
        return self.weight.weight, self.bias.weight


class Full(WithAdagrad):
    moves_few_rows = False

    def __init__(self, sizes: Sizes):
        self.linear = nn.Linear(sizes.dim, sizes.num_classes)
        super().__init__(sizes, self.linear)

    def loss(self, query: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(query), target)

    def parameters(self) -> tuple[Tensor, Tensor]:
        return self.linear.weight, self.linear.bias


class FullInChunks(Full):
    """`linear_cross_entropy` of torch, which computes the logits of a part of the batch at a time.

    The chunks that torch would choose have a single example each, which is slow on a CPU.
    """

    options = nn.LinearCrossEntropyOptions(batch_chunk_size=256, chunking_method=None)

    def loss(self, query: Tensor, target: Tensor) -> Tensor:
        return F.linear_cross_entropy(
            query, self.linear.weight, target, linear_bias=self.linear.bias, options=self.options
        )


class Adaptive(WithAdagrad):
    """Clusters by frequency, with smaller vectors for rarer ones: not the model of the others."""

    moves_few_rows = False

    def __init__(self, sizes: Sizes, *, cutoffs: tuple[float, ...] = (0.02, 0.2)):
        self.head = nn.AdaptiveLogSoftmaxWithLoss(
            sizes.dim,
            sizes.num_classes,
            cutoffs=[round(share * sizes.num_classes) for share in cutoffs],
            div_value=4.0,
            head_bias=True,
        )
        super().__init__(sizes, self.head)

    def loss(self, query: Tensor, target: Tensor) -> Tensor:
        return self.head(query, target).loss

    def full_loss(self, query: Floats, target: NDArray[np.int64]) -> float:
        with torch.no_grad():
            return float(self.loss(torch.from_numpy(query), torch.from_numpy(target)))

    def parameters(self) -> tuple[Tensor, Tensor]:
        return self.head.head.weight, self.head.head.bias  # of the first cluster
