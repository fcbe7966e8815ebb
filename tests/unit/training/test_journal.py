"""The journal: every line is valid JSON, also after kills and resumes."""

import json
import math
import re
import sys
import warnings
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch
from damage import flip
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st
from oracle.command_line import file_size_limit

from tapas import DataError, UsageError
from tapas.checksums import with_checksum
from tapas.training.journal import Journal, read_journal


def plain(folder, **options):
    return Journal(folder, tensorboard=False, **options)


def scalars(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_line_is_in_the_file_before_the_journal_is_closed(tmp_path):
    journal = plain(tmp_path / "not" / "there" / "yet", resume_at=4)
    for step in range(3):
        journal.write(step, "train", loss=1.0)
        assert [line["step"] for line in read_journal(journal.path)] == list(range(step + 1))
    journal.close()


TEXT = st.text(st.sampled_from('aü"\\\n\u2028\0😀'), max_size=5)


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


def test_nan_and_inf_become_null_and_are_listed(tmp_path):
    with plain(tmp_path) as journal:
        journal.write(1, "train", loss=math.nan, norm=-math.inf, rate=np.float32(0.5))
    text = journal.path.read_text()
    assert text.count("\n") == 1
    found = json.loads(text, parse_constant=refuse)
    assert found == with_checksum({key: found[key] for key in [*found][:-1]})
    del found["checksum"]
    written = datetime.fromisoformat(found.pop("time"))
    assert abs(datetime.now(UTC) - written) < timedelta(minutes=1)
    assert found == {
        "step": 1,
        "event": "train",
        "loss": None,
        "norm": None,
        "rate": 0.5,
        "not_finite": "loss=nan, norm=-inf",
    }


@given(
    values=st.dictionaries(
        st.sampled_from(["loss", "größe", "a b", "x/y"]),
        st.one_of(st.none(), TEXT, st.integers(), st.booleans(), st.floats(allow_nan=False)),
    )
)
def test_what_is_written_is_read_back(tmp_path_factory, values):
    with plain(tmp_path_factory.mktemp("journal")) as journal:
        journal.write(5, "train", **values)
        journal.write(6, "train")
    first, second = read_journal(journal.path)
    for name, value in values.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        assert first[name] == (value if finite else None)
    assert second.keys() == {"step", "event", "time"}


WHOLE = b'{"step": 1, "event": "train"}\n{"step": 2, "event": "train"}\n'
TORN = {  # the end of a file, and what a continued journal makes of it
    "in a name": (WHOLE + b'{"step": 3, "ev', WHOLE),
    "in a letter": (WHOLE + '{"step": 3, "note": "ü'.encode()[:-1], WHOLE),
    "by a crash of the machine": (WHOLE + b"\0" * 9, WHOLE),
    "only its end is missing": (WHOLE[:-1], WHOLE),
}


@pytest.mark.parametrize("resume_at", [None, 2, 9])
@pytest.mark.parametrize("case", TORN)
def test_an_incomplete_last_line_is_ignored_and_then_removed(tmp_path, case, resume_at):
    path = tmp_path / "journal.jsonl"
    content, after = TORN[case]
    path.write_bytes(content)
    assert [line["step"] for line in read_journal(path)] == [1, 2]
    with plain(tmp_path, resume_at=resume_at) as journal:
        journal.write(3, "train")
    content = path.read_bytes()
    assert content.startswith(after + b'{"step": 3, "event": "train", "time": ')
    assert content.count(b"\n") == after.count(b"\n") + 1


@pytest.mark.parametrize("bad", ["{broken", "[1, 2]", '{"event": "train"}', '{"step": "1"}', ""])
def test_a_bad_line_in_the_middle_is_named_and_nothing_is_changed(tmp_path, bad):
    path = tmp_path / "journal.jsonl"
    content = f'{{"step": 1}}\n{bad}\n{{"step": 2}}\n'
    path.write_text(content)
    words = (
        f"{path}, line 2: not a JSON object with an integer step. Remove that line, or move the "
        "file away."
    )
    with pytest.raises(DataError, match=re.escape(words)):
        read_journal(path)
    with pytest.raises(DataError, match=re.escape(words)):
        plain(tmp_path, resume_at=1)
    assert path.read_text() == content


def test_every_flipped_byte_of_a_line_is_found_and_the_line_named(tmp_path):
    with plain(tmp_path) as journal:
        for step in range(3):
            journal.write(step, "train", loss=0.25 * step, note="ü")
    content, entries = journal.path.read_bytes(), read_journal(journal.path)
    assert [[*entry] for entry in entries] == [["step", "event", "time", "loss", "note"]] * 3
    first, second, _ = content.splitlines(keepends=True)
    for place in range(len(first), len(first) + len(second)):
        flip(journal.path, place, place % 7)
        try:
            assert read_journal(journal.path) == entries
            assert content[place : place + 1] == b" "
        except DataError as error:
            said = str(error).removeprefix(f"{journal.path}, line ")
            assert said[:2] in ("2:", "3:")
        journal.path.write_bytes(content)
    flip(journal.path, len(first) + 9)
    with raises_text(
        f"{journal.path}, line 2: damaged, its checksum differs from the one it was saved with. "
        "Remove that line, or move the file away.",
        DataError,
    ):
        plain(tmp_path, resume_at=1)


def test_a_full_disk_is_an_error_and_leaves_no_partial_line(tmp_path, monkeypatch):
    """Without `tensorboard`, TensorBoard is not imported."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)

    def fill(journal):
        for step in range(9):
            journal.write(step, "train", loss=0.5)

    with plain(tmp_path) as journal:
        with file_size_limit(400), pytest.raises(UsageError) as error:
            fill(journal)
        journal.write(50, "train")
    start = re.escape(f"cannot write to {journal.path}: ")
    reason = "(No space left on device|File too large)"
    end = r"\. Free some space and continue with --resume\."
    assert re.fullmatch(start + reason + end, str(error.value))
    assert [line["step"] for line in read_journal(journal.path)] == [0, 1, 50]
    assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl"]


def test_what_cannot_be_written_or_read_is_an_error(tmp_path):
    absent = tmp_path / "run" / "journal.jsonl"
    (tmp_path / "file").write_text("")
    journal, closed = plain(tmp_path), plain(tmp_path / "closed")
    closed.close()
    closed.close()
    no_number = (
        "loss is of type {}; expected a number, text or None. Convert it with float() or .item()."
    )
    calls = {
        no_number.format("Tensor"): lambda: journal.write(1, "train", loss=torch.ones(3)),
        no_number.format("list"): lambda: journal.write(1, "train", loss=[1.0]),
        no_number.format("ndarray"): lambda: journal.write(1, "train", loss=np.ones(2)),
        f"{closed.path} is closed: cannot write 'train' of step 4.": lambda: closed.write(
            4, "train", loss=1.0
        ),
        f"{absent} does not exist. `tapas train` writes one for each run.": lambda: read_journal(
            absent
        ),
        f"cannot write to {tmp_path}/file/journal.jsonl: File exists. Make sure that it can be "
        "written to and continue with --resume.": lambda: plain(tmp_path / "file"),
    }
    for words, call in calls.items():
        with pytest.raises(UsageError) as error:
            call()
        assert str(error.value) == words
    journal.close()
    assert read_journal(journal.path) == []


@pytest.mark.slow
def test_a_journal_continued_within_a_second_has_a_later_file_name(tmp_path):
    """TensorBoard reads files in the order of their names, which contain the second."""
    for step in range(1, 4):
        Journal(tmp_path, resume_at=step).close()
    seconds = sorted(file.name.split(".")[3] for file in (tmp_path / "tensorboard").iterdir())
    assert len(set(seconds)) == 3


def test_tensorboard_has_the_same_numbers_and_drops_later_steps_on_resume(tmp_path):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with Journal(tmp_path) as journal:
            for step in range(1, 8):
                journal.write(step, "train", loss=step / 2, note="text", missing=None)
        with Journal(tmp_path, resume_at=4) as journal:
            journal.write(5, "train", loss=math.inf)
            journal.write(5, "evaluate", recall=0.25)
    assert warned == []
    assert scalars(tmp_path, "train/loss") == [
        (1, 0.5),
        (2, 1.0),
        (3, 1.5),
        (4, 2.0),
        (5, math.inf),
    ]
    assert scalars(tmp_path, "evaluate/recall") == [(5, 0.25)]
