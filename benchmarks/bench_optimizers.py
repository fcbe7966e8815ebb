"""What does an optimizer of rows cost, beside fused updates?  D=64, C=500,000, n=1000, r=8.

A head step is zero_grad, loss, backward and the update of the rows, from queries and targets in
memory: by an optimizer of `tapas.optim`, as in the README, against the fused update inside
`backward`. The training step is that of `tapas train` with its GRU, B=1000. Targets: at most 1.10
times the fused step, at B=1024 and at B=64.
"""

from collections.abc import Callable

import torch
from bench_whole_step import batches, make_model
from measuring import interleave, ratio, ratio_target, spread, write_record

import tapas
from tapas.optim import Adagrad, Combined, LazyAdam, RowOptimizer, RowwiseAdagrad
from tapas.training.build import build_optimizer, dense_parameters

C, D, N, R, LR = 500_000, 64, 1000, 8, 0.1
BATCH_SIZES = {1024: 100, 64: 300}  # and the repeats of each
KINDS: dict[str, type[RowOptimizer]] = {
    "RowwiseAdagrad": RowwiseAdagrad,
    "Adagrad": Adagrad,
    "LazyAdam": LazyAdam,
}
Step = Callable[[], None]


def head_step(batch: int, kind: type[RowOptimizer], *, fused: bool) -> Step:
    counts = (10 * C / torch.arange(1, C + 1)).long()
    head = tapas.TapasSoftmax(
        C,
        D,
        num_samples=N,
        presample_factor=R,
        proposal=tapas.Squashed(counts, alpha=0.75),
        row_optimizer=kind.fused(lr=LR) if fused else None,
    )
    optimizer = None if fused else kind(head, lr=LR)
    generator = tapas.rng.stream(0, "batches")
    query = torch.randn(8, batch, D, generator=generator).requires_grad_()
    target = torch.multinomial(counts.double(), 8 * batch, replacement=True, generator=generator)
    target = target.view(8, batch)
    turn = 0

    def step() -> None:
        nonlocal turn
        if optimizer is not None:
            optimizer.zero_grad()
        head(query[turn % 8], target[turn % 8]).backward()
        if optimizer is not None:
            optimizer.step()
        query.grad = None
        turn += 1

    return step


def training_step(*, fused: bool) -> Step:
    data = batches()
    config, model = make_model({"num_samples": N, "presample_factor": R}, fused=fused)
    dense = build_optimizer(config.optimizer, dense_parameters(model))
    optimizer = dense if fused else Combined(dense, RowwiseAdagrad(model, lr=LR))
    turn = 0

    def step() -> None:
        nonlocal turn
        optimizer.zero_grad(set_to_none=True)
        model.loss(data[turn % len(data)]).backward()
        optimizer.step()
        turn += 1

    return step


def main() -> None:
    torch.set_num_threads(2)
    results: dict[str, dict[str, list[float]]] = {}
    targets = []
    for batch, repeats in BATCH_SIZES.items():
        for name, kind in KINDS.items():
            steps = {
                "fused": head_step(batch, kind, fused=True),
                "optimizer": head_step(batch, kind, fused=False),
            }
            found = results[f"head, B={batch}, {name}"] = interleave(steps, repeats=repeats)
            if kind is RowwiseAdagrad:
                measure = f"head step, optimizer / fused, B={batch}"
                limits = (found["optimizer"], found["fused"], "at most", 1.10)
                targets.append(ratio_target(measure, *limits))
    steps = {"fused": training_step(fused=True), "optimizer": training_step(fused=False)}
    results["training step with a GRU, B=1000, RowwiseAdagrad"] = interleave(steps, repeats=50)
    for name, found in results.items():
        times = "".join(f"{kind} {spread(seconds):<32}" for kind, seconds in found.items())
        print(f"{name:<50}{times}{ratio(found['optimizer'], found['fused'])}")
    write_record(
        "optimizers",
        {"C": C, "D": D, "n": N, "r": R, "B": list(BATCH_SIZES)},
        {"seconds": results},
        targets=targets,
    )


if __name__ == "__main__":
    main()
