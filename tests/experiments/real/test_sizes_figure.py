"""The figure over sample sizes shows the numbers of the ledgers."""

import math

import pytest
from oracle.real_results import made_up_plan

from experiments.real.cells import FULL, PRIORITY_EIGHTH, SAMPLED_EIGHTH, Cell
from experiments.real.evidence import Evidence
from experiments.real.figures import draw_sizes, sizes_figure
from experiments.real.sets import GROCERY, RUST
from tapas.errors import DataError


def quality(cell):
    return 0.1 + 0.01 * math.log2(8 * cell.times) + 0.02 * (cell.r > 1)


def evidence(tmp_path, real_set=GROCERY):
    return Evidence(*made_up_plan(tmp_path / f"{real_set.name}.jsonl", quality, real_set=real_set))


def test_lines_are_the_means_of_the_cells(tmp_path):
    found = evidence(tmp_path)
    figure = sizes_figure([found])
    axes = figure.axes[0]
    lines = [line for line in axes.lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in lines] == [6, 2, 3]  # sampled, top, priority
    n = GROCERY.num_samples
    assert list(lines[0].get_xdata()) == [n // 8, n, 2 * n, 4 * n, 8 * n, 64 * n]
    wanted = [quality(Cell("sampled", t)) for t in (1 / 8, 1, 2, 4, 8, 64)]
    assert list(lines[0].get_ydata()) == pytest.approx(wanted)
    texts = [text.get_text() for each in figure.axes for text in each.texts]
    assert f"{found.score(FULL).mean:.4f}  full softmax" in texts


def test_a_set_without_results_is_not_drawn(tmp_path):
    empty = evidence(tmp_path, RUST)
    empty.ledger.results.clear()
    titles = [axes.get_title(loc="left") for axes in sizes_figure([empty, evidence(tmp_path)]).axes]
    assert [title for title in titles if title] == ["Groceries, 68,509 classes"]
    with pytest.raises(DataError, match="there is nothing to draw: no results for rust"):
        sizes_figure([empty])


def test_it_is_a_picture(tmp_path):
    assert draw_sizes([evidence(tmp_path)]).startswith(b"\x89PNG")


def test_an_eighth_of_the_samples_is_a_whole_number():
    assert SAMPLED_EIGHTH.num_samples(1_000) == 125
    assert PRIORITY_EIGHTH.words(1_000) == "priority, n=125, r=8"
    assert FULL.num_samples(1_000) == 0
