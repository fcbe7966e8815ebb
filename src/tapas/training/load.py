"""`tapas.load`: the model of a run or of an export, ready to recommend."""

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapas.data.splits import split_log
from tapas.errors import DataError, UsageError
from tapas.mixture import Mixture
from tapas.retrieval.export_folder import ExportedModel, is_export
from tapas.retrieval.recommender import Recommender
from tapas.shapes import all_finite, check_device
from tapas.tables import ClassTable, LocalTable
from tapas.training.model import Prediction, SequenceModel
from tapas.training.run_evaluation import load_model
from tapas.training.run_folder import RunFolder, open_run


def load(
    path: str | PathLike[str],
    *,
    step: int | None = None,
    device: str | torch.device | None = None,
    trust: bool = False,
) -> Recommender:
    """Open the model of a run (`tapas train --out`) or of an export (`tapas export --to`).

    Args:
        path: folder of the run, or of the export.
        step: step of the run's checkpoint. Default: the best one.
        device: where to compute, such as "cuda". Default: the CPU.
        trust: allow the program in an export of an earlier version, which could do anything that
            you can. Nothing else in a run or an export is ever run.

    >>> model = tapas.load("run")  # doctest: +SKIP
    >>> model.recommend(["u1", "u2"], k=10, exclude_seen=True).to_frame()  # doctest: +SKIP
    >>> model.recommend([[1003, 1004]], k=10)  # a history, oldest first  # doctest: +SKIP
    >>> model.similar(1003, k=10)  # doctest: +SKIP
    """
    path = Path(path)
    if not is_export(path):
        run = open_run(path)
        place = check_device("device", "cpu" if device is None else device)
        model, step = load_model(run, step, whole_log=True)
        _check_finite(model, path, step)
        return RunModel(run, model.to(place), step)
    if step is not None:
        raise UsageError(f"{path} is an export, which has one checkpoint only. Leave step out.")
    return ExportedModel(path, device, trust=trust)


def _check_finite(model: SequenceModel, path: Path, step: int) -> None:
    """Raise DataError for NaN or inf anywhere: a bad row may be in no list, or in all of them."""
    for name, tensor in model.state_dict().items():
        is_floats = isinstance(tensor, Tensor) and tensor.is_floating_point()
        if is_floats and not all_finite(tensor):
            raise DataError(
                f"{name} of step {step} in {path} contains NaN or inf. The model has diverged: use "
                "an earlier step, or train with a lower learning rate."
            )


class RunModel(Recommender):
    """The model of a run, with the users of its log."""

    def __init__(self, run: RunFolder, model: SequenceModel, step: int):
        self.run, self.sequence_model, self.step = run, model, step
        super().__init__(
            name=f"run {run.path}, step {step:,}",
            item_keys=run.log.item_keys,
            log=run.log,
            source=run.config.log,
            history_length=run.config.model.reads,
            score="probability" if model.head.targets_softmax else "score",
            exclude_seen=run.config.loop.exclude_seen,
        )

    @property
    def output_table(self) -> ClassTable:
        return self.sequence_model.output_table

    @property
    def mixture(self) -> Mixture | None:
        return self.sequence_model.mixture

    def predict(self, items: Tensor, lengths: Tensor, age: Tensor | None = None) -> Prediction:
        return self.sequence_model.predict(items, lengths, age)

    def queries(self, items: Tensor, lengths: Tensor) -> Tensor:
        return self.sequence_model.query(items, lengths)

    def class_vectors(self) -> Tensor:
        table = self.sequence_model.output_table
        if isinstance(table, LocalTable):
            return table.weight
        return table.rows(torch.arange(table.num_classes))[0]

    def training_counts(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = split_log(self.run.log, self.run.config.split).train_counts
        return counts
