"""Event logs (user, item, time): reading, preparing, splitting, and cutting into batches.

Modules that need polars are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tapas.data.source import LogSource
from tapas.errors import UsageError
from tapas.extras import how_to_install

if TYPE_CHECKING:
    from tapas.data.event_log import EventLog
    from tapas.data.prepare import prepare_log
    from tapas.data.splits import EvalPoints, Split, SplitConfig, next_items_at, split_log
    from tapas.data.vocabulary import Vocabulary

__all__ = [
    "EvalPoints",
    "EventLog",
    "LogSource",
    "Split",
    "SplitConfig",
    "Vocabulary",
    "next_items_at",
    "prepare_log",
    "split_log",
]

_LAZY = {
    "EventLog": "event_log",
    "EvalPoints": "splits",
    "Split": "splits",
    "SplitConfig": "splits",
    "Vocabulary": "vocabulary",
    "prepare_log": "prepare",
    "split_log": "splits",
    "next_items_at": "splits",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        try:
            return getattr(import_module(f"tapas.data.{_LAZY[name]}"), name)
        except ModuleNotFoundError as error:
            hint = how_to_install(error.name)
            raise error if hint is None else UsageError(hint) from None
    raise AttributeError(f"module 'tapas.data' has no attribute '{name}'")
