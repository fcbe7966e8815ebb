"""The name of a file is a name: never a pattern, a home folder or a URL for polars."""

import ast
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from error_text import raises_text

from tapas.data import LogSource, Vocabulary
from tapas.data.local_files import literal
from tapas.data.readers import read_frame
from tapas.data.table_files import table_writer, write_frame

ROOT = Path(__file__).parents[3]
FOLDERS = ("src", "experiments", "benchmarks")
WRITERS = ("write_parquet", "write_csv", "write_ndjson", "sink_parquet", "sink_csv", "sink_ndjson")
IN_MEMORY = {"clean", "opened"}  # names of variables that hold bytes or an open file, not a path


def unsafe_calls(code: str) -> list[str]:
    """Calls of polars that may take the name of a file for something else."""
    nodes = list(ast.walk(ast.parse(code)))
    passed_on = {
        id(node.args[0])
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "scan"
    }
    found = []
    for node in nodes:
        if not isinstance(node, ast.Attribute):
            continue
        reads = getattr(node.value, "id", "") == "pl" and node.attr.startswith(("read_", "scan_"))
        if not (reads or node.attr in WRITERS) or id(node) in passed_on:
            continue
        call = next((n for n in nodes if isinstance(n, ast.Call) and n.func is node), None)
        if call is None or not call.args or not _is_literal(call, reads):
            found.append(ast.unparse(node if call is None else call))
    return found


def _is_literal(call: ast.Call, reads: bool) -> bool:
    names = {n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)}
    if names & IN_MEMORY:
        return True
    no_glob = any(k.arg == "glob" and ast.unparse(k.value) == "False" for k in call.keywords)
    escaped = ast.unparse(call.args[0]).startswith("glob.escape(")  # scan_ndjson has no `glob`
    return "literal" in names and (no_glob or escaped or not reads)


def test_no_call_of_polars_takes_a_path_for_a_pattern():
    for code in (
        "pl.read_parquet(path)",
        "pl.read_parquet(literal(path))",
        "pl.scan_csv(path, glob=False)",
        "pl.scan_ndjson(glob.escape(path))",
        "read = pl.scan_parquet",
        "frame.write_csv(path)",
        "other(pl.scan_lines, path)",
    ):
        assert unsafe_calls(code), code
    assert unsafe_calls("scan(pl.scan_lines, path)\npl.read_csv(literal(x), glob=False)") == []
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    codes = {str(file): file.read_text() for file in files}
    unsafe = {file: unsafe_calls(code) for file, code in codes.items() if "polars" in code}
    assert {file: calls for file, calls in unsafe.items() if calls} == {}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working folder and another home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.mark.parametrize("name", ["x[1]", "x*", "~", "file:", "s3:", "a=b", "%s {} $HOME", "'\"\\"])
def test_files_are_written_to_and_read_from_the_folder_of_that_name(home, name):
    folder, sibling = Path(name), Path("x1")
    for number, each in enumerate((folder, sibling)):
        each.mkdir()
        keys = pl.Series([f"key {number}"])
        Vocabulary(keys, np.array([1])).save(each / "keys")
        for suffix in (".csv", ".jsonl", ".parquet"):
            write_frame(each / f"a{suffix}", {"item": [f"key {number}"]})
            with table_writer(each / f"b{suffix}") as write:
                write({"item": [f"key {number}"]})
    assert Vocabulary.load(folder / "keys").key(0) == "key 0"
    for file in ("a.csv", "a.jsonl", "a.parquet", "b.csv", "b.jsonl", "b.parquet"):
        frame = read_frame(folder / file, ["item"], skip_bad_rows=False)
        assert frame.rows["item"].to_list() == ["key 0"], file
    assert len(os.listdir(folder)) == 7
    assert not list(home.iterdir())


def test_a_log_that_exists_is_no_pattern_and_a_saved_one_never_is(home):
    for name in ("log[1].csv", "log1.csv"):
        Path(name).write_text("x")
    source = LogSource(files=("log[1].csv",))
    assert source.paths() == (Path("log[1].csv"),)
    saved = source.resolved({})
    assert saved.paths() == (Path("log[1].csv").resolve(),)
    Path("log[1].csv").unlink()
    assert source.paths() == (Path("log1.csv"),)
    with raises_text(f"no file matches '{saved.files[0]}'. Check the path."):
        saved.paths()


def test_a_name_that_is_not_utf8_is_refused():
    name = os.fsdecode(b"r\xfcn/log.parquet")
    with raises_text(f"{name}: the name is not UTF-8. Rename the file or folder."):
        literal(name)
