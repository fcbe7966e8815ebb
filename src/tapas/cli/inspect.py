"""`tapas inspect`: describe a log before training on it."""

import dataclasses

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import (
    AsJson,
    Cache,
    LogOptions,
    cache_folder,
    with_log_options,
)
from tapas.cli.terminal import print_json, print_lines, say, status
from tapas.errors import UsageError
from tapas.escapes import shell_join
from tapas.phrases import counted


@with_log_options
def inspect(
    *,
    log_options: LogOptions,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Describe a log: events, users, items and the long tail.

    The log is read as `tapas train` reads it, so problems with the data show up here first.
    """
    with report_errors():
        from tapas.data.description import describe, describe_period, describe_reading
        from tapas.data.prepare import prepare_log
        from tapas.data.source import LogSource, command_options

        if "files" not in log_options:
            raise UsageError("no log given. Try `tapas inspect purchases.parquet`.")
        of_log = {n: tuple(v) if isinstance(v, list) else v for n, v in log_options.items()}
        source = LogSource(**of_log)  # type: ignore[arg-type]
        log = prepare_log(source, cache_folder(cache), status=status)
        for words in describe_reading(log.report):
            status(words)
        found = describe(log)
        command = ["tapas", "train", *command_options(log_options), "--out", "run"]
        if as_json:
            report = {"reading": log.report, **dataclasses.asdict(found)}
            print_json(report, indent=1, default=str)
            return
        print_lines(
            " · ".join(
                counted(number, noun)
                for noun, number in (
                    ("event", found.num_events),
                    ("user", found.num_users),
                    ("item", found.num_items),
                    ("basket", found.num_baskets),
                )
            )
        )
        low, middle, high = found.events_per_user
        for words in (
            describe_period(log),
            f"events per user: median {middle:,}, 80 % of users {low:,} to {high:,}; items per "
            f"basket: {found.items_per_basket:.1f}",
            f"{100 * found.seen_once:.0f} % of items occur once; the most frequent 20 % have "
            f"{100 * found.top_fifth:.0f} % of the events",
            f"{100 * found.repeats:.0f} % of events repeat an item that the user had before",
            *found.remarks,
        ):
            say(words)
        print_lines(f"Next: {shell_join(command)}")
