"""How much of the exact lists do FAISS indexes find, and with what effort?

    python benchmarks/bench_index_recall.py

Trains a small model on each of three made-up logs and, with the extra [demo], on groceries: those
of `LOGS`. For each an index of every kind is written as `tapas export --index` writes it, with its
default recall of 0.95. Half of up to 1,000 histories of the log choose the effort, the other half
measures recall@20, which is the target. Nothing is timed. Folders of `tapas train` after the
command are taken instead.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from measuring import Target, arguments, quick, write_record

from tapas.comparison.groceries import find_groceries
from tapas.comparison.listening_log import ListeningLogConfig, write_listening_log
from tapas.comparison.synthetic_log import SyntheticLogConfig, write_synthetic_log

KINDS = {"exact": None, "ivf": "nprobe", "hnsw": "efSearch"}
WANTED = 0.95
STEPS = 300
LOGS = {
    "baskets": SyntheticLogConfig(),
    "clicks": SyntheticLogConfig(
        num_items=15_000, baskets_per_user=30, items_per_basket=1, habit=0.5
    ),
    "listening": ListeningLogConfig(num_listeners=1_500),
}
GROCERIES = ("--user", "household_id", "--item", "product_id", "--time", "transaction_timestamp")


def tapas(*words: object) -> str:
    """What a command of `tapas` prints."""
    command = [sys.executable, "-m", "tapas", *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def trained(folder: Path) -> list[Path]:
    """Write the logs into `folder` and train a model on each; returns the run folders."""
    logs: dict[str, tuple[object, ...]] = {}
    for name, config in LOGS.items():
        file = folder / f"{name}.parquet"
        if isinstance(config, ListeningLogConfig):
            write_listening_log(file, config)
        else:
            write_synthetic_log(file, config)
        logs[name] = (file,)
    if groceries := find_groceries():
        logs["groceries"] = (groceries.transactions, *GROCERIES)
    steps = 20 if quick() else STEPS
    for name, words in logs.items():
        where = ("--out", folder / name, "--cache", folder / "cache")
        tapas("train", *words, *where, "--steps", steps, "--threads", 1)
    return [folder / name for name in logs]


def exported(run: Path, kind: str) -> dict[str, float]:
    """What `tapas export --json` says about an index of `kind`."""
    with tempfile.TemporaryDirectory() as folder:
        to = f"{folder}/index.faiss"
        found: dict[str, float] = json.loads(
            tapas("export", run, "--index", kind, "--json", "--to", to)
        )
    return found


def main() -> None:
    torch.set_num_threads(1)
    rows, targets = [], []
    with tempfile.TemporaryDirectory() as folder:
        for run in [Path(word) for word in arguments()] or trained(Path(folder)):
            row: dict[str, object] = {"model": run.name}
            for kind, effort in KINDS.items():
                found = exported(run, kind)
                row["items"] = f"{found['items']:,}"
                recall = found["recall@20"]
                row[kind] = f"{recall:.3f}"
                if effort is not None:
                    row[f"{kind}, {effort}"] = str(found[effort])
                measure = f"recall@20 of {kind}, {run.name}"
                targets.append(
                    Target(measure=measure, target=WANTED, kind="at least", reading=recall, unit="")
                )
            print(row, flush=True)
            rows.append(row)
    settings = {"recall": WANTED} | ({} if arguments() else {"steps": STEPS})
    write_record("index-recall", settings, {"rows": rows}, targets=targets)


if __name__ == "__main__":
    main()
