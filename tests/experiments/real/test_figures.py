"""Lines and labels of the figures of real sets, for fake results."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from oracle.real_results import made_up_set, run_of

from experiments.real.cells import (
    CELLS,
    FULL,
    PRIORITY,
    PRIORITY_8,
    SAMPLED,
    SAMPLED_8,
    SAMPLED_64,
    TOP,
    TOP_8,
    SetRuns,
)
from experiments.real.evidence import SetEvidence
from experiments.real.figures import (
    sizes_figure,
    steps_figure,
    sweeps_figure,
    tail_figure,
    time_figure,
)
from experiments.real.pace import Pace, Rows
from experiments.real.sets import GROCERY, LINUX, RUST
from tapas.comparison.figure_style import COLOURS
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError

ORANGE, TEAL, RED, GREY = (
    COLOURS[name] for name in ("sampled softmax", "TAPAS top", "TAPAS priority", "full softmax")
)


def height(cell):
    return 0.01 * (1 + CELLS.index(cell))


def evidence(tmp_path, real_set=GROCERY, **options):
    path = tmp_path / f"{real_set.name}.jsonl"
    return made_up_set(path, height, lambda c: 9 - height(c), real_set=real_set, **options)


def empty(tmp_path, real_set=RUST):
    return SetEvidence(SetRuns(real_set), Ledger(tmp_path / "none.jsonl"))


def ends(axes):
    """Texts beside the panel, from bottom to top."""
    return [t.get_text() for t in sorted(axes.texts, key=lambda t: t.xyann[1])]


def lines(axes, style="-"):
    return [line for line in axes.lines if line.get_linestyle() == style]


def notes(figure):
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def test_a_row_has_n_at_the_left_and_8_n_at_the_right_with_their_references(tmp_path):
    found = evidence(tmp_path)
    left, right = steps_figure([found], "map@20").axes
    for axes, style, cells, colours in (
        (left, "-", (SAMPLED, TOP, PRIORITY), (ORANGE, TEAL, RED)),
        (right, "-", (SAMPLED_8, TOP_8, PRIORITY_8), (ORANGE, TEAL, RED)),
        (left, "--", (SAMPLED_8, FULL), (ORANGE, GREY)),
        (right, "--", (SAMPLED_64, FULL), (ORANGE, GREY)),
    ):
        for line, cell, colour in zip(lines(axes, style), cells, colours, strict=True):
            assert list(line.get_xdata()) == [GROCERY.steps // 2, GROCERY.steps]
            np.testing.assert_allclose(line.get_ydata(), [0.5 * height(cell), height(cell)])
            assert to_hex(line.get_color()) == colour
    assert left.get_ylim() == right.get_ylim()
    assert ends(left)[0] == f"{height(SAMPLED):.4f}  sampled softmax"
    assert ends(left)[-1] == f"{height(FULL):.4f}  full softmax (1 seed)"
    left, _ = steps_figure([found], "loss").axes
    assert ends(left)[-1] == f"{9 - height(SAMPLED):.3f}  sampled softmax"


def test_titles_have_set_classes_and_n_and_cells_without_results_are_left_out(tmp_path):
    some = evidence(tmp_path, cells=(SAMPLED, PRIORITY), seeds=(0,))
    figure = steps_figure([empty(tmp_path), evidence(tmp_path, LINUX), some], "map@20")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Linux identifiers, 1,285,847 classes, n=1,000",
        "Linux identifiers, 1,285,847 classes, n=8,000",
        "Groceries, 68,509 classes, n=128",
    ]
    assert [label.split("  ")[1] for label in ends(figure.axes[2])] == [
        "sampled softmax (1 seed)", "TAPAS priority (1 seed)"
    ]  # fmt: skip
    assert len(figure.axes[2].collections) == 0  # one seed has no band
    words = notes(figure)
    assert words.startswith("Figure 3: MAP@20 on the test points")
    assert "Mean of 3 seeds, bands from lowest to highest." in words
    assert "One seed." in notes(steps_figure([some], "map@20"))


def test_a_diverged_seed_is_only_mentioned_and_other_settings_are_not_drawn(tmp_path):
    found = evidence(tmp_path, paces=[Pace(c, [], [1.0], Rows(0, 1)) for c in (SAMPLED, TOP)])
    run = run_of(found, TOP, 2)
    found.ledger.results[run.key()] = {"key": run.key(), "run": {}, "diverged": "step 7"}
    stray = found.set_runs.run(TOP, 0.3, 0.33, 1)
    found.ledger.results[stray.key()] = {"curve": None}
    figure = steps_figure([found], "map@20")
    assert any(label.endswith("TAPAS top (2 seeds)") for label in ends(figure.axes[0]))
    words = "Diverged, hence not drawn: 1 of 3 seeds of 'top, n=128, r=8' on grocery."
    assert words in notes(figure)
    assert words in notes(time_figure([found]))


def test_time_is_steps_times_the_cost_of_a_cell(tmp_path):
    costs = {SAMPLED: 1.0, PRIORITY: 1.25, PRIORITY_8: 4.5, TOP_8: 9.0}
    paces = [Pace(cell, [], [cost], Rows(0, 1)) for cell, cost in costs.items()]
    sets = [evidence(tmp_path, paces=paces), evidence(tmp_path, LINUX)]
    (axes,) = time_figure(sets).axes  # no cost is known for the other set
    drawn = [line for line in axes.lines if len(line.get_xdata()) > 1]
    for line, cell in zip(drawn, (SAMPLED, PRIORITY, PRIORITY_8), strict=True):
        want = [part * GROCERY.steps * costs[cell] for part in (0.5, 1)]
        np.testing.assert_allclose(line.get_xdata(), want)
    assert axes.get_xlim() == (0, GROCERY.steps * 4.5)
    assert axes.get_xlabel() == "time, in steps of sampled softmax with n=128"
    assert ends(axes)[-1] == f"{height(PRIORITY_8):.4f}  priority, n=1,024 (×4.5)"


def test_without_any_results_the_error_names_the_command(tmp_path):
    none, whole = [empty(tmp_path, GROCERY), empty(tmp_path)], evidence(tmp_path, LINUX)
    for words, draw in {
        "no results for grocery, rust": lambda: steps_figure(none, "map@20"),
        "no results for grocery": lambda: sizes_figure(none),
        "no results with a measured cost for linux": lambda: time_figure([whole]),
        "no looks into a run of seed 0 for grocery, rust": lambda: tail_figure(none),
        "no sweeps": lambda: sweeps_figure({"r": []}, "title"),
        "no results": lambda: steps_figure([], "loss"),
    }.items():
        with pytest.raises(DataError, match=re.escape(f"there is nothing to draw: {words}")) as e:
            draw()
        assert str(e.value).endswith("`python -m experiments figure-3` runs what is missing.")
