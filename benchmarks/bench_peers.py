"""How does a step of our head compare with what people use today?  B=1024, D=64, C=500,000.

A step is loss, gradients of queries and rows, and update of the rows, from queries and targets
in memory. Ours has the README's row-wise Adagrad, the peers the Adagrad that they have;
"ours, Adagrad" is the same head with theirs. Contenders are separate processes that take turns.
Before it is measured, each must fit a toy problem; `--check` does only that. The peers are in
peers/; TensorFlow is in a separate environment, .venv-peers, which the first run installs
(570 MB).
"""

import dataclasses

import torch
from measuring import (
    QUICK_REPEATS,
    Target,
    arguments,
    quick,
    ratio,
    ratio_target,
    spread,
    write_record,
)
from peers.contender import Sizes
from peers.processes import ContenderPool, ContenderProcess, Entry

SIZES = Sizes(num_classes=500_000, dim=64, batch=1024)
ROUNDS, THREADS = 25, 2
OURS = "ours n=1000 r=8"


def ours(**options: object) -> Entry:
    return Entry(module="ours", kind="Ours", options=options)


def sampled(num_samples: int) -> Entry:
    return Entry(module="torch_peers", kind="Sampled", options={"num_samples": num_samples})


def tensorflow(num_samples: int, optimizer: str) -> Entry:
    return Entry(
        module="tensorflow_peer",
        kind="SampledTensorFlow",
        options={"num_samples": num_samples, "optimizer": optimizer},
        framework="tensorflow",
    )


ENTRIES = {
    OURS: ours(num_samples=1000),
    "ours n=1000 r=8, fused": ours(num_samples=1000, fused=True),
    "ours n=1000 r=1": ours(num_samples=1000, presample_factor=1),
    "ours n=1000 r=8, top": ours(num_samples=1000, selection="top"),
    "ours n=1000 r=8, Adagrad": ours(num_samples=1000, row_optimizer="Adagrad"),
    "ours n=8000 r=8": ours(num_samples=8000),
    "TensorFlow n=1000": tensorflow(1000, "sparse"),
    "TensorFlow n=8000": tensorflow(8000, "sparse"),
    "TensorFlow n=1000, Keras Adagrad": tensorflow(1000, "keras"),
    "TensorFlow n=8000, Keras Adagrad": tensorflow(8000, "keras"),
    "plain PyTorch n=1000": sampled(1000),
    "plain PyTorch n=8000": sampled(8000),
    "full softmax": Entry(module="torch_peers", kind="Full", steps=1, every=5),
    "full softmax in chunks": Entry(module="torch_peers", kind="FullInChunks", steps=1, every=5),
    "adaptive softmax": Entry(module="torch_peers", kind="Adaptive", steps=1, every=2),
}
# the least ratio of the peer's step time to ours
TARGETS = {
    "TensorFlow n=8000": 10.0,
    "TensorFlow n=8000, Keras Adagrad": 10.0,
    "TensorFlow n=1000": 5.0,
    "TensorFlow n=1000, Keras Adagrad": 5.0,
    "plain PyTorch n=8000": 6.0,
    "plain PyTorch n=1000": 1.0,
    "full softmax": 300.0,
    "full softmax in chunks": 300.0,
}


def pair(peer: dict[int, float], ours: dict[int, float]) -> tuple[list[float], list[float]]:
    """Seconds of both in the rounds in which both had a turn."""
    common = [number for number in peer if number in ours]
    return [peer[number] for number in common], [ours[number] for number in common]


def print_table(
    pool: ContenderPool, seconds: dict[str, dict[int, float]], peak: dict[str, float]
) -> None:
    print(f"{'contender':<34}{'step':<32}{'times ours':<24}{'state':>8}  peak beyond it")
    for name, turns in seconds.items():
        state = pool.about[name]["state_bytes"]
        print(
            f"{name:<34}{spread(list(turns.values())):<32}{ratio(*pair(turns, seconds[OURS])):<24}"
            f"{state / 1e6:>5.0f} MB  {peak[name] / 1e6:.0f} MB ({peak[name] / state:.0%})"
        )


def measure(pool: ContenderPool) -> None:
    # first: later steps reuse the memory that these ask for; they warm up, too
    peak = pool.call_all(ContenderProcess.peak_bytes)
    seconds = pool.take_turns(QUICK_REPEATS if quick() else ROUNDS)
    if OURS not in seconds:
        raise SystemExit(f"{OURS} was left out: there is nothing to compare the others with.")
    print_table(pool, seconds, peak)
    targets = [
        ratio_target(f"{name} / {OURS}", *pair(seconds[name], seconds[OURS]), "at least", times)
        for name, times in TARGETS.items()
        if name in seconds
    ]
    our_state = pool.about[OURS]["state_bytes"]
    targets.append(
        Target(
            measure=f"peak memory beyond table and row state, {OURS}",
            target=5,
            kind="at most",
            reading=100 * peak[OURS] / our_state,
            unit="%",
        )
    )
    about = {name: pool.about[name] for name in seconds}
    write_record(
        "peers",
        dataclasses.asdict(SIZES)
        | {"rounds": ROUNDS, "contenders": {n: dataclasses.asdict(ENTRIES[n]) for n in seconds}},
        {
            "versions": {k: v for each in about.values() for k, v in each["versions"].items()},
            "step_seconds_by_round": seconds,
            "state_bytes": {name: each["state_bytes"] for name, each in about.items()},
            "peak_bytes_beyond_state": {name: peak[name] for name in seconds},
            "left_out": pool.left_out,
        },
        targets=targets,
    )


def main() -> None:
    check_only = "--check" in arguments()
    torch.set_num_threads(THREADS)
    with ContenderPool() as pool:
        for name, entry in ENTRIES.items():
            pool.start(
                name,
                entry,
                sizes=dataclasses.asdict(SIZES),
                threads=THREADS,
                check_only=check_only,
            )
        if not check_only:
            measure(pool)
        elif len(pool.processes) == len(ENTRIES):
            print(f"all {len(ENTRIES)} contenders learn the toy.")
        else:
            raise SystemExit(f"{len(ENTRIES) - len(pool.processes)} of {len(ENTRIES)} do not.")


if __name__ == "__main__":
    main()
