"""A corpus of awkward small files: for each, the exact events that are read, or the error."""

import gzip
import io
from datetime import date, datetime, timedelta
from decimal import Decimal

import polars as pl
import pytest

from tapas.data import LogSource
from tapas.data.raw_events import read_events
from tapas.errors import TapasError

EPOCH = datetime(1970, 1, 1)


def parquet(**columns):
    file = io.BytesIO()
    pl.DataFrame(columns).write_parquet(file)
    return file.getvalue()


def outcome(folder, monkeypatch, name, content, options):
    """Events (user, item, time), times as ISO text if they are datetimes; or what is wrong."""
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(content)
    monkeypatch.chdir(folder)
    try:
        raw = read_events(LogSource(files=(name,), **options), lambda words: None)
    except TapasError as error:
        return str(error)
    times = raw.time.tolist()
    if raw.report["time_kind"] == "datetime":
        times = [
            str(EPOCH + timedelta(microseconds=time)).removesuffix(" 00:00:00") for time in times
        ]
    users = raw.user.keys.gather(raw.user.codes).to_list()
    items = raw.item.keys.gather(raw.item.codes).to_list()
    return list(zip(users, items, times, strict=True))


UUID = "9b2e-41"
READ = [  # what is awkward, file name, content, options, events
    ("webshop clicks: UUIDs, two zones, an event type", "a.csv",
     f"event_time,event_type,product_id,user_id\n2024-01-01T10:00:00+01:00,view,SKU-7,{UUID}\n"
     f"2024-01-01T10:00:00Z,cart,SKU-8,{UUID}\n", {},
     [(UUID, "SKU-7", "2024-01-01 09:00:00"), (UUID, "SKU-8", "2024-01-01 10:00:00")]),
    ("empty keys", "a.csv", "user,item\n,1\na,\na,2\n", {"skip_bad_rows": True}, [("a", 2, 0)]),
    ("listening log with epoch seconds", "plays.tsv",
     "listener\tplayed_at\tartist\ttrack\nu1\t1700000000\tA\tT\n", {}, [("u1", "T", 1700000000)]),
    ("Excel export of orders with BOM", "a.csv", "\ufeffKunde;Artikel\r\n7;Käse\r\n", {},
     [(7, "Käse", 0)]),
    ("leading zeros", "a.csv", "user,item\n007,00012\n7,12\n", {},
     [("007", "00012", 0), ("7", "12", 1)]),
    ("whole numbers with a fraction", "a.csv", "user,item\n12.0,5\n12,6\n", {},
     [(12, 5, 0), (12, 6, 1)]),
    ("dates with dots", "a.csv", "user,item,date\n1,2,01.02.2024\n1,3,31.01.2024\n", {},
     [(1, 2, "2024-02-01"), (1, 3, "2024-01-31")]),
    ("US dates", "a.csv", "user,item,date\n1,2,1/2/2024\n1,3,1/15/2024\n", {},
     [(1, 2, "2024-01-02"), (1, 3, "2024-01-15")]),
    ("day-first dates", "a.csv", "user,item,date\n1,2,01/02/2024 08:30\n1,3,15/02/2024 9:05\n", {},
     [(1, 2, "2024-02-01 08:30:00"), (1, 3, "2024-02-15 09:05:00")]),
    ("US dates with AM and PM", "a.csv", "user,item,date\n1,2,1/15/24 3:45 PM\n", {},
     [(1, 2, "2024-01-15 15:45:00")]),
    ("ambiguous dates with a format", "a.csv", "user,item,date\n1,2,1/2/2024\n",
     {"time_format": "%m/%d/%Y"}, [(1, 2, "2024-01-02")]),
    ("no header", "a.csv", "7,180,1700000000\n8,181,1700000001\n",
     {"no_header": True, "user": "1", "item": "2"}, [(7, 180, 1700000000), (8, 181, 1700000001)]),
    ("ratings of MovieLens", "ratings.dat", "1::1193::5::978300760\n",
     {"no_header": True, "user": "1", "item": "2"}, [(1, 1193, 978300760)]),
    ("two colons and a header", "a.dat", "user::item::genres\n1::2::a|b|c\n", {}, [(1, 2, 0)]),
    ("single colons", "a.csv", "user,item,span\n1,2,::\n", {}, [(1, 2, 0)]),
    ("ratings", "a.csv", "userId,movieId,rating,timestamp\n1,2,4.5,964982703\n", {},
     [(1, 2, 964982703)]),
    ("semicolons and decimal commas", "a.csv", "Kunde;Artikel;Preis\n1;A;3,50\n2;B;0,99\n", {},
     [(1, "A", 0), (2, "B", 1)]),
    ("decimal commas in times", "a.csv", "user;item;time\n1;2;1700000000,5\n", {},
     [(1, 2, "2023-11-14 22:13:20.500000")]),
    ("a newline and a separator in quotes", "a.csv", 'user,item,note\n1,"a, b","x\ny"\n2,c,\n', {},
     [(1, "a, b", 0), (2, "c", 1)]),
    ("a separator in a quoted name", "a.csv", '"Name, Vorname";"Artikel";"Kunde"\nx;A;7\n', {},
     [(7, "A", 0)]),
    ("times with and without a zone", "a.csv",
     "user,item,time\n1,2,2024-01-01 10:00\n1,3,2024-01-01 10:00:00 +02:00\n1,4,2024-01-01\n", {},
     [(1, 2, "2024-01-01 10:00:00"), (1, 3, "2024-01-01 08:00:00"), (1, 4, "2024-01-01")]),
    ("Excel's first line", "a.csv", "sep=;\r\nKunde;Artikel\r\n1;2\r\n", {}, [(1, 2, 0)]),
    ("Excel's Unicode text", "a.txt", "Käufer\tArtikel\r\nMüller\tÄpfel\r\n".encode("utf-16"), {},
     [("Müller", "Äpfel", 0)]),
    ("Windows umlauts", "a.csv", "Käufer;Artikel\nMüller;Öl\n".encode("cp1252"), {},
     [("Müller", "Öl", 0)]),
    ("Windows umlauts far below", "a.csv",
     b"user,item\n" + b"u,1\n" * 300_000 + "Müller,2\n".encode("cp1252"),
     {"where": ("user!=u",)}, [("Müller", 2, 0)]),
    ("brackets in text of JSON", "a.jsonl",
     '{"user": "[1]", "item": "{}"}\n{"user": "[a] b", "item": "c"}\n', {},
     [("[1]", "{}", 0), ("[a] b", "c", 1)]),
    ("gzip", "a.csv.gz", gzip.compress(b"user,item\n1,2\n"), {}, [(1, 2, 0)]),
    ("gzip of umlauts", "a.csv.gz", gzip.compress("user;item\nMüller;2\n".encode("cp1252")), {},
     [("Müller", 2, 0)]),
    ("trailing separators", "a.csv", "user;item;\n1;2;\n", {}, [(1, 2, 0)]),
    ("trailing separators below a header without", "a.csv", "user,item\n1,2,\n3,4,\n", {},
     [(1, 2, 0), (3, 4, 1)]),
    ("a row too long", "a.csv", "user,item\n1,2\n3,4,5\n6,7\n", {"skip_bad_rows": True},
     [(1, 2, 0), (6, 7, 1)]),
    ("a row too short", "a.csv", "user,item,note\n1,2\n", {}, [(1, 2, 0)]),
    ("the index of pandas", "a.csv", ",user,item\n0,a,x\n1,b,y\n", {},
     [("a", "x", 0), ("b", "y", 1)]),
    ("carriage returns and blank lines", "a.csv", "user,item\r\n\r\n1,2\r\n\r\n3,4\r\n", {},
     [(1, 2, 0), (3, 4, 1)]),
    ("no newline at the end", "a.csv", "user,item\n1,2", {}, [(1, 2, 0)]),
    ("tabs in a .csv", "a.csv", "user\titem\n1\ta,b\n", {}, [(1, "a,b", 0)]),
    ("pipes", "a.txt", "user|item\n1|2\n", {}, [(1, 2, 0)]),
    ("spaces, by name", "a.txt", "user item\n1 2\n", {"separator": "space"}, [(1, 2, 0)]),
    ("spaces after separators", "a.csv", 'user, item, time\n1, "a, b", 2024-01-31\n', {},
     [(1, "a, b", "2024-01-31")]),
    ("duplicate names of columns that are not used", "a.csv", "user,x,item,x\n1,2,3,4\n", {},
     [(1, 3, 0)]),
    ("thousands separators in ids", "a.csv", 'user,item\n"1,234",5\n"1,235",6\n', {},
     [("1,234", 5, 0), ("1,235", 6, 1)]),
    ("scientific notation", "a.csv", "user,item\n1e9,5\n2e9,6\n", {},
     [("1e9", 5, 0), ("2e9", 6, 1)]),
    ("ids of 19 digits", "a.csv", "user,item\n1000000000000000001,5\n1000000000000000002,6\n", {},
     [(10**18 + 1, 5, 0), (10**18 + 2, 6, 1)]),
    ("ids beyond 64 bits", "a.csv", "user,item\n100000000000000000000001,5\n2,6\n", {},
     [("100000000000000000000001", 5, 0), ("2", 6, 1)]),
    ("negative ids", "a.csv", "user,item\n-1,5\n1,6\n", {}, [(-1, 5, 0), (1, 6, 1)]),
    ("the words true and false", "a.csv", "user,item\ntrue,5\nfalse,6\n", {},
     [("true", 5, 0), ("false", 6, 1)]),
    ("milliseconds", "a.csv", "user,item,ts\n1,2,1700000000123\n", {"time_format": "ms"},
     [(1, 2, "2023-11-14 22:13:20.123000")]),
    ("days of a spreadsheet", "a.csv", "user,item,time\n1,2,45306.4375\n1,3,45307.5\n", {},
     [(1, 2, "2024-01-15 10:30:00"), (1, 3, "2024-01-16 12:00:00")]),
    ("digits for a date", "a.csv", "user,item,day\n1,2,20240131\n", {"time_format": "%Y%m%d"},
     [(1, 2, "2024-01-31")]),
    ("names of months", "a.csv", 'user,item,date\n1,2,31 Jan 2024\n1,3,"Feb 1, 2024"\n', {},
     [(1, 2, "2024-01-31"), (1, 3, "2024-02-01")]),
    ("times of a web server", "a.csv", "user,item,when\n1,2,31/Jan/2024:10:00:00 +0100\n", {},
     [(1, 2, "2024-01-31 09:00:00")]),
    ("times that are missing", "a.csv", "user,item,time\n1,2,2024-01-31\n1,3,\n1,4,NULL\n",
     {"skip_bad_rows": True}, [(1, 2, "2024-01-31")]),
    ("a time found by its type", "a.csv", "Kunde,Artikel,gekauft am\n1,2,2024-01-31\n", {},
     [(1, 2, "2024-01-31")]),
    ("a birthday is not the time", "a.csv", "user,item,birthday\n1,2,1984-01-31\n", {},
     [(1, 2, 0)]),
    ("a duration is not the time", "a.csv", "user,item,watch_time\n1,2,31\n", {}, [(1, 2, 0)]),
    ("a price is not the time", "a.csv", "user,item,price\n1,2,1700\n", {}, [(1, 2, 0)]),
    ("JSON lines with nested objects", "a.jsonl",
     '{"user": "a", "item": 5, "tags": ["x"], "geo": {"lat": 1.5}}\n', {}, [("a", 5, 0)]),
    ("JSON lines in .json", "reviews.json", '{"reviewerID": "A1", "asin": "B2"}\n', {},
     [("A1", "B2", 0)]),
    ("Parquet: categories, decimals, a zone, nested columns", "a.parquet", parquet(
        user=pl.Series(["a", "b"], dtype=pl.Categorical), item=[Decimal("5"), Decimal("6")],
        seen=pl.Series([datetime(2024, 1, 31, 11)] * 2).dt.replace_time_zone("Europe/Berlin"),
        tags=[["x"], []]), {},
     [("a", 5, "2024-01-31 10:00:00"), ("b", 6, "2024-01-31 10:00:00")]),
    ("Parquet: a date, and text as bytes", "a.parquet",
     parquet(user=[b"a"], item=[5], bought=[date(2024, 1, 31)]), {}, [("a", 5, "2024-01-31")]),
    ("Parquet: ids with gaps as floats", "a.parquet", parquet(user=[1.0, None], item=[5, 6]),
     {"skip_bad_rows": True}, [(1, 5, 0)]),
    ("Russian", "a.csv", "Пользователь;Товар;Дата\nИван;чай;31.01.2024\n", {},
     [("Иван", "чай", "2024-01-31")]),
    ("one kind of events", "a.csv", "user,item,event\n1,2,view\n1,3,buy\n1,4,\n",
     {"where": ("event=buy",)}, [(1, 3, 0)]),
    ("several kinds of events", "a.csv", 'user,item,event\n1,2,view\n1,3,buy\n1,4,"a, b"\n',
     {"where": ('event=buy,"a, b"',)}, [(1, 3, 0), (1, 4, 1)]),
    ("all kinds but one", "a.csv", "user,item,event\n1,2,view\n1,3,buy\n1,4,\n",
     {"where": ("event != view",)}, [(1, 3, 0), (1, 4, 1)]),
    ("all rows that have a kind", "a.csv", "user,item,event\n1,2,view\n1,4,\n",
     {"where": ("event!=",)}, [(1, 2, 0)]),
    ("prices above one, decimal commas", "a.csv", "user;item;price\n1;2;0,99\n1;3;1,50\n1;4;\n",
     {"where": ("price>1",)}, [(1, 3, 0)]),
    ("ids within bounds", "a.csv", "user,item\n1,2\n1,3\n1,4\n1,5\n",
     {"where": ("item>=3", "item<5")}, [(1, 3, 0), (1, 4, 1)]),
    ("from a day on, of dates with a format", "a.csv",
     "user,item,date\n1,2,1/2/2024\n1,3,3/2/2024\n",
     {"where": ("date>=2024-02-02",), "time_format": "%m/%d/%Y"}, [(1, 3, "2024-03-02")]),
    ("a bad row that was not chosen", "a.csv", "user,item,event\n,2,view\n1,3,buy\n",
     {"where": ("event=buy",)}, [(1, 3, 0)]),
    ("conditions on typed columns", "a.parquet",
     parquet(user=[1, 1, 1], item=[2, 3, 4], stars=[5.0, 5.0, 4.0], new=[True, False, True]),
     {"where": ("stars=5", "new=True")}, [(1, 2, 0)]),
    ("a condition on datetimes", "a.parquet",
     parquet(user=[1, 1], item=[2, 3], time=[datetime(2024, 1, 30), datetime(2024, 1, 31, 9)]),
     {"where": ("time>2024-01-31 08:00",)}, [(1, 3, "2024-01-31 09:00:00")]),
    ("blank lines before the header", "a.csv", "\n\nuser,item\n1,2\n", {}, [(1, 2, 0)]),
    ("French", "a.csv", "id_client,produit,date d'achat\n1,thé,2024-01-31\n", {},
     [(1, "thé", "2024-01-31")]),
    ("Spanish", "a.csv", "Fecha;ID Usuario;Artículo\n31/01/2024;1;té\n", {},
     [(1, "té", "2024-01-31")]),
    ("Dutch", "a.csv", "klantnummer,artikel,tijdstip\n1,thee,2024-01-31 10:00\n", {},
     [(1, "thee", "2024-01-31 10:00:00")]),
]  # fmt: skip


def cases(corpus):
    return pytest.mark.parametrize(
        ("name", "content", "options", "want"), [pytest.param(*c[1:], id=c[0]) for c in corpus]
    )


@cases(READ)
def test_awkward_files_are_read(tmp_path, monkeypatch, name, content, options, want):
    assert outcome(tmp_path, monkeypatch, name, content, options) == want


REFUSED = [  # what is awkward, file name, content, options, error
    ("empty keys", "a.csv", "user,item\n,1\n" + "a,2\n" * 20, {},
     "a.csv, row 1: user is empty. Drop such rows with --skip-bad-rows (1 found among 21 "
     "rows)."),
    ("ambiguous dates", "a.csv", "user,item,date\n1,2,1/2/2024\n1,3,2/1/2024\n", {},
     "a.csv: date is '1/2/2024' in row 1, and no row shows whether the day or the month "
     "comes first. Say so with --time-format '%d/%m/%Y' (2024-02-01) or '%m/%d/%Y' "
     "(2024-01-02)."),
    ("ambiguous dates and times", "a.csv", "user,item,when\n1,2,01-02-24 10:30\n", {},
     "a.csv: when is '01-02-24 10:30' in row 1, and no row shows whether the day or the "
     "month comes first. Say so with --time-format '%d-%m-%y %H:%M' (2024-02-01) or "
     "'%m-%d-%y %H:%M' (2024-01-02)."),
    ("dates of another kind", "a.csv", "user,item,date\n1,2,Q1/2024\n1,3,Q2/2024\n", {},
     "a.csv, row 1: date is 'Q1/2024', not a time, as in 2 of 2 rows. Name their format, "
     "as in --time-format '%m/%d/%Y %H:%M', or another column with --time. Read without a "
     "format are 2024-01-31, 2024-01-31 18:30:00 (also with T, Z or +01:00), 31.01.2024, "
     "1/31/2024, 31 Jan 2024, and numbers."),
    ("a format that does not fit", "a.csv", "user,item,date\n1,2,1/15/2024\n",
     {"time_format": "%d.%m.%Y"},
     "a.csv, row 1: date is '1/15/2024', which does not fit --time-format '%d.%m.%Y', as "
     "in 1 of 1 rows. Correct the format, or name another column with --time."),
    ("some dates are wrong", "a.csv", "user,item,date\n1,2,2024-01-31\n1,3,2024-02-30\n", {},
     "a.csv, row 2: date is '2024-02-30', not a time. Drop such rows with --skip-bad-rows "
     "(1 found among 2 rows)."),
    ("no header", "a.csv", "7,180,1700000000\n8,181,1700000001\n", {},
     "a.csv: no column looks like the user or the item. Name them with --user and --item. "
     "Columns: 7 ('8'), 180 ('181'), 1700000000 ('1700000001'). The first row looks like "
     "data (7, 180, 1700000000): if there is no header, add --no-header; the columns are "
     "then called 1, 2, 3, as in --user 1 --item 2."),
    ("no header, and names", "a.csv", "7,180\n8,181\n", {"user": "1", "item": "2"},
     "a.csv has no column '1' for the user. It has no column '2' for the item. Columns: 7 "
     "('8'), 180 ('181'). The first row looks like data (7, 180): if there is no header, "
     "add --no-header; the columns are then called 1, 2, 3, as in --user 1 --item 2."),
    ("no header, unnamed", "a.csv", "7,180\n8,181\n", {"no_header": True},
     "a.csv: no column looks like the user or the item. Name them with --user and --item. "
     "Columns: 1 ('7'), 2 ('180')."),
    ("other separators", "a.dat", "1~1193~5~978300760\n", {},
     "a.dat: no column looks like the user or the item. Name them with --user and --item. "
     "Columns: 1~1193~5~978300760. There is only one column: is the separator another "
     "one? Name it: --separator."),
    ("ratings of MovieLens, unnamed", "a.dat", "1::1193::5::978300760\n1::661::3::978302109\n",
     {},
     "a.dat: no column looks like the user or the item. Name them with --user and --item. "
     "Columns: 1 ('1'), 1193 ('661'), 5 ('3'), 978300760 ('978302109'). The first row looks like "
     "data (1, 1193, 5): if there is no header, add --no-header; the columns are then called 1, "
     "2, 3, as in --user 1 --item 2."),
    ("a format of no column", "a.csv", "user,item,wann\nx,y,01.28.24 02h\n",
     {"time_format": "%m.%d.%y %Hh"},
     "a.csv: no column looks like the time, but --time-format '%m.%d.%y %Hh' is given. Name the "
     "column with --time. Columns: user ('x'), item ('y'), wann ('01.28.24 02h')."),
    ("unknown names", "a.csv", "wer,was,wann\nx,y,2024-01-31\n", {},
     "a.csv: no column looks like the user or the item. Name them with --user and --item. "
     "Columns: wer ('x'), was ('y'), wann ('2024-01-31')."),
    ("wrong names", "a.csv", "user,item\n1,2\n", {"user": "usr", "item": "itm"},
     "a.csv has no column 'usr' for the user. Did you mean 'user'? It has no column 'itm' "
     "for the item. Did you mean 'item'? Columns: user ('1'), item ('2')."),
    ("two times", "a.csv", "user,item,viewed_at,sold_at\n1,2,2024-01-30,2024-01-31\n", {},
     "a.csv: 2 columns look like the time: viewed_at, sold_at. Name one with --time."),
    ("a user column that is empty", "a.csv", "user,item,nick\n,1,x\n,2,y\n", {},
     "a.csv, row 1: user is empty, as in 2 of 2 rows. Name another column with --user. "
     "Columns: user, item ('1'), nick ('x')."),
    ("one column too many, as R writes row names", "a.csv", "user,item\n1,a,x\n2,b,y\n", {},
     "a.csv, row 1: 3 values where the header names 2, as in 2 of 2 rows. Name the "
     "missing column in the header, or give another --separator."),
    ("header only", "a.csv", "user,item\n", {},
     "no usable row in a.csv: 0 rows read, 0 of them bad. Check the file and the names of "
     "the columns."),
    ("an empty file", "a.csv", "", {},
     "a.csv is empty. Leave it out."),
    ("blank lines only", "a.csv", "\n\n", {},
     "a.csv is empty. Leave it out."),
    ("duplicate names", "a.csv", "user,item,user\n1,2,3\n", {},
     "a.csv: two columns are called 'user'. Rename one of them."),
    ("a quote that is not closed", "a.csv", 'user,item\n1,"2\n3,4\n', {},
     "a.csv, row 1: a quote is opened and never closed, so the rows after it cannot be "
     "separated. Correct the file."),
    ("neither UTF-8 nor Windows", "a.csv", b"user,item\n\x81\x8d,2\n", {},
     "a.csv is neither UTF-8 nor Windows-1252 text. Save it as UTF-8."),
    ("gzip that is cut", "a.csv.gz", gzip.compress(b"user,item\n1,2\n" * 99)[:40], {},
     "a.csv.gz cannot be read: Compressed file ended before the end-of-stream marker was "
     "reached. It may be damaged or truncated; get a new copy."),
    ("no gzip at all", "a.csv.gz", "user,item\n1,2\n", {},
     "a.csv.gz cannot be read: Not a gzipped file (b'us'). It may be damaged or "
     "truncated; get a new copy."),
    ("a JSON list", "a.json", '[{"user": 1, "item": 2}]', {},
     "a.json is one JSON list; expected one JSON object on each line. Convert it, for "
     "example with `jq -c '.[]' a.json`."),
    ("a user that is an object", "a.jsonl", '{"user": {"id": 1}, "item": 5}\n', {},
     "a.jsonl, row 1: user is {\"id\": 1}; expected a number or text. Write its id as a "
     "field of its own."),
    ("a list between texts that look like one", "a.jsonl",
     '{"user": "[a] b", "item": 5}\n\n{"user": "{}", "item": 5}\n{"user": [1], "item": 5}\n', {},
     "a.jsonl, row 3: user is [1]; expected a number or text. Write its id as a field of its own."),
    ("a spreadsheet", "a.xlsx", "PK", {},
     "a.xlsx is a spreadsheet. Save it as CSV (UTF-8), and name that file."),
    ("an archive", "logs.zip", "PK", {},
     "logs.zip is an archive. Unpack it and name the files in it; single files may be "
     "compressed as .gz or .zst."),
    ("an archive of many", "logs.tar.gz", "PK", {},
     "logs.tar.gz is an archive. Unpack it and name the files in it; single files may be "
     "compressed as .gz or .zst."),
    ("another format", "a.feather", "x", {},
     "a.feather: unknown file format. Known: .parquet, .csv, .tsv, .txt, .jsonl, .ndjson; "
     "all but .parquet also with .gz or .zst."),
    ("Parquet: booleans", "a.parquet", parquet(user=[True], item=[1]), {},
     "a.parquet: column 'user' has type Boolean; expected integers or text."),
    ("Parquet: nested keys", "a.parquet", parquet(user=[{"id": 1}], item=[1]), {},
     "a.parquet: column 'user' has type Struct({'id': Int64}); expected integers or text."),
    ("Parquet: fractions", "a.parquet", parquet(user=[1.5], item=[1]), {},
     "a.parquet, row 1: user is 1.5, a number with a fraction or beyond 2^53; expected "
     "integers or text. Store the column as one of these."),
    ("Parquet has names", "a.parquet", parquet(user=[1], item=[1]),
     {"no_header": True, "separator": ";"},
     "a.parquet is not a CSV file. Leave out --separator and --no-header."),
    ("a condition on an unknown column", "a.csv", "user,item,event\n1,2,buy\n",
     {"where": ("evnt=buy",)},
     "a.csv has no column 'evnt' for --where. Did you mean 'event'? Columns: user ('1'), "
     "item ('2'), event ('buy')."),
    ("a condition on an unknown value", "a.csv", "user,item,event\n1,2,buy\n3,4,view\n5,6,view\n",
     {"where": ("event=Buyy",)},
     "--where 'event=Buyy': no row has the event 'Buyy'. Did you mean 'buy'? Most "
     "frequent: view (2), buy (1)."),
    ("a condition that leaves nothing", "a.csv", "user,item,price\n1,2,3\n3,4,5.5\n",
     {"where": ("price>9",)},
     "--where 'price>9' leaves none of 2 rows: price is from 3.0 to 5.5. Choose another "
     "value."),
    ("conditions that leave nothing", "a.csv", "user,item,event\n1,2,buy\n3,4,view\n",
     {"where": ("event=buy", "user=3")},
     "--where 'event=buy' --where 'user=3' leaves none of 2 rows. Leave one of them out."),
    ("a condition on numbers that are none", "a.csv", "user,item,price\n1,2,3\n3,4,free\n",
     {"where": ("price>2",)},
     "a.csv, row 2: price is 'free', which --where 'price>2' cannot compare with a "
     "number. Choose by = or !=, or correct the file."),
    ("a condition on numbers with commas", "a.csv", "user;item;price\n1;2;3\n3;4;1,500\n",
     {"where": ("price>2",)},
     "a.csv: price is '1,500' in row 2, and no row shows whether commas are decimal points or "
     "separate thousands. Write such numbers as 1.500 or 1500."),
    ("a number with a comma in a condition", "a.csv", "user,item,price\n1,2,3\n",
     {"where": ("price>1,500",)},
     "--where 'price>1,500': '1,500' is neither a number nor a time such as 2024-01-31 or "
     "'2024-01-31 18:30'."),
    ("a condition on numbers with a time", "a.csv", "user,item,time\n1,2,3\n",
     {"where": ("time>2024-01-31",)},
     "--where 'time>2024-01-31': time has numbers in a.csv, such as 3, not times. Compare "
     "it with a number, or say what they are with --time-format s (or ms, us, ns)."),
    ("a condition on text with more", "a.csv", "user,item,event\n1,2,buy\n",
     {"where": ("event>buy",)},
     "--where 'event>buy': 'buy' is neither a number nor a time such as 2024-01-31 or "
     "'2024-01-31 18:30'."),
]  # fmt: skip


@cases(REFUSED)
def test_files_that_cannot_be_read_say_why_and_what_to_do(
    tmp_path, monkeypatch, name, content, options, want
):
    assert outcome(tmp_path, monkeypatch, name, content, options) == want


def test_how_a_file_was_read_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "Müller,A,2024-01-31,3,view\nNULL,B,2024-01-31,4,buy\nNULL,B,2024-02-01,5,view\n"
    text = "Kunde,Artikel,gekauft,price,event_type\n" + rows
    (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
    report = read_events(LogSource(files=("a.csv",)), lambda words: None).report
    assert report["columns"] == {"user": "Kunde", "item": "Artikel", "time": "gekauft"}
    assert report["guessed"] == ["user", "item", "time"]
    assert report["found_by_type"] == ["time"]
    assert report["unused"] == ["price", "event_type"]
    assert report["event_types"] == {"event_type": {"view": 2, "buy": 1}}
    assert report["reading_notes"] == [
        "read a.csv as Windows-1252: it is not UTF-8",
        "2 rows have the user 'NULL', read as any other; leave them out with --where 'Kunde!=NULL'",
    ]
    source = LogSource(files=("a.csv",), where=("Kunde!=NULL", "event_type=view"))
    report = read_events(source, lambda words: None).report
    assert (report["rows"], report["chosen_rows"], report["unused"]) == (3, 1, ["price"])
    assert report["event_types"] == {}


@pytest.mark.parametrize("key", ["4.00639E+12", "4,00639E+12", "4E+12"])
def test_ids_that_a_spreadsheet_has_rounded_are_reported(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(f"user;item\n1;{key}\n2;{key}\n2;SKU-1E+12\n")
    report = read_events(LogSource(files=("a.csv",)), lambda words: None).report
    assert report["reading_notes"] == [
        f"2 rows have a rounded item, such as '{key}': a spreadsheet may have made one id of "
        "several; export the ids as text"
    ]
