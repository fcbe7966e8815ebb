"""Files of comparisons and experiments on damage and malice: a report, or one sentence."""

import json
import shutil
from pathlib import Path

import pytest
from fuzz.mutations import changed_json, damaged, json_text
from fuzz.readers import Sample, fuzz_target, outcome
from oracle.comparison_results import diverged, pace, result, settings, write_lines

from experiments.overview import read_paces, read_studies
from tapas.cli.cite import cite_comparison
from tapas.cli.compare import _printed
from tapas.comparison.report import as_document, make_blocks
from tapas.comparison.results import read_comparison, refuse_damaged

NAMES = ("tapas", "sampled")
RESULTS = Path(__file__).parents[2] / "results"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # means of absurd numbers


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "settings.json").write_text(json.dumps(settings(NAMES)))
    write_lines(folder / "pace.jsonl", map(pace, NAMES))
    trials = [result(name, 0.1, run={"points": "validation"}) for name in NAMES]
    finals = [result(name, 0.1, seed=seed) for name in NAMES for seed in (0, 1)]
    write_lines(folder / "runs.jsonl", [*trials, *finals, diverged("tapas", seed=2)])
    return Sample(folder)


def report(folder):
    with refuse_damaged(folder):
        found = read_comparison(folder)
        return as_document(found), make_blocks(found), list(_printed(found, show_all=True))


def check(comparison, name, content):
    with comparison.changed({name: content}) as folder:
        outcome(lambda: report(folder))
        outcome(lambda: cite_comparison(folder))


@pytest.mark.parametrize("name", ["settings.json", "pace.jsonl", "runs.jsonl"])
@fuzz_target
def test_damaged_files_are_a_report_or_one_sentence(comparison, name, draw):
    check(comparison, name, damaged(draw, comparison.content(name)))


@fuzz_target
def test_settings_of_strangers(comparison, draw):
    found = json.loads(comparison.content("settings.json"))
    check(comparison, "settings.json", json_text(draw, changed_json(draw, found)))


@pytest.mark.parametrize("name", ["pace.jsonl", "runs.jsonl"])
@fuzz_target
def test_results_of_strangers(comparison, name, draw):
    lines = [json.loads(line) for line in comparison.content(name).splitlines()]
    at = draw.randrange(len(lines))
    lines[at] = changed_json(draw, lines[at])
    check(comparison, name, b"".join(json_text(draw, line) + b"\n" for line in lines))


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    for name in ("table-1/pace.json", "figure-2/gradient_cost.json", "figure-2/results.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(RESULTS / name, folder / name)
    return Sample(folder)


@pytest.mark.parametrize("name", ["table-1/pace.json", "figure-2/gradient_cost.json"])
@fuzz_target
def test_measurements_of_experiments(studies, name, draw):
    content = studies.content(name)
    if draw.random() < 0.5:
        content = json_text(draw, changed_json(draw, json.loads(content)))
    else:
        content = damaged(draw, content)
    with studies.changed({name: content}) as folder:
        outcome(lambda: read_paces(folder))
        outcome(lambda: read_studies(folder))
