"""Entry point of the command `tapas` and of `python -m tapas`."""

import sys

from tapas.early_exit import exit_on_signals


def main() -> None:
    """Run the command line, or say how to install the extra [train] if it is missing."""
    exit_on_signals()
    from tapas.cli.rank_errors import give_up_again

    if (code := give_up_again()) is not None:
        raise SystemExit(code)
    try:
        from tapas.cli.main import run
    except ModuleNotFoundError as error:
        from tapas.extras import how_to_install

        words = how_to_install(error.name)
        if words is None:
            raise
        print(f"tapas: {words}", file=sys.stderr)
        raise SystemExit(1) from None
    run()


if __name__ == "__main__":
    main()
