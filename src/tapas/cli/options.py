"""Flags that several commands share, and --set."""

import os
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from tapas.errors import UsageError
from tapas.training.config import JSON

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LOG...",
        help="Parquet, CSV or TSV (also .gz, .zst), or JSON lines; several files or a glob.",
        show_default=False,
    ),
]
User = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Who. Guessed from common names if left out."),
]
Item = Annotated[str | None, typer.Option(metavar="COLUMN", help="Took what. Guessed likewise.")]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="When: a date, a time or a number. Guessed likewise; a log without any is taken in "
        "file order.",
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="For a text corpus: the column of text. Predicts the next word."
    ),
]
Group = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Rows of a text that are one document.")
]
MinCount = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Items seen less often than this are rare. Default: 1."),
]
Rare = Annotated[
    str | None,
    typer.Option(
        metavar="keep|drop|fold", help="What to do with rare items; fold: one class. Default: keep."
    ),
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave bad rows out and count them.")
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where prepared logs are kept, to be read at once the next time."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]


def cache_folder(chosen: Path | None) -> Path:
    """The folder given, or the one that the platform keeps for caches."""
    if chosen is not None:
        return chosen
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tapas" / "logs"


def source_table(
    files: list[str] | None,
    user: str | None,
    item: str | None,
    time: str | None,
    text: str | None,
    group: str | None,
    min_count: int | None,
    rare: str | None,
    skip_bad_rows: bool,
) -> dict[str, JSON]:
    """The [log] section that these flags make; what was left out is left to the TOML file."""
    given: dict[str, JSON] = {
        "files": list(files) if files else None,
        "user": user,
        "item": item,
        "time": time,
        "text": text,
        "group": group,
        "min_count": min_count,
        "rare": rare,
        "skip_bad_rows": skip_bad_rows or None,
    }
    return {name: value for name, value in given.items() if value is not None}


Layer = dict[str, dict[str, JSON]]


def parse_settings(settings: list[str]) -> Layer:
    """SECTION.NAME=VALUE, the value as TOML has it; a bare word is a string."""
    layer: Layer = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and key):
            raise UsageError(f"--set {setting!r} is not SECTION.NAME=VALUE, as in head.alpha=0.5.")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        layer.setdefault(section, {})[key] = parsed
    return layer
