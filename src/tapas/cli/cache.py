"""`tapas cache`: list the prepared logs, or remove them."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tapas.atomic_file import remove_leftovers
from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson, Cache, cache_folder
from tapas.cli.terminal import confirm, print_json, print_table, say, status
from tapas.data.cache import PreparedLog, num_others, prepared_logs, remove
from tapas.errors import UsageError
from tapas.phrases import counted
from tapas.training.memory_plan import in_units


def cache(
    cache: Cache = None,
    empty: Annotated[
        bool,
        typer.Option("--empty", help="Remove all prepared logs that no process is using."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="With --empty: do not ask first."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the prepared logs, or remove them.

    A log is prepared when it is first read, so that the next command opens it at once. Removing
    prepared logs loses nothing but that time: runs have their own copy, and the files that a log
    was read from are never touched.
    """
    with report_errors():
        folder = cache_folder(cache)
        if yes and not empty:
            raise UsageError("--yes can be used with --empty only.")
        logs = prepared_logs(folder)
        if empty:
            remove_leftovers(folder)
            _empty(folder, logs, yes=yes, as_json=as_json)
        elif as_json:
            print_json({"folder": str(folder), "logs": [_plain(log) for log in logs]})
        else:
            _list(folder, logs)


def _plain(log: PreparedLog) -> dict[str, object]:
    return {
        "folder": str(log.folder),
        "files": list(log.files),
        "last_used": log.last_used.isoformat(timespec="seconds"),
        "bytes": log.num_bytes,
    }


def _list(folder: Path, logs: list[PreparedLog]) -> None:
    if not logs:
        say(f"There is no prepared log in {folder}.")
        return
    rows = [
        [in_units(log.num_bytes), f"{log.last_used:%Y-%m-%d %H:%M}", _files(log)] for log in logs
    ]
    print_table(("size", "last used", "read from"), rows, right=False)
    size = in_units(sum(log.num_bytes for log in logs))
    say(f"{counted(len(logs), 'prepared log')}, {size}, in {folder}.")
    status("Remove them with `tapas cache --empty`.")


def _empty(folder: Path, logs: list[PreparedLog], *, yes: bool, as_json: bool) -> None:
    if logs and not yes:
        all_logs = counted(len(logs), "prepared log")
        if not sys.stdin.isatty():
            raise UsageError(f"--empty removes {all_logs}. Add --yes to do so.")
        size = in_units(sum(log.num_bytes for log in logs))
        confirm(f"Remove {all_logs}, {size}, from {folder}?")
    gone: list[PreparedLog] = []
    kept: list[PreparedLog] = []
    for log in logs:
        (gone if remove(log) else kept).append(log)
    freed = sum(log.num_bytes for log in gone)
    if as_json:
        removed = [str(log.folder) for log in gone]
        print_json({"folder": str(folder), "removed": removed, "freed_bytes": freed})
        return
    say(f"Removed {counted(len(gone), 'prepared log')} from {folder}; {in_units(freed)} freed.")
    for log in kept:
        status(f"Kept the prepared log of {_files(log)}: a process is using it.")
    if others := num_others(folder):
        status(f"Left {counted(others, 'other entry', 'other entries')} in {folder} alone.")


def _files(log: PreparedLog) -> str:
    if not log.files:
        return "unknown files (prepared by an earlier version)"
    more = f" and {len(log.files) - 1:,} more" if len(log.files) > 1 else ""
    return f"{log.files[0]}{more}"
