"""The columns of user, item, time and weight, as named by the source or guessed from names."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from tapas.data.source import LogSource
from tapas.errors import UsageError

# in lower case without punctuation and spaces; earlier names win
COMMON_NAMES = {
    "user": """user userid uid visitor visitorid customer customerid household householdid
        householdkey member memberid account accountid client clientid reviewer reviewerid player
        playerid author authorid session sessionid""",
    "item": """item itemid iid product productid movie movieid article articleid sku track trackid
        song songid artist artistid book bookid isbn asin parentasin business businessid recipe
        recipeid game gameid video videoid news newsid content contentid listing listingid poi
        poiid venue venueid url page""",
    "time": """timestamp time ts datetime date eventtime eventtimestamp eventdate createdat created
        unixtime unixreviewtime transactiontimestamp transactiondate invoicedate orderdate
        purchasedate purchasetime ratedat tdat day""",
}
ROLES = ("user", "item", "time")


def resolve_columns(
    source: LogSource, present: Sequence[str], path: Path
) -> tuple[dict[str, str], list[str]]:
    """The column of each role of `source`, {role: column}, and the roles that were guessed.

    `present` are the columns of the file `path`. Only the time column may be missing; anything
    else that is missing, duplicated or used twice raises `UsageError`.
    """
    if source.text is not None:
        wanted = {"text": source.text, "group": source.group}
        return {
            role: _check_column(role, name, present, path)
            for role, name in wanted.items()
            if name is not None
        }, []
    columns: dict[str, str] = {}
    guessed = []
    for role in ROLES:
        name: str | None = getattr(source, role)
        if name is not None:
            columns[role] = _check_column(role, name, present, path)
            continue
        guess = _guess(role, [c for c in present if c not in _named_columns(source)])
        if guess is not None:
            columns[role] = guess
            guessed.append(role)
        elif role != "time":
            raise UsageError(
                f"{path}: no column looks like the {role}. Name it with --{role}. "
                f"Columns: {', '.join(present)}."
            )
    if source.weight is not None:  # never guessed
        columns["weight"] = _check_column("weight", source.weight, present, path)
    for name in columns.values():
        if f"{name}_duplicated_0" in present:  # polars renames a second column so
            raise UsageError(f"{path}: two columns are called '{name}'. Rename one of them.")
    if len(set(columns.values())) < len(columns):
        raise UsageError(
            f"{path}: one column is used twice: "
            f"{', '.join(f'{role} is {name!r}' for role, name in columns.items())}. "
            "Name another column for one of them."
        )
    return columns, guessed


def _named_columns(source: LogSource) -> set[str | None]:
    return {source.user, source.item, source.time, source.weight}


def _check_column(role: str, name: str, present: Sequence[str], path: Path) -> str:
    if name in present:
        return name
    close = get_close_matches(name, present, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise UsageError(
        f"{path} has no column '{name}' for the {role}.{hint} Columns: {', '.join(present)}."
    )


def _guess(role: str, present: Sequence[str]) -> str | None:
    plain = {"".join(c for c in name.lower() if c.isalnum()): name for name in reversed(present)}
    return next((plain[name] for name in COMMON_NAMES[role].split() if name in plain), None)
