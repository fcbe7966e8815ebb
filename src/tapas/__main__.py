"""The command `tapas`, which is also `python -m tapas`."""

import sys

from tapas.extras import how_to_install


def main() -> None:
    """Run the command line; without the libraries of [train], say how to install them."""
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
