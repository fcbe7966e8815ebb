"""Logs that are valid but odd, each with the events that must be read from it.

Events are triples of text: user, item and time as it is stored, microseconds for dates and the
number itself for numbers.
"""

import gzip
import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import polars as pl

from tapas.data.event_log import EventLog

Event = tuple[Any, Any, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUM_USERS, NUM_EVENTS = 11, 9  # of a user; for fewer than 10 users nothing is trained
SKIP = ("--skip-bad-rows",)
WORDS = ("007", "7", " 7", "7 ", "1e5", "0x10", "é", "e\u0301", "‮x", "😀", "NULL", "a,b",
         'a"b', "a\nb", "a\tb", "[head]", "*", "../..", "-0", "+1", "true", "1,5", "x" * 3_000,
         "a\0b", "9" * 40)  # fmt: skip
CODECS = ("gzip", "zstd", "snappy", "lz4", "brotli", "uncompressed")


class OddLog(NamedTuple):
    """Files, and what a command must make of them."""

    files: dict[str, bytes]
    events: set[Event] | None  # None: they must be refused
    words: tuple[Any, ...] = ()  # options of the command
    what: str = ""


def events_of(log: EventLog) -> set[Event] | str:
    """The events of a prepared log, or what is wrong with their order."""
    users = log.user_keys.keys(range(len(log.user_keys)))
    items = log.item_keys.keys(range(len(log.item_keys)))
    found = set()
    for user, key in enumerate(users):
        begin, end = log.offsets[user], log.offsets[user + 1]
        times = log.times[begin:end].tolist()
        if times != sorted(times):
            return f"the events of user {key!r} are not in the order of time"
        for item, time in zip(log.items[begin:end].tolist(), times, strict=True):
            found.add((str(key), str(items[item]), time))
    if len(found) != len(log.items):
        return "an event is there twice"
    return found


def as_text(events: list[Event]) -> set[Event]:
    return {(str(user), str(item), time) for user, item, time in events}


def plain(draw: random.Random, users: list[Any] | None = None, items: list[Any] | None = None):
    """Events of a few users in any order, at different times."""
    users = list(range(1, NUM_USERS + 1)) if users is None else users
    items = list(range(100, 113)) if items is None else items
    start = 1_600_000_000
    times = draw.sample(range(start, start + 10**6), len(users) * NUM_EVENTS)
    return [
        (user, draw.choice(items), times.pop()) for user in users for _ in range(NUM_EVENTS)
    ]  # fmt: skip


def columns(events: list[Event], **types: Any) -> pl.DataFrame:
    names = ("user_id", "item_id", "time")
    values = dict(zip(names, map(list, zip(*events, strict=True)), strict=True))
    return pl.DataFrame(
        {
            name: pl.Series(name, v, dtype=types.get(name), strict=False)
            for name, v in values.items()
        }
    )


def parquet(frame: pl.DataFrame, **options: Any) -> bytes:
    frame.write_parquet(file := io.BytesIO(), **options)
    return file.getvalue()


def csv(frame: pl.DataFrame, **options: Any) -> bytes:
    frame.write_csv(file := io.BytesIO(), **options)
    return file.getvalue()


def jsonl(frame: pl.DataFrame, **options: Any) -> bytes:
    return "".join(json.dumps(row, **options) + "\n" for row in frame.to_dicts()).encode()


def any_file(draw: random.Random, frame: pl.DataFrame) -> dict[str, bytes]:
    """`frame` as a file of any kind."""
    name = draw.choice(
        ["log.parquet"] * 3 + ["log.csv", "log.jsonl", "log.tsv", "log.csv.gz", "log.csv.zst"]
    )
    if name == "log.parquet":
        return {name: parquet(frame, compression=draw.choice(CODECS))}
    if name == "log.jsonl":
        return {name: jsonl(frame, ensure_ascii=draw.random() < 0.5)}
    packed = {"log.csv.gz": "gzip", "log.csv.zst": "zstd"}.get(name, "uncompressed")
    return {name: csv(frame, separator="\t" if name == "log.tsv" else ",", compression=packed)}


def odd_integers(draw: random.Random) -> OddLog:
    near = draw.choice([2**63 - 40, -(2**63), 2**31 - 7, -20, 2**64 - 40, 2**53 + 1])
    users, items = [near + n for n in range(NUM_USERS)], [near + n for n in range(13)]
    events = plain(draw, users, items)
    kind = pl.UInt64 if near >= 2**63 else pl.Int64
    files = any_file(draw, columns(events, user_id=kind, item_id=kind))
    return OddLog(files, as_text(events), what=f"ids near {near}")


def narrow_integers(draw: random.Random) -> OddLog:
    events = plain(draw, items=list(range(1, 14)))
    kinds = (pl.Int8, pl.UInt8, pl.Int16, pl.UInt16, pl.UInt32, pl.Int128)
    user, item = draw.choice(kinds), draw.choice(kinds)
    frame = columns(events, user_id=user, item_id=item)
    return OddLog({"log.parquet": parquet(frame)}, as_text(events), what=f"{user} and {item}")


def whole_floats(draw: random.Random) -> OddLog:
    events = plain(draw)
    frame = columns(events, item_id=draw.choice([pl.Float32, pl.Float64]))
    files = any_file(draw, frame)
    return OddLog(files, as_text(events), what="ids such as 1.0")


def fractions(draw: random.Random) -> OddLog:
    """Ids that are no ids: 1.5 is refused in typed files; text may be anything."""
    events = [(user, item + 0.5, time) for user, item, time in plain(draw)]
    if draw.random() < 0.5:
        return OddLog({"log.parquet": parquet(columns(events))}, None, what="ids such as 1.5")
    return OddLog({"log.csv": csv(columns(events))}, as_text(events), what="ids such as 1.5")


def decimals(draw: random.Random) -> OddLog:
    events = plain(draw)
    frame = columns(events).with_columns(
        pl.col("item_id").cast(pl.Decimal(20, draw.choice([0, 3])))
    )
    return OddLog({"log.parquet": parquet(frame)}, as_text(events), what="decimals")


def other_types(draw: random.Random) -> OddLog:
    """Types that cannot be ids."""
    frame = columns(plain(draw))
    made = draw.choice(
        [pl.col("item_id") > 105, pl.from_epoch("item_id"), pl.struct("item_id", "time"),
         pl.concat_list("item_id", "time"), pl.col("item_id").cast(pl.Duration("us")),
         pl.from_epoch("item_id").dt.time()]
    )  # fmt: skip
    frame = frame.with_columns(made.alias("item_id"))
    what = str(frame["item_id"].dtype)
    return OddLog({"log.parquet": parquet(frame)}, None, draw.choice([(), SKIP]), what)


def text_types(draw: random.Random) -> OddLog:
    """Text as dictionaries or bytes."""
    items = [word for word in WORDS if word != "NULL"]
    events = plain(draw, items=items)
    kind = draw.choice([pl.Categorical(), pl.Enum(items), pl.Binary()])
    frame = columns(events).with_columns(pl.col("item_id").cast(kind))
    return OddLog({"log.parquet": parquet(frame)}, as_text(events), what=f"ids as {kind}")


def odd_words(draw: random.Random) -> OddLog:
    events = plain(draw, items=draw.sample(WORDS, 13), users=draw.sample(WORDS, NUM_USERS))
    files = any_file(draw, columns(events))
    return OddLog(files, as_text(events), what="odd words")


def numbers_as_text(draw: random.Random) -> OddLog:
    """In CSV 7 and 7.0 are one item, as programs write them where some are missing."""
    events = plain(draw, items=[7, 8, 9])
    written = [(u, f"{i}.0" if draw.random() < 0.5 else i, t) for u, i, t in events]
    text = "user_id,item_id,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in written)
    return OddLog({"log.csv": text.encode()}, as_text(events), what="7 and 7.0")


def missing_values(draw: random.Random) -> OddLog:
    """Some rows without user, item or time: refused, or dropped if they may be."""
    events = plain(draw)
    bad = draw.sample(range(len(events)), draw.randint(1, 9))
    blank = draw.choice([None, None, ""])
    place = draw.randrange(3)
    rows = [list(event) for event in events]
    for row in bad:
        rows[row][place] = blank
    types = {} if blank is None else {("user_id", "item_id", "time")[place]: pl.String}
    frame = columns([tuple(row) for row in rows], **types)
    files = any_file(draw, frame)
    words = draw.choice([(), SKIP])
    kept = as_text([event for row, event in enumerate(events) if row not in bad])
    return OddLog(files, kept if words else None, words, what="values missing")


def _moment(seconds: int, unit: timedelta = timedelta(seconds=1)) -> datetime:
    return EPOCH + seconds * unit


def typed_times(draw: random.Random) -> OddLog:
    """Datetimes of any unit and zone, before 1970 and in the year 9999."""
    shift = draw.choice([0, -1_590_000_000, -3_600_000_000, -50_000_000_000, 251_000_000_000])
    unit = "us" if shift < -1e10 or shift > 1e10 else draw.choice(["ms", "us", "ns"])
    zone = draw.choice([None, "UTC", "Asia/Kolkata", "America/New_York"])
    events = [(u, i, t + shift) for u, i, t in plain(draw)]
    frame = columns(events).with_columns(
        pl.from_epoch(pl.col("time") * 10**6, time_unit="us").dt.cast_time_unit(unit)
    )
    if zone is not None:
        frame = frame.with_columns(pl.col("time").dt.replace_time_zone("UTC"))
        frame = frame.with_columns(pl.col("time").dt.convert_time_zone(zone))
    expected = as_text([(u, i, t * 10**6) for u, i, t in events])
    return OddLog({"log.parquet": parquet(frame)}, expected, what=f"times {unit} {zone} {shift}")


def days(draw: random.Random) -> OddLog:
    shift = draw.choice([0, -200 * 365, 7_900 * 365, -1_900 * 365])
    events = [(u, i, draw.randrange(17_000, 19_000) + shift) for u, i, _ in plain(draw)]
    frame = columns(events).with_columns(pl.col("time").cast(pl.Int32).cast(pl.Date))
    expected = as_text([(u, i, t * 86_400 * 10**6) for u, i, t in events])
    if draw.random() < 0.5:
        return OddLog({"log.parquet": parquet(frame)}, expected, what=f"days {shift}")
    return OddLog({"log.csv": csv(frame)}, expected, what=f"days as text {shift}")


def numeric_times(draw: random.Random) -> OddLog:
    """Numbers stay as they are, whatever their unit."""
    factor = draw.choice([1, 10**3, 10**6, 10**9])
    shift = draw.choice([0, 0, -1_600_500_000, -(10**10), 10**10])
    shift = shift if factor * abs(shift) < 9e18 else 0
    events = [(u, i, (t + shift) * factor) for u, i, t in plain(draw)]
    files = any_file(draw, columns(events))
    return OddLog(files, as_text(events), what=f"numbers * {factor} + {shift}")


def small_times(draw: random.Random) -> OddLog:
    """Positions instead of times, also negative and narrow."""
    events = [(u, i, draw.randrange(-120, 120)) for u, i, _ in plain(draw)]
    frame = columns(events, time=draw.choice([pl.Int8, pl.Int16, pl.Int64, pl.Float32]))
    files = any_file(draw, frame)
    return OddLog(files, as_text(events), what=f"small times {frame['time'].dtype}")


def fractional_times(draw: random.Random) -> OddLog:
    """Numbers with a fraction are seconds."""
    events = [(u, i, t + draw.choice([0.25, 0.5])) for u, i, t in plain(draw)]
    files = any_file(draw, columns(events))
    expected = as_text([(u, i, round(t * 10**6)) for u, i, t in events])
    return OddLog(files, expected, what="seconds with a fraction")


def text_times(draw: random.Random) -> OddLog:
    shift = draw.choice([0, -1_590_000_000, -50_000_000_000, 251_000_000_000])
    events = [(u, i, t + shift) for u, i, t in plain(draw)]
    form = draw.choice(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "+05:30", "-08:00", "Z"])
    zones = {"+05:30": timedelta(hours=5.5), "-08:00": timedelta(hours=-8)}

    def written(seconds: int) -> str:
        moment = _moment(seconds)
        if form in zones:
            return (moment + zones[form]).replace(tzinfo=None).isoformat() + form
        text = moment.replace(tzinfo=None).isoformat()
        return text + "Z" if form == "Z" else text.replace("T", "T" if "T" in form else " ")

    frame = columns([(u, i, written(t)) for u, i, t in events])
    expected = as_text([(u, i, t * 10**6) for u, i, t in events])
    files = any_file(draw, frame)
    return OddLog(files, expected, what=f"times as text {form} {shift}")


def given_unit(draw: random.Random) -> OddLog:
    """Numbers with --time-format."""
    unit, factor = draw.choice([("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
    events = [(u, i, t * draw.choice([-1, 1])) for u, i, t in plain(draw)]
    frame = columns([(u, i, t * factor) for u, i, t in events])
    expected = as_text([(u, i, t * 10**6) for u, i, t in events])
    files = any_file(draw, frame)
    return OddLog(files, expected, ("--time-format", unit), f"--time-format {unit}")


def no_times(draw: random.Random) -> OddLog:
    """Without a column of times, the order of the rows is that of the events."""
    events = [(u, i, row) for row, (u, i, _) in enumerate(plain(draw))]
    files = any_file(draw, columns(events).drop("time"))
    return OddLog(files, as_text(events), what="no times")


def null_columns(draw: random.Random) -> OddLog:
    """A column without any value: left aside, or refused if it has the name of a role."""
    events = plain(draw)
    role = draw.choice(["note", "note", "item_id", "time"])
    frame = columns(events).with_columns(pl.lit(None).alias(role))
    files = any_file(draw, frame)
    return OddLog(files, as_text(events) if role == "note" else None, what=f"no {role}")


def more_columns(draw: random.Random) -> OddLog:
    """500 columns, or nested ones, beside those that are needed."""
    events = plain(draw)
    frame = columns(events)
    if draw.random() < 0.5:
        frame = frame.with_columns(**{f"column {n}": pl.lit(n) for n in range(500)})
        frame = frame.select(draw.sample(frame.columns, len(frame.columns)))
        files = any_file(draw, frame)
        return OddLog(files, as_text(events), what="500 columns")
    frame = frame.with_columns(
        pl.struct("item_id", pl.struct("time").alias("inner")).alias("nested"),
        pl.concat_list("item_id", "item_id").alias("list"),
    )
    if draw.random() < 0.5:
        return OddLog({"log.jsonl": jsonl(frame)}, as_text(events), what="nested columns")
    return OddLog({"log.parquet": parquet(frame)}, as_text(events), what="nested columns")


def parquet_layouts(draw: random.Random) -> OddLog:
    events, codec = plain(draw), draw.choice(CODECS)
    size, statistics = draw.choice([1, 7, 1000]), draw.random() < 0.5
    content = parquet(
        columns(events), compression=codec, row_group_size=size, statistics=statistics
    )
    return OddLog({"log.parquet": content}, as_text(events), what=f"{codec}, groups of {size}")


def csv_layouts(draw: random.Random) -> OddLog:
    """Quotes, separators, line ends, encodings and blank lines that programs write."""
    events = plain(draw, items=draw.choice([None, ["a b", "c;d", "e,f", "ü|x", 'g"h']]))
    separator = draw.choice([",", ";", "\t", "|"])
    style = draw.choice(["always", "necessary", "non_numeric"])
    end = draw.choice(["\n", "\r\n", "\n\n"])
    text = csv(
        columns(events), separator=separator, quote_style=style, line_terminator=end
    ).decode()
    text = draw.choice([text, text.rstrip("\r\n"), text + end])
    encoding = draw.choice(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
    content = text.encode(encoding)
    if encoding in ("utf-16-le", "utf-16-be"):
        content = "\ufeff".encode(encoding) + content
    name = draw.choice(["log.csv", "log.txt", "log.csv.gz"])
    if name == "log.csv.gz":
        half = len(content) // 2  # two members, as after `cat a.gz b.gz`
        content = gzip.compress(content[:half]) + gzip.compress(content[half:])
    what = f"{separator!r} {style} {end!r} {encoding}"
    return OddLog({name: content}, as_text(events), what=what)


def written_by_hand(draw: random.Random) -> OddLog:
    """Spaces, columns of an index, other headers, two signs between values, quotes in a value."""
    events = plain(draw, items=["5", 'a"b', "c d"])
    rows = [[str(user), item, str(time)] for user, item, time in events]
    between, header = draw.choice(
        [(", ", "user_id, item_id, time"), ("::", "user_id::item_id::time"),
         (",", "User ID,Item ID ,Time"), (",", "\ufeffuser_id,item_id,time"),
         (",", "user_id,item_id,time,"), ("\t", "user_id\titem_id\ttime"),
         (";", "sep=;\nuser_id;item_id;time")]
    )  # fmt: skip
    lines = [header, *map(between.join, rows)]
    if draw.random() < 0.3:
        lines = [f"{number}{between}{line}" for number, line in enumerate(lines)]
        lines[0] = header if header.startswith("sep") else between + header
        lines[0] = lines[0].replace("\n", f"\n{between}")
    files = {"log.csv": "\n".join(lines).encode()}
    return OddLog(files, as_text(events), what=f"by hand {header!r}")


def several_files(draw: random.Random) -> OddLog:
    """One log in files of different kinds, of which one may have text where others have numbers."""
    events = plain(draw, items=draw.choice([None, ["a", "7", "007"]]))
    cut = draw.randrange(1, len(events) - 1)
    first = columns(events[:cut])
    if draw.random() < 0.5:
        first = first.with_columns(pl.col("user_id").cast(pl.String))
    files = {f"1-{n}": c for n, c in any_file(draw, first).items()}
    files |= {f"2-{n}": c for n, c in any_file(draw, columns(events[cut:])).items()}
    return OddLog(files, as_text(events), what=f"files {' '.join(files)}")


def carriage_returns(draw: random.Random) -> OddLog:
    """Line ends of old Macs: refused."""
    content = csv(columns(plain(draw)), line_terminator="\r")
    return OddLog({"log.csv": content}, None, what="carriage returns")


def zero_bytes(draw: random.Random) -> OddLog:
    """Zeros in values are kept; in the header they mean that it is not text."""
    events = plain(draw)
    frame = columns(events).with_columns(note=pl.lit("a\0b"))
    if draw.random() < 0.5:
        return OddLog({"log.csv": csv(frame)}, as_text(events), what="zeros in a column")
    return OddLog(
        {"log.csv": csv(frame).replace(b"user", b"us\0r", 1)}, None, what="zeros in header"
    )


def long_texts(draw: random.Random) -> OddLog:
    """A column of descriptions, with lines and quotes in them."""
    events = plain(draw)
    text = draw.choice(["a\nb\n\nc", 'she said "x"', "x" * 100_000, "1,2,3", ""])
    files = any_file(draw, columns(events).with_columns(note=pl.lit(text)))
    return OddLog(files, as_text(events), what=f"notes {text[:9]!r}")


def json_layouts(draw: random.Random) -> OddLog:
    """Fields in any order, numbers or text, unknown fields here and there."""
    lines = []
    events = plain(draw)
    for user, item, time in events:
        record = [("user_id", user), ("item_id", item), ("time", time)]
        record += draw.choice([[], [("x", None)], [("y", {"z": [1]})], [("user", "no")]])
        draw.shuffle(record)
        lines.append(json.dumps(dict(record), indent=None))
    text = draw.choice(["\n", "\r\n", "\n\n"]).join(lines)
    words = ("--user", "user_id", "--item", "item_id", "--time", "time")
    return OddLog({"log.jsonl": text.encode()}, as_text(events), words, "fields in any order")


def repeated_events(draw: random.Random) -> OddLog:
    events = plain(draw)
    files = any_file(draw, columns([*events, *draw.sample(events, 20), *events]))
    return OddLog(files, as_text(events), what="repeated events")


def equal_times(draw: random.Random) -> OddLog:
    events = [(u, i, 1_600_000_000) for u, i, _ in plain(draw)]
    files = any_file(draw, columns(events))
    return OddLog(files, as_text(events), what="all times equal")


def equal_ids(draw: random.Random) -> OddLog:
    if draw.random() < 0.5:
        events, what = plain(draw, items=[draw.choice([0, -1, "x"])]), "all items equal"
    else:
        events, what = plain(draw, users=[draw.choice([0, -1, "x"])]), "one user"
    files = any_file(draw, columns(events))
    return OddLog(files, as_text(events), what=what)


def few_rows(draw: random.Random) -> OddLog:
    """No rows are refused, one or two are read."""
    events = plain(draw)[: draw.choice([0, 1, 1, 2])]
    frame = columns(plain(draw)).clear() if not events else columns(events)
    files = any_file(draw, frame)
    return OddLog(files, as_text(events) if events else None, what=f"{len(events)} rows")


def large(draw: random.Random) -> OddLog:
    """One user with very many events, or very many users with two."""
    if draw.random() < 0.5:
        events = [(1, draw.randrange(1000), n) for n in range(100_000)]
    else:
        events = [(n // 2, draw.randrange(1000), n) for n in range(200_000)]
    return OddLog({"log.parquet": parquet(columns(events))}, as_text(events), what="large")


MAKERS: tuple[Callable[[random.Random], OddLog], ...] = (
    odd_integers, odd_integers, odd_integers, narrow_integers, whole_floats, fractions, decimals,
    other_types, text_types,
    odd_words, numbers_as_text, missing_values, typed_times, typed_times, days, numeric_times,
    small_times, fractional_times, text_times, text_times, given_unit, no_times, null_columns,
    more_columns, parquet_layouts, csv_layouts, csv_layouts, written_by_hand, several_files,
    carriage_returns, zero_bytes, long_texts,
    json_layouts, repeated_events, equal_times, equal_ids, few_rows,
)  # fmt: skip
LARGE = 0.03  # share of large ones, which take seconds


def odd_log(draw: random.Random) -> OddLog:
    return large(draw) if draw.random() < LARGE else draw.choice(MAKERS)(draw)
