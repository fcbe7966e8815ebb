"""What is drawn follows the numbers: made-up ledgers, and a look at the lines and labels."""

import json
import math
import re
from dataclasses import asdict

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from experiments.real.cells import (
    CELLS,
    FULL,
    PRIORITY,
    PRIORITY_8,
    SAMPLED,
    SAMPLED_8,
    SAMPLED_64,
    SEEDS,
    TOP,
    TOP_8,
    Plan,
)
from experiments.real.figures import (
    draw_figure_3,
    draw_figure_4,
    draw_sweeps,
    draw_tail,
    draw_time,
    steps_figure,
    sweeps_figure,
    tail_figure,
    time_figure,
)
from experiments.real.panels import found, lines_of
from experiments.real.runs import BUCKETS, MOMENTS, execute
from experiments.real.sets import GROCERY, LINUX, RUST
from tapas.comparison.figure_style import COLOURS, as_png
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError

COSTS = {"grocery": {SAMPLED: 1.0}}
SHARES = {"head": 0.5, "middle": 0.3, "tail": 0.15, "unseen": 0.05}
TARGETS = {"head": 40, "middle": 33, "tail": 20, "unseen": 7}
ORANGE, TEAL, RED, GREY = (
    COLOURS[name] for name in ("sampled softmax", "TAPAS top", "TAPAS priority", "full softmax")
)


def height(cell, seed, moment):
    """A made-up MAP@20: another one for each cell and seed, rising along the run."""
    return 0.01 * (1 + CELLS.index(cell)) * (1 + 0.1 * seed) * (1 - math.exp(-4 * moment))


def put_search(ledger, plan):
    """All trials of the search; the highest learning rate and alpha win."""
    for stage in plan.stages[:-1]:
        for run in stage(ledger):
            score = run.rows_lr + 0.1 * run.alpha
            ledger.results[run.key()] = {"key": run.key(), "run": asdict(run), "map@20": score}


def made_up(plan, cell, seed, settings=(0.1, 0.75)):
    """A result as `execute` writes it."""
    run = plan.run(cell, *settings, seed)
    curve, looks = [], []
    for moment in MOMENTS:
        step, score = max(1, round(run.steps * moment)), height(cell, seed, moment)
        curve.append(
            {"step": step, "seconds": 1.0, "map@20": score, "loss": 9 - score, "blocks": [score]}
        )
        seen = {
            "step": step, "top_coverage": 0.2 + score, "pool_effective_size": 9.0,
            "gradient_cosine": 0.9 - score, "other_targets": 0.1, "kept_mass": 0.5,
        }  # fmt: skip
        for name in BUCKETS:
            seen[f"mass of {name}"] = SHARES[name] * (1 + score)
            seen[f"log-probability of {name}"] = -9 - score
        looks.append(seen)
    return {
        "key": run.key(), "run": asdict(run), "map@20": 0.5, "loss": 8.0,
        "blocks": {"points": [1.0], "map@20": [0.5], "loss": [8.0]},
        "recall@20": 0.1, "ndcg@10": 0.1, "coverage": 70,
        "buckets": {
            name: {"recall": 0.1, "share": SHARES[name] * (1 + height(cell, seed, 1)),
                   "targets": TARGETS[name]}
            for name in BUCKETS
        },
        "train_seconds": 1.0, "torch": "2", "curve_points": [1.0], "curve": curve,
        "looks": looks if seed == 0 else [],
    }  # fmt: skip


def make_entry(tmp_path, real_set=GROCERY, cells=CELLS, seeds=SEEDS):
    """A plan and a ledger in memory that has `cells` with `seeds`."""
    plan, ledger = Plan(real_set), Ledger(tmp_path / f"{real_set.name}.jsonl")
    put_search(ledger, plan)
    for cell in cells:
        for seed in seeds:
            result = made_up(plan, cell, seed, plan.best(ledger, cell))
            ledger.results[result["key"]] = result
    return plan, ledger


def mean_of(cell, seeds=SEEDS):
    return [np.mean([height(cell, seed, m) for seed in seeds]) for m in MOMENTS]


def ends(axes):
    """Texts beside the panel, from the lowest up."""
    return [t.get_text() for t in sorted(axes.texts, key=lambda t: t.xyann[1])]


def solid(axes):
    return [line for line in axes.lines if line.get_linestyle() == "-"]


def dashed(axes):
    return [line for line in axes.lines if line.get_linestyle() == "--"]


def notes(figure):
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_threads")
def test_the_made_up_results_have_the_shape_of_real_ones(place):
    def shape(value):
        if isinstance(value, dict):
            return {key: shape(part) for key, part in value.items()}
        return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__

    plan = Plan(GROCERY, quick=True)
    real = json.loads(json.dumps(execute(plan.run(TOP, 0.1, 0.75, 0), place)))
    assert shape(real) == shape(made_up(plan, TOP, 0))
    assert [p["step"] for p in real["curve"]] == [p["step"] for p in made_up(plan, TOP, 0)["curve"]]


def test_figure_3_draws_the_mean_over_seeds_and_a_band_from_lowest_to_highest(tmp_path):
    figure = steps_figure([make_entry(tmp_path)], "map@20")
    left, right = figure.axes
    steps = [round(GROCERY.steps * moment) for moment in MOMENTS]
    for axes, cells in ((left, (SAMPLED, TOP, PRIORITY)), (right, (SAMPLED_8, TOP_8, PRIORITY_8))):
        for line, cell, colour in zip(solid(axes), cells, (ORANGE, TEAL, RED), strict=True):
            assert list(line.get_xdata()) == steps
            np.testing.assert_allclose(line.get_ydata(), mean_of(cell))
            assert to_hex(line.get_color()) == colour
    for axes, cells in ((left, (SAMPLED_8, FULL)), (right, (SAMPLED_64, FULL))):
        for line, cell, colour in zip(dashed(axes), cells, (ORANGE, GREY), strict=True):
            np.testing.assert_allclose(line.get_ydata(), mean_of(cell))
            assert to_hex(line.get_color()) == colour
    band = left.collections[1].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(height(TOP, 0, MOMENTS[0]))
    assert band.max() == pytest.approx(height(TOP, 2, 1))


def test_labels_stand_at_the_ends_with_the_last_value(tmp_path):
    left, right = steps_figure([make_entry(tmp_path)], "map@20").axes
    assert ends(left) == [
        f"{mean_of(SAMPLED)[-1]:.4f}  sampled softmax",
        f"{mean_of(TOP)[-1]:.4f}  TAPAS top",
        f"{mean_of(PRIORITY)[-1]:.4f}  TAPAS priority",
        f"{mean_of(SAMPLED_8)[-1]:.4f}  sampled, n=1,024",
        f"{mean_of(FULL)[-1]:.4f}  full softmax",
    ]
    assert ends(right)[3:] == [
        f"{mean_of(SAMPLED_64)[-1]:.4f}  sampled, n=8,192",
        f"{mean_of(FULL)[-1]:.4f}  full softmax",
    ]
    assert left.get_ylim() == right.get_ylim()


def test_figure_4_draws_the_loss(tmp_path):
    left, _ = steps_figure([make_entry(tmp_path)], "loss").axes
    np.testing.assert_allclose(solid(left)[2].get_ydata(), 9 - np.array(mean_of(PRIORITY)))
    assert ends(left)[-1] == f"{9 - mean_of(SAMPLED)[-1]:.3f}  sampled softmax"


def test_titles_say_set_classes_and_n(tmp_path):
    entries = [make_entry(tmp_path, LINUX), make_entry(tmp_path)]
    figure = steps_figure(entries, "map@20", {"grocery": 92_339})
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Linux identifiers, n=1,000",
        "Linux identifiers, n=8,000",
        "Groceries, 92,339 classes, n=128",
        "Groceries, 92,339 classes, n=1,024",
    ]
    assert notes(figure).startswith("Figure 3: MAP@20 on the test points")
    assert "Along a run, models are judged at some of the test points." in notes(figure)
    assert "Mean of 3 seeds, bands from lowest to highest." in notes(figure)


def test_sets_and_cells_without_results_are_left_out(tmp_path):
    entries = [
        (Plan(RUST), Ledger(tmp_path / "rust.jsonl")),  # not even a search
        make_entry(tmp_path, LINUX, cells=()),
        make_entry(tmp_path, GROCERY, cells=(SAMPLED, PRIORITY), seeds=(0,)),
    ]
    (only,) = steps_figure(entries, "map@20").axes
    assert only.get_title(loc="left") == "Groceries, n=128"
    assert [label.split("  ")[1] for label in ends(only)] == ["sampled softmax", "TAPAS priority"]
    assert len(only.collections) == 0  # one seed has no band
    assert "One seed." in notes(steps_figure(entries, "map@20"))


def test_a_line_of_fewer_seeds_than_the_others_says_so(tmp_path):
    plan, ledger = make_entry(tmp_path, cells=(SAMPLED, TOP))
    result = made_up(plan, PRIORITY, 1, plan.best(ledger, PRIORITY))
    ledger.results[result["key"]] = result
    left, *_ = steps_figure([(plan, ledger)], "map@20").axes
    np.testing.assert_allclose(solid(left)[2].get_ydata(), mean_of(PRIORITY, seeds=(1,)))
    assert [label.split("  ")[1] for label in ends(left)] == [
        "sampled softmax", "TAPAS top", "TAPAS priority (1 seed)"
    ]  # fmt: skip


def test_a_diverged_seed_is_left_out_of_the_mean_and_told(tmp_path):
    plan, ledger = make_entry(tmp_path)
    run = plan.run(TOP, *plan.best(ledger, TOP), 2)
    lost = {"key": run.key(), "run": asdict(run), "map@20": 0.0, "diverged": "step 7"}
    ledger.results[run.key()] = lost
    assert len(found(plan, ledger, TOP)) == 3
    (line,) = lines_of((plan, ledger), [TOP], "map@20")
    np.testing.assert_allclose(line.mean, mean_of(TOP, seeds=(0, 1)))
    figure = steps_figure([(plan, ledger)], "map@20")
    assert any(label.endswith("TAPAS top (2 seeds)") for label in ends(figure.axes[0]))
    words = "Diverged, hence not drawn: 1 of 3 seeds of 'top, n=128, r=8' on grocery."
    assert words in notes(figure)
    assert words in notes(time_figure([(plan, ledger)], {"grocery": {TOP: 1.1, SAMPLED: 1.0}}))


def test_only_runs_with_the_settings_of_the_search_are_drawn(tmp_path):
    plan, ledger = make_entry(tmp_path, cells=())
    best = plan.best(ledger, TOP)
    stray = made_up(plan, TOP, 0, (best[0], 0.33))
    ledger.results[stray["key"]] = stray
    assert found(plan, ledger, TOP) == []


def test_time_stretches_steps_by_the_cost_of_a_cell(tmp_path):
    costs = {"grocery": {SAMPLED: 1.0, PRIORITY: 1.25, PRIORITY_8: 4.5, TOP_8: 9.0}}
    entries = [make_entry(tmp_path), make_entry(tmp_path, LINUX)]
    (axes,) = time_figure(entries, costs).axes  # no cost is known for the other set
    drawn = [line for line in axes.lines if len(line.get_xdata()) > 1]
    for line, cell in zip(drawn, (SAMPLED, PRIORITY, PRIORITY_8), strict=True):
        steps = np.array([round(GROCERY.steps * moment) for moment in MOMENTS])
        np.testing.assert_allclose(line.get_xdata(), steps * costs["grocery"][cell])
        np.testing.assert_allclose(line.get_ydata(), mean_of(cell))
    assert axes.get_xlim() == (0, GROCERY.steps * 4.5)
    assert axes.get_xlabel() == "time, in steps of sampled softmax with n=128"
    assert ends(axes)[-1] == f"{mean_of(PRIORITY_8)[-1]:.4f}  priority, n=1,024 (×4.5)"


def test_the_tail_is_that_of_seed_0(tmp_path):
    figure = tail_figure([make_entry(tmp_path), make_entry(tmp_path, RUST, cells=())])
    mass, log_prob, cosine, coverage, bars = figure.axes
    for place, cell in enumerate((SAMPLED, TOP, PRIORITY)):
        score = np.array([height(cell, 0, m) for m in MOMENTS])
        for axes, want in (
            (mass, 0.2 * (1 + score)),
            (log_prob, -9 - score),
            (cosine, 0.9 - score),
            (coverage, 0.2 + score),
        ):
            np.testing.assert_allclose(solid(axes)[place].get_ydata(), want)
        assert bars.patches[place].get_width() == pytest.approx(0.2 * (1 + score[-1]))
        assert to_hex(bars.patches[place].get_facecolor()) == (ORANGE, TEAL, RED)[place]
    (level,) = dashed(mass)
    assert list(level.get_ydata()) == [0.27, 0.27]
    assert "27.0%  targets" in ends(mass)
    assert not dashed(coverage)
    assert ends(log_prob)[0] == f"−{9 + height(PRIORITY, 0, 1):.2f}  priority"
    (level,) = dashed(bars)
    assert list(level.get_xdata()) == [0.27, 0.27]


def test_a_tail_of_one_cell_alone_is_drawn(tmp_path):
    plan, ledger = make_entry(tmp_path, cells=(TOP,), seeds=(0,))
    assert [len(axes.lines) for axes in tail_figure([(plan, ledger)]).axes] == [2, 1, 1, 1, 1]


def test_a_sweep_is_sorted_logarithmic_if_wide_and_marks_its_default():
    sweeps = {
        "r": [(32, 0.05, 9.0), (2, 0.03, 9.2), (8, 0.04, 9.1)],
        "tau": [(0.5, 0.02, None), (1.0, 0.03, None), (2.0, 0.01, None)],
        "alpha": [(0.0, 0.02, 9.0), (20.0, 0.03, 9.5)],
        "rule": [("top", 0.01, 9.0), ("top, τ = 3", 0.02, 8.0)],
    }
    figure = sweeps_figure(sweeps, "Groceries", {"r": 8, "rule": "top", "tau": 3.0})
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert list(panels) == [
        "r: MAP@20", "tau: MAP@20", "alpha: MAP@20", "rule: MAP@20",
        "r: full softmax loss", "alpha: full softmax loss", "rule: full softmax loss",
    ]  # fmt: skip
    line, mark = panels["r: MAP@20"].lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([2, 8, 32], [0.03, 0.04, 0.05])
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([8], [0.04])
    assert list(panels["r: full softmax loss"].lines[0].get_ydata()) == [9.2, 9.1, 9.0]
    scales = {title: axes.get_xscale() for title, axes in panels.items()}
    assert scales["r: MAP@20"] == "log"
    assert {scales["tau: MAP@20"], scales["alpha: MAP@20"]} == {"linear"}  # narrow; from 0
    assert len(panels["tau: MAP@20"].lines) == 1  # its default was not run
    rule, mark = panels["rule: MAP@20"].lines
    assert list(rule.get_xdata()) == [0.01, 0.02]
    assert list(mark.get_xdata()) == [0.01]
    names = [label.get_text() for label in panels["rule: MAP@20"].get_yticklabels()]
    assert names == ["top", "top, τ = 3"]
    assert panels["r: MAP@20"].get_ylim() == panels["tau: MAP@20"].get_ylim()


def test_a_span_of_exactly_ten_is_not_logarithmic():
    (axes,) = sweeps_figure({"x": [(1, 0.1, None), (10, 0.2, None)]}, "title").axes
    assert axes.get_xscale() == "linear"


DRAWINGS = {
    "Figure 3: MAP@20 on the test points": draw_figure_3,
    "Figure 4: full softmax loss on the test points": draw_figure_4,
    "MAP@20 on the test points against time": lambda entries: draw_time(entries, COSTS),
    "Rare classes along a run": draw_tail,
    "Groceries": lambda _: draw_sweeps({"r": [(8, 0.04, None)]}, "Groceries"),
}


@pytest.mark.parametrize("title", DRAWINGS)
def test_what_is_drawn_is_a_png_of_the_figure(tmp_path, monkeypatch, title):
    seen = []

    def keep(figure):
        seen.append(figure)
        return as_png(figure)

    monkeypatch.setattr("experiments.real.figures.as_png", keep)
    png = DRAWINGS[title]([make_entry(tmp_path, cells=(SAMPLED,), seeds=(0,))])
    assert png.startswith(b"\x89PNG\r\n")
    assert seen[0].texts[0].get_text() == title


def test_without_any_results_the_command_is_named(tmp_path):
    entries = [make_entry(tmp_path, cells=()), (Plan(RUST), Ledger(tmp_path / "none"))]
    whole = make_entry(tmp_path, LINUX)
    go = "`python -m experiments figure-3` runs what is missing."
    for words, draw in {
        "no results for grocery, rust": lambda: draw_figure_3(entries),
        "no results for": lambda: draw_figure_4(entries),
        "no results with a measured cost for linux": lambda: draw_time([whole], {"linux": {}}),
        "no looks into a run of seed 0 for grocery, rust": lambda: draw_tail(entries),
        "no sweeps": lambda: draw_sweeps({"r": []}, "title"),
        "no results": lambda: draw_figure_3([]),
    }.items():
        with pytest.raises(DataError, match=re.escape(f"there is nothing to draw: {words}")) as e:
            draw()
        assert str(e.value).endswith(go)
