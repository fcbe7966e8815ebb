"""Every file of an export on damage and malice: lists, or one sentence."""

import json

import pytest
from fuzz.mutations import changed_json, damaged, json_text
from fuzz.readers import REFUSED, fuzz_target, outcome, recommend
from fuzz.test_run_files import hostile_keys, hostile_tensors

RECORD, ITEMS = "export.json", "items.parquet"
TENSORS = ["embeddings.safetensors", "encoder.safetensors"]


def check_sealed(export, name, content):
    """Somebody has made the checksums anew: any lists, or one sentence."""
    with export.changed({name: content}, sealed=True) as path:
        outcome(lambda: recommend(path))


@pytest.mark.parametrize("name", [RECORD, ITEMS, *TENSORS])
@fuzz_target
def test_damage_changes_nothing_in_silence(export, name, draw):
    expected = export.undamaged(recommend)
    with export.changed({name: damaged(draw, export.content(name))}) as path:
        assert outcome(lambda: recommend(path)) in (REFUSED, expected)


@fuzz_target
def test_records_of_strangers(export, draw):
    record = json.loads(export.content(RECORD))
    check_sealed(export, RECORD, json_text(draw, changed_json(draw, record)))


@fuzz_target
def test_items_of_strangers(export, draw):
    check_sealed(export, ITEMS, hostile_keys(draw, export.content(ITEMS)))


@pytest.mark.parametrize("name", TENSORS)
@fuzz_target
def test_tensors_of_strangers(export, name, draw):
    check_sealed(export, name, hostile_tensors(draw, export.content(name)))
