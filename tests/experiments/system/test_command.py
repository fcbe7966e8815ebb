"""`python -m experiments table-1` on workers and servers that only pretend."""

import json

import pytest
from oracle.journeys import invoke_experiment, last_line, names

from experiments.system import command as paper_system
from experiments.system.config import System


@pytest.fixture
def engine(engine_of):
    return engine_of()


def table_1(*options):
    return invoke_experiment("table-1", "--quick", "--cache", "cache", *options)


def rounds_in(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_from_rounds_to_tables_page_figure_and_verdicts(at, engine):
    done = table_1()
    assert done.returncode == 0, done.stderr
    assert len(engine.opened) == 12  # two rounds of six cells
    home = at / "results" / "quick"
    assert names(home / "system") == ["README.md", "figure.png", "results.jsonl"]
    assert "+4.6 %" in done.stdout
    assert "reproduced: The same at n=8000: 13.6 %, the paper's rule: n=128: +13.6 %" in done.stdout
    assert "Fewer rows in a step, fewer stale gradients" in done.stdout
    page = (home / "system" / "README.md").read_text()
    assert "**missing**" not in page
    assert "[system](system/README.md)" in (home / "README.md").read_text()
    assert "round 2: n=16, r=8, top" in done.stderr

    again = table_1("--draw")
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert (home / "system" / "README.md").read_text() == page
    assert len(engine.opened) == 12


def test_finished_rounds_are_kept_and_more_can_be_asked_for(at, engine):
    assert table_1("--rounds", 1).returncode == 0
    assert table_1("--rounds", 3).returncode == 0
    assert [each["run"]["number"] for each in rounds_in(at / "results/quick/system")] == [0, 1, 2]
    assert len(engine.opened) == 18


def test_options_decide_the_system(at, engine):
    done = table_1(
        "--servers", 3, "--workers", 5, "--classes", 1_500, "--users", 200, "--steps", 6,
        "--warm-up", 2, "--rounds", 1, "--out", "there",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [only] = rounds_in(at / "there/quick/system")
    wanted = {
        "servers": 3, "workers": 5, "classes": 1_500, "users": 200, "steps": 6, "warm_up": 2,
        "max_staleness": 9,
    }  # fmt: skip
    assert {name: only["run"]["system"][name] for name in wanted} == wanted
    service = engine.opened[0].service
    assert (service.servers, service.workers, service.max_staleness) == (3, 5, 9)
    assert engine.ran[:2] == [2, 6]


def test_a_staleness_that_was_given_counts_also_with_workers(at, engine):
    assert table_1("--workers", 3, "--max-staleness", 0, "--rounds", 1).returncode == 0
    assert engine.opened[0].service.max_staleness == 0


def test_the_default_is_the_papers_system(monkeypatch, at, engine):
    seen = []
    monkeypatch.setattr(paper_system, "_run", lambda ledger, rounds, cache: seen.extend(rounds))
    line = last_line(invoke_experiment("table-1"))
    assert "the system has not been measured" in line
    assert {each.system for each in seen} == {System()}
    assert [each.number for each in seen] == [0, 1, 2]


def test_another_system_does_not_go_into_the_same_folder(at, engine):
    assert table_1("--rounds", 1).returncode == 0
    line = last_line(table_1("--servers", 4))
    assert "was measured with other servers (2 there, 4 here)." in line
    assert "--out" in line


@pytest.mark.parametrize("other", [("--data", "here"), ("--sets", "rust"), ("--draw",)])
def test_options_that_would_be_ignored_are_refused(at, engine, other):
    line = last_line(table_1("--servers", 2, "--warm-up", 3, "--rounds", 1, *other))
    assert line.startswith("--servers, --warm-up, --rounds cannot go with --d")
    assert line.endswith("Leave one of them out.")


def test_drawing_what_was_never_measured(at, engine):
    line = last_line(table_1("--draw"))
    assert line == "the system has not been measured. `python -m experiments table-1` does."
    assert names(at) == []


def test_too_few_classes_are_told_before_the_work(at, engine):
    assert "classes must be at least 128" in last_line(table_1("--classes", 100))
    assert not engine.opened
