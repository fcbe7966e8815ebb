"""Every file of a run on damage and malice: the same result, or one sentence."""

import io
import json

import numpy as np
import polars as pl
import pytest
from fuzz.mutations import HOSTILE, changed_header, changed_json, damaged, json_text
from fuzz.readers import REFUSED, fuzz_target, outcome, read_entries, read_run, recommend, verdicts
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from tapas.checksums import with_checksum

STEP = "checkpoints/step-00000004"
JSON = ["run.json", "log/log.json", f"{STEP}/state.json"]
ARRAYS = ["log/items.npy", "log/times.npy", "log/offsets.npy"]
KEYS = ["log/item_keys.parquet", "log/user_keys.parquet"]
TENSORS = [f"{STEP}/dense.safetensors", f"{STEP}/rows-0.safetensors"]
CHECKED = [*JSON, "restore.json", "config.toml", *ARRAYS, *KEYS, *TENSORS]


def test_all_files_of_a_run_are_here(run):
    assert {*CHECKED, "journal.jsonl", "report.html"} == {*run.names()}
    assert outcome(lambda: verdicts(run.path)) == {"whole"}


@pytest.mark.parametrize("name", CHECKED)
@fuzz_target
def test_damage_changes_nothing_in_silence(run, name, draw):
    with run.changed({name: damaged(draw, run.content(name))}) as path:
        found = outcome(lambda: read_run(path))
        verdict = outcome(lambda: verdicts(path))
    assert found in (REFUSED, run.undamaged(read_run))
    if found == REFUSED:
        assert verdict == REFUSED or "damaged" in verdict


@fuzz_target
def test_a_damaged_journal_loses_only_its_end(run, draw):
    content = damaged(draw, run.content("journal.jsonl"))
    with run.changed({"journal.jsonl": content}) as path:
        found = outcome(lambda: read_entries(path))
        outcome(lambda: verdicts(path))
    left = iter(run.undamaged(read_entries))
    assert found == REFUSED or all(entry in left for entry in found)


def check_sealed(run, files, last=recommend):
    """Somebody has made the checksums anew: any result, or one sentence."""
    with run.changed(files, sealed=True) as path:
        for read in (read_run, verdicts, last):
            outcome(lambda read=read: read(path))


@pytest.mark.parametrize("name", JSON)
@fuzz_target
def test_records_of_strangers(run, name, draw):
    record = json.loads(run.content(name))
    check_sealed(run, {name: json_text(draw, changed_json(draw, record))})


@fuzz_target
def test_lines_of_strangers(run, draw):
    lines = [json.loads(line) for line in run.content("journal.jsonl").splitlines()]
    changed = changed_json(draw, lines)
    lines = [line for line in changed if line] if isinstance(changed, list) else [changed]
    content = b"".join(
        json_text(draw, with_checksum(line) if isinstance(line, dict) else line) + b"\n"
        for line in lines
    )
    restore = json_text(draw, changed_json(draw, {"step": 4}))
    files = {"journal.jsonl": content, "restore.json": restore}
    check_sealed(run, files, read_entries)


@pytest.mark.parametrize("name", ARRAYS)
@fuzz_target
def test_arrays_of_strangers(run, name, draw):
    array = np.load(io.BytesIO(run.content(name)))
    kind = draw.randrange(5)
    if kind == 0:
        array[draw.randrange(len(array))] = draw.choice([-1, 2**30, 2**31 - 1, 0, 23])
    elif kind == 1:
        array = array.astype(draw.choice(["int8", "float64", ">i8", "uint64", "U3", "bool"]))
    elif kind == 2:
        array = draw.choice([array[:0], array[:1], array[None], array[::-1], array[0]])
    elif kind == 3:
        array = np.sort(array)
    file = io.BytesIO()
    np.save(file, array)
    content = file.getvalue()
    if kind == 4:
        header, body = content[:128], content[128:]
        changes = [(b"(", b"(-"), (b"<i", b"|O"), (b"False", b"True "), (b"shape", b"shapf")]
        changes += [(b",)", b"**9,)"), (b"{", b"__import__('os').getcwd() or {")]
        header = header.replace(*draw.choice(changes))
        content = header + body
    check_sealed(run, {name: content})


@pytest.mark.parametrize("name", KEYS)
@fuzz_target
def test_keys_of_strangers(run, name, draw):
    check_sealed(run, {name: hostile_keys(draw, run.content(name))})


def hostile_keys(draw, content):
    """Keys of other types, twice, missing, or another number of them."""
    frame = pl.read_parquet(io.BytesIO(content))
    types = [pl.String, pl.Float64, pl.Boolean, pl.Binary, pl.Date, pl.List(pl.Int64), pl.Int8]
    kind = draw.randrange(7)
    if kind == 0:
        name = draw.choice(frame.columns)
        column = frame[name].cast(pl.String).cast(pl.Int64, strict=False).hash()
        made = draw.choice(types)
        frame = frame.with_columns(
            pl.Series(name, [None] * frame.height, dtype=made)
            if draw.random() < 0.5 or made == pl.Binary or made == pl.List(pl.Int64)
            else column.cast(pl.Int32, strict=False).cast(made, strict=False).alias(name)
        )
    elif kind == 1:
        frame = frame.drop(draw.choice(frame.columns))
    elif kind == 2:
        frame = draw.choice([frame.head(0), frame.head(3), pl.concat([frame, frame])])
    elif kind == 3:
        frame = frame.with_columns(frame["key"].gather([0] * frame.height))
    elif kind == 4:
        text = [h for h in HOSTILE if isinstance(h, str)]
        keys = [draw.choice(text) for _ in range(frame.height)]
        frame = frame.with_columns(pl.Series("key", keys))
    elif kind == 5:
        counts = [draw.choice([-1, 0, 2**62, None]) for _ in range(frame.height)]
        frame = frame.with_columns(pl.Series("count", counts, dtype=pl.Int64))
    file = io.BytesIO()
    frame.write_parquet(file)
    return damaged(draw, file.getvalue()) if kind == 6 else file.getvalue()


@pytest.mark.parametrize("name", TENSORS)
@fuzz_target
def test_tensors_of_strangers(run, name, draw):
    check_sealed(run, {name: hostile_tensors(draw, run.content(name))})


def hostile_tensors(draw, content):
    """Another header, or NaN, another shape or dtype in one of the tensors."""
    if draw.random() < 0.5:
        return changed_header(draw, content)
    tensors = load_tensors(content)
    chosen = draw.choice(sorted(tensors))
    array = tensors[chosen].copy()
    kind = draw.randrange(4)
    if kind == 0 and array.size and array.dtype.kind == "f":
        array.flat[draw.randrange(array.size)] = draw.choice([np.nan, np.inf, -np.inf, 3e38])
    elif kind == 1:
        array = array.astype(draw.choice(["int8", "float16", "float64", "int64", "bool"]))
    elif kind == 2:
        array = draw.choice([array[None], array[:0] if array.ndim else array[None], array.ravel()])
    else:
        array = np.ascontiguousarray(array.T)
    if draw.random() < 0.2:
        del tensors[chosen]
        chosen = draw.choice(["", "x", chosen + ".x", "head"])
    return save_tensors({**tensors, chosen: array}, metadata={"format": "pt"})
