"""`tapas verify`: check all files of a run."""

from pathlib import Path
from typing import Annotated

import typer

from tapas.cli.exit_codes import FAILED, report_errors
from tapas.cli.options import AsJson
from tapas.cli.progress import progress_bar
from tapas.cli.terminal import print_json, print_table, say, status
from tapas.training.memory_plan import in_units


def verify(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run, of an export, or of a prepared log."),
    ],
    as_json: AsJson = False,
) -> None:
    """Check all files of a run for damage.

    Everything is read and compared with the checksums that it was saved with: settings, log, all
    checkpoints, journal. Other commands check small files in full, and of files above 64 MB only
    some blocks; `tapas train --resume` checks all that it continues from.

    The exit code is 1 if a file is damaged. Nothing is changed.
    """
    with report_errors():
        from tapas.training.run_check import check_run

        with progress_bar("reading", "MB") as advance:
            parts = check_run(run, lambda done, all: advance(done // 10**6, all // 10**6, ""))
        damaged = [part for part in parts if part.problems]
        if as_json:
            listed = [
                {
                    "part": part.name,
                    "bytes": part.num_bytes,
                    "valid": not part.problems,
                    "problems": part.problems,
                    "unchecked": part.unchecked or None,
                }
                for part in parts
            ]
            print_json({"path": str(run), "valid": not damaged, "parts": listed})
        else:
            rows = [[part.name, in_units(part.num_bytes), part.verdict] for part in parts]
            print_table(("part", "size", "verdict"), rows, right=False)
            for part in parts:
                if part.unchecked:
                    say(f"{part.name}: {part.unchecked}.")
            if not damaged:
                size = in_units(sum(part.num_bytes for part in parts if not part.unchecked))
                say(f"No damage found in {run}: {size} checked.")
        for part in damaged:
            for problem in part.problems:
                status(f"tapas: {problem}")
        if damaged:
            raise typer.Exit(FAILED)
