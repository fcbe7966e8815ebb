"""Item vectors, an encoder over them, and a softmax over all items."""

import torch
from torch import Tensor, nn

from tapas.data.windows import SequenceBatch
from tapas.encoders import Encoder, last_state
from tapas.errors import UsageError
from tapas.heads import TapasSoftmax
from tapas.tables import ClassTable


class SequenceModel(nn.Module):
    """What comes next, from what came before.

    `inputs` are the item vectors that the encoder reads; left out, it reads the rows of the
    softmax. Either way only the rows of a batch are touched. Batches may be anywhere; they
    are moved to where the rows are.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: TapasSoftmax,
        *,
        inputs: ClassTable | None = None,
        encoder_dtype: torch.dtype = torch.float32,
        target_decay: float = 1.0,
    ):
        super().__init__()
        self.encoder, self.head, self.own_inputs = encoder, head, inputs
        self.encoder_dtype, self.target_decay = encoder_dtype, target_decay
        if not self.inputs.dim == encoder.dim == head.table.dim:
            raise UsageError(
                f"inputs, encoder and head have {self.inputs.dim}, {encoder.dim} and "
                f"{head.table.dim} dimensions; expected one number."
            )

    @property
    def inputs(self) -> ClassTable:
        return self.head.table if self.own_inputs is None else self.own_inputs

    def states(
        self, items: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B, T, D) queries of `items` (B, T), of which the first `lengths` (B,) are real."""
        items, lengths = items.to(self.inputs.device), lengths.to(self.inputs.device)
        num_rows, width = items.shape
        real = (torch.arange(width, device=items.device) < lengths[:, None]).view(-1)
        place = real.nonzero()[:, 0]  # padding is no item: its row must not be touched
        rows = self.inputs.lookup(items.reshape(-1)[place])
        x = rows.new_zeros(num_rows * width, rows.shape[1]).index_copy(0, place, rows)
        x = x.view(num_rows, width, -1)
        half = self.encoder_dtype != torch.float32
        with torch.autocast(x.device.type, dtype=self.encoder_dtype, enabled=half):
            states: Tensor = self.encoder(x, lengths, generator=generator)
        return states.float()

    def loss(self, batch: SequenceBatch, *, generator: torch.Generator | None = None) -> Tensor:
        """Sampled softmax loss, the mean over the positions that predict."""
        states = self.states(batch.items, batch.lengths, generator=generator)
        query = states.view(-1, states.shape[2]).index_select(0, batch.places.to(states.device))
        weight = None if self.target_decay == 1 else decaying(batch.target, self.target_decay)
        loss: Tensor = self.head(query, batch.target, weight)
        return loss

    @torch.no_grad()
    def query(self, items: Tensor, lengths: Tensor) -> Tensor:
        """(B, D) what the encoder says after the last item of each row."""
        states = self.states(items, lengths)
        return last_state(states, lengths.to(states.device))


def decaying(target: Tensor, decay: float) -> Tensor:
    """Weights (Q, K) of `target` that fall by `decay` from each to the next and sum to 1."""
    steps = torch.arange(target.shape[1], device=target.device)
    weight = (decay**steps) * (target >= 0)
    return weight / weight.sum(dim=1, keepdim=True)
