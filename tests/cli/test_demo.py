"""`tapas demo`: three models, one made-up log, one page; at a size for tests."""

import json
import re
import signal
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tapas.cli.main import app
from tapas.comparison import demo as showcase
from tapas.comparison.listening_log import ListeningLogConfig
from tapas.escapes import shell_word
from tapas.page import Marked
from tapas.training.journal import read_journal
from tapas.training.run_folder import open_run

pytestmark = pytest.mark.slow
SMALL = ListeningLogConfig(num_listeners=60, serials_per_genre=4, num_songs=30, most_events=61)
RUNS = ("sampled-softmax", "TAPAS-priority", "chosen-from-the-log")
CEILING = "best possible"


def shrink(patch):
    patch.setattr(showcase, "ListeningLogConfig", lambda: SMALL)
    sizes = {"model": {"dim": 8, "history": 10}, "head": {"num_samples": 16}}
    sizes["loop"] = {"batch": 8, "patience": 100}
    settings = replace(showcase.LISTENING_SETTINGS, shared=sizes)
    patch.setattr(showcase, "LISTENING_SETTINGS", settings)


def invoke(*arguments):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        patch.setattr(showcase, "find_groceries", lambda: None)
        ended = invoke("--steps", 20, "--out", folder)
    assert ended.exit_code == 0, ended.output
    return ended, folder


def test_the_table_has_all_models_three_baselines_and_the_best_possible(done):
    ended, _ = done
    names = (*showcase.VARIANTS, "most popular", "own most frequent", "co-occurrence", CEILING)
    for name in names:
        assert re.search(rf"^ *{name} ", ended.stdout, flags=re.MULTILINE), name
    assert "59 users, one point each" in ended.stdout
    assert "MAP@20 of TAPAS priority minus sampled softmax" in ended.stdout
    assert "Chosen from the log is what `tapas train` does when no option is given" in ended.stdout
    assert ended.stdout.count("took last") == 3
    assert ", episode " in ended.stdout
    assert "next basket" not in ended.stdout


def test_off_a_terminal_lines_tell_the_log_the_progress_and_what_to_do_next(done):
    ended, folder = done
    lines = ended.stderr.splitlines()
    assert lines[0].startswith(
        'The real log is not installed (pip install "tapas-softmax[demo]"). This log is made up: '
        "60 listeners each follow 3 serials at a time"
    )
    assert "Training model 3 of 3: chosen from the log." in lines
    assert sum(line.startswith("step 20 of 20 · loss ") for line in lines) == 3
    user = re.search(r"^Listener (\d+)$", ended.stdout, flags=re.MULTILINE)[1]
    run = shell_word(folder / RUNS[2])
    assert lines[-5:] == [
        "For a log of your own: `tapas inspect LOG`, then `tapas train LOG --out run`.",
        f"Report: {folder / 'report.html'}",
        "Next:",
        f"  tapas recommend {run} --user {user}",
        f"  tapas serve {run}    # then open http://127.0.0.1:8321/",
    ]
    again = CliRunner().invoke(app, ["recommend", str(folder / RUNS[2]), "--user", user])
    assert again.exit_code == 0, again.output


def test_the_page_needs_no_other_files_and_has_the_same_numbers(done):
    ended, folder = done
    page = (folder / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "This log is made up: " in page
    chart = page.split("<svg")[1].split("</svg>")[0]
    assert all(f">{name}</text>" in chart for name in showcase.VARIANTS)
    assert "<img" not in page
    assert not re.search(r"(src|href)='?http", page)
    results = json.loads((folder / "results.json").read_text())
    ceiling = results["ceiling"]["metrics"]["map@20"]["mean"]
    for number in (f"{results['lead_map@20']['mean']:+.4f}", f"{ceiling:.4f}"):
        assert number in page
        assert number in ended.stdout
    models = {name: way["scores"]["model"] for name, way in results["ways"].items()}
    assert all(ceiling > each["metrics"]["map@20"]["high"] for each in models.values())
    assert list(results["training_steps"].values()) == [20, 20, 20]
    assert results["best"] in models


def test_all_models_train_for_the_same_steps_and_are_drawn(done):
    _, folder = done
    for name, copies in zip(RUNS, (False, False, True), strict=True):
        lines = read_journal(folder / name / "journal.jsonl")
        steps = [line["step"] for line in lines if line["event"] == "evaluate"]
        assert steps == list(range(2, 21, 2))
        assert open_run(folder / name).config.model.copy is copies
    assert "is not drawn" not in (folder / "report.html").read_text()


def test_the_lists_are_those_of_the_model_whose_settings_were_chosen(done):
    ended, folder = done
    page = (folder / "report.html").read_text()
    log = showcase.DemoLog("", [], {}, "listener", showcase.LISTENING_SETTINGS, has_baskets=False)
    people, others = (showcase.some_people(open_run(folder / name), log) for name in RUNS[:0:-1])
    assert people != others
    assert ended.stdout.count("recommended by the model chosen from the log") == 3
    assert page.count("recommended by the model chosen from the log") == 3
    for person in people:
        block = page.split(f"<h3>{person.name}</h3>")[1].split("</div></div>")[0]
        listed = re.findall(r"<li( class=hit)?>([^<]*)</li>", block)
        items = [item for each in person.lists.values() for item in each]
        assert listed == [(" class=hit" * isinstance(item, Marked), item) for item in items]


def test_json_is_all_that_stdout_carries(tmp_path, monkeypatch):
    shrink(monkeypatch)
    ended = invoke("--synthetic", "--steps", 2, "--out", tmp_path / "demo", "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["steps"] == 2
    assert ended.stderr.startswith("This log is made up: ")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    ended = invoke("--synthetic", "--out", tmp_path)
    assert ended.exit_code == 1
    assert "exists and is not an empty folder. Remove it, or choose another --out." in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_log_of_ones_own_is_sent_to_inspect_and_train(tmp_path):
    ended = invoke("--synthetic", "mine.csv", "--out", tmp_path / "demo")
    assert ended.exit_code == 2
    words = " ".join(ended.stderr.replace("│", " ").split())
    assert (
        "the demo brings its own log, but got 'mine.csv'. For a log of your own: tapas inspect "
        "mine.csv, then tapas train mine.csv --out run." in words
    )
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("existed", "number", "code", "words"),
    [
        (False, signal.SIGTERM, 143, "stopped by SIGTERM."),
        (True, signal.SIGINT, 130, "stopped by Ctrl-C."),
    ],
)
def test_a_signal_leaves_nothing_half_done(tmp_path, monkeypatch, existed, number, code, words):
    shrink(monkeypatch)
    folder = tmp_path / "demo"
    if existed:
        folder.mkdir()

    def interrupted(log, out, name, *rest, **options):
        (out / name).mkdir()
        signal.raise_signal(number)

    monkeypatch.setattr(showcase, "train_variant", interrupted)
    ended = invoke("--synthetic", "--out", folder)
    assert ended.exit_code == code
    assert words in ended.stderr
    assert folder.exists() is existed
    assert not existed or not any(folder.iterdir())
