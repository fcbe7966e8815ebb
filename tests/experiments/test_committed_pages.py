"""Committed pages are up to date: the code writes the same from the committed ledgers."""

import re
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from oracle.command_line import invoke_experiment

from experiments.claims import count_verdicts, replace_block
from experiments.estimators.page import make_page, read_estimators
from experiments.overview import (
    all_claims,
    overview_page,
    read_evidence,
    study_ledger,
    system_ledger,
)
from experiments.real.figures import sizes_figure, steps_figure, tail_figure, time_figure
from experiments.real.page import loss_page, map_page, pace_page
from experiments.real.panels import looked, share_of_targets
from experiments.real.sets import find_set
from experiments.synthetic.figures import _curves
from experiments.synthetic.page import study_page
from experiments.synthetic.studies import STUDIES
from experiments.system.page import system_page
from experiments.system.results import SystemResults
from tapas.comparison.figure_style import as_png
from tapas.errors import DataError

RESULTS = Path(__file__).parents[2] / "results"
EVIDENCE = RESULTS.parent / "docs" / "evidence.md"


@pytest.fixture(scope="module")
def claims():
    return all_claims(RESULTS)


def committed(*folders):
    return RESULTS.joinpath(*folders, "README.md").read_text()


@pytest.mark.parametrize("name", STUDIES)
def test_the_synthetic_studies(name, claims):
    study = STUDIES[name]
    assert study_page(study, study_ledger(RESULTS, study), claims) == committed(name)


@pytest.mark.parametrize("name", ["figure-1", "figure-2"])
def test_labels_in_a_figure_are_values_of_the_table(name):
    study = STUDIES[name]
    ledger, axes = study_ledger(RESULTS, study), Figure().add_subplot()
    for _, cells in study.panels:
        for cell, (text, height, _) in zip(
            cells, _curves(axes, study, ledger, cells), strict=False
        ):
            found = study.experiment.results(ledger, cell)
            value = sum(result["accuracy"] for result in found) / len(found)
            assert (text[:6], height) == (f"{value:.4f}", pytest.approx(value))
            assert f"| {value:.4f} ± " in committed(name)


def test_the_real_sets(claims):
    sets = read_evidence(RESULTS)
    for name, page in (("figure-3", map_page), ("figure-4", loss_page), ("table-1", pace_page)):
        assert page(sets, claims) == committed(name)


def test_the_figures_of_the_real_sets_can_be_drawn():
    sets = read_evidence(RESULTS)
    of_3 = [steps_figure(sets, "map@20"), time_figure(sets), sizes_figure(sets)]
    of_4 = [steps_figure(sets, "loss"), tail_figure(sets)]
    for command, figures in (("figure-3", of_3), ("figure-4", of_4)):
        for figure in figures:
            assert as_png(figure).startswith(b"\x89PNG")
            words = " ".join(" ".join(text.get_text() for text in figure.texts).split())
            assert re.findall(r"`python -m experiments ([\w-]+)`", words) == [command]


def test_the_system_the_estimators_and_the_overview(claims):
    assert system_page(SystemResults(system_ledger(RESULTS)), claims) == committed("system")
    assert make_page(read_estimators(RESULTS / "estimators")) == committed("estimators")
    assert overview_page(RESULTS, claims) == committed()


def test_the_verdicts_quoted_in_the_documentation(claims):
    """`python -m experiments claims --page docs/evidence.md` writes them."""
    assert replace_block(EVIDENCE, claims) == EVIDENCE.read_text()


def test_the_readme_counts_the_verdicts(claims):
    assert count_verdicts(claims) in (RESULTS.parent / "README.md").read_text()


def test_intervals_quoted_in_the_documentation_are_on_a_page_of_results():
    """Every "+0.4 % (-0.7 to +1.5)" in docs/ is on a page that is drawn from ledgers."""
    drawn = "".join(page.read_text() for page in RESULTS.rglob("README.md"))
    quoted = [
        interval.replace("−", "-")
        for page in EVIDENCE.parent.glob("*.md")
        for interval in re.findall(
            r"[+−-][\d.]+ % \([+−-][\d.]+ to [+−-][\d.]+\)", page.read_text()
        )
    ]
    assert len(quoted) > 10
    assert [interval for interval in quoted if interval not in drawn] == []


def test_numbers_in_words_of_the_documentation_follow_from_tables_of_results():
    """Of docs/evidence.md; the pages that have the tables are themselves tested above."""
    said, names = EVIDENCE.read_text(), ("linux", "wikipedia", "grocery", "rust", "synthetic")
    looks = {
        (row[0], row[1]): row[2:]
        for row in re.findall(
            r"\| (\w+) \| (\w+) \| ([\d.]+) % \| ([\d.]+) \|", committed("figure-4")
        )
    }
    cosines = [f"{float(looks[name, 'sampled'][1]):.2f}".lstrip("0") for name in names]
    words = [f"{cosine} ({name})" for cosine, name in zip(cosines, names, strict=True)]
    assert f"full softmax is {', '.join(words[:-1])} and {words[-1]}:" in said
    mass = {rule: f"{float(looks['wikipedia', rule][0]):.0f} %" for rule in ("sampled", "top")}
    assert f"puts {mass['top']} of its mass on the rarest tenth" in said
    assert f"sampled softmax and `priority`: {mass['sampled']};" in said

    losses = {"sampled": [], "priority": []}  # of MAP@20, by a uniform proposal
    for rule, values in re.findall(
        r"(sampled|priority) ([\d., ]+?)(?:;| \|)", committed("figure-3")
    ):
        found = [float(value) for value in values.split(", ")]
        if len(found) == 4:
            losses[rule].append(1 - found[0] / max(found))
    assert [len(found) for found in losses.values()] == [5, 5]
    low, high = (100 * end(losses["priority"]) for end in (min, max))
    assert f"`priority` {low:.0f} to {high:.0f} %." in said
    assert 0.45 < min(losses["sampled"]) < max(losses["sampled"]) < 0.95, "half to nine tenths"

    costs = [
        float(cost)
        for cost in re.findall(
            r"\| priority, n=(?:1,000|128|256), r=8 \|[^|]+\| ([\d.]+) ×", committed("table-1")
        )
    ]
    assert f"{min(costs):.2f} to {max(costs):.2f} times the step time of n" in said

    scores = {
        rule: [
            float(score)
            for score in re.findall(
                rf"\| {rule}, n=(?:1,000|128|256), r=8 \| ([\d.]+) ", committed("figure-3")
            )
        ]
        for rule in ("top", "priority")
    }
    gains = sorted(
        100 * (top / ours - 1) for top, ours in zip(scores["top"], scores["priority"], strict=True)
    )
    quoted = re.search(r"\+([\d.]+) % on synthetic \(one seed\), elsewhere within 1\.5 %", said)
    assert float(quoted[1]) == pytest.approx(gains[-1], abs=0.15)  # of rounded scores
    assert -1.55 < gains[0] <= gains[-2] < 1.55


def test_the_first_table_of_the_documentation_follows_from_its_intervals():
    """Two passes if better in the same time, either if only in the same steps, else one."""
    rows = re.findall(
        r"^\| (\w+): [^|]+\| ([\d,]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \| ([\w ]+) \|$",
        EVIDENCE.read_text(),
        flags=re.MULTILINE,
    )
    assert len(rows) == 5
    for name, n, same_steps, same_time, advice in rows:
        assert n == f"{find_set(name).num_samples:,}", name
        better = ["(+" in interval for interval in (same_steps, same_time)]
        want = "two passes" if better[1] else "either" if better[0] else "one pass"
        assert advice == want, name


def test_losses_gaps_and_targets_in_words_of_the_documentation():
    said = " ".join(EVIDENCE.read_text().split())
    rises = re.findall(r"emsp;(?:linux|wikipedia) \| yes \| \+([\d.]+) %", committed("figure-4"))
    low, high = sorted(f"{float(rise):.0f}" for rise in rises[1:])  # rises[0] is of 8n
    assert f"by {low} and {high} % on the texts" in said
    (wikipedia,) = (each for each in read_evidence(RESULTS) if each.real_set.name == "wikipedia")
    assert f"(targets: {share_of_targets(looked(wikipedia)):.0%}, ".replace("%", " %") in said
    page, closed = committed("figure-3"), []
    for table in page.split("| cell | MAP@20 |")[1:]:
        scores = dict(re.findall(r"\| (\w+, n=[\d,]+(?:, r=8)?) \| ([\d.]+) ", table))
        for n in (1000, 256, 128):
            cells = f"sampled, n={n:,}", f"priority, n={n:,}, r=8", f"sampled, n={8 * n:,}"
            if all(cell in scores for cell in cells):
                plain, ours, most = (float(scores[cell]) for cell in cells)
                closed.append((ours - plain) / (most - plain))
    assert len(closed) == 5
    assert 0.15 < min(closed) < 0.25, "a fifth"
    assert 0.95 < max(closed) < 1, "nearly all"
    assert "It closes a fifth to nearly all of the gap to 8n plain samples" in said


def test_a_page_without_the_markers_of_the_table_is_an_error(tmp_path, claims):
    page = tmp_path / "page.md"
    page.write_text("<!-- claims --> and no end")
    with pytest.raises(DataError, match=r"page.md lacks the lines <!-- claims --> and <!-- /cla"):
        replace_block(page, claims)


def test_the_sweeps(tmp_path):
    shutil.copytree(RESULTS / "real-data", tmp_path / "real-data")
    done = invoke_experiment("sweeps", "--draw", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sweeps" / "README.md").read_text() == committed("sweeps")
    assert (tmp_path / "sweeps" / "rust.png").read_bytes().startswith(b"\x89PNG")
