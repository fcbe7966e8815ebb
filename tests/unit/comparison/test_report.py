"""The report: all results in Markdown, HTML and JSON, and the committed reports."""

import dataclasses
import json
from pathlib import Path

import pytest
from oracle.comparison_results import (
    comparison,
    diverged,
    method,
    reference,
    result,
)

from tapas.comparison.report import TITLE, as_document, make_blocks, write_report
from tapas.comparison.results import read_comparison
from tapas.page import Heading, Paragraph, as_markdown

RESULTS = Path(__file__).parents[3] / "results" / "compare"
TRUTH = reference("the true distribution", 0.4, 5.0)


def finished():
    return comparison(
        method("full", 0.1),
        method("tapas", 0.2),
        method("nce", 0.1),
        method("huffman", 0.1, trials=(diverged("huffman", points="validation"),)),
        method("warp", 0.1, finals=(), skipped="too slow for this budget: 9 s"),
        baselines=(TRUTH,),
    )


def headings(found):
    return [part.text for part in make_blocks(found) if isinstance(part, Heading)]


def text(found):
    return "\n".join(part.text for part in make_blocks(found) if isinstance(part, Paragraph))


def test_there_is_no_section_without_results():
    found = comparison(method("full", 0.1, finals=()), method("nce", 0.1, finals=()))
    assert list(write_report(found)) == ["README.md", "report.html"]
    assert headings(found) == [
        "Quality over time", "What was the same for all", "Left out", "Where it ran"
    ]  # fmt: skip
    assert "Full softmax: not finished." in text(found)


def test_skipped_and_diverged_methods_are_listed():
    said = text(finished())
    assert "WARP: too slow for this budget: 9 s." in said
    assert "Hierarchical softmax, Huffman: 1 of 1 trials diverged." in said
    assert "Nothing: every method" not in said
    assert "Nothing: every method ran as planned." in text(comparison(method("full", 0.1)))


def test_an_unfinished_comparison_says_so_once():
    half = [dataclasses.replace(method(name, 0.1, finals=(result(name, 0.1),)), num_seeds=2)
            for name in ("full", "nce")]  # fmt: skip
    found = comparison(*half)
    assert text(found).count("1 of 2 seeds done: every method.") == 1
    assert text(found).count("seeds done") == 1
    assert "Left out" not in headings(found)


def test_settings_without_a_machine():
    found = comparison(method("full", 0.1))
    settings = {**found.settings, "machine": {}}
    del settings["sizes"]
    assert "Every number is in the" in text(dataclasses.replace(found, settings=settings))


def test_the_document_for_programs():
    found = json.loads(json.dumps(as_document(finished())))
    assert [each["name"] for each in found["methods"]] == ["tapas", "full", "nce", "huffman"]
    first = found["methods"][0]
    assert first["map@20"]["mean"] == 0.2
    assert first["knob"] == {"alpha": None}
    assert first["state"] is None
    assert found["without_result"] == {"warp": "too slow for this budget: 9 s"}
    assert found["references"] == {"the true distribution": 0.4}
    assert found["rule"]["choice"] == "tapas"
    assert found["rule"]["words"].startswith("Use TAPAS, priority: ")


@pytest.mark.parametrize("name", ["synthetic", "grocery"])
def test_the_committed_reports_are_up_to_date(name):
    """Drawn again from their ledgers: tables, recommendation and skipped methods."""
    folder = RESULTS / name
    page = as_markdown(TITLE, make_blocks(read_comparison(folder)))
    assert page == (folder / "README.md").read_text()
