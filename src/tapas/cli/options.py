"""Options that several commands share, and the parser of --set."""

import os
import tomllib
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from tapas.errors import UsageError
from tapas.heads import import_method
from tapas.heads.own_method import is_own
from tapas.json_toml import parse_toml
from tapas.training.config import JSON

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOG",
        help="Files of the log, or a glob: Parquet, CSV, TSV (also .gz, .zst) or JSON lines.",
        show_default=False,
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of user ids. Default: guessed from names such as user_id or customer.",
    ),
]
Item = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of item ids. Default: guessed from names such as item_id, product or sku.",
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of times: dates, times or numbers. Default: found by name or by type; "
        "without one the order of the file is the order of the events.",
    ),
]
Weight = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of numbers above 0, such as ratings or quantities: how much each event counts "
        "in training. Default: all events count alike.",
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="For a text corpus: column of the text. The model predicts the next word.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="With --text: column of document ids. Default: each row is a document.",
    ),
]
MinCount = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Items seen fewer than N times are rare. Default: 1, no item is rare.",
    ),
]
Rare = Annotated[
    str | None,
    typer.Option(
        metavar="keep|drop|fold",
        help="Keep rare items, drop them, or merge (fold) them into one class. Default: keep.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=VALUE",
        help="Read only rows such as event_type=purchase,cart (any of them); also !=, >=, <=, >, "
        "<. May be repeated: all must hold.",
    ),
]
TimeFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="Format of times, such as '%d.%m.%Y %H:%M', or s, ms, us, ns for numbers since 1970. "
        "Default: guessed.",
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Separator of CSV files, such as ';', tab or '::'. Default: guessed.",
    ),
]
NoHeader = Annotated[
    bool,
    typer.Option(
        "--no-header",
        help="CSV files have no header; their columns are called 1, 2, 3, as in --user 1.",
    ),
]
SkipBadRows = Annotated[
    bool,
    typer.Option(
        "--skip-bad-rows",
        help="Skip rows without a valid user, item or time, and count them; refused if over half "
        "of the times cannot be read.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder for prepared logs, which open at once the next time (see `tapas cache`). "
        "Default: ~/.cache/tapas/logs.",
    ),
]
OwnMethods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="MODULE:CLASS",
        help="Import the method of your own that the run was trained with. May be repeated.",
    ),
]
RunOrExport = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, or of an export.")
]
BestStep = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Step of the checkpoint. Default: the best one.",
    ),
]
ListsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File for many lists: .parquet, .jsonl or .csv.",
    ),
]
ReplaceOut = Annotated[bool, typer.Option("--force", help="Replace an existing --out.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow the program in an export of an earlier version. It can do anything that you "
        "can: only if you know who made it.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object on stdout instead of text.",
    ),
]


def import_methods(names: list[str] | None) -> None:
    """Import the methods of the user's own that the command line names."""
    for name in names or []:
        if not is_own(name):
            raise UsageError(
                f"--method {name}: a run knows its method. The option imports one of your own, "
                "module:Class."
            )
        import_method(name)


def cache_folder(chosen: Path | None) -> Path:
    """The folder given, or the default: in XDG_CACHE_HOME, or ~/.cache."""
    if chosen is not None:
        return chosen
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative one is to be ignored
    return (base if base.is_absolute() else Path.home() / ".cache") / "tapas" / "logs"


LOG_OPTIONS = {
    "files": Files,
    "user": User,
    "item": Item,
    "time": Time,
    "weight": Weight,
    "text": Text,
    "group": Group,
    "min_count": MinCount,
    "rare": Rare,
    "skip_bad_rows": SkipBadRows,
    "where": Where,
    "time_format": TimeFormat,
    "separator": Separator,
    "no_header": NoHeader,
}
LogOptions = dict[str, JSON]  # the [log] section of the options that were given


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with all of `LOG_OPTIONS` in place of its one parameter `log_options`.

    `command` gets those that were given; the others are left to the TOML file.
    """
    parameters = []
    for parameter in signature(command).parameters.values():
        if parameter.name != "log_options":
            parameters.append(parameter)
            continue
        for name, kind in LOG_OPTIONS.items():
            default = False if name in ("skip_bad_rows", "no_header") else None
            parameters.append(
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            )

    @wraps(command)
    def with_options(**given: Any) -> None:
        options = {name: given.pop(name) for name in LOG_OPTIONS}
        options = {n: v for n, v in options.items() if v not in (None, False, [])}
        command(log_options=options, **given)

    with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return with_options


Layer = dict[str, dict[str, JSON]]


def parse_settings(settings: list[str]) -> Layer:
    """Settings by section, from SECTION.NAME=VALUE; values are TOML, a bare word is a string."""
    layer: Layer = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and key):
            raise UsageError(f"--set {setting!r} is not SECTION.NAME=VALUE, as in head.alpha=0.5.")
        try:
            parsed = parse_toml(f"value = {value}")
        except tomllib.TOMLDecodeError:
            parsed = {}
        except ValueError as error:
            raise UsageError(f"--set {name}: {error}.") from None
        if [*parsed] != ["value"]:  # a bare word, or a line break and more
            parsed = {"value": value}
        layer.setdefault(section, {})[key] = parsed["value"]
    return layer
