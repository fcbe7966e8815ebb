"""The report: nothing is left out, nothing is invented, and both forms say the same."""

import dataclasses
import json

from oracle.comparison_results import (
    comparison,
    diverged,
    reference,
    standing,
    step_times,
)

from tapas.comparison.page import Grid, Heading, Picture, Words
from tapas.comparison.report import as_document, make_parts, write_report
from tapas.comparison.side_tables import bias_rows, break_even_heading, break_even_rows

TRUTH = reference("the true distribution", 0.4, 5.0)


def line(name, num_samples=16, **found):
    return {"key": name, "run": {"contender": name, "num_samples": num_samples}, **found}


def pull(*means):
    names = ("head", "middle", "tail")
    return {n: {"mean": m, "standard_error": 0.01} for n, m in zip(names, means, strict=True)}


BIAS = (
    line("tapas", bias=0.25, noise=0.125, pull=pull(0.1, -0.015, -0.1), aims_at_softmax=True),
    line("nce", bias=0.5, noise=0.001, pull=pull(0, 0, 0), aims_at_softmax=False),
    line("huffman", 0, bias=0.0, noise=0.0, exact="normalised", aims_at_softmax=True),
    line("warp", 0, skipped="cannot be built", aims_at_softmax=False),
)


def whole():
    return comparison(
        standing("full", 0.1, step_times=step_times(0.01, 0.1, 1.0)),
        standing("tapas", 0.2, step_times=step_times(0.03, 0.03, 0.03)),
        standing("nce", 0.1, step_times=step_times(0.001, 0.001, "too much memory")),
        standing("huffman", 0.1, trials=(diverged("huffman", points="validation"),)),
        standing("warp", 0.1, finals=(), skipped="too slow for this budget: 9 s"),
        references=(TRUTH,),
        bias=BIAS,
    )


def headings(found):
    return [part.text for part in make_parts(found) if isinstance(part, Heading)]


def text(found):
    return "\n".join(part.text for part in make_parts(found) if isinstance(part, Words))


def test_the_files_of_a_whole_report():
    files = write_report(whole())
    assert list(files) == ["README.md", "report.html", "quality-over-time.png", "step-time.png"]
    markdown, page = files["README.md"].decode(), files["report.html"].decode()
    for part in make_parts(whole()):
        if isinstance(part, Picture):
            assert f"]({part.name})" in markdown
        if isinstance(part, Heading):
            assert f"## {part.text}\n" in markdown
            assert f"<h2>{part.text}</h2>" in page
        if isinstance(part, Grid):
            assert {len(row) for row in part.rows} == {len(part.heading)}
    assert page.count("<img ") == 2
    assert "> Use TAPAS, priority: " in markdown
    assert "<p class='rule'>Use TAPAS, priority: " in page


def test_every_section_of_a_whole_report():
    assert headings(whole()) == [
        "Quality over time",
        "What needs no training",
        "Time of a step over the number of classes",
        "The bias of each estimator",
        "What was equal",
        "What was cut",
        "Where it ran",
    ]


def test_what_has_no_results_has_no_section():
    found = comparison(standing("full", 0.1, finals=()), standing("nce", 0.1, finals=()))
    assert list(write_report(found)) == ["README.md", "report.html"]
    assert headings(found) == [
        "Quality over time", "What was equal", "What was cut", "Where it ran"
    ]  # fmt: skip
    assert "Full softmax: not finished." in text(found)


def test_all_that_was_cut_is_said():
    said = text(whole())
    assert "WARP: too slow for this budget: 9 s." in said
    assert "Hierarchical softmax, Huffman: 1 of 1 trials diverged." in said
    assert "NCE, step time with 1,000,000 classes: too much memory." in said
    assert "Nothing: every method" not in said
    assert "Nothing: every method ran as planned." in text(comparison(standing("full", 0.1)))


def test_the_introduction_and_the_machine():
    said = text(whole())
    assert said.startswith(
        "A made-up log, whose true distribution is known: 1,200,000 events, 40,000 users, 100,000 "
        "items (the classes). 5 methods with 10 min of training each: half for 4 trials, half for "
        "3 seeds. Encoder gru, 64 dimensions; n = 1,000."
    )
    assert "2 cores; tapas 0, torch 2, python 3, commit abc." in said


def test_a_folder_that_knows_nothing_of_its_machine():
    found = comparison(standing("full", 0.1))
    settings = {**found.settings, "machine": {}}
    del settings["sizes"]
    assert "Every number is in the" in text(dataclasses.replace(found, settings=settings))


def test_step_times_the_fastest_with_most_classes_first():
    found = whole()
    assert break_even_heading(found) == (
        "", "10,000 classes", "100,000 classes", "1,000,000 classes", "break-even, classes"
    )  # fmt: skip
    assert break_even_rows(found) == [
        ["TAPAS, priority", "30 ms", "30 ms", "30 ms", "30,000"],
        ["Full softmax", "10 ms", "100 ms", "1 s", "–"],
        ["NCE", "1 ms", "1 ms", "–", "below 10,000"],
    ]
    never = standing("warp", 0.1, step_times=step_times(2, 2, 2))
    rows = break_even_rows(comparison(*found.standings[:1], never))
    assert rows[1][-1] == "above 1,000,000"


def test_bias_with_its_chance_and_its_direction():
    assert bias_rows(whole()) == [
        ["TAPAS, priority", "16", "0.2500", "0.1250", "+0.100 / 0 / -0.100", ""],
        ["NCE", "16", "0.5000", "0.0010", "0 / 0 / 0", "aims elsewhere, by design"],
        ["Hierarchical softmax, Huffman", "–", "–", "–", "–", "normalised"],
        ["WARP", "–", "–", "–", "–", "cannot be built"],
    ]


def test_the_document_for_programs():
    found = json.loads(json.dumps(as_document(whole())))
    assert [each["name"] for each in found["methods"]] == ["tapas", "full", "nce", "huffman"]
    first = found["methods"][0]
    assert first["map@20"]["mean"] == 0.2
    assert first["break_even_classes"] == 30_000
    assert first["knob"] == {"alpha": None}
    assert first["state"] is None
    assert found["without_result"] == {"warp": "too slow for this budget: 9 s"}
    assert found["references"] == {"the true distribution": 0.4}
    assert found["rule"]["choice"] == "tapas"
    assert found["rule"]["words"].startswith("Use TAPAS, priority: ")
    never = standing("warp", 0.1, step_times=step_times(2, 2, 2))
    methods = as_document(comparison(whole().standings[0], never))["methods"]
    assert [each["break_even_classes"] for each in methods] == [None, None]
