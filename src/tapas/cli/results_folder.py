"""A folder of results: proved writable before the work, filled whole or not at all after it."""

import os
from contextlib import suppress
from pathlib import Path

from tapas.errors import UsageError


class ResultsFolder:
    """Makes `folder`, and writes a small file there and back to be sure that it can."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = self._unfinished("probe")
            probe.write_bytes(b"?")
            probe.unlink()
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, files: dict[str, bytes]) -> None:
        """All of `files` (name: content), or none: each is renamed into place when all are there.

        A reader sees the old file or the finished one, never a part.
        """
        try:
            for name, content in files.items():
                with self._unfinished(name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            for name in files:
                self._unfinished(name).replace(self.folder / name)
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            for name in files:
                with suppress(OSError):
                    self._unfinished(name).unlink()

    def _unfinished(self, name: str) -> Path:
        return self.folder / f".{name}.{os.getpid()}.unfinished"

    def _refusal(self, error: OSError) -> UsageError:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the way" if is_file else error.strerror or str(error)
        return UsageError(
            f"cannot write into {self.folder}: {reason}. Choose another folder with --out."
        )
