"""Ranked lists read from a file, such as those of another system, at the points of an evaluation.

A file has one row for each user and item: Parquet, CSV or JSON lines, with a column of ranks
(1 is the best) or of scores (the highest is the best); with neither, rows are in order.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tapas.data.column_words import plain
from tapas.data.columns import guess_column
from tapas.data.event_log import EventLog
from tapas.data.readers import column_names, read_frame
from tapas.data.splits import EvalPoints
from tapas.data.vocabulary import Vocabulary
from tapas.errors import DataError
from tapas.phrases import counted
from tapas.regular_file import check_given

# in lower case without punctuation; earlier names win
ORDERS = {
    "rank": "rank position pos place rang platz posicion posizione posicao",
    "score": "score prediction pred logprob probability prob rating similarity relevance weight",
}


@dataclass(frozen=True, slots=True)
class ListCounts:
    """What was found in a file of lists, and what was done about it."""

    file: str
    columns: dict[str, str]  # user and item, and rank or score if there is one
    num_users: int  # that are judged
    num_lists: int  # of these users; the others score 0
    length: int  # most items of a list that count
    short_lists: int  # with fewer items
    unknown_users: int  # in the file, not in the log
    unknown_items: int  # rows of judged users with items that are not in the log, ignored
    seen_items: int  # that the user had before, left out as from the lists of the model
    repeated_items: int  # again in the list of a user, ignored
    repeated_ranks: int  # users with one rank twice; the earlier row goes first
    incomplete_rows: int  # without user, item, or a number as rank or score, ignored

    def __str__(self) -> str:
        if self.num_lists == self.num_users:
            users = "the user has" if self.num_users == 1 else f"all {self.num_users:,} users have"
            words = [f"{users} a list"]
        else:
            words = [
                f"{self.num_lists:,} of {self.num_users:,} users have a list, the others score 0"
            ]
        twice = "one rank twice (the earlier row goes first)"
        for number, one, many, end in (
            (self.short_lists, "list has", "lists have", f"fewer than {self.length} items"),
            (self.unknown_items, "unknown item", None, "ignored"),
            (self.seen_items, "item", None, "left out that the user had before"),
            (self.repeated_items, "repeated item", None, "ignored"),
            (self.repeated_ranks, "user has", "users have", twice),
            (self.unknown_users, "unknown user", None, "ignored"),
            (self.incomplete_rows, "incomplete row", None, "ignored"),
        ):
            if number:
                words.append(f"{counted(number, one, many)} {end}")
        named = (
            (name, "" if name == role else f" ({role})") for role, name in self.columns.items()
        )
        roles = ", ".join(name + role for name, role in named)
        order = "" if {"rank", "score"} & self.columns.keys() else ", rows in order"
        return f"{self.file}, columns {roles}{order}: {'; '.join(words)}."


def read_lists(
    path: Path, log: EventLog, points: EvalPoints, *, length: int, exclude_seen: bool = False
) -> tuple[NDArray[np.int64], ListCounts]:
    """The lists in `path` for the users of `points`, (P, length), padded with -1, and their counts.

    The first `length` items count that the log knows and, with `exclude_seen`, that the user did
    not have before. Raises `UsageError` or `DataError` if the file cannot be read, or has no list
    for any of the users.
    """
    columns = _find_columns(path, log)
    frame = read_frame(path, [*columns.values()], skip_bad_rows=True)
    rows = frame.rows.rename({name: role for role, name in columns.items()})
    num_rows = rows.height
    order = next((role for role in ("rank", "score") if role in columns), None)
    if order is not None:
        numbers = rows[order].cast(pl.Float64, strict=False).fill_nan(None)
        if num_rows and numbers.null_count() == num_rows:
            raise DataError(
                f"{path}: no row has a number in column '{columns[order]}', which is taken as the "
                f"{order}. Write numbers there, or rename the column."
            )
        rows = rows.with_columns(numbers)
    if rows["item"].dtype.is_nested():
        raise DataError(
            f"{path}: column '{columns['item']}' holds lists; expected one row for each user and "
            "item."
        )
    rows = rows.drop_nulls().filter(
        *(pl.col(role) != "" for role in ("user", "item") if rows[role].dtype == pl.String)
    )
    incomplete = num_rows - rows.height
    rows = rows.with_columns(
        pl.Series("user_id", _ids(log.user_keys, rows["user"])),
        pl.Series("item_id", _ids(log.item_keys, rows["item"])),
    )
    unknown_users = rows.filter(pl.col("user_id") < 0)["user"].n_unique()
    place = pl.DataFrame({"user_id": points.user, "place": np.arange(len(points))})
    rows = rows.join(place, on="user_id", how="inner", maintain_order="left")
    if not rows.height:
        raise DataError(
            f"{path} has no list for any of the {len(points):,} users that are judged. Its column "
            f"'{columns['user']}' has {_examples(frame.rows[columns['user']])}; the users are "
            f"{_examples(pl.Series(log.user_keys.keys(points.user[:3])))}. `--points FILE` writes "
            "the users and what is known of them."
        )
    if order is not None:
        rows = rows.sort(order, descending=order == "score", maintain_order=True)
    known = rows.filter(pl.col("item_id") >= 0)
    if not known.height:
        raise DataError(
            f"{path}: no item of these lists is in the log. Its column '{columns['item']}' has "
            f"{_examples(frame.rows[columns['item']])}; items of the log are "
            f"{_examples(pl.Series(log.item_keys.keys(np.arange(min(3, log.num_items)))))}."
        )
    distinct = known.unique(["place", "item_id"], keep="first", maintain_order=True)
    repeated_ranks = 0
    if order == "rank":
        twice = distinct.filter(pl.struct("place", "rank").is_duplicated())
        repeated_ranks = twice["place"].n_unique()
    allowed = distinct.filter(~_is_seen(log, points, distinct)) if exclude_seen else distinct
    top = allowed.with_columns(pl.int_range(pl.len()).over("place").alias("position")).filter(
        pl.col("position") < length
    )
    lists = np.full((len(points), length), -1, dtype=np.int64)
    lists[top["place"].to_numpy(), top["position"].to_numpy()] = top["item_id"].to_numpy()
    lengths = (lists >= 0).sum(axis=1)
    counts = ListCounts(
        file=str(path),
        columns=columns,
        num_users=len(points),
        num_lists=int((lengths > 0).sum()),
        length=length,
        short_lists=int(((lengths > 0) & (lengths < length)).sum()),
        unknown_users=unknown_users,
        unknown_items=rows.height - known.height,
        seen_items=distinct.height - allowed.height,
        repeated_items=known.height - distinct.height,
        repeated_ranks=repeated_ranks,
        incomplete_rows=incomplete,
    )
    return lists, counts


def _find_columns(path: Path, log: EventLog) -> dict[str, str]:
    """The columns of user and item, named as in the log or as usual, and of rank or score."""
    check_given(path)
    present = column_names(path)
    names_of_log = log.report.get("columns")
    own = names_of_log if isinstance(names_of_log, dict) else {}
    found: dict[str, str] = {}
    for role in ("user", "item"):
        cure, taken = f"Rename it to '{role}'.", found.values()
        found[role] = guess_column(role, present, path, cure, like=own.get(role), taken=taken)
    plain_names = {plain(name): name for name in reversed(present) if name not in found.values()}
    for role, words in ORDERS.items():
        name = next((plain_names[word] for word in words.split() if word in plain_names), None)
        if name is not None:
            return {**found, role: name}
    return found


def _ids(vocabulary: Vocabulary, keys: pl.Series) -> NDArray[np.int64]:
    """The ids of `keys`, -1 for unknown ones; "12.0", as pandas writes it, also finds 12."""
    found = vocabulary.lookup(keys)
    if keys.dtype == pl.String and (found < 0).any():
        whole = vocabulary.lookup(keys.str.replace(r"^(-?\d+)\.0+$", "$1"))
        found = np.where(found < 0, whole, found)
    return found


def _is_seen(log: EventLog, points: EvalPoints, rows: pl.DataFrame) -> pl.Series:
    """Whether the item of each row is in the history of its user's point."""
    place, item = rows["place"].to_numpy(), rows["item_id"].to_numpy()
    seen = np.zeros(rows.height, dtype=bool)
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(len(points) + 1))
    for number, start in enumerate(np.asarray(log.offsets)[points.user]):
        mine = order[edges[number] : edges[number + 1]]
        seen[mine] = np.isin(item[mine], log.items[start : points.point[number]])
    return pl.Series(seen)


def _examples(values: pl.Series) -> str:
    return ", ".join(f"'{value}'" for value in values.drop_nulls().head(3).to_list()) or "nothing"
