"""A loop of your own on many ranks: the encoder in DDP, the class rows spread over all of them.

    torchrun --nproc-per-node 2 examples/sharded_head.py --folder checkpoints

Kill a rank, or add `--max-restarts 3` and kill one: the job goes on from its last checkpoint,
also with another number of ranks.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tapas

NUM_CLASSES, DIM, BATCH = 100_000, 32, 256


def examples(step: int, rank: int, num_ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of batch number `step`: each input stands near the vector of its class."""
    generator = tapas.rng.stream(0, "examples", step, rank)
    target = torch.randint(0, 1_000, (BATCH // num_ranks,), generator=generator)
    centre = torch.randn(1_000, DIM, generator=tapas.rng.stream(0, "centres"))
    return centre[target] + torch.randn(len(target), DIM, generator=generator) / 2, target


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    with tapas.join_ranks() as ranks:
        torch.manual_seed(0)  # encoders start alike on all ranks; DDP would see to it, too
        encoder = DistributedDataParallel(nn.Linear(DIM, DIM))
        head = tapas.TapasSoftmax(
            table=tapas.ShardedTable(NUM_CLASSES, DIM),
            num_samples=500,
        )
        model = nn.ModuleDict({"encoder": encoder.module, "head": head})
        optimizer = tapas.optim.Combined(
            torch.optim.AdamW(encoder.parameters(), lr=1e-2),
            tapas.optim.RowwiseAdagrad(head, lr=0.2),
        )

        done = tapas.load_checkpoint(arguments.folder, model, optimizer)
        for step in range(done[0] if done else 0, arguments.steps):
            x, target = examples(step, ranks.rank, ranks.size)
            optimizer.zero_grad()
            loss = head(encoder(x), target)
            loss.backward()  # DDP averages gradients of the encoder; those of rows stay put
            optimizer.step()
            if (step + 1) % 50 == 0:
                tapas.save_checkpoint(arguments.folder, step + 1, model, optimizer)
                if ranks.rank == 0:
                    print(f"step {step + 1}: loss {float(loss.detach()):.3f}", flush=True)

        # exact answers over all classes, each rank for its own inputs
        x, target = examples(arguments.steps, ranks.rank, ranks.size)
        with torch.no_grad():
            _, best = head.topk(encoder(x), k=5)
            exact = head.full_loss(encoder(x), target)
        found = (best == target[:, None]).any(dim=1).float().mean()
        if ranks.rank == 0:
            print(f"full softmax loss {float(exact):.3f}; target among the best 5: {found:.0%}")


if __name__ == "__main__":
    main()
