"""How far is `tapas recommend --users all` from the bare top-k?  Lists of 20 from 70,000 items.

The default model (GRU, D=64, histories of up to 50 events, 20 on average) with random weights, as
speed does not depend on them, and users with text keys. Contenders take turns, each over the same
number of lists, a million in all:

bare top-k           `LocalTable.topk`: matrix product and top k of ready queries, nothing else
with probabilities   `LocalTable.topk_log_prob`
lists                the model's lists: histories gathered and encoded, items ranked
recommend            what the command does: the lists, with keys, written to a Parquet file

Target: `recommend` takes at most 1.5 times the bare top-k. `--quick`: 20,000 lists a turn.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from measuring import interleave, peak_bytes, quick, ratio, ratio_target, spread, write_record

import tapas
from tapas.cli.list_output import Names, write_lists
from tapas.data.event_log import EventLog, write_log
from tapas.data.histories import Histories, histories_of_users
from tapas.data.vocabulary import Vocabulary
from tapas.rng import stream
from tapas.tables.ranks import ONE_PROCESS
from tapas.training.build import TrainingData, build_model
from tapas.training.config import build_config
from tapas.training.load import RunModel
from tapas.training.run_folder import RunFolder

ITEMS, DIM, K, MEAN_LENGTH = 70_000, 64, 20, 20
LISTS, TURNS = (20_000, 3) if quick() else (200_000, 5)
BLOCK = 1024  # queries of the bare top-k


def make_log(folder: Path) -> EventLog:
    """A log of `LISTS` users with geometric lengths and log-uniform items."""
    draw = np.random.default_rng(0)
    lengths = draw.geometric(1 / MEAN_LENGTH, LISTS)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    items = (np.exp(draw.random(offsets[-1]) * np.log(ITEMS + 1)) - 1).astype(np.int32)
    arrays = {"items": items, "times": np.arange(len(items)), "offsets": offsets}
    counts = np.bincount(items, minlength=ITEMS)
    users = pl.Series([f"customer-{user:09}" for user in range(LISTS)])
    vocabularies = {
        "item": Vocabulary(pl.Series(np.arange(ITEMS) * 7 + 10**8), counts),
        "user": Vocabulary(users, lengths, kind="user"),
    }
    folder.mkdir()
    write_log(folder, arrays, vocabularies, {"items": ITEMS, "time_kind": "number"})
    return EventLog.open(folder)


def make_model(log: EventLog, folder: Path) -> RunModel:
    config = build_config({"log": {"files": ["none"]}, "model": {"dim": DIM}})
    train_end = np.asarray(log.offsets[1:])
    data = TrainingData(None, log, train_end)
    model = build_model(config, log.item_keys.counts.copy(), ONE_PROCESS, data=data).eval()
    with torch.no_grad():
        model.output_table.weight.normal_(std=0.3, generator=stream(0, "rows"))
    return RunModel(RunFolder(folder, config, log, 1), model, 0)


def bare(topk: Callable[..., object], query: torch.Tensor) -> Callable[[], None]:
    def call() -> None:
        for start in range(0, LISTS, BLOCK):
            topk(query[: min(BLOCK, LISTS - start)], K)

    return call


def recommend(model: RunModel, histories: Histories, out: Path) -> None:
    lists = model.lists(histories, K, exclude_seen=False)
    names = Names("user", "item", model.score)
    write_lists(out, lists, histories.keys, model.item_keys, names, what="recommending")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(make_log(folder / "log"), folder)
        histories = histories_of_users(model.log)
        table = model._model.output_table
        query = torch.randn(BLOCK, DIM, generator=tapas.rng.stream(0, "query"))
        seconds = interleave(
            {
                "bare top-k": bare(table.topk, query),
                "with probabilities": bare(table.topk_log_prob, query),
                "lists": lambda: list(model.lists(histories, K, exclude_seen=False)),
                "recommend": lambda: recommend(model, histories, folder / "lists.parquet"),
            },
            repeats=TURNS,
            warmup=0 if quick() else 1,
        )
        peak = peak_bytes(lambda: recommend(model, histories, folder / "lists.parquet"))
        file_bytes = (folder / "lists.parquet").stat().st_size
    for each, values in seconds.items():
        rate = LISTS * len(values) / sum(values)
        print(
            f"{each:<20}{spread(values):<38}{ratio(values, seconds['bare top-k'])}  {rate:,.0f}/s"
        )
    print(f"peak memory of recommend {peak / 1e6:.0f} MB, file {file_bytes / 1e6:.0f} MB")
    write_record(
        "lists",
        {
            "C": ITEMS, "D": DIM, "k": K, "lists_per_turn": LISTS, "mean_history": MEAN_LENGTH,
            "encoder": "gru", "history": model.history_length,
        },
        {"seconds": seconds, "peak_bytes": peak, "file_bytes": file_bytes},
        targets=[
            ratio_target(
                f"lists of {K} from {ITEMS:,} items, written / bare top-k",
                seconds["recommend"],
                seconds["bare top-k"],
                "at most",
                1.5,
            )
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
