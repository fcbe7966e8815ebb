"""One training loop for one process or for many: the class rows are spread over the ranks.

    python examples/many_ranks.py
    torchrun --nproc-per-node 2 examples/many_ranks.py

Both print nearly the same loss: a step trains on the same 256 examples, however many ranks share
them. With `--folder` the job saves checkpoints, and a later start, on any number of ranks,
continues from the last one.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tapas

NUM_CLASSES, DIM, BATCH = 100_000, 32, 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def batch(step: int, rank: int, num_ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The examples of batch `step` that this rank trains on: noisy copies of class centres."""
    generator = tapas.rng.stream(0, "examples", step)
    target = torch.randint(0, 1_000, (BATCH,), generator=generator)
    centre = torch.randn(1_000, DIM, generator=tapas.rng.stream(0, "centres"))
    x = centre[target] + torch.randn(BATCH, DIM, generator=generator)
    return x[rank::num_ranks].to(DEVICE), target[rank::num_ranks].to(DEVICE)


def main(steps: int, folder: Path | None) -> None:
    if "RANK" not in os.environ:  # not started by torchrun: a job of one rank
        os.environ.update(ALONE)
    with tapas.join_ranks() as ranks:
        torch.manual_seed(0)
        encoder = DistributedDataParallel(nn.Linear(DIM, DIM).to(DEVICE))
        # Each rank stores its share of the rows. They never leave it: queries travel instead.
        table = tapas.ShardedTable(NUM_CLASSES, DIM, device=DEVICE)
        head = tapas.TapasSoftmax(table=table, num_samples=500)
        optimizer = tapas.optim.Combined(
            torch.optim.AdamW(encoder.parameters(), lr=1e-2),
            tapas.optim.RowwiseAdagrad(head, lr=0.2),
        )
        model = nn.ModuleDict({"encoder": encoder.module, "head": head})
        saved = tapas.load_checkpoint(folder, model, optimizer) if folder else None

        for step in range(saved[0] if saved else 0, steps):
            x, target = batch(step, ranks.rank, ranks.size)
            optimizer.zero_grad()
            loss = head(encoder(x), target)
            loss.backward()  # DDP averages the encoder's gradients; row gradients go to their rank
            optimizer.step()
            if folder and (step + 1) % 50 == 0:
                tapas.save_checkpoint(folder, step + 1, model, optimizer)

        # These two look at all 100,000 classes. Each rank asks about its own examples.
        x, target = batch(steps, ranks.rank, ranks.size)
        with torch.no_grad():
            query = encoder(x)
            exact = head.full_loss(query, target)
            _, best = head.topk(query, k=5)
        found = (best == target[:, None]).any(dim=1).float().mean()
        mean = torch.stack([exact, found])
        torch.distributed.all_reduce(mean)
        exact, found = (mean / ranks.size).tolist()
        if ranks.rank == 0:
            print(f"ranks: {ranks.size}  full softmax loss: {exact:.3f}  in the top 5: {found:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path)
    main(**vars(parser.parse_args()))
