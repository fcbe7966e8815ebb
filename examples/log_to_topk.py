"""From a log of user, item and time to the top 5 next items, in Python.

    python examples/log_to_topk.py

The same steps as the commands `tapas train`, `tapas evaluate` and `tapas recommend`, as functions.
Needs `pip install "tapas-softmax[train]"`. Files go to a temporary folder, removed at the end.
"""

import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import tapas
from tapas.training.config import build_config
from tapas.training.run import train
from tapas.training.run_evaluation import evaluate_run
from tapas.training.run_folder import open_run

NUM_USERS, NUM_TRACKS, PLAYS = 1_000, 2_000, 20

# 1. A log, here made up: users play music, in 7 of 10 cases the track that follows the one before,
#    else any track. Users and items may be strings or integers.
draw = np.random.default_rng(0)
track = draw.integers(NUM_TRACKS, size=(NUM_USERS, PLAYS))
for i in range(1, PLAYS):
    follows = draw.random(NUM_USERS) < 0.7
    track[follows, i] = (track[follows, i - 1] + 1) % NUM_TRACKS
start = draw.integers(30 * 24 * 3600, size=(NUM_USERS, 1))
log = pl.DataFrame(
    {
        "user": [f"user {u}" for u in np.arange(NUM_USERS).repeat(PLAYS)],
        "item": [f"track {t}" for t in track.flatten()],
        "time": (1_700_000_000 + start + 200 * np.arange(PLAYS)).flatten(),
    }
)

# 2. Train. The log is read from a file. The run folder gets the configuration, the prepared log and
#    the checkpoints. Settings have the names that `tapas train --set` and its TOML file use.
temporary = tempfile.TemporaryDirectory(prefix="tapas-")
folder = Path(temporary.name)
log.write_parquet(folder / "log.parquet")
config = build_config(
    {
        "log": {"files": [str(folder / "log.parquet")]},
        "split": {"kind": "group", "validation": 0.1, "test": 0.2},  # shares of the users
        "model": {"encoder": "gru", "dim": 32},
        "head": {"num_samples": 200, "next_items": 1},
        "optimizer": {"encoder_lr": 0.01, "rows_lr": 0.2},
        "loop": {"steps": 200, "evaluate_every": 100, "batch": 32},
    }
)
train(config, folder / "run", cache=folder / "cache", status=print)

# 3. Evaluate the best checkpoint on the test users, beside three baselines that only count. Pairs
#    of items are all there is to learn in this log, so counting pairs (co-occurrence) does well.
run = open_run(folder / "run")
evaluation, _ = evaluate_run(run)
for name, scores in evaluation.scores.items():
    print(f"{name}: recall@20 {scores.metrics['recall@20'].mean:.3f}")

# 4. Recommend for users of the log (their keys) or for histories (lists of item keys). The search
#    is exact, over all items.
model = tapas.load(folder / "run")
print(model.recommend(["user 1", "user 2"], k=3).to_frame())
history = ["track 50", "track 51"]
lists = model.recommend([history], k=5, exclude_seen=True)
print(f"after {', '.join(history)}: {', '.join(lists.items[0])}")
temporary.cleanup()
