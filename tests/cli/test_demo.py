"""`tapas demo`: three models, one log, one page; at a size for tests."""

import json
import re

import pytest
from typer.testing import CliRunner

from tapas.cli.main import app
from tapas.comparison import demo as showcase
from tapas.comparison.page import Marked, Subheading
from tapas.comparison.synthetic_log import SyntheticLogConfig, describe_group
from tapas.training.run_folder import open_run

pytestmark = pytest.mark.slow
SMALL = SyntheticLogConfig(num_users=60, num_items=300, num_groups=6, baskets_per_user=12)
RUNS = ("sampled-softmax", "TAPAS-priority", "TAPAS-with-copying")


def shrink(patch):
    patch.setattr(showcase, "SyntheticLogConfig", lambda: SMALL)
    sizes = {"model": {"dim": 8, "history": 10}, "head": {"num_samples": 16}, "loop": {"batch": 8}}
    patch.setattr(showcase, "SETTINGS", sizes)


def invoke(*arguments):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        ended = invoke("--synthetic", "--steps", 20, "--out", folder)
    assert ended.exit_code == 0, ended.output
    return ended, folder


def test_the_table_has_all_models_and_three_baselines(done):
    ended, _ = done
    for name in (*showcase.VARIANTS, "most popular", "own most frequent", "co-occurrence"):
        assert re.search(rf"^ *{name} ", ended.stdout, flags=re.MULTILINE), name
    assert "MAP@20 of TAPAS priority minus sampled softmax" in ended.stdout
    assert "say nothing about sampling" in " ".join(ended.stdout.split())
    assert ended.stdout.count("took last") == 3
    assert "of group" in ended.stdout


def test_the_page_needs_no_other_files_and_has_the_same_numbers(done):
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
    assert list(results["training_steps"].values()) == [20, 20, 1]
    assert results["best"] in results["ways"]


def test_the_first_two_models_train_for_the_same_steps_and_the_third_for_fewer(done):
    _, folder = done
    first, second, third = (
        [
            json.loads(line)["step"]
            for line in (folder / name / "journal.jsonl").read_text().splitlines()
        ]
        for name in RUNS
    )
    assert first == second == list(range(2, 21, 2))
    assert third == [1]
    assert [open_run(folder / name).config.model.copy for name in RUNS] == [False, False, True]


def test_the_lists_are_those_of_the_model_that_copies(done):
    ended, folder = done
    page = (folder / "report.html").read_text()
    words = {key: describe_group(key, SMALL.num_groups) for key in range(SMALL.num_items)}
    people, others = (showcase.some_people(open_run(folder / name), words) for name in RUNS[:0:-1])
    assert people != others
    assert ended.stdout.count("recommended by TAPAS with copying") == 3
    assert page.count("recommended by TAPAS with copying") == 3
    for person in people:
        block = page.split(f"<h3>{person.name}</h3>")[1].split("</div></div>")[0]
        listed = re.findall(r"<li( class=hit)?>([^<]*)</li>", block)
        items = [
            item
            for each in person.lists.values()
            for item in each
            if not isinstance(item, Subheading)
        ]
        assert listed == [(" class=hit" * isinstance(item, Marked), item) for item in items]


def test_without_the_real_log_it_makes_one_up_and_draws_the_two_that_share_their_steps(
    tmp_path, monkeypatch
):
    shrink(monkeypatch)
    drawn = []

    def draw(journals):
        drawn.extend(journals)
        return b""

    monkeypatch.setattr(showcase, "draw_curves", draw)
    monkeypatch.setattr(showcase, "find_groceries", lambda: None)
    ended = invoke("--steps", 2, "--out", tmp_path / "demo", "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["steps"] == 2  # all that stdout carries
    words = 'The real log is not installed (pip install "tapas-softmax[demo]"). A synthetic log'
    assert words in ended.stderr
    assert drawn == ["sampled softmax", "TAPAS priority"]
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "TAPAS with copying is not drawn: it takes fewer steps, with larger windows" in page
    assert "2 steps of 8 windows of up to 10 events." in page
    assert "1 steps of 16 windows of up to 1,000 events." in page


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    ended = invoke("--synthetic", "--out", tmp_path)
    assert ended.exit_code == 1
    assert "exists and is not an empty folder. Remove it, or choose another --out." in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
