"""What every reader must do: give a result or one sentence, and end soon."""

import hashlib
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tapas
from tapas.checkpoints.describe import describe
from tapas.checksums import checksum, with_checksum
from tapas.errors import TapasError
from tapas.servers.training_server import restore_point
from tapas.training.journal import read_journal
from tapas.training.run_check import check_run
from tapas.training.run_folder import best_step, open_run

SECONDS = 30  # until a reader hangs; the machine may be busy
REFUSED = "refused"
DRAWS = st.randoms(use_true_random=False)


def fuzz_target(test: Any) -> Any:
    """A test of `draw`, a `random.Random`, with a quarter of the usual examples: there are many."""
    return settings(max_examples=settings().max_examples // 4)(given(draw=DRAWS)(test))


def outcome(read: Callable[[], Any]) -> Any:
    """What `read` returns, or REFUSED if it raises an error for users, of one sentence or two."""
    try:
        with time_limit(SECONDS):
            return read()
    except TapasError as error:
        words = str(error)
        assert words.strip(), "an error without words"
        assert len(words) < 20_000, f"{words[:200]}..."
        return REFUSED


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Sample:
    """A folder whose files are changed and put back."""

    def __init__(self, path: Path):
        self.path = path
        self._content = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        self._undamaged: dict[Any, Any] = {}

    def names(self) -> list[str]:
        return sorted(str(file.relative_to(self.path)) for file in self._content)

    def content(self, name: str) -> bytes:
        return self._content[self.path / name]

    def undamaged(self, read: Callable[[Path], Any]) -> Any:
        """What `read` returns for the folder as it was."""
        if read not in self._undamaged:
            self._undamaged[read] = read(self.path)
        return self._undamaged[read]

    @contextmanager
    def changed(self, files: dict[str, bytes], *, sealed: bool = False) -> Iterator[Path]:
        """The folder with other `files`; `sealed` if somebody has made all checksums anew."""
        try:
            for name, content in files.items():
                (self.path / name).write_bytes(content)
            if sealed:
                seal(self.path, {*files})
            yield self.path
        finally:
            for file, content in self._content.items():
                file.write_bytes(content)


def seal(folder: Path, changed: set[str]) -> None:
    """Make all checksums of a run or an export anew, from bottom to top."""
    records = [*sorted(folder.glob("checkpoints/*/state.json")), folder / "log" / "log.json"]
    for record in (*records, folder / "run.json", folder / "export.json"):
        if record.exists():
            _renew(record, lambda name, at=record.parent: at / name, changed, folder)
    if "config.toml" in changed:
        text = (folder / "config.toml").read_bytes()
        (folder / "config.toml").write_bytes(text.partition(b"\n")[2])


def _renew(file: Path, place: Callable[[str], Path], changed: set[str], run: Path) -> None:
    try:
        record = json.loads(file.read_bytes())
        record.pop("checksum", None)
        if str(file.relative_to(run)) not in changed:
            files = {name: checksum(place(name)) for name in record["files"]}
            if files == record["files"]:
                return  # the checksum of this file, in a record above, stays right
            record["files"] = files
        file.write_text(json.dumps(with_checksum(record)))
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError, OSError):
        pass  # no JSON any more: left as it is


def read_run(path: Path) -> dict[str, Any]:
    """Everything that commands read of a run, as plain values."""
    found: dict[str, Any] = {}
    opened = open_run(path)
    opened.log.check_values()
    found["config"] = repr(opened.config)
    found["log"] = [_digest(getattr(opened.log, name)) for name in ("items", "times", "offsets")]
    for kind in (opened.log.item_keys, opened.log.user_keys):
        found[kind.kind] = kind.keys(np.arange(len(kind))), kind.counts.tolist()
    for step in opened.checkpoints.steps():
        loaded = opened.checkpoints.load(step)
        found[f"step {step}"] = {n: _digest(t.numpy()) for n, t in sorted(loaded.tensors.items())}
        found[f"state {step}"] = loaded.state
        describe(path / "checkpoints" / f"step-{step:08}")
    found["best"] = best_step(opened.checkpoints)
    found["restore"] = restore_point(path)
    return found


def read_entries(path: Path) -> list[Any]:
    return read_journal(path / "journal.jsonl")


def verdicts(path: Path) -> set[str]:
    """What `tapas verify` says."""
    return {part.verdict for part in check_run(path)}


def recommend(path: Path) -> Any:
    """Lists of a run or an export, and the neighbours of an item."""
    model = tapas.load(path)
    histories = [model.items[:3], model.items[4:5]]
    lists = model.recommend(histories, k=5)
    near = model.similar(model.items[:2], k=3)
    return repr((lists.items.tolist(), lists.scores.tolist(), near.items.tolist()))


def _digest(array: Any) -> tuple[str, tuple[int, ...], str]:
    return str(array.dtype), array.shape, hashlib.blake2b(np.ascontiguousarray(array)).hexdigest()
