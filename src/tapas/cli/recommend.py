"""`tapas recommend`: the next items of a user or history, or of many, in a file."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.list_output import Names, print_list, report_skipped, write_lists
from tapas.cli.options import (
    AsJson,
    BestStep,
    ListsFile,
    OwnMethods,
    ReplaceOut,
    RunOrExport,
    Trust,
    import_methods,
)
from tapas.cli.terminal import print_json, status
from tapas.errors import UsageError, choice
from tapas.json_toml import parse_json
from tapas.phrases import counted

if TYPE_CHECKING:
    from tapas.data.histories import Histories
    from tapas.retrieval import Recommender

ROLES = ("user", "item", "time")
CURE = "--cold skip leaves such users out, --cold popular gives them the most popular items."


def recommend(
    source: RunOrExport,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Recommend for this user of the log, from all of their events.",
        ),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(
            metavar="all|FILE",
            help="Recommend for all users of the log, or for those in a file: Parquet, CSV, JSON "
            "lines, or one id per line.",
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,KEY...|FILE",
            help="Recommend for this history: item ids, the oldest first, or a JSON list if ids "
            "contain commas. Or for those in a file: a log (user, item, time) with old and new "
            "events, or JSON lines with a list of items each. New users are welcome.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ROLE=]NAME",
            help="Column of the user ids in a file, or of another role, as in item=sku; may be "
            "repeated. Default: guessed, as by `tapas train`.",
        ),
    ] = None,
    out: ListsFile = None,
    force: ReplaceOut = False,
    cold: Annotated[
        str | None,
        typer.Option(
            metavar="skip|popular|error",
            help="What users that are unknown or have no known item get: no list, the most popular "
            "items of training, or an error. Default: skip and say so; error for --user.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of items to recommend. Default: 20, or all if there are fewer.",
        ),
    ] = None,
    step: BestStep = None,
    exclude_seen: Annotated[
        bool | None,
        typer.Option(
            "--exclude-seen/--keep-seen",
            help="Leave out items of the history, or keep them in the lists. Default: as the run "
            "was trained.",
        ),
    ] = None,
    method: OwnMethods = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Recommend the next items for users or histories.

    All items are ranked, exactly. Probabilities are those of the model for the very next item,
    over all items; a method that has none gives scores, to be compared within one list only.

    For one user or history the list is printed on stdout, one line per item: rank, item,
    probability. Many are written to --out, one row per user and item: user, rank, item,
    probability.
    """
    with report_errors():
        if sum(given is not None for given in (user, history, users)) != 1:
            raise UsageError("give one of --user KEY, --users all|FILE or --history KEY,KEY|FILE.")
        from_file = history is not None and _is_file(history)
        many = users is not None or from_file
        if many != (out is not None):
            raise UsageError("--users and --history FILE need --out FILE, and only they.")
        if cold is not None:
            choice("value of --cold", cold, dict.fromkeys(("skip", "popular", "error")))
        columns = _columns(column, many and users != "all", with_items=from_file)
        if out is not None:
            from tapas.data.table_files import check_new

            check_new(out, force)
        from tapas.training.load import load

        import_methods(method)
        model = load(source, step=step, trust=trust)
        top = model.check_k(top, "--top")
        seen = model.exclude_seen if exclude_seen is None else exclude_seen
        names = Names("user", "item", model.score)
        if out is None:
            found = _one(model, user, history, cold or "error")
            asked = {"user": user} if user is not None else {"history": history}
            lists = model.lists(found, top, exclude_seen=seen)
            print_list(lists, model.item_keys, names, asked, as_json=as_json)
            return
        everyone = _many(model, users, history, columns)
        found = model.settle_cold(everyone, cold or "skip", CURE)
        counts = _report_cold(model, everyone, cold or "skip")
        if not len(found):
            raise UsageError(
                "no user is left to recommend for. With --cold popular they get the most popular "
                "items."
            )
        status(
            f"Recommending {top} of {model.num_items:,} items for {counted(len(found), 'user')}."
        )
        rows = write_lists(
            out,
            model.lists(found, top, exclude_seen=seen),
            found.keys,
            model.item_keys,
            names,
            what="recommending",
        )
        if as_json:
            print_json({"users": len(found), "rows": rows, "out": str(out), **counts})
        status(
            f"Wrote {counted(rows, 'recommendation')} for {counted(len(found), 'user')} to {out}."
        )


def _is_file(history: str) -> bool:
    """Whether --history names a file rather than items."""
    from tapas.data.histories import LOG_FILES

    if history.lstrip().startswith("["):
        return False
    is_file = os.path.exists(history) and not os.path.isdir(history)
    return is_file or ("," not in history and history.endswith(LOG_FILES))


def _columns(given: list[str] | None, allowed: bool, *, with_items: bool) -> dict[str, str]:
    """Columns by role, from [ROLE=]NAME."""
    columns: dict[str, str] = {}
    for words in given or []:
        role, equals, name = words.partition("=")
        if not equals:
            role, name = "user", words
        known = ROLES if with_items else ROLES[:1]
        choice("role in --column", role, dict.fromkeys(known))
        columns[role] = name
    if columns and not allowed:
        raise UsageError("--column is for --users FILE and --history FILE. Leave it out.")
    return columns


def _split_keys(history: str) -> list[str]:
    """Keys separated by commas, or a JSON list, for keys that contain commas."""
    if history.lstrip().startswith("["):
        try:
            keys = parse_json(history)
        except ValueError as error:
            shown = history if len(history) <= 60 else f"{history[:60]}..."
            raise UsageError(f"--history {shown!r} is not a JSON list: {error}.") from None
        for key in keys:
            if not isinstance(key, str | int | float) or isinstance(key, bool):
                raise UsageError(f"--history: {key!r} is no item; expected a string or a number.")
        return [str(key) for key in keys]
    return [key.strip() for key in history.split(",") if key.strip()]


def _one(model: "Recommender", user: str | None, history: str | None, cold: str) -> "Histories":
    """The history of a user of the log, or the given one."""
    from tapas.data.histories import histories_of_lists, histories_of_users, key_column

    if user is not None:
        if model.log is None:
            raise UsageError(
                "an export has items but no users. Give --history, or the folder of the run."
            )
        found = histories_of_users(model.log, key_column([user]))
    else:
        keys = _split_keys(str(history))
        found = histories_of_lists([history], [keys], model.item_keys)
        if found.unknown_items and not found.empty.all():
            bad = str(found.first_unknown_item)
            others = "" if found.unknown_items == 1 else f" and {found.unknown_items - 1:,} more"
            rare = model.item_keys.rare_id is not None
            done = f"'{bad}'{others} as a rare one" if rare else f"'{bad}'{others}"
            hint = model.item_keys.suggestion(bad)
            status(f"{'Read' if rare else 'Left out'} unknown item {done}.{hint}")
        elif found.unknown_items and cold == "error":
            model.item_keys.ids(keys)  # raises, and suggests another
    return model.settle_cold(found, cold, "--cold popular lists the most popular items.")


def _many(
    model: "Recommender", users: str | None, history: str | None, columns: dict[str, str]
) -> "Histories":
    """The histories of many users, of the log or of a file."""
    from tapas.data.histories import histories_of_users, read_histories, read_keys

    if history is not None:
        return read_histories(
            Path(history), columns, model.item_keys, status, model.source, model.date_order
        )
    if model.log is None:
        raise UsageError(
            "an export has items but no users. Give --history FILE, or the folder of the run."
        )
    if users == "all":
        return histories_of_users(model.log)
    keys = read_keys(Path(str(users)), model.log.user_keys, columns.get("user"), model.source)
    if not keys.len():
        raise UsageError(f"{users} has no users.")
    return histories_of_users(model.log, keys)


def _report_cold(model: "Recommender", everyone: "Histories", cold: str) -> dict[str, int]:
    """Tell what could not be used, and return the counts."""
    from tapas.data.histories import FoundKeys

    empty = int(everyone.empty.sum())
    users = everyone.users or FoundKeys(everyone.keys, np.zeros(0, dtype=np.int64))
    skipped = {
        "unknown": users.num_unknown if cold == "skip" else 0,
        "without a known item": empty - users.num_unknown if cold == "skip" else 0,
        "without a key": users.no_key,
    }
    report_skipped("user", skipped, users.first_bad)
    if cold == "popular" and empty:
        status(f"The most popular items go to {counted(empty, 'user')} without a history.")
    if users.repeated:
        status(f"{counted(users.repeated, 'repeated user')} left out: one list each.")
    if everyone.bad_rows:
        rows = counted(everyone.bad_rows, "row")
        status(f"{rows} left out (first: {everyone.first_bad_row}).")
    if everyone.unknown_items:
        done = "left out" if model.item_keys.rare_id is None else "read as rare ones"
        status(
            f"{counted(everyone.unknown_items, 'event')} of unknown items {done} (first: "
            f"'{everyone.first_unknown_item}')."
        )
    return {"skipped": sum(skipped.values()), "popular": empty if cold == "popular" else 0}
