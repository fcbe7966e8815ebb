"""`python -m experiments table-1` with fake workers and servers."""

import pytest
from oracle.command_line import invoke_experiment, last_line, names


@pytest.fixture
def engine(engine_of):
    return engine_of()


def table_1(*options):
    return invoke_experiment("table-1", "--quick", "--cache", "cache", *options)


def test_from_rounds_to_tables_page_figure_and_verdicts(at, engine):
    done = table_1()
    assert done.returncode == 0, done.stderr
    assert len(engine.opened) == 6  # one round
    home = at / "results" / "quick"
    assert names(home / "system") == ["README.md", "figure.png", "results.jsonl"]
    assert "+13.6 %" in done.stdout
    assert "the paper's " not in done.stdout.replace("the paper's rule", "")
    assert "reproduced" not in done.stdout
    assert "Quick run on a made-up log: no verdicts.\n" in done.stderr
    page = (home / "system" / "README.md").read_text()
    assert page.startswith("Quick run on a made-up log: no verdicts.\n\n# Table 1: ")
    assert "`python -m experiments table-1 --quick` runs it" in page
    assert "Verdict" not in page
    assert names(home) == ["system"], "no overview of claims"
    assert "round 1: n=16, r=8, top" in done.stderr
    assert "Median and range of 1 round. " in page

    again = table_1("--draw")
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert (home / "system" / "README.md").read_text() == page
    assert len(engine.opened) == 6
    assert table_1("--rounds", 3).returncode == 0
    assert len(engine.opened) == 18  # one of the three rounds was there


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--servers", 2, "--draw"), "--servers cannot go with --draw: only a measurement of "),
        (
            ("--warm-up", 3, "--rounds", 1, "--data", "here"),
            "--warm-up, --rounds cannot go with --data and --sets: only a measurement of workers "
            "and servers takes that. Leave one of them out.",
        ),
        (("--workers", 5, "--sets", "rust"), "--workers cannot go with --data and --sets:"),
        (
            ("--draw",),
            "the system has not been measured. `python -m experiments table-1` does.",
        ),
        (("--classes", 100), "classes must be at least 128"),
    ],
)
def test_impossible_requests_are_errors_before_any_work(at, engine, options, words):
    assert words in last_line(table_1(*options))
    assert not engine.opened
    assert names(at) == []


def test_options_set_the_system_and_a_folder_has_only_one(at, engine):
    options = ("--workers", 5, "--classes", 1_500, "--steps", 6, "--rounds", 1)
    assert table_1(*options, "--servers", 3).returncode == 0
    service = engine.opened[0].service
    assert (service.servers, service.workers, service.max_staleness) == (3, 5, 9)
    assert engine.ran[:2] == [4, 6]
    given = ("--workers", 3, "--max-staleness", 0, "--rounds", 1, "--out", "there")
    assert table_1(*given).returncode == 0
    assert engine.opened[-1].service.max_staleness == 0
    line = last_line(table_1(*options, "--servers", 4))
    assert "was measured with other servers (3 there, 4 here)." in line
