"""A complete training step with the default encoder of `tapas train`, for peers.worker."""

import torch
from bench_whole_step import batches, make_step


class WholeStep:
    """The step of bench_whole_step.py: GRU over 30 items, 1,000 sequences, head and optimizers."""

    def __init__(self, sizes: object, **head: int):
        """`sizes` are those of bench_whole_step.py, whatever is given."""
        self.versions = {"torch": torch.__version__}
        self.run = make_step(head, batches())

    def step(self, number: int) -> None:
        self.run()

    def state_bytes(self) -> int:
        return 0  # not asked for
