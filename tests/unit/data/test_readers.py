"""All formats give the same rows; broken files are reported with the row."""

import gzip
from pathlib import Path

import polars as pl
import pytest
from error_text import raises_text

from tapas import DataError
from tapas.data.readers import column_names, read_frame

CSV = "who,what,when\na,1,5\n,2,6\nb,3,\n"
JSON = '{"who": "a", "what": 1, "when": 5}\n{"what": 2, "when": 6}\n{"who": "b", "what": 3}\n'
ROWS = [("a", "1", "5"), (None, "2", "6"), ("b", "3", None)]
NAMES = ["who", "what", "when"]


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    if name.endswith(".gz"):
        file.write_bytes(gzip.compress(text.encode()))
    elif name.endswith(".zst"):
        lines = pl.DataFrame({"line": text.splitlines()})
        lines.write_csv(
            file, include_header=False, quote_style="never", separator="\x01", compression="zstd"
        )
    else:
        file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", CSV),
        ("a.csv.gz", CSV),
        ("a.csv.zst", CSV),
        ("a.tsv", CSV.replace(",", "\t")),
        ("semicolons.csv", CSV.replace(",", ";")),
        ("windows.csv", "\ufeff" + CSV.replace("\n", "\r\n")),
        ("brackets[1].csv", CSV),
        ("a.jsonl", JSON),
        ("brackets[1].jsonl", JSON),
        ("A.NDJSON", JSON),
        ("a.jsonl.gz", JSON),
        ("a.jsonl.zst", JSON),
        ("blank_lines.jsonl", JSON.replace("\n", "\n\n")),
    ],
)
def test_every_text_format_gives_the_same_rows(tmp_path, name, text):
    file = written(tmp_path, name, text)
    assert column_names(file) == NAMES
    frame = read_frame(file, NAMES, skip_bad_rows=False)
    assert frame.rows.rows() == ROWS
    assert (frame.broken, frame.typed) == ([], False)


def test_parquet_keeps_its_types(tmp_path):
    pl.DataFrame({"who": ["a"], "what": [1]}).write_parquet(tmp_path / "a.parquet")
    frame = read_frame(tmp_path / "a.parquet", ["what"], skip_bad_rows=False)
    assert frame.rows.to_dict(as_series=False) == {"what": [1]}
    assert frame.typed


def test_a_row_with_too_many_values_is_reported_or_skipped_whichever_columns_are_read(tmp_path):
    file = written(tmp_path, "a.csv", 'who,what\na,"1\n1"\nb,2,3\nc,4\nd,5,6,7\n')
    words = (
        f"{file}, row 2: 3 values where the header names 2. Drop such rows with --skip-bad-rows "
        "(2 broken among 4 rows)."
    )
    for columns in (["who"], ["what"], ["what", "who"]):
        with raises_text(words, DataError):
            read_frame(file, columns, skip_bad_rows=False)
    frame = read_frame(file, ["what", "who"], skip_bad_rows=True)
    assert frame.rows.rows() == [("1\n1", "a"), (None, None), ("4", "c"), (None, None)]
    assert [row for row, _ in frame.broken] == [2, 4]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"who": 1', "not valid JSON (Expecting ',' delimiter at character 10)"),
        ("[1, 2]", "a JSON list where an object is expected"),
    ],
)
def test_a_broken_line_of_json_is_reported_or_skipped(tmp_path, line, problem):
    file = written(tmp_path, "a.jsonl", f'{{"who": 1}}\n{line}\n{{"who": "x"}}\n')
    assert column_names(file) == ["who"]
    words = f"{file}, row 2: {problem}. Drop such rows with --skip-bad-rows (1 broken among 3 rows)"
    with raises_text(words, DataError):
        read_frame(file, ["who"], skip_bad_rows=False)
    frame = read_frame(file, ["who"], skip_bad_rows=True)
    assert frame.rows.rows() == [("1",), (None,), ("x",)]


def damaged_in_the_middle(content: bytes) -> bytes:
    return content[:4] + bytes(1996) + content[2000:]


def test_unreadable_files_are_reported(tmp_path):
    file = written(tmp_path, "quote.csv", 'who,what\na,1\nb,"2\nc,3\n')
    with raises_text(f"{file}, row 2: a quote is opened and never closed, so", DataError):
        read_frame(file, ["who"], skip_bad_rows=True)
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        file = written(tmp_path, name, "")
        with raises_text(f"{file} is empty. Leave it out.", DataError):
            column_names(file)
    file = tmp_path / "a.parquet"
    pl.DataFrame({"who": range(10_000)}).write_parquet(file)
    content = file.read_bytes()
    file.write_bytes(damaged_in_the_middle(content))
    with raises_text(f"{file} cannot be read: ", DataError):
        read_frame(file, ["who"], skip_bad_rows=False)
    file.write_bytes(content[:-100])
    with raises_text(f"{file} cannot be read: ", DataError):
        column_names(file)


@pytest.mark.parametrize("name", ["a", "a.parquet.gz"])
def test_the_error_for_an_unknown_format_lists_the_known_ones(tmp_path, name):
    with raises_text(": unknown file format. Known: .parquet, .csv, .tsv, .txt, .jsonl, .ndjson"):
        column_names(written(tmp_path, name, "x"))
