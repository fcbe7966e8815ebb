"""Errors of ranks under torchrun: printed once, kept for torchrun's summary, not tried again.

torchrun gives each rank a file, .../attempt_<number>/<local rank>/error.json, which it quotes in
its summary, and restarts all ranks when one has failed, also after a mistake in the command.
"""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapas.atomic_file import unfinished_file
from tapas.signals import handle_signals


def error_file() -> Path | None:
    """The file in which torchrun looks for the error of this rank; None without torchrun."""
    path = Path(os.environ.get("TORCHELASTIC_ERROR_FILE") or os.devnull)
    return path if path.name == "error.json" and path.parent.is_dir() else None


def report_error(words: str, code: int, show: Callable[[], None], *, try_again: bool) -> None:
    """Call `show`, unless a rank on this host did for the same `words`; write torchrun's file.

    Unless `try_again`, later attempts of this job end at once, see `give_up_again`.
    """
    file = error_file()
    if file is None:
        show()
        return
    error: dict[str, Any] = {
        "message": {
            "message": words,
            "errorCode": code,
            "extraInfo": {"timestamp": str(int(time.time()))},
        },
        "errorTraits": {"category": "tapas", "retryability": str(try_again)},
    }
    # torchrun ends a rank when another has failed: not before this one has said why
    with handle_signals({signal.SIGTERM: signal.SIG_IGN}):
        if _is_first_to_say(words, file):
            show()
        with suppress(OSError):
            _write(file, json.dumps(error))


def _is_first_to_say(words: str, file: Path) -> bool:
    """Whether no other rank on this host has asked this about the same `words` in this attempt."""
    name = hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
    try:
        (file.parents[1] / f"said-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _write(file: Path, content: str) -> None:
    """Write all of `content` or nothing: torchrun raises an error of its own for half a file."""
    with unfinished_file(file) as unfinished:
        unfinished.write_text(content, encoding="utf-8")


def give_up_again() -> int | None:
    """The exit code of an earlier attempt of this job that is not worth trying again, or None.

    Its error is written for torchrun's summary once more.
    """
    file = error_file()
    if file is None:
        return None
    for earlier in sorted(file.parents[2].glob("attempt_*/*/error.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = earlier.read_text(encoding="utf-8")
            error = json.loads(content)
            traits = error["errorTraits"]
            if traits["category"] == "tapas" and traits["retryability"] == "False":
                code = int(error["message"]["errorCode"])
                _write(file, content)
                return code
    return None
