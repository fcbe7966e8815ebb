"""Lists of items as the commands `recommend` and `similar` print and write them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tapas.cli.progress import progress_bar
from tapas.cli.terminal import print_json, print_row, status
from tapas.phrases import counted

if TYPE_CHECKING:
    from tapas.data.vocabulary import Vocabulary
    from tapas.retrieval.recommender import Part


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the columns: whose list, the listed item, its score."""

    key: str
    item: str
    score: str


def print_list(
    parts: Iterable["Part"],
    keys: "Vocabulary",
    names: Names,
    asked: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print one list: rank, item and score on each line, or one JSON object that begins `asked`."""
    for part in parts:
        real = part.ids[0] >= 0
        scores = part.scores[0][real].tolist()
        found = list(zip(keys.keys(part.ids[0][real]), scores, strict=True))
        if as_json:
            items = [{"item": key, names.score: round(score, 8)} for key, score in found]
            print_json({**asked, "items": items})
            continue
        for rank, (key, score) in enumerate(found, start=1):
            print_row(rank, key, f"{score:.4g}")


def report_skipped(what: str, skipped: dict[str, int], first: str) -> None:
    """Tell how many `what` were skipped, by kind, and which was the first; nothing if none."""
    total = sum(skipped.values())
    if not total:
        return
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in skipped.items() if number)
    after = f" (first: {first})" if first else ""
    status(f"{counted(total, what)} skipped: {kinds}{after}.")


def write_lists(
    out: Path,
    parts: Iterable["Part"],
    whose: Any,
    keys: "Vocabulary",
    names: Names,
    *,
    what: str,
) -> int:
    """Write the lists of `whose`, a column of B keys, to a table, as they come.

    Returns the number of rows. On a terminal, a progress bar shows the rate and the time left.
    """
    from tapas.data.table_files import table_writer

    num_rows = 0
    try:
        with table_writer(out) as write, progress_bar(what, f"{names.key}s") as advance:
            advance(0, len(whose), "")
            for part in parts:
                real = part.ids >= 0
                row, rank = np.nonzero(real)
                write(
                    {
                        names.key: whose[part.start : part.stop].gather(row),
                        "rank": (rank + 1).astype(np.int32),
                        names.item: keys.gather(part.ids[real]),
                        names.score: part.scores[real],
                    }
                )
                num_rows += len(row)
                advance(part.stop, len(whose), "")
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
        status(f"{out} was not written.")
        raise
    return num_rows
