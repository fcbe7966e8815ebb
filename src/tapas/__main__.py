"""Entry point of the command `tapas` and of `python -m tapas`."""

import sys

from tapas.extras import how_to_install


def main() -> None:
    """Run the command line, or say how to install the extra [train] if it is missing."""
    try:
        from tapas.cli.main import app
    except ModuleNotFoundError as error:
        words = how_to_install(error.name)
        if words is None:
            raise
        print(f"tapas: {words}", file=sys.stderr)
        raise SystemExit(1) from None
    app(prog_name="tapas")


if __name__ == "__main__":
    main()
