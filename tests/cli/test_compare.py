"""`tapas compare` on a small log and a synthetic one, interrupted, and with mistakes."""

import json
import re
import shutil
import signal
from functools import partial

import pytest
from forked import Forked
from oracle.command_line import ENVIRONMENT, invoke, last_line, names, tapas, write_chain

from tapas.cli import compare as compare_settings
from tapas.cli.compare import describe_duration
from tapas.comparison.config import CompareConfig, quick, synthetic
from tapas.comparison.contenders import CONTENDERS
from tapas.heads import METHODS

FILES = [
    "README.md", "pace.jsonl", "quality-over-time.png", "report.html", "runs.jsonl",
    "settings.json",
]  # fmt: skip
QUICK = ("compare", "--quick", "--cache", "cache", "--workers", 1)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison on the synthetic log, run once."""
    folder = tmp_path_factory.mktemp("compared")
    return folder, tapas(*QUICK, "--methods", "full,tapas", cwd=folder)


@pytest.fixture
def results(compared, at):
    """A copy of a finished comparison, which the test may change."""
    shutil.copytree(compared[0] / "compare", at / "compare")
    return at / "compare"


@pytest.mark.slow
def test_a_table_a_recommendation_and_a_report(compared):
    folder, done = compared
    assert done.returncode == 0, done.stderr
    assert names(folder / "compare") == FILES
    assert re.search("^ +MAP@20 +recall@20 +NDCG@20 +precision@1$", done.stdout, re.M)
    for title in ("Full softmax", "TAPAS, priority", "most popular", "co-occurrence"):
        assert re.search(
            rf"^{title} +0\.\d{{4}} ±0\.\d{{4}}( +0\.\d{{4}}){{3}}$", done.stdout, re.M
        )
    verdict, points = done.stdout.split("\n\n")[:2]
    assert "the best of all" in verdict or "too thin" in verdict or "Use " in verdict
    assert points.startswith(
        "60 of 300 users, one point each; the next 5 items of each are to be found among all "
    )
    assert "2 methods, " in done.stderr
    assert "of training each: about " in done.stderr
    assert "Wrote compare/README.md, compare/report.html, compare/quality-over-time.png" in (
        done.stderr
    )
    page = (folder / "compare" / "report.html").read_text()
    assert page.count("<svg class='chart'") == 2
    assert "<img" not in page
    assert "the true distribution" in page


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_prints_the_same(results, compared, at):
    lines = (results / "runs.jsonl").read_text()
    shutil.copytree(compared[0] / "cache", at / "cache")
    again = invoke(*QUICK, "--methods", "full,tapas")
    assert again.stdout == compared[1].stdout
    assert (results / "runs.jsonl").read_text() == lines
    (results / "README.md").unlink()
    drawn = invoke("compare", "--draw")
    assert drawn.stdout == compared[1].stdout
    found = json.loads(invoke("compare", "--draw", "--json").stdout)
    assert {each["name"] for each in found["methods"]} == {"full", "tapas"}
    assert found["rule"].keys() == {"choice", "as_good", "words"}
    assert names(results) == FILES


@pytest.mark.slow
def test_other_settings_need_another_folder(results, compared, at):
    shutil.copytree(compared[0] / "cache", at / "cache")
    words = last_line(invoke(*QUICK, "--methods", "full", "--seeds", 1))
    assert words == (
        "the results in compare were made with another contenders, seeds. Choose another folder "
        "with --out, or move them away."
    )


@pytest.mark.slow
def test_a_log_of_your_own(at, monkeypatch):
    write_chain(at / "log.csv", num_users=40, num_items=60)
    little = {"points": 60, "curve_points": 40, "search_points": 40, "pace_rounds": 1}
    little |= {"pace_seconds": 0.02, "least_steps": 1}
    monkeypatch.setattr(compare_settings, "CompareConfig", partial(CompareConfig, **little))
    done = invoke(
        "compare", "log.csv", "--methods", "full,sampled", "--budget", "1s", "--seeds", 1,
        "--trials", 1, "--num-samples", 8, "--set", "model.dim=4",
        "--set", "split.kind=last", "--set", "split.validation=2", "--set", "split.test=2",
        "--set", "loop.batch=8", "--cache", "cache", "--out", "there", "--json", "--workers", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {each["name"] for each in found["methods"]} == {"full", "sampled"}
    assert found["references"].keys() == {"most popular", "own most frequent", "co-occurrence"}
    assert names(at / "there") == FILES
    page = (at / "there" / "README.md").read_text()
    assert page.startswith("# Which method, for this data?\n\nlog.csv: ")
    assert str(at) not in page
    assert str(at) not in (at / "there" / "settings.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "stopped by Ctrl-C."), (signal.SIGTERM, 143, "stopped by SIGTERM.")],
)
def test_results_are_kept_when_it_is_stopped(at, number, code, words):
    command = (*QUICK, "--budget", "1h", "--methods", "full,tapas")
    running = Forked(*command, cwd=at, env=ENVIRONMENT)
    running.wait_for("Reading the log")
    while not (at / "compare" / "pace.jsonl").exists():
        assert running.is_alive()
    running.send_signal(number)
    done = running.end()
    assert done.returncode == code, done.stderr
    assert f"tapas: {words}" in done.stderr
    assert "Results so far are kept in compare: the same command continues." in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_list_of_methods_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, invoke("compare", "--list").stdout.splitlines())) <= 50


def test_the_list_of_methods_fits_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = invoke("compare", "--list")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    named = [line.split()[0] for line in lines if re.match("  [a-z]", line)]
    options = list(dict.fromkeys(name for kind in METHODS.values() for name in kind.options))
    assert list(dict.fromkeys(named)) == list(dict.fromkeys([*CONTENDERS, *METHODS, *options]))
    assert "  tries                most draws to find a class that violates the margin;" in lines
    assert "  gbce                 num_samples, proposal, alpha, beta, calibration" in lines
    top = lines.index("  tapas-top            TAPAS, the paper's rule (Bai, Goldman, Zhang 2017)")
    assert lines[top + 1].split() == ["tuned:", "alpha", "(0.75,", "1,", "0.5,", "0)"]
    found = json.loads(invoke("compare", "--list", "--json").stdout)["methods"]
    assert found[0] == {
        "name": "full", "title": "Full softmax", "paper": "",
        "tuned": ["rows_lr"], "options": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no log given. Try `tapas compare purchases.parquet --budget 1m`, or --synthetic."),
        (
            ("--synthetic", "x.csv"),
            "--synthetic uses a synthetic log: leave out LOG and the options for reading it.",
        ),
        (("--quick", "--user", "who"), "--quick uses a synthetic log: leave out LOG and"),
        (("x.csv", "--methods", "fulll"), "unknown method 'fulll'. Did you mean 'full'? Known: "),
        (("x.csv", "--methods", ","), "--methods names no method. Give some of full, one-vs-all, "),
        (("x.csv", "--budget", "10x"), "cannot read '10x' as a time above 0. Write 90s, 10m, 1h,"),
        (("x.csv", "--trials", 99), "trials must be at most 8, got 99"),
        (("x.csv", "--seeds", 0), "seeds must be "),
        (("x.csv", "--num-samples", 0), "num_samples must be "),
        (
            ("x.csv", "--set", "head.alpha=1"),
            "--set head.alpha: the settings that are tried for a method are fixed, see `tapas "
            "compare --list`. Use --methods and --num-samples.",
        ),
        (
            ("x.csv", "--set", "optimizer.rows_lr=1"),
            "optimizer.rows_lr is tuned for every method. Leave it out.",
        ),
        (
            ("x.csv", "--set", "loop.epochs=1"),
            "--set loop.epochs cannot be used in a comparison. Known: loop.batch and the names in "
            "split, model, optimizer.",
        ),
        (("x.csv", "--set", "model.dims=8"), "unknown name in [model] 'dims'. Did you mean 'dim'?"),
        (("x.csv", "--set", "dim=8"), "--set 'dim=8' is not SECTION.NAME=VALUE"),
        (("x.csv", "--set", "model.copy=true"), "model.copy and model.follow mix counts"),
        (("x.csv", "--set", "model.follow=true"), "model.copy and model.follow mix counts"),
        (("--draw",), "compare holds no comparison (settings.json is missing). Start one with"),
        (("no-such.csv",), "no file matches 'no-such.csv'. Check the path."),
    ],
)
def test_mistakes_are_one_line(at, arguments, words):
    done = invoke("compare", *arguments)
    assert words in last_line(done)
    assert names(at) == []  # nothing is written before the mistake is reported


def test_the_expected_duration_is_printed():
    assert describe_duration(synthetic(budget_seconds=600.0, contenders=("full",) * 21), 2) == (
        "21 methods, 10 min of training each, 2 at once: about 1.8 h, plus reading, timing and "
        "evaluation."
    )
    assert describe_duration(quick(budget_seconds=1.5, contenders=("full",)), 1) == (
        "1 method, 1.5 s of training each: about 1.5 s, plus reading, timing and evaluation."
    )
