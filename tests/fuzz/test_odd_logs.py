"""Valid but odd logs are read as the events that were written, or refused: one of each kind.

`fuzz.attack` reads many of each, by the command.
"""

import os
import random

import pytest
from fuzz.odd_logs import MAKERS, SKIP, events_of
from fuzz.readers import REFUSED, outcome

from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource

FIELDS = {"--user": "user", "--item": "item", "--time": "time", "--time-format": "time_format"}


@pytest.mark.parametrize("maker", dict.fromkeys(MAKERS), ids=lambda maker: maker.__name__)
def test_an_odd_log_is_read_as_it_was_written_or_refused(maker, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # which takes most of the time
    odd = maker(random.Random(maker.__name__))
    for name, content in odd.files.items():
        (tmp_path / name).write_bytes(content)
    words = [word for word in odd.words if word not in SKIP]
    options = {FIELDS[name]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    files = tuple(str(tmp_path / name) for name in odd.files)
    source = LogSource(files=files, skip_bad_rows=SKIP[0] in odd.words, **options)
    found = outcome(lambda: events_of(prepare_log(source, tmp_path / "cache")))
    assert found == (REFUSED if odd.events is None else odd.events), odd.what
