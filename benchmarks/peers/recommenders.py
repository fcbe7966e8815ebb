"""Trains a peer's recommender and writes its lists; runs in the environment of the recommenders.

    python recommenders.py KIND KNOWN.parquet LISTS.parquet SECONDS SEEN

KNOWN has columns user, item, time and judged, as `tapas evaluate --points` writes them. All of its
events are for training. LISTS gets 20 items for each judged user. SEEN is "leave-out" or "keep".
Prints one JSON object: seconds of fitting, epochs, seconds of making lists.
"""

import json
import logging
import sys
import time
import warnings

import pandas
import polars
import torch
from pytorch_lightning import Trainer
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


def build(kind, seconds):
    """The model `kind`: with the library's defaults, or those of eSASRec's configuration."""

    def trainer():
        return Trainer(
            accelerator="cpu",
            max_epochs=MOST_EPOCHS,
            max_time={"seconds": seconds},
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
    kind, known, out, seconds, seen = sys.argv[1:]
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
    model = build(kind, max(1.0, float(seconds) - (time.perf_counter() - start)))
    model.fit(dataset)
    fitted = time.perf_counter() - start
    lists = model.recommend(
        users=users, dataset=dataset, k=LENGTH, filter_viewed=seen == "leave-out",
        on_unsupported_targets="ignore",
    )  # fmt: skip
    columns = {"user": Columns.User, "item": Columns.Item, "rank": Columns.Rank}
    frame = polars.DataFrame({name: lists[column].to_numpy() for name, column in columns.items()})
    with open(out, "wb") as opened:
        frame.write_parquet(opened)
    trainer = getattr(model, "fit_trainer", None)
    print(
        json.dumps(
            {
                "fit_seconds": fitted,
                "epochs": None if trainer is None else trainer.current_epoch,
                "steps": None if trainer is None else trainer.global_step,
                "list_seconds": time.perf_counter() - start - fitted,
            }
        )
    )


if __name__ == "__main__":
    main()
