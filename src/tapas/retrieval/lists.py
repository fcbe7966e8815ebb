"""`Lists`: recommended or similar items, best first, with their scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapas.phrases import counted

SHOWN_LISTS, SHOWN_ITEMS = 5, 5  # of a printed object


@dataclass(frozen=True, repr=False)
class Lists:
    """B lists of up to k items each, best first.

    Attributes:
        keys: (B,) what each list is for: users, positions of histories, or items.
        items: (B, k) keys of the listed items. A list with fewer than k items ends in None.
        scores: (B, k) float32; 0 after the end of a short list.
        score: what `scores` are: "probability", "score" (of a method without probabilities) or
            "cosine".
        kind: what `keys` are: "user", "history" or "item".
    """

    keys: NDArray[Any]
    items: NDArray[Any]
    scores: NDArray[np.float32]
    score: str
    kind: str

    def __len__(self) -> int:
        return len(self.keys)

    def to_frame(self, library: str = "polars") -> Any:
        """A DataFrame with one row for each item: user (or history), rank, item, probability.

        Of similar items: item, rank, similar, cosine. `library` is "polars" or "pandas".
        """
        from tapas.data.python_histories import frame_of

        real = ~_missing(self.items)
        row, rank = np.nonzero(real)
        named = "similar" if self.kind == "item" else "item"
        columns = {
            self.kind: self.keys[row],
            "rank": rank + 1,
            named: self.items[real],
            self.score: self.scores[real],
        }
        return frame_of({name: _plain(column) for name, column in columns.items()}, library)

    def __repr__(self) -> str:
        whose = counted(len(self), self.kind, "histories" if self.kind == "history" else None)
        lines = [f"Lists of {self.items.shape[1]} items for {whose}:"]
        for key, items, scores in zip(
            self.keys[:SHOWN_LISTS], self.items, self.scores, strict=False
        ):
            pairs = zip(items[:SHOWN_ITEMS].tolist(), scores.tolist(), strict=False)
            shown = [f"{item!r} {score:.3g}" for item, score in pairs if item is not None]
            more = ", ..." if len(items) > SHOWN_ITEMS else ""
            lines.append(f"  {key}: {', '.join(shown)}{more}")
        if len(self) > SHOWN_LISTS:
            lines.append("  ...")
        return "\n".join(lines)


def _missing(items: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a list has ended."""
    if items.dtype != object:
        return np.zeros(items.shape, dtype=np.bool_)
    return np.asarray(items == np.array(None))


def _plain(column: NDArray[Any]) -> Any:
    """Objects as a list: text and integers keep their types in a DataFrame."""
    return column.tolist() if column.dtype == object else column
