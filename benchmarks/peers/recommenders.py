"""Trains a peer's recommender and writes its lists; runs in the environment of the recommenders.

    python recommenders.py KIND KNOWN.parquet FOLDER SECONDS[,SECONDS...] SEEN

KNOWN has columns user, item, time and judged, as `tapas evaluate --points` writes them. All of its
events are for training. FOLDER/KIND-SECONDS.parquet gets 20 items for each judged user, after each
of the SECONDS: of one training, whose learning rate is constant; what does not train in steps has
one list, under the last. SEEN is "leave-out" or "keep". Prints one JSON object: for each of the
SECONDS the seconds of fitting, epochs, steps, seconds of making lists.
"""

import json
import logging
import sys
import time
import warnings
from pathlib import Path

import pandas
import polars
import torch
from pytorch_lightning import Callback, Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import (
    EASEModel,
    ImplicitALSWrapperModel,
    ImplicitItemKNNWrapperModel,
    SASRecModel,
)

LENGTH = 20
THREADS = 2
MOST_EPOCHS = 200


class Snapshots(Callback):
    """Keeps the weights of a model as they are after each of `times`, seconds from `start` on."""

    def __init__(self, times, start):
        self.times, self.start, self.kept = times, start, {}

    def on_train_batch_end(self, trainer, module, *args):
        self.take(trainer, module, time.perf_counter() - self.start)

    def on_train_end(self, trainer, module):
        """Training may end a moment before the last of the times."""
        self.take(trainer, module, self.times[-1])

    def take(self, trainer, module, seconds):
        for each in self.times:
            if seconds >= each and each not in self.kept:
                weights = {name: value.clone() for name, value in module.state_dict().items()}
                told = {
                    "fit_seconds": time.perf_counter() - self.start,
                    "epochs": trainer.current_epoch,
                    "steps": trainer.global_step,
                }
                self.kept[each] = weights, told


def build(kind, seconds, snapshots):
    """The model `kind`: with the library's defaults, or those of eSASRec's configuration."""

    def trainer():
        return Trainer(
            accelerator="cpu",
            max_epochs=MOST_EPOCHS,
            max_time={"seconds": seconds},
            callbacks=[snapshots],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    if kind == "sasrec":
        model = SASRecModel(get_trainer_func=trainer)
    elif kind == "sasrec-sampled":
        model = SASRecModel(
            n_blocks=1, n_heads=1, session_max_len=50, loss="sampled_softmax", n_negatives=256,
            get_trainer_func=trainer,
        )  # fmt: skip
    elif kind == "ease":
        model = EASEModel(num_threads=THREADS)
    elif kind == "als":
        from implicit.als import AlternatingLeastSquares

        model = ImplicitALSWrapperModel(
            AlternatingLeastSquares(factors=128, num_threads=THREADS, random_state=0)
        )
    else:
        from implicit.nearest_neighbours import TFIDFRecommender

        model = ImplicitItemKNNWrapperModel(TFIDFRecommender(K=100, num_threads=THREADS))
    return model


def main():
    kind, known, folder, seconds, seen = sys.argv[1:]
    times = [int(each) for each in seconds.split(",")]
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    start = time.perf_counter()
    with open(known, "rb") as opened:
        events = polars.read_parquet(opened)
    users = events.filter("judged")["user"].unique(maintain_order=True).to_list()
    # the library sorts by time: the order of the file stays
    frame = pandas.DataFrame(
        {
            Columns.User: events["user"].to_numpy(),
            Columns.Item: events["item"].to_numpy(),
            Columns.Weight: 1.0,
            Columns.Datetime: pandas.to_datetime(range(len(events)), unit="s"),
        }
    )
    dataset = Dataset.construct(frame)
    snapshots = Snapshots(times, start)
    model = build(kind, max(1.0, times[-1] - (time.perf_counter() - start)), snapshots)
    model.fit(dataset)
    fitted = {"fit_seconds": time.perf_counter() - start, "epochs": None, "steps": None}
    told = {}
    for each, (weights, found) in (snapshots.kept or {times[-1]: (None, fitted)}).items():
        if weights is not None:
            model.lightning_model.load_state_dict(weights)
        begin = time.perf_counter()
        lists = model.recommend(
            users=users, dataset=dataset, k=LENGTH, filter_viewed=seen == "leave-out",
            on_unsupported_targets="ignore",
        )  # fmt: skip
        columns = {"user": Columns.User, "item": Columns.Item, "rank": Columns.Rank}
        frame = polars.DataFrame({name: lists[of].to_numpy() for name, of in columns.items()})
        with open(Path(folder) / f"{kind}-{each}.parquet", "wb") as opened:
            frame.write_parquet(opened)
        told[each] = found | {"list_seconds": time.perf_counter() - begin}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
