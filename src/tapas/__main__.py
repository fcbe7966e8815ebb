"""Entry point of the command `tapas` and of `python -m tapas`."""

import resource
import sys

from tapas.errors import UsageError
from tapas.signals import exit_on_signals
from tapas.threads import requested_threads, set_waiting

LEAST_MEMORY = 2 * 2**30  # address space for torch and polars
LEAST_FILES = 64  # that are open at the same time


def main() -> None:
    """Run the command line, or say how to install the extra [train] if it is missing."""
    exit_on_signals()
    from tapas.cli.rank_errors import give_up_again

    if (code := give_up_again()) is not None:
        raise SystemExit(code)
    if (words := _too_small() or _wrong_threads()) is not None:
        raise _failure(words)
    set_waiting()
    try:
        from tapas.cli.main import run
    except ModuleNotFoundError as error:
        from tapas.extras import how_to_install

        words = how_to_install(error.name)
        if words is None:
            raise
        raise _failure(words) from None
    run()


def _too_small() -> str | None:
    """Why the libraries cannot be loaded under the limits of this process; None if they can.

    Some of them abort the process when they get no more memory, and leave no chance to say why.
    """
    limits = (
        (resource.RLIMIT_AS, LEAST_MEMORY, 2**20, "the address space is", " MB", "-v unlimited"),
        (resource.RLIMIT_NOFILE, LEAST_FILES, 1, "open files are", "", "-n 1024"),
    )
    for limit, least, unit, what, unit_name, option in limits:
        now, _ = resource.getrlimit(limit)
        if now != resource.RLIM_INFINITY and now < least:
            return (
                f"{what} limited to {now // unit:,}{unit_name}; torch and polars need at least "
                f"{least // unit:,}{unit_name}. Raise the limit with `ulimit {option}`."
            )
    return None


def _wrong_threads() -> str | None:
    """What is wrong with OMP_NUM_THREADS, before OpenMP reads it."""
    try:
        requested_threads()
    except UsageError as error:
        return str(error)
    return None


def _failure(words: str) -> SystemExit:
    print(f"tapas: {words}", file=sys.stderr)
    return SystemExit(1)


if __name__ == "__main__":
    main()
