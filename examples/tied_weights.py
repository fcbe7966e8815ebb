"""Tied weights: the encoder reads the same rows that the softmax predicts with.

    python examples/tied_weights.py

A sequence model usually stores two vectors for each item, one to read and one to predict. Here it
is trained both ways. Tied, it stores half as many numbers, and each of its rows learns twice from
the same data: as an input and as a target.
"""

import torch
from torch import nn

import tapas

NUM_ITEMS, NUM_TOPICS, DIM, BATCH, LENGTH = 10_000, 200, 32, 64, 12
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADDING = -1


def sequences(num: int, seed: int) -> torch.Tensor:
    """Item ids (num, LENGTH) of 3 to 12 items, padded with -1; a sequence has one topic."""
    generator = torch.Generator().manual_seed(seed)
    topic = torch.randint(NUM_TOPICS, (num, 1), generator=generator)
    items = torch.randint(NUM_ITEMS // NUM_TOPICS, (num, LENGTH), generator=generator)
    length = torch.randint(3, LENGTH + 1, (num, 1), generator=generator)
    items = topic + items * NUM_TOPICS
    return items.masked_fill(torch.arange(LENGTH) >= length, PADDING).to(DEVICE)


class Model(nn.Module):
    def __init__(self, tied: bool):
        super().__init__()
        self.gru = nn.GRU(DIM, DIM, batch_first=True, device=DEVICE)
        self.head = tapas.TapasSoftmax(NUM_ITEMS, DIM, num_samples=500, device=DEVICE)
        self.inputs = self.head.table if tied else tapas.LocalTable(NUM_ITEMS, DIM, device=DEVICE)

    def states_and_targets(self, items: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of the GRU (num, LENGTH - 1, DIM) and the item that follows each of them."""
        vectors = self.inputs.lookup(items[:, :-1], padding_idx=PADDING)  # as an nn.Embedding
        target = items[:, 1:]
        return self.gru(vectors)[0], target.masked_fill(target == PADDING, -100)


def train(tied: bool) -> tuple[int, float]:
    """How many numbers the rows hold, and the full softmax loss on held-out sequences."""
    torch.manual_seed(0)
    model = Model(tied)
    optimizer = tapas.optim.Combined(
        torch.optim.AdamW(model.parameters(), lr=1e-2), tapas.optim.RowwiseAdagrad(model, lr=0.5)
    )
    for items in sequences(200 * BATCH, seed=0).split(BATCH):
        optimizer.zero_grad()
        model.head(*model.states_and_targets(items)).backward()
        optimizer.step()  # moves a row once, by the sum of both gradients
    with torch.no_grad():
        loss = model.head.full_loss(*model.states_and_targets(sequences(500, seed=1)))
    return sum(table.weight.numel() for table in {model.head.table, model.inputs}), float(loss)


for tied in (False, True):
    numbers, loss = train(tied)
    print(f"{'tied' if tied else 'separate'} rows: {numbers:,} numbers, held-out loss {loss:.3f}")
