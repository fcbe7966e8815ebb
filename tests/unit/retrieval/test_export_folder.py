"""The record of an exported folder."""

import json

import pytest
from error_text import raises_text

from tapas import DataError, UsageError
from tapas.retrieval.export_folder import read_export_record
from tapas.version import __version__


@pytest.mark.parametrize(
    ("record", "kind", "words"),
    [
        (
            {"format": 3, "tapas": "9.1", "score": "luck"},
            UsageError,
            f"{{path}} has export format 3, written by tapas 9.1; this is tapas {__version__}, "
            "which reads formats up to 2. Upgrade tapas-softmax to read it.",
        ),
        ({}, DataError, "{path}/export.json is damaged: its format number is None."),
        (
            {"format": 1, "score": "luck"},
            DataError,
            "{path}/export.json: score is 'luck'; expected 'score' or 'probability'. Export the "
            "run again.",
        ),
    ],
)
def test_a_damaged_or_newer_record_is_an_error(tmp_path, record, kind, words):
    (tmp_path / "export.json").write_text(json.dumps(record))
    with raises_text(words.format(path=tmp_path), kind):
        read_export_record(tmp_path)
