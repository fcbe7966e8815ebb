"""`python -m tapas` is the command `tapas`."""

from tapas.cli.main import app

if __name__ == "__main__":
    app(prog_name="tapas")
