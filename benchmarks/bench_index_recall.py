"""How much of the exact lists do FAISS indexes find, and with what effort?

    python benchmarks/bench_index_recall.py RUN RUN ...

For each run of `tapas train`, an index of every kind is written as `tapas export --index` writes
it, with its default recall of 0.95. Half of up to 1,000 histories of the log choose the effort, the
other half measures recall@20, which is the target. Nothing is timed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from measuring import Target, arguments, write_record

KINDS = {"exact": None, "ivf": "nprobe", "hnsw": "efSearch"}
WANTED = 0.95


def exported(run: Path, kind: str) -> dict[str, float]:
    """What `tapas export --json` says about an index of `kind`."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tapas", "export", run, "--index", kind, "--json",
             "--to", f"{folder}/index.faiss"],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    if not arguments():
        print("no record: name folders of `tapas train`, the models whose items are indexed")
        return
    torch.set_num_threads(1)
    rows, targets = [], []
    for run in map(Path, arguments()):
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
    write_record("index-recall", {"recall": WANTED}, {"rows": rows}, targets=targets)


if __name__ == "__main__":
    main()
