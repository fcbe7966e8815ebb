"""Logs of studies beside the published sets: how each is read and judged."""

from experiments.published.sets import SETS
from experiments.trained_runs import Place, Tables
from tapas.comparison.groceries import PACKAGE, find_groceries
from tapas.errors import UsageError
from tapas.training.config import PROTOCOLS

GROCERIES, COMMITS = "groceries", "commits"
COMMITS_FILE = "rust_commits.parquet"


def told_of(name: str, place: Place) -> Tables:
    """What `tapas train` is told of a log, one of the above or of the published sets."""
    if name == GROCERIES:
        groceries = find_groceries()
        if groceries is None:
            raise UsageError(f"{name} needs its log. Install it: pip install {PACKAGE}.")
        return {"log": {"files": [str(groceries.transactions)]}}
    if name == COMMITS:
        file = place.data / COMMITS_FILE
        if not file.is_file():
            raise UsageError(
                f"{name} needs the file {file}: a table of who touched which file when, with "
                "columns user, item and time."
            )
        return {"log": {"files": [str(file)]}}
    file = SETS[name].log(place.data, place.cache)
    return PROTOCOLS["leave-one-out"] | {"log": {"files": [str(file)], "ties": "file"}}


def title_of(name: str) -> str:
    titles = {GROCERIES: "Groceries", COMMITS: "Files of Rust's commits"}
    return titles[name] if name in titles else SETS[name].title
