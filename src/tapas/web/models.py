"""The models of a server, and their replacement by newer ones without a pause."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tapas.checkpoints.describe import CHECKPOINTS
from tapas.checkpoints.folder import CheckpointFolder
from tapas.data.item_table import read_item_table
from tapas.errors import TapasError, UsageError
from tapas.native.memory import trim_heap
from tapas.phrases import did_you_mean
from tapas.retrieval.export_folder import EXPORT_RECORD
from tapas.training.load import RunModel, load
from tapas.training.run_folder import RECORD, best_step
from tapas.web.indexed_model import IndexedModel
from tapas.web.served_model import ServedModel

LOOK_SECONDS = 2.0  # between looks for newer checkpoints
YOUNG_OBJECTS = 20_000  # that are made before garbage is looked for; Python itself waits for 700

Signature = tuple[tuple[str, int, int, int], ...]  # names, inodes, times and sizes of files
Opened = Callable[[Path, str], ServedModel]


class Models:
    """The served models by name, the first one is the default."""

    def __init__(self, folders: Sequence[Path], open_model: Opened):
        self._open = open_model
        self._folders = dict(zip(names_of(folders), folders, strict=True))
        self._seen = {name: signature(folder) for name, folder in self._folders.items()}
        self._models = {name: open_model(folder, name) for name, folder in self._folders.items()}
        self.num_reloads, self.num_failed_reloads = 0, 0
        self.on_replaced: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    @property
    def first(self) -> ServedModel:
        return next(iter(self._models.values()))

    def find(self, name: str | None) -> ServedModel:
        """The model of that name, the first one for None. Raises LookupError with a sentence."""
        if name is None:
            return self.first
        if name not in self._models:
            known = ", ".join(self._models)
            raise LookupError(
                f"unknown model '{name}'.{did_you_mean(name, list(self._models))} Known: {known}."
            )
        return self._models[name]

    async def watch(self, status: Callable[[str], None], seconds: float = LOOK_SECONDS) -> None:
        """Replace models for ever, once their folders have newer checkpoints.

        What is computed goes on with the model it began with. A checkpoint that cannot be opened is
        told with `status`, and the model stays.
        """
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "reload") as executor:
            while True:
                await asyncio.sleep(seconds)
                before = self.num_reloads
                await loop.run_in_executor(executor, self.look, status)
                if self.num_reloads > before:
                    await loop.run_in_executor(executor, settle_garbage)

    def look(self, status: Callable[[str], None]) -> None:
        """Replace the models whose folders have changed."""
        for name, folder in self._folders.items():
            found = signature(folder)
            if found in ((), self._seen[name]):
                continue
            try:
                model = self._open(folder, name)
            except Exception as error:  # whatever it is, the next look may find a better one
                self.num_failed_reloads += 1
                status(f"Warning: {name} was not replaced: {error}")
            else:
                self._models[name] = model
                self.num_reloads += 1
                self.on_replaced()
                step = "" if model.step is None else f", step {model.step:,}"
                status(f"{name} was replaced by what is in its folder now{step}.")
            self._seen[name] = found


def settle_garbage() -> None:
    """Have the garbage collector pass over all that is in memory now.

    Libraries and models are half a million objects that stay. Looking through them took a third of
    the time of the thread that reads requests.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def open_folder(
    folder: Path,
    name: str,
    *,
    index: str | None = None,
    items: Path | None = None,
    columns: Mapping[str, str] | None = None,
    trust: bool = False,
) -> ServedModel:
    """The model of a run (its best checkpoint) or of an export, with an `index` if wanted.

    `items` and `columns` are those of `read_item_table`.
    """
    model = load(folder, trust=trust)
    if not model.num_items:
        raise UsageError(f"{folder} has no item to recommend: all are rare.")
    served = ServedModel(name, model, model.step if isinstance(model, RunModel) else None)
    if index is not None:
        served = IndexedModel(served, index)
    if items is not None:
        served.table = read_item_table(items, model.item_keys, columns)
    served.prepare()
    trim_heap()  # counting needs several times the memory that counts do
    return served


def names_of(folders: Sequence[Path]) -> list[str]:
    """The names of folders, with a number where several have the same.

    >>> names_of([Path("a/run"), Path("b/run"), Path("c")])
    ['run', 'run-2', 'c']
    """
    names: list[str] = []
    for folder in folders:
        readable = os.fsencode(folder.resolve().name).decode("utf-8", "replace")
        name = base = readable or "model"
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def signature(folder: Path) -> Signature:
    """Something that changes when `folder` gets another model to serve; () if it has none now."""
    record, export = folder / RECORD, folder / EXPORT_RECORD
    try:
        if not record.exists():
            return (_identity(export),)
        checkpoints = CheckpointFolder(folder / CHECKPOINTS)
        step = best_step(checkpoints)
        _, path = checkpoints.find(step)
        # copying a checkpoint into its folder file by file changes files after the folder
        files = sorted(path.iterdir())
        return tuple(_identity(each) for each in (record, path, *files))
    except (OSError, TapasError):
        return ()


def _identity(path: Path) -> tuple[str, int, int, int]:
    about = os.stat(path)
    return path.name, about.st_ino, about.st_mtime_ns, about.st_size
