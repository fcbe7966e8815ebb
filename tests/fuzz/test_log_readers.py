"""Log readers on any bytes: events or one sentence; and what is written well is read unchanged."""

import csv
import gzip
import io
import json
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st

from tapas.data import LogSource
from tapas.data.raw_events import read_events
from tapas.errors import DataError, TapasError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz", ".csv.zst", ".jsonl.zst")
LOG = "user,item,time\nu1,i1,2024-01-31\nu2,i2,2024-02-01 18:30:00\n"


def read(path: Path, **options):
    """Events as (user, item, time), or None with a sentence where the file is refused."""
    try:
        raw = read_events(LogSource(files=(str(path),), **options), lambda text: None)
    except TapasError as error:
        words = str(error)
        assert words.strip(), "an error without words"
        assert "Traceback" not in words
        assert len(words) < 5_000 + 20 * path.stat().st_size
        return None
    users, items = raw.user.keys.gather(raw.user.codes), raw.item.keys.gather(raw.item.codes)
    rows = list(zip(users.to_list(), items.to_list(), raw.time.tolist(), strict=True))
    assert len(rows) + raw.report["bad_rows"] <= raw.report["rows"]
    assert rows, "no event and no error"
    return rows


def packed(content: bytes, suffix: str) -> bytes:
    if suffix.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    if suffix.endswith(".zst"):
        return zstd(content)
    return content


def zstd(content: bytes) -> bytes:
    """A frame of one raw block, without a checksum."""
    assert len(content) < 1 << 17
    size = len(content).to_bytes(4, "little")
    header = (1 | len(content) << 3).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xa0" + size + header + content


def parquet(**columns) -> bytes:
    file = io.BytesIO()
    pl.DataFrame(columns).write_parquet(file)
    return file.getvalue()


def start(suffix: str) -> bytes:
    """A log in the format of `suffix`."""
    if suffix == ".parquet":
        return parquet(user=["u1", "u2"], item=[1, 2], time=[1.5, 2.5])
    if "json" in suffix:
        rows = [{"user": "u1", "item": 1, "time": "2024-01-31"}, {"user": "u2", "item": 2}]
        return packed("".join(json.dumps(row) + "\n" for row in rows).encode(), suffix)
    text = LOG.replace(",", "\t") if suffix == ".tsv" else LOG
    return packed(text.encode(), suffix)


PIECES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\n", b"\r", b'"', b",", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"{", b"[" * 99,
                     b"1e999", b"-0", b"9" * 40, b"13/13/2021", b"\xd9\xa3/4/2021", b"nan",
                     b"0000-00-00", b"sep=;\n", b"::", b"\x1a", b"NULL", b"\\u0000"]),
)  # fmt: skip


@st.composite
def damaged(draw):
    """Any bytes, or a good file with pieces put in, cut out or changed."""
    suffix = draw(st.sampled_from(SUFFIXES))
    if draw(st.integers(0, 3)) == 0:
        return suffix, draw(st.binary(max_size=300))
    inside = draw(st.booleans())  # of a compressed file
    content = start(suffix.removesuffix(".gz").removesuffix(".zst") if inside else suffix)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        until = draw(st.integers(at, min(len(content), at + 20)))
        content = content[:at] + draw(PIECES) + content[until:]
    return suffix, packed(content, suffix) if inside else content


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@given(file=damaged(), skip=st.booleans())
def test_any_bytes_are_events_or_one_sentence(folder, file, skip):
    suffix, content = file
    path = folder / f"log{suffix}"
    path.write_bytes(content)
    read(path, skip_bad_rows=skip)


KEYS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], include_characters="\t"),
    min_size=1, max_size=6,
).filter(lambda key: key == key.strip())  # fmt: skip
MOMENTS = st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)).map(
    lambda moment: moment.replace(microsecond=0)
)
EVENTS = st.lists(st.tuples(KEYS, KEYS, MOMENTS), min_size=1, max_size=9)


@given(
    events=EVENTS,
    separator=st.sampled_from([",", ";", "\t", "|", "::"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    quote_all=st.booleans(),
    last_end=st.booleans(),
    pack=st.sampled_from(["", ".gz", ".zst"]),
)
def test_a_csv_file_is_read_as_it_was_written(
    folder, events, separator, line_end, encoding, quote_all, last_end, pack
):
    if pack == ".zst" and encoding == "utf-16":
        encoding = "utf-8"  # compressed by zst, UTF-8 is all that is read
    text = io.StringIO()
    mark = "\x1f" if separator == "::" else separator
    quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=mark, lineterminator=line_end, quoting=quoting)
    writer.writerow(["user", "item", "time"])
    writer.writerows((user, item, moment.isoformat(sep=" ")) for user, item, moment in events)
    content = text.getvalue()
    if separator == "::":
        if "::" in content or ":\x1f" in content or "\x1f:" in content:
            return  # what is in quotes is not told from a separator of two characters
        content = content.replace("\x1f", "::")
    content = content if last_end else content.removesuffix(line_end)
    path = folder / f"good.csv{pack}"
    path.write_bytes(packed(content.encode(encoding), path.suffix))
    assert _text(read(path)) == _text(_expected(events))


@given(events=EVENTS, escaped=st.booleans(), pack=st.sampled_from(["", ".gz", ".zst"]))
def test_json_lines_are_read_as_they_were_written(folder, events, escaped, pack):
    lines = [
        json.dumps({"user": user, "item": item, "time": moment.isoformat()}, ensure_ascii=escaped)
        for user, item, moment in events
    ]
    path = folder / f"good.jsonl{pack}"
    path.write_bytes(packed("\n".join(lines).encode(), path.suffix))
    assert _text(read(path)) == _text(_expected(events))


@given(
    users=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=7),
    unit=st.sampled_from(["ms", "us", "ns"]),
    moment=MOMENTS,
)
def test_typed_columns_are_read_as_they_were_written(folder, users, unit, moment):
    path = folder / "good.parquet"
    times = pl.Series([moment] * len(users)).cast(pl.Datetime(unit))
    pl.DataFrame({"user": users, "item": users[::-1], "time": times}).write_parquet(path)
    micros = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert read(path) == [(u, i, micros) for u, i in zip(users, users[::-1], strict=True)]


def _expected(events):
    epoch = datetime(1970, 1, 1)
    return [(u, i, (moment - epoch) // timedelta(microseconds=1)) for u, i, moment in events]


def _text(events):
    """Keys as text: a column of digits alone is one of integers."""
    return events and [(str(user), str(item), time) for user, item, time in events]


GZIP = gzip.compress(LOG.encode(), mtime=0)
FINDINGS = {  # of the tests above: file name, content, what is said
    "a block of gzip": (
        "a.csv.gz",
        GZIP[:10] + b"\x03" + GZIP[10:],
        "a.csv.gz cannot be read: Error -3 while decompressing data: invalid distance too far "
        "back. It may be damaged or truncated; get a new copy.",
    ),
    "a carriage return in the header": (
        "a.csv",
        b"\ritem,time\nu1,i1,2024-01-31\n",
        "a.csv, header: a carriage return stands within a value without quotes. End lines with \\n "
        "or \\r\\n, and put such values in quotes.",
    ),
    "lines of old Macs": (
        "a.csv",
        LOG.replace("\n", "\r").encode(),
        "a.csv ends its lines with carriage returns alone. Save it with line ends \\n or \\r\\n.",
    ),
    "a quote": (
        "a.csv",
        b'user,item\n"a"x,1\n',
        "a.csv, row 1: a quote ends within a value. Write quotes inside of values twice.",
    ),
    "UTF-16 without a mark": (
        "a.csv",
        LOG.encode("utf-16-be"),
        "a.csv is neither UTF-8 nor Windows-1252 text. Save it as UTF-8.",
    ),
    "UTF-32": (
        "a.csv",
        LOG.encode("utf-32"),
        "a.csv is neither UTF-8 nor Windows-1252 text. Save it as UTF-8.",
    ),
    "NaN": (
        "a.jsonl",
        b'{"user": "a", "item": 1}\n{"user": NaN, "item": 1}\n',
        "a.jsonl, row 2: not valid JSON (a number is NaN, infinite or too large). Drop such rows "
        "with --skip-bad-rows (1 broken among 2 rows).",
    ),
    "nothing but nonsense": (
        "a.jsonl",
        b"{]\n",
        "a.jsonl, row 1: not valid JSON (Expecting property name enclosed in double quotes at "
        "character 2). Expected one JSON object on each line.",
    ),
    "digits of other scripts": (
        "a.csv",
        "user,item,time\n1,2,٣/٤/2021\n".encode(),
        "a.csv, row 1: time is '٣/٤/2021', not a time, as in 1 of 1 rows. Name their format, as in "
        "--time-format '%m/%d/%Y %H:%M', or another column with --time. Read without a format are "
        "2024-01-31, 2024-01-31 18:30:00 (also with T, Z or +01:00), 31.01.2024, 1/31/2024, "
        "31 Jan 2024, and numbers.",
    ),
    "bytes that are no text": (
        "a.parquet",
        parquet(user=[b"\xff"], item=[1]),
        "a.parquet: column 'user' has bytes that are not UTF-8 text; expected integers or text.",
    ),
    "a date that Python does not have": (
        "a.parquet",
        parquet(user=[1], item=[1], time=pl.Series([2**31 - 1], dtype=pl.Int32).cast(pl.Date)),
        "a.parquet, row 1: time is 2147483647 as Date, which is not between the years 1 and 9999, "
        "as in 1 of 1 rows. Name another column with --time. Columns: user ('1'), item ('1'), time "
        "('2147483647').",
    ),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings_are_one_sentence(tmp_path, monkeypatch, name):
    file, content, words = FINDINGS[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_bytes(content)
    with raises_text(words, DataError):
        read_events(LogSource(files=(file,)), lambda text: None)


def test_blank_lines_before_a_header_may_end_with_carriage_returns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\r\ruser,item,time\r\n\x80,1,5\r\n")
    assert read(path) == [("€", 1, 5)]


def test_json_lines_may_begin_with_a_mark(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"user": "a", "item": 1, "time": 5}\n')
    assert read(path) == [("a", 1, 5)]
