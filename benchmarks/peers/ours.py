"""Our head, as in the README."""

import torch

import tapas
from peers.contender import LEARNING_RATE, Sizes, make_batches, zipf_counts
from peers.torch_peers import TorchContender


class Ours(TorchContender):
    def __init__(
        self,
        sizes: Sizes,
        *,
        num_samples: int,
        presample_factor: int = 8,
        selection: str = "priority",
        row_optimizer: str = "RowwiseAdagrad",
        fused: bool = False,
    ):
        super().__init__(make_batches(sizes))
        kind = getattr(tapas.optim, row_optimizer)
        self.head = tapas.TapasSoftmax(
            sizes.num_classes,
            sizes.dim,
            num_samples=num_samples,
            presample_factor=presample_factor,
            selection=selection,
            proposal=tapas.Squashed(zipf_counts(sizes.num_classes), alpha=0.75),
            row_optimizer=kind.fused(lr=LEARNING_RATE) if fused else None,
        )
        self.optimizer = None if fused else kind(self.head, lr=LEARNING_RATE)
        self.versions = self.versions | {"tapas": tapas.__version__}
        if self.optimizer is not None:
            self.step(0)  # makes the state of the optimizer

    def update(self, query: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = self.head(query, target)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss

    def parameters(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head.table.weight, self.head.table.bias

    def state(self) -> list[torch.Tensor]:
        state = self.head.table.gradients.state.values()
        return [*self.head.table.row_tensors().values(), *state]
