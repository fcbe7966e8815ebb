"""`tapas demo`: two models, one log, one page; at a size for tests."""

import json
import re

import pytest
from typer.testing import CliRunner

from tapas.cli.main import app
from tapas.data.synthetic_log import SyntheticLogConfig
from tapas.training import showcase

SMALL = SyntheticLogConfig(num_users=60, num_items=300, num_groups=6, baskets_per_user=12)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(showcase, "SyntheticLogConfig", lambda: SMALL)
    sizes = {"model": {"dim": 8, "history": 10}, "head": {"samples": 16}, "loop": {"batch": 8}}
    monkeypatch.setattr(showcase, "SETTINGS", sizes)


def invoke(*arguments):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture
def done(small, tmp_path):
    ended = invoke("--synthetic", "--steps", 20, "--out", tmp_path / "demo")
    assert ended.exit_code == 0, ended.output
    return ended, tmp_path / "demo"


def test_the_table_has_both_models_and_three_baselines(done):
    ended, _ = done
    for name in (*showcase.WAYS, "most popular", "own most frequent", "co-occurrence"):
        assert re.search(rf"^ *{name[:8]}", ended.stdout, flags=re.MULTILINE), name
    assert "MAP@20 of TAPAS minus sampled softmax" in ended.stdout
    assert ended.stdout.count("took last") == 3
    assert "of group" in ended.stdout


def test_the_page_stands_alone_and_tells_the_same(done):
    ended, folder = done
    page = (folder / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "data:image/png;base64," in page
    assert not re.search(r"(src|href)='?http", page)
    results = json.loads((folder / "results.json").read_text())
    lead = results["lead_map@20"]["mean"]
    assert f"{lead:+.4f}" in page
    assert f"{lead:+.4f}" in ended.stdout
    assert results["ways"]["TAPAS priority"]["scores"]["model"]["num_examples"] > 0


def test_both_ways_saw_the_same_split_and_ran_as_long(done):
    _, folder = done
    first, second = (
        [
            json.loads(line)["step"]
            for line in (folder / name / "journal.jsonl").read_text().splitlines()
        ]
        for name in ("sampled-softmax", "TAPAS-priority")
    )
    assert first == second == list(range(2, 21, 2))


def test_json_is_all_that_stdout_carries(small, tmp_path):
    ended = invoke("--synthetic", "--steps", 2, "--out", tmp_path / "demo", "--json")
    assert json.loads(ended.stdout)["steps"] == 2


def test_without_the_real_log_it_says_so_and_makes_one_up(small, tmp_path, monkeypatch):
    monkeypatch.setattr(showcase, "find_groceries", lambda: None)
    ended = invoke("--steps", 2, "--out", tmp_path / "demo")
    assert ended.exit_code == 0
    words = 'The real log is not installed (pip install "tapas-softmax[demo]"). A made-up log'
    assert words in ended.stderr


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    ended = invoke("--synthetic", "--out", tmp_path)
    assert ended.exit_code == 1
    assert "exists and is not an empty folder. Remove it, or choose another --out." in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
