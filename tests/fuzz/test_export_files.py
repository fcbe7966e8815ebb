"""Every file of an export on damage and malice: lists, or one sentence."""

import json

import pytest
from fuzz.mutations import changed_json, damaged, json_text
from fuzz.readers import fuzz_target, outcome, recommend
from fuzz.test_run_files import hostile_keys, hostile_tensors

RECORD, ITEMS = "export.json", "items.parquet"
TENSORS = ["embeddings.safetensors", "encoder.safetensors"]


def check(export, name, content):
    with export.changed({name: content}) as path:
        return outcome(lambda: recommend(path))


@pytest.mark.parametrize("name", [RECORD, ITEMS, *TENSORS])
@fuzz_target
def test_damaged_files_are_lists_or_one_sentence(export, name, draw):
    check(export, name, damaged(draw, export.content(name)))


@fuzz_target
def test_records_of_strangers(export, draw):
    record = json.loads(export.content(RECORD))
    check(export, RECORD, json_text(draw, changed_json(draw, record)))


@fuzz_target
def test_items_of_strangers(export, draw):
    check(export, ITEMS, hostile_keys(draw, export.content(ITEMS)))


@pytest.mark.parametrize("name", TENSORS)
@fuzz_target
def test_tensors_of_strangers(export, name, draw):
    check(export, name, hostile_tensors(draw, export.content(name)))
