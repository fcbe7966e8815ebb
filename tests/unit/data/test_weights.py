"""Weights of events: what is a weight, and that those of one event add up."""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from error_text import raises_text
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tapas import DataError, UsageError
from tapas.data import EventLog, LogSource, prepare_log
from tapas.data.weights import parse_weights

ROWS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from("abcdef"), st.integers(0, 4), st.integers(1, 9)
    ),
    min_size=1,
    max_size=30,
)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (["2", " 0.5 ", "1e3", "3,5", ",25"], [2, 0.5, 1000, 3.5, 0.25]),
        (["1,000", "1.000,5", "five", "", "-1", "0", "nan", "inf", "1e31"], [None] * 9),
        ([1, 2, None, 0, -3], [1, 2, None, None, None]),
        ([0.5, float("nan"), float("inf"), -0.0], [0.5, None, None, None]),
        ([None, None], [None, None]),
    ],
)
def test_a_weight_is_a_number_above_0(values, want):
    assert parse_weights(pl.Series(values), Path("a.csv")).to_list() == want


def test_a_column_of_another_type_is_refused():
    words = "a.parquet: column 'paid' has type Boolean; expected numbers."
    with raises_text(words, DataError):
        parse_weights(pl.Series("paid", [True, False]), Path("a.parquet"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(rows=ROWS, rare=st.sampled_from(["keep", "drop", "fold"]))
@example(rows=[(1, "a", 0, 2), (1, "b", 0, 3), (1, "a", 0, 4)], rare="fold")
def test_weights_of_one_event_add_up(tmp_path, rows, rare):
    """Equal user, item and time are one event; so are the rare items of a basket, if folded."""
    count = Counter(item for _, item, _ in {row[:3] for row in rows})
    want = Counter()
    for user, item, time, weight in rows:
        name = item
        if count[item] < 2 and rare != "keep":
            name = "(rare)"
        if not (name == "(rare)" and rare == "drop"):
            want[user, time, name] += weight
    file = tmp_path / "log.parquet"
    pl.DataFrame(rows, schema=["user", "item", "time", "qty"], orient="row").write_parquet(file)
    if not want:
        return
    source = LogSource(files=(str(file),), weight="qty", min_count=2, rare=rare)
    log = prepare_log(source, tmp_path / "cache")
    user = np.repeat(np.arange(log.num_users), np.diff(log.offsets)).tolist()
    users, items = log.user_keys.keys(user), log.item_keys.keys(log.items)
    rows = zip(users, log.times.tolist(), items, log.weights.tolist(), strict=True)
    assert {row[:3]: row[3] for row in rows} == want
    low, mean, high = log.report["weights"]
    assert (low, high) == (min(want.values()), max(want.values()))
    assert mean == pytest.approx(want.total() / len(want))


def test_bad_weights_are_bad_rows(tmp_path):
    file = tmp_path / "sales.csv"
    file.write_text("user,item,qty\na,1,2\na,2,-1\nb,1,\nb,2,1\n")
    source = LogSource(files=(str(file),), weight="qty")
    words = (
        f"{file}, row 2: qty is '-1', not a number above 0. Drop such rows with --skip-bad-rows "
        "(2 found among 4 rows)."
    )
    with raises_text(words, DataError):
        prepare_log(source, tmp_path / "cache")
    skipping = LogSource(files=(str(file),), weight="qty", skip_bad_rows=True)
    log = prepare_log(skipping, tmp_path / "cache")
    assert log.weights.tolist() == [2, 1]
    assert log.report["bad_kinds"] == {"weight": 2}
    assert log.report["bad_examples"][1] == f"{file}, row 3: qty is empty"


def test_a_log_without_weights_is_prepared_as_before(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("user,item,qty\na,1,2\n")
    log = prepare_log(LogSource(files=(str(file),)), tmp_path / "cache")
    assert log.weights is None
    assert not (log.folder / "weights.npy").exists()
    assert "weights" not in log.report


def test_a_log_whose_weights_are_lost_does_not_open(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("user,item,qty\na,1,2\n")
    folder = prepare_log(LogSource(files=(str(file),), weight="qty"), tmp_path / "cache").folder
    (folder / "weights.npy").unlink()
    with raises_text(
        f"{folder / 'weights.npy'} cannot be read: No such file or directory.", DataError
    ):
        EventLog.open(folder)


def test_a_column_that_does_not_exist_and_a_text_with_weights_are_refused(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("user,item,quantity\na,1,2\n")
    with raises_text(f"{file} has no column 'quantty' for the weight. Did you mean 'quantity'?"):
        prepare_log(LogSource(files=(str(file),), weight="quantty"), tmp_path / "cache")
    with raises_text("weight is 'qty', but with text='words' the documents are the users"):
        LogSource(files=("a.csv",), text="words", weight="qty")
    with pytest.raises(UsageError, match="one column is used twice"):
        prepare_log(LogSource(files=(str(file),), item="item", weight="item"), tmp_path / "cache")
