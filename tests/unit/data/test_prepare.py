"""Prepared logs equal those of a plain loop, are prepared once, and are never incomplete."""

import os
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest
from damage import flip
from error_text import raises_text
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tapas import DataError
from tapas.atomic_file import private_folder
from tapas.data import EventLog, LogSource, prepare_log
from tapas.data import prepare as preparing

ROWS = st.lists(
    st.tuples(st.integers(-3, 3), st.sampled_from("abcdef"), st.integers(0, 4)), min_size=1
)


def written(folder: Path, rows) -> str:
    file = folder / "log.parquet"
    user, item, time = zip(*rows, strict=True)
    pl.DataFrame({"user": user, "item": item, "time": time}).write_parquet(file)
    return str(file)


def events(log: EventLog):
    """[(user, time, {items})], in order."""
    got = []
    for u in range(log.num_users):
        for i in range(log.offsets[u], log.offsets[u + 1]):
            who, when = log.user_keys.key(u), int(log.times[i])
            if not got or got[-1][:2] != (who, when):
                got.append((who, when, []))
            got[-1][2].append(log.item_keys.key(int(log.items[i])))
    assert all(len(set(items)) == len(items) for _, _, items in got)
    return [(who, when, set(items)) for who, when, items in got]


def by_loop(rows, min_count=1, rare="keep", known=()):
    rows = set(rows)
    count = Counter(item for _, item, _ in rows)
    baskets: dict[tuple[int, int], set[str]] = {}
    for user, item, time in rows:
        if count[item] < min_count and rare != "keep" and item not in known:
            if rare == "drop":
                continue
            item = "(rare)"
        baskets.setdefault((user, time), set()).add(item)
    return [(user, time, items) for (user, time), items in sorted(baskets.items())]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(rows=ROWS, rare=st.sampled_from(["keep", "drop", "fold"]), random=st.randoms())
@example(rows=[(1, "a", 0), (1, "b", 0)], rare="fold", random=Random(0))  # rare in one basket
def test_a_log_equals_that_of_a_plain_loop_over_the_rows(tmp_path, rows, rare, random):
    options = {"min_count": 3, "rare": rare}
    want = by_loop(rows, **options)
    source = LogSource(files=(written(tmp_path, rows),), **options)
    if not want:
        with raises_text("every item occurs less than 3 times", DataError):
            prepare_log(source, tmp_path / "cache")
        return
    log = prepare_log(source, tmp_path / "cache")
    assert events(log) == want
    counts = Counter(item for _, _, items in want for item in items)
    order = sorted(counts, key=lambda item: (-counts[item], item == "(rare)", item))
    assert log.item_keys.keys(range(log.num_items)) == order
    assert log.item_keys.counts.tolist() == [counts[item] for item in order]
    assert log.user_keys.counts.tolist() == np.diff(log.offsets).tolist()
    assert log.report["repeated_events"] == len(rows) - len(set(rows))
    random.shuffle(rows)
    written(tmp_path, rows)
    assert prepare_log(source, tmp_path / "cache").items.tolist() == log.items.tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(first=ROWS, second=ROWS, rare=st.sampled_from(["keep", "drop", "fold"]))
def test_known_items_keep_their_ids_and_new_ones_follow(tmp_path, first, second, rare):
    source = LogSource(files=(written(tmp_path, first),), min_count=2, rare=rare)
    if not by_loop(first, 2, rare):
        return
    known = prepare_log(source, tmp_path / "cache")
    keys = known.item_keys.keys(range(known.num_items))
    want = by_loop(second, 2, rare, keys)
    if not want:
        return
    written(tmp_path, second)
    log = prepare_log(source, tmp_path / "cache", known=known)
    assert events(log) == want
    counts = Counter(item for _, _, items in want for item in items)
    new = sorted(counts.keys() - set(keys), key=lambda key: (-counts[key], key == "(rare)", key))
    assert log.item_keys.keys(range(log.num_items)) == keys + new
    assert log.item_keys.counts.tolist() == [counts[key] for key in keys + new]
    again = prepare_log(source, tmp_path / "cache", known=known)
    assert (again.folder, again.num_items) == (log.folder, log.num_items)
    assert log.folder.name != source.cache_key(preparing._version(None))


KINDS = [  # keys of the known log and of the new one; all keys, or the start of the error
    (["a", "2"], [2, 3], ["2", "a", "3"]),
    (
        [1, 2],
        [2**63],
        "item 9223372036854775808 is of type UInt64, but the 2 known items are of type ",
    ),
    ([2**63, 1], [-1], "item -1 is of type Int64, but the 2 known items are of type "),
    ([2**63, 1], [7], [1, 2**63, 7]),
    ([1, 2], ["02"], "item '02' is of type String, but the 2 known items are of type "),
]


@pytest.mark.parametrize(("before", "now", "want"), KINDS)
def test_keys_of_another_type_are_cast_to_the_known_type_or_refused(tmp_path, before, now, want):
    first = written(tmp_path, [(1, key, 0) for key in before])
    known = prepare_log(LogSource(files=(first,)), tmp_path / "cache")
    second = LogSource(files=(written(tmp_path, [(1, key, 0) for key in now]),))
    if isinstance(want, list):
        log = prepare_log(second, tmp_path / "cache", known=known)
        assert log.item_keys.keys(range(log.num_items)) == want
        return
    with pytest.raises(DataError) as error:
        prepare_log(second, tmp_path / "cache", known=known)
    dtype = known.item_keys.cast_keys(pl.Series(before)).dtype
    assert str(error.value) == f"{want}{dtype}. Write them the same way in all files."


def small(tmp_path: Path, **options) -> LogSource:
    file = tmp_path / "small.csv"
    if not file.exists():
        file.write_text(
            "user_id,sku,date\n2,x,2024-01-02\n1,y,2024-01-01 10:30:00\n2,y,2024-01-01\n"
        )
    return LogSource(files=(str(file),), **options)


def test_an_unchanged_source_is_not_read_again_and_a_changed_one_is(tmp_path):
    messages: list[str] = []
    source = small(tmp_path)
    first = prepare_log(source, tmp_path / "cache", status=messages.append)
    assert messages
    messages.clear()
    assert prepare_log(source, tmp_path / "cache", status=messages.append).folder == first.folder
    assert not messages
    (tmp_path / "small.csv").write_text("user_id,sku,date\n2,x,2024-01-02\n")
    assert prepare_log(source, tmp_path / "cache").num_events == 1


def prepared(tmp_path, content, **options) -> EventLog:
    file = tmp_path / "a.csv"
    file.write_text(content)
    return prepare_log(LogSource(files=(str(file),), **options), tmp_path / "cache")


def test_a_log_that_was_read_by_older_rules_is_read_again_and_still_opens(tmp_path, monkeypatch):
    """Such as one without times, in whose files a time column is found today."""
    source = LogSource(files=(written(tmp_path, [(1, "a", 7)]),))
    version = preparing.FORMAT_VERSION
    folders = {tmp_path / source.cache_key(version)}  # of versions without such a number
    prepare_log(source, tmp_path).folder.rename(*folders)
    for rules in (preparing.READING_RULES, preparing.READING_RULES + 1):
        monkeypatch.setattr(preparing, "READING_RULES", rules)
        folders.add(prepare_log(source, tmp_path).folder)
    assert len(folders) == 3
    assert all(events(EventLog.open(folder)) == [(1, 7, {"a"})] for folder in folders)


def test_the_report_describes_what_was_read_and_what_to_note(tmp_path):
    log = prepared(tmp_path, "user_id,sku,date\n2,x,2024-01-02\n2,x,2024-01-02\n1,y,2024-01-01\n")
    report = log.report
    assert report["columns"] == {"user": "user_id", "item": "sku", "time": "date"}
    assert report["guessed"] == ["user", "item", "time"]
    assert (report["rows"], report["repeated_events"], report["bad_rows"]) == (3, 1, 0)
    assert report["notes"] == ["every user has a single event, so there is no next item to learn"]
    assert report["users_with_one_event"] == 2
    assert log.format_time(int(str(report["first_time"]))) == "2024-01-01"
    assert prepared(tmp_path, "user,item\n1,7\n1,7\n").report["notes"] == [
        "there is only one user; name another user column if that is wrong",
        "there is only one item, so there is nothing to predict",
        "no time column: events are taken in the order of the file",
    ]
    text = prepared(tmp_path, "text\nthe cat and the dog\n", text="text")
    assert text.item_keys.keys(text.items) == ["the", "cat", "and", "the", "dog"]
    with raises_text("a.csv: two columns are called 'item'. Rename one of them."):
        prepared(tmp_path, "user,item,time,item\n1,a,1,b\n1,b,2,c\n")


@pytest.mark.parametrize("name", ["items.npy", "item_keys.parquet", "log.json"])
def test_a_damaged_log_in_the_cache_is_prepared_again(tmp_path, name):
    source, cache, said = small(tmp_path), tmp_path / "cache", []
    folder = prepare_log(source, cache).folder
    content = (folder / name).read_bytes()
    flip(folder / name, -5)
    assert prepare_log(source, cache, status=said.append).folder == folder
    assert said[0].startswith(f"Warning: {folder / name} is damaged: it")
    assert said[0].endswith(". The log is prepared again.")
    assert (folder / name).read_bytes() == content
    (folder / name).unlink()
    assert prepare_log(source, cache).num_events == 3
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_the_log_of_a_faster_process_is_used(tmp_path, monkeypatch):
    write_log = preparing.write_log

    def overtaken(folder, *rest):
        monkeypatch.setattr(preparing, "write_log", write_log)
        prepare_log(small(tmp_path), tmp_path / "cache")
        write_log(folder, *rest)

    monkeypatch.setattr(preparing, "write_log", overtaken)
    assert prepare_log(small(tmp_path), tmp_path / "cache").num_events == 3
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_preparation_at_work_stays_whatever_the_clock_says_and_a_dead_one_is_removed(tmp_path):
    cache = tmp_path / "cache"
    dead = cache / f".{'a' * 32}.0123456789abcdef.unfinished"
    dead.mkdir(parents=True)
    for name in (".lock", "items.npy"):
        (dead / name).touch()
    with private_folder(cache / ("b" * 32)) as at_work:
        os.utime(at_work, (0, 0))
        log = prepare_log(small(tmp_path), cache)
        assert set(cache.iterdir()) == {at_work, log.folder}


def test_empty_rows_are_left_out_and_counted(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("user,item,time\n1,2,3\n,,\n1,3,4\n,,\n2,2,5\n")
    log = prepare_log(LogSource(files=(str(file),)), tmp_path / "cache")
    assert log.num_events == 3
    assert f"left out 2 empty rows of {file}" in log.report["notes"]
