"""Lines and tables fit the terminal, and stay in one piece in files and pipes."""

import ast
import io
import json
import math
import sys
from pathlib import Path

import pytest

from tapas.cli.progress import describe_evaluation, progress_bar, run_progress
from tapas.cli.terminal import (
    print_json,
    print_lines,
    print_row,
    print_table,
    say,
    status,
    warn_only,
    wrapped,
)
from tapas.evaluation.intervals import Interval
from tapas.training.trainer import Progress

WORDS = "one two three-and-a-half four " * 9


@pytest.mark.parametrize("columns", [30, 80])
def test_sentences_break_between_words_at_the_width_of_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = wrapped(WORDS, io.StringIO(), indent="  ").splitlines()
    assert max(map(len, lines)) <= columns
    assert " ".join(lines).split() == WORDS.split()
    assert all(line.startswith("  ") for line in lines[1:])


def test_files_and_pipes_get_one_line(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert wrapped(WORDS, io.StringIO()) == WORDS
    monkeypatch.setenv("COLUMNS", "30")
    status(WORDS)
    assert capsys.readouterr().err == f"{WORDS}\n"


def test_only_warnings_are_printed_in_a_quiet_run(capsys):
    for words in ("Reading log.csv.", "Warning: server 0 died.", "A Warning: no."):
        warn_only(words)
    assert capsys.readouterr().err == "Warning: server 0 died.\n"


@pytest.mark.parametrize(
    ("tick", "left", "words"),
    [
        (Progress(300, 2000, 6.312, 0.0412, 0.0412, is_best=True), 245,
         "step 300 of 2,000 · loss 6.31 · validation MAP@20 0.0412 (best) · 4 min left"),
        (Progress(1200, 2000, 5.0, 0.5, 0.25), 0.2,
         "step 1,200 of 2,000 · loss 5.00 · validation MAP@20 0.2500 · 1 s left"),
        (Progress(1200, 2000, 5.0, 0.5, 0.25), 9000,
         "step 1,200 of 2,000 · loss 5.00 · validation MAP@20 0.2500 · 2.5 h left"),
        (Progress(2000, 2000, 5.0, 0.5, 0.25), 0,
         "step 2,000 of 2,000 · loss 5.00 · validation MAP@20 0.2500"),
        (Progress(3, 3, 999_999.0, 0.5, 0.25), 0,
         "step 3 of 3 · loss 999999.00 · validation MAP@20 0.2500"),
        (Progress(3, 3, 332901148510035466256384.0, 0.5, 0.25), 0,
         "step 3 of 3 · loss 3.329e+23 · validation MAP@20 0.2500"),
    ],
)  # fmt: skip
def test_an_evaluation_is_one_line(tick, left, words):
    assert describe_evaluation(tick, left) == words


def count_runs(follow, stage, start, total, clock):
    advance = follow(stage)
    for done in range(start, total + 1):
        advance(done, total)
        clock[0] += 20


def test_off_a_terminal_a_stage_has_a_line_at_its_start_and_for_each_tenth(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("tapas.cli.progress.time.monotonic", lambda: clock[0])
    with run_progress() as follow:
        count_runs(follow, "trials", 0, 21, clock)
        count_runs(follow, "final runs", 1, 3, clock)  # one was there before
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "trials: 0 of 21 runs",
        "trials: 3 of 21 runs · 6 min left",
        "trials: 5 of 21 runs · 5 min left",
        "trials: 7 of 21 runs · 5 min left",
        "trials: 9 of 21 runs · 4 min left",
        "trials: 11 of 21 runs · 3 min left",
        "trials: 13 of 21 runs · 3 min left",
        "trials: 15 of 21 runs · 2 min left",
        "trials: 17 of 21 runs · 80 s left",
        "trials: 19 of 21 runs · 40 s left",
        "trials: 21 of 21 runs",
        "final runs: 1 of 3 runs",
        "final runs: 2 of 3 runs · 20 s left",
        "final runs: 3 of 3 runs",
    ]


def test_on_a_terminal_there_are_bars_and_no_lines(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with run_progress() as follow:
        count_runs(follow, "trials", 0, 21, [0])
    assert "of 21 runs" not in (err := capsys.readouterr().err)
    assert "21/21" in err


def test_names_in_a_table_are_no_markup(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    print_table(("", "in [head]"), [["[bold]:smile:\n\x1b[2J", "1"]], title="[red]\x07")
    title, heading, _, row = capsys.readouterr().out.splitlines()
    assert title.strip() == r"[red]\x07"
    assert heading.split() == ["in", "[head]"]
    assert row.split() == [r"[bold]:smile:\n\x1b[2J", "1"]


NAME = "[red]:smile:\t\n\x1b]0;\u202e\udcff"
SHOWN = r"[red]:smile:\t\n\x1b]0;\u202e\xff"


def test_names_in_lines_are_one_line_without_control_characters(capsys):
    status(NAME)
    print_lines(NAME, "", err=True)
    assert capsys.readouterr().err == f"{SHOWN}\n{SHOWN}\n\n"
    say(NAME)
    print_lines(NAME)
    print_row(1, NAME, 0.5)
    assert capsys.readouterr().out == f"{SHOWN}\n{SHOWN}\n1\t{SHOWN}\t0.5\n"
    print_json({"name": NAME})
    assert json.loads(capsys.readouterr().out) == {"name": NAME}


def test_a_bar_takes_no_name_for_markup(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(NAME, "steps") as advance:
        advance(1, 2, NAME)
    with run_progress() as follow:
        follow(NAME)(1, 2)
    drawn = terminal.getvalue()
    assert drawn.count("[red]:smile:") >= 3
    assert not {"\t", "\u202e", "\udcff", "😄"} & set(drawn)
    assert "\x1b]" not in drawn


def test_a_terminal_without_unicode_gets_escapes(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    say("😀 é")
    print_table(("", "é"), [["😀", "1"]])
    sys.stdout.flush()
    assert raw.getvalue().startswith(b"\\U0001f600 \\xe9\n")


def test_commands_in_a_sentence_are_not_broken(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    words = "Next, look at it: `tapas evaluate 'two  words'`, or at that: `tapas x`."
    lines = wrapped(words, io.StringIO()).splitlines()
    assert lines == [
        "Next, look at it:", "`tapas evaluate 'two  words'`,", "or at that: `tapas x`."
    ]  # fmt: skip


def test_all_output_of_commands_goes_through_one_file():
    """Only its functions show names as `printable` does."""
    root = Path(__file__).parents[2]
    outputs = {"echo", "secho", "confirm", "prompt", "Console"}
    for file in (*(root / "src/tapas/cli").glob("*.py"), *(root / "experiments").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or file.name == "terminal.py":
                continue
            name = ast.unparse(node.func)
            direct = name in {"print", "Console"} or name.removeprefix("typer.") in outputs
            ours = name == "confirm"
            written = name.startswith(("sys.stdout.write", "sys.stderr.write"))
            assert ours or not (direct or written), f"{file.name}:{node.lineno}: {name}"


@pytest.mark.parametrize("columns", [1, 20, 40, 60, 80])
def test_a_narrow_terminal_cuts_no_number_of_a_table(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    heading = ["", "model", "most popular", "co-occurrence"]
    row = ["precision@1", "0.2385 ±0.0678", "0.2259 ±0.0686", "0.1382 ±0.0322"]
    print_table(heading, [row])
    out = capsys.readouterr().out
    assert sorted(" ".join([*heading, *row]).split()) == sorted(out.replace("─", "").split())
    assert max(map(len, out.splitlines())) <= max(columns, 50)


def test_a_long_key_in_a_table_is_broken_and_complete(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("key", "score"), [["k" * 100, "1.25"]])
    out = capsys.readouterr().out
    assert out.count("k") == 101
    assert max(map(len, out.splitlines())) <= 40


def test_plus_minus_is_the_distance_to_the_farther_end():
    assert Interval(0.5, 0.45, 0.6).plus_minus(3) == "0.500 ±0.100"
    assert Interval(0.5, -math.inf, math.inf).plus_minus() == "0.5000"
