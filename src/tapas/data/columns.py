"""The columns of user, item, time and weight: as named, or found by name or by type."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tapas.data.column_words import (
    could_be_id,
    find_by_words,
    find_column,
    find_exact,
    is_no_event_time,
    is_word,
)
from tapas.data.csv_layout import Layout
from tapas.data.source import LogSource
from tapas.data.times import looks_like_numbers, looks_like_times, parse_times
from tapas.errors import UsageError
from tapas.phrases import did_you_mean

ROLES = ("user", "item", "time")
MAX_SHOWN = 20  # columns in a message
MAX_VALUE = 24  # characters of an example
MOST = 0.5  # of the values, to be times where the name is that of a time
DUPLICATE = "_duplicated_"  # polars calls a second column x so: x_duplicated_0


@dataclass(frozen=True)
class Columns:
    """The column of each role, {role: column}, and how those were found that were not named."""

    names: dict[str, str]
    guessed: list[str]  # roles
    by_type: list[str]  # roles, of `guessed`: by its values, not by its name


class Present:
    """The columns of the file `path`, and its first rows; `layout` if it is a CSV file."""

    def __init__(self, path: Path, sample: pl.DataFrame, layout: Layout | None = None):
        self.path, self.sample, self.names, self.layout = path, sample, sample.columns, layout

    def listed(self) -> str:
        """All columns with a value of each, for a message."""
        shown = []
        for name in self.names[:MAX_SHOWN]:
            first = self.sample[name].drop_nulls().head(1)
            is_time = first.dtype == pl.Date or isinstance(first.dtype, pl.Datetime)
            if is_time and parse_times(first, self.path).values.null_count():
                first = first.to_physical()  # Python has no year above 9999
            values = first.to_list()
            text = str(values[0]) if values else ""
            cut = text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."
            shown.append(f"{name or '(no name)'} ({cut!r})" if values else name or "(no name)")
        if len(self.names) > MAX_SHOWN:
            shown.append(f"and {len(self.names) - MAX_SHOWN} more")
        return ", ".join(shown)

    def check(self, name: str, purpose: str) -> str | None:
        """What is wrong with `name` as a column, None if there is one."""
        if name in self.names:
            return None
        return f"no column '{name}' for {purpose}.{did_you_mean(name, self.names)}"

    def question(self) -> str:
        """What may be wrong if columns are missing: the header, or the separator."""
        if self.layout is None:
            return ""
        if len(self.names) == 1:
            return " There is only one column: is the separator another one? Name it: --separator."
        data = [n for n in self.names if n and looks_like_data(n.partition(DUPLICATE)[0])]
        if data and self.layout.header:
            return (
                f" The first row looks like data ({', '.join(data[:3])}): if there is no header, "
                "add --no-header; the columns are then called 1, 2, 3, as in --user 1 --item 2."
            )
        return ""


def looks_like_data(name: str) -> bool:
    """Whether the name of a column is a number or a date."""
    cell = pl.Series([name])
    return looks_like_numbers(cell) or looks_like_times(cell)


def resolve_columns(source: LogSource, present: Present) -> Columns:
    """The column of each role of `source` in a file.

    Only the time column may be missing; anything else that is missing, duplicated or used twice
    raises `UsageError`, all missing ones in one sentence.
    """
    roles = (*ROLES, "weight") if source.text is None else ("text", "group")
    given = {role: getattr(source, role) for role in roles}
    named = {role: name for role, name in given.items() if name is not None}
    wrong = [words for role, name in named.items() if (words := present.check(name, f"the {role}"))]
    if wrong:
        raise UsageError(
            f"{present.path} has {' It has '.join(wrong)} Columns: {present.listed()}."
            f"{present.question()}"
        )
    names, guessed, by_type = dict(named), list[str](), list[str]()
    needed = ROLES[:2] if source.text is None else ()
    for role in needed:
        if role not in names:
            free = [name for name in present.names if name not in names.values()]
            found = find_column(role, free)
            if found is not None:
                names[role] = found
                guessed.append(role)
    missing = [role for role in needed if role not in names]
    if missing:
        raise UsageError(
            f"{present.path}: no column looks like the {' or the '.join(missing)}. Name "
            f"{'it' if len(missing) == 1 else 'them'} with "
            f"{' and '.join(f'--{role}' for role in missing)}. Columns: {present.listed()}."
            f"{present.question()}"
        )
    if needed and "time" not in names:
        free = [name for name in present.names if name not in names.values()]
        time, is_by_type = _find_time(present, free)
        if time is not None:
            names["time"] = time
            guessed.append("time")
            by_type += ["time"] * is_by_type
        elif source.time_format is not None:
            raise UsageError(
                f"{present.path}: no column looks like the time, but --time-format "
                f"{source.time_format!r} is given. Name the column with --time. Columns: "
                f"{present.listed()}."
            )
    _check_distinct(names, present)
    order = [role for role in roles if role in names]
    return Columns({role: names[role] for role in order}, guessed, by_type)


def guess_column(
    role: str,
    present: Sequence[str],
    path: Path,
    cure: str = "Name it with --column.",
    *,
    like: str | None = None,
    taken: Collection[str] = (),
) -> str:
    """The column of `present` that is called as in the model's log, `like`, or looks like `role`.

    Those that are `taken` are passed over. `path` and `cure` are for the error.
    """
    free = [name for name in present if name not in taken]
    found = like if like in free else find_column(role, free)
    if found is None:
        raise UsageError(
            f"{path}: no column looks like the {role}. {cure} Columns: {', '.join(present):.2000}."
        )
    return found


def _find_time(present: Present, free: list[str]) -> tuple[str | None, bool]:
    """The time column and whether it was found by its type; None if there is none.

    A usual name is enough. With a word of another language the values must be numbers or times,
    with any other name times.
    """
    exact = find_exact("time", free)
    if exact is not None:
        return exact, False
    sample = present.sample
    free = [name for name in free if not is_no_event_time(name)]
    times = [name for name in free if looks_like_times(sample[name])]
    named = find_by_words("time", [n for n in free if looks_like_times(sample[n], MOST)]) or [
        name for name in free if is_word("time", name) and looks_like_numbers(sample[name])
    ]
    found = named or [name for name in times if not could_be_id(name)]
    if len(found) > 1:
        raise UsageError(
            f"{present.path}: {len(found)} columns look like the time: {', '.join(found)}. Name "
            "one with --time."
        )
    return (found[0], not named) if found else (None, False)


def _check_distinct(names: dict[str, str], present: Present) -> None:
    for name in names.values():
        if f"{name}{DUPLICATE}0" in present.names:
            raise UsageError(
                f"{present.path}: two columns are called '{name}'. Rename one of them."
            )
    if len(set(names.values())) < len(names):
        raise UsageError(
            f"{present.path}: one column is used twice: "
            f"{', '.join(f'{role} is {name!r}' for role, name in names.items())}. "
            "Name another column for one of them."
        )
