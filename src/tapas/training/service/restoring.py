"""From which checkpoint a process that is started again goes on.

A run that was resumed from an older checkpoint still has later ones in its folder, of a course
that it has left: the newest is not always the right one.
"""

import json
from pathlib import Path

from tapas.errors import DataError
from tapas.whole_file import whole_file

FILE = "restore.json"


def restore_point(run: Path) -> int | None:
    """The step of the checkpoint to go on from; None is the beginning."""
    file = run / FILE
    try:
        step = json.loads(file.read_text(encoding="utf-8"))["step"]
        return None if step is None else int(step)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged: {error}. Go on with --resume.") from error


def set_restore_point(run: Path, step: int | None) -> None:
    with whole_file(run / FILE) as unfinished:
        unfinished.write_text(json.dumps({"step": step}) + "\n", encoding="utf-8")
