"""Settings, histories and lists that users write: what they say, or one sentence."""

import io
import json

import polars as pl
import pytest
from fuzz.mutations import HOSTILE, changed_json, damaged, json_text
from fuzz.readers import fuzz_target, outcome

from tapas.cli.options import parse_settings
from tapas.cli.recommend import _split_keys
from tapas.data.list_files import read_lists
from tapas.data.splits import split_log
from tapas.training.config import as_tables, as_toml, build_config, read_toml
from tapas.training.run_folder import open_run


@pytest.fixture(scope="module")
def opened(trained):
    return open_run(trained)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("given")


@fuzz_target
def test_any_config_is_settings_or_one_sentence(opened, folder, draw):
    file, content = folder / "config.toml", as_toml(opened.config).encode()
    file.write_bytes(damaged(draw, content))
    outcome(lambda: build_config(read_toml(file)))


@fuzz_target
def test_any_tables_are_settings_that_can_be_written_or_one_sentence(opened, folder, draw):
    tables = changed_json(draw, as_tables(opened.config))
    found = outcome(lambda: as_toml(build_config(tables)) if _is_tables(tables) else "")
    file = folder / "config.toml"
    file.write_text(found if isinstance(found, str) else "")
    if found:
        outcome(lambda: read_toml(file))


def _is_tables(value):
    return isinstance(value, dict) and all(isinstance(table, dict) for table in value.values())


@fuzz_target
def test_any_set_is_a_setting_or_one_sentence(opened, draw):
    tables = as_tables(opened.config)
    section = draw.choice(sorted(tables))
    name = draw.choice([*sorted(tables[section]), "", "x", "a.b"])
    value = draw.choice(
        [str(draw.choice(HOSTILE)), json.dumps(draw.choice(HOSTILE)), "[" * 3000, "9" * 5000,
         "1e400", "0x10", "1979-05-27", "'", '"""', "{a=1}", "1\nb=2", "inf", "-nan"]
    )  # fmt: skip
    text = f"{section}.{name}={value}"
    if draw.random() < 0.3:
        text = damaged(draw, text.encode()).decode(errors="replace")
    outcome(lambda: as_toml(build_config(parse_settings([text]))))


@fuzz_target
def test_any_history_is_keys_or_one_sentence(draw):
    keys = changed_json(draw, [1003, "b", "c,d"])
    text = json_text(draw, keys)
    if draw.random() < 0.5:
        text = damaged(draw, text)
    outcome(lambda: _split_keys(text.decode(errors="replace")))


@fuzz_target
def test_any_lists_are_lists_or_one_sentence(opened, folder, draw):
    points = split_log(opened.log, opened.config.split).test
    frame = pl.DataFrame({"user_id": ["u1", "u1", "u2"], "item_id": [1003, 1004, 1005]})
    text = [hostile for hostile in HOSTILE if isinstance(hostile, str)]
    kind = draw.randrange(4)
    if kind == 0:
        frame = frame.with_columns(rank=pl.Series([draw.choice(["x", "1", "nan"])] * 3))
    elif kind == 1:
        frame = frame.with_columns(score=pl.Series([draw.choice([None, 1e308, -1e308])] * 3))
    elif kind == 2:
        chosen = draw.choice(frame.columns)
        frame = frame.with_columns(pl.Series(chosen, [draw.choice(text) for _ in range(3)]))
    else:
        frame = frame.rename({draw.choice(frame.columns): draw.choice(text)})
    file, suffix = io.BytesIO(), draw.choice([".csv", ".parquet"])
    (frame.write_csv if suffix == ".csv" else frame.write_parquet)(file)
    content = file.getvalue()
    path = folder / f"lists{suffix}"
    path.write_bytes(damaged(draw, content) if draw.random() < 0.5 else content)
    outcome(lambda: read_lists(path, opened.log, points, length=5))
