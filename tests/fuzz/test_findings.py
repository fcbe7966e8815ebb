"""What was ever found wrong in readers of stored files: each is refused, in one sentence."""

import io
import json

import numpy as np
import pytest
from fuzz.mutations import DEEP
from fuzz.readers import REFUSED, outcome, read_entries, read_run, recommend, verdicts
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

STEP = "checkpoints/step-00000004"
STATE, ROWS, CONFIG = f"{STEP}/state.json", f"{STEP}/rows-0.safetensors", "config.toml"
NESTED = b'{"a":' * DEEP + b"1" + b"}" * DEEP


def record(name, **fields):
    """A JSON record with other fields."""
    return name, lambda content: json.dumps({**json.loads(content), **fields}).encode()


def bytes_of(name, content):
    return name, lambda _: content


def flipped(name, place):
    def flip(content):
        found = bytearray(content)
        found[place] ^= 1
        return bytes(found)

    return name, flip


def array(name, change):
    def changed(content):
        found = np.load(io.BytesIO(content))
        np.save(file := io.BytesIO(), change(found))
        return file.getvalue()

    return name, changed


def rows(change):
    def changed(content):
        tensors = load_tensors(content)
        tensors["model.head.table.weight"] = change(tensors["model.head.table.weight"].copy())
        return save_tensors(tensors, metadata={"format": "pt"})

    return ROWS, changed


def first(value):
    def change(found):
        found.flat[0] = value
        return found

    return change


def lines(*more):
    return CONFIG, lambda content: content + "".join(f"{line}\n" for line in more).encode()


DAMAGE = {
    "a bit in items.npy": flipped("log/items.npy", -3),
    "a bit in the header of items.npy": flipped("log/items.npy", 30),
    "a bit in item_keys.parquet": flipped("log/item_keys.parquet", 60),
    "a bit in the rows": flipped(ROWS, -9),
    "an empty config.toml": bytes_of(CONFIG, b""),
    "nested run.json": bytes_of("run.json", NESTED),
    "nested log.json": bytes_of("log/log.json", NESTED),
    "nested state.json": bytes_of(STATE, NESTED),
    "nested restore.json": bytes_of("restore.json", NESTED),
    "restore.json without a step": bytes_of("restore.json", b"{}"),
}
MALICE = {
    **{f"format {n} of run.json": record("run.json", format=n) for n in (-3, 0, 1.5, True, 3)},
    **{f"format {n} of state.json": record(STATE, format=n) for n in (-3, 0, 1.5, True, 3)},
    "text for numbers in state.json": record(STATE, numbers={"model.head.table": "x"}),
    "state.json of another step": record(STATE, step=3),
    "a device in state.json": record(STATE, files={"/dev/zero": {"bytes": 0, "blake2b": ""}}),
    "a path out of the folder": record(STATE, files={"../x": {"bytes": 0, "blake2b": ""}}),
    "a list for the log": record("log/log.json", sizes=[]),
    "threads of run.json": record("run.json", num_threads=100_000),
    "an infinite restore point": bytes_of("restore.json", b'{"step": Infinity}'),
    "nested TOML": lines(f"[x]\na = {'[' * DEEP}"),
    "a number of 10,000 digits": lines(f"[x]\na = {'9' * 10_000}"),
    "item 2^30": array("log/items.npy", first(2**30)),
    "item -1": array("log/items.npy", first(-1)),
    "falling offsets": array("log/offsets.npy", lambda found: found[::-1].copy()),
    "NaN rows": rows(first(np.nan)),
    "rows of int8": rows(lambda found: found.astype(np.int8)),
    "rows without header": bytes_of(ROWS, b"\xff" * 16),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(run, name):
    file, change = DAMAGE[name]
    with run.changed({file: change(run.content(file))}) as path:
        assert outcome(lambda: read_run(path)) == REFUSED
        assert "damaged" in outcome(lambda: verdicts(path))


@pytest.mark.parametrize("name", MALICE)
def test_malice_is_refused(run, name):
    file, change = MALICE[name]
    with run.changed({file: change(run.content(file))}, sealed=True) as path:
        outcome(lambda: verdicts(path))
        found = [outcome(lambda: read_run(path)), outcome(lambda: recommend(path))]
    assert REFUSED in found


@pytest.mark.parametrize("name", sorted({file for file, _ in MALICE.values()}))
def test_checksums_made_anew_are_right(run, name):
    """Otherwise malice would be refused as damage."""
    content = run.content(name)
    content = json.dumps(json.loads(content)).encode() if name.endswith(".json") else content
    with run.changed({name: content}, sealed=True) as path:
        assert outcome(lambda: read_run(path)) == run.undamaged(read_run)


def test_a_nested_line_of_the_journal_is_named(run):
    content = run.content("journal.jsonl") + NESTED + b"\n"
    with run.changed({"journal.jsonl": content}) as path:
        assert outcome(lambda: read_entries(path)) == REFUSED


def test_a_run_with_a_record_of_an_export_is_a_run(run):
    expected = run.undamaged(recommend)
    try:
        with run.changed({"export.json": b'{"format": 1}'}) as path:
            assert outcome(lambda: recommend(path)) == expected
    finally:
        (run.path / "export.json").unlink()
