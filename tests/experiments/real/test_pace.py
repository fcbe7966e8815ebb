"""Step times of every cell: turns, ratios and rows."""

import itertools
from types import SimpleNamespace

import pytest

from experiments.real import pace
from experiments.real.cells import FULL, PRIORITY, SAMPLED, SAMPLED_8, TOP, SetRuns
from experiments.real.pace import MEASURED, count_rows, measure_pace
from experiments.real.runs import build_run, open_set
from experiments.real.sets import RUST
from tapas.comparison.ledger import Ledger
from tapas.training.step import step

SET_RUNS = SetRuns(RUST, quick=True)


@pytest.fixture
def ledger(tmp_path):
    """Every search is finished; the best settings differ from the defaults."""
    known = Ledger(tmp_path / "results.jsonl")
    while missing := known.missing(SET_RUNS.searches(known)):
        for run in missing:
            score = run.rows_lr + run.alpha
            known.results[run.key()] = {"key": run.key(), "run": {}, "map@20": score}
    return known


def test_ratios_are_taken_inside_a_round_and_those_of_sampled_softmax_are_1(
    ledger, place, monkeypatch
):
    """The machine becomes slower between two rounds, which does not change the ratios."""
    measured, order = iter(range(1_000)), []
    seconds = {cell: 0.5 + number for number, cell in enumerate(MEASURED)}

    def fake(parts, budget, first):
        turn, number = divmod(next(measured), len(MEASURED))
        order.append((budget, parts.model.head.num_samples))
        assert first == 7 * turn  # goes on where it stopped
        return seconds[MEASURED[number]] * (1 + turn), first + 7

    def remember(run, *where):
        seen.append(run)
        return build_run(run, *where)

    seen = []
    monkeypatch.setattr(pace, "build_run", remember)
    monkeypatch.setattr(pace, "_seconds_of_a_step", fake)
    monkeypatch.setattr(pace, "count_rows", lambda parts: pace.Rows(1, 2))
    found = {each.cell: each for each in measure_pace(SET_RUNS, ledger, place, rounds=2)}
    assert tuple(found) == MEASURED
    # with the settings of their search
    assert seen == [SET_RUNS.run(cell, *SET_RUNS.best(ledger, cell), 0) for cell in MEASURED]
    assert FULL not in found
    assert order == [(0.1, 16 * cell.times) for cell in MEASURED] * 2
    assert found[SAMPLED].against_sampled == [1.0, 1.0]
    assert found[SAMPLED].cost == 1
    for cell in MEASURED:
        ratio = round(seconds[cell] / seconds[SAMPLED], 3)
        assert found[cell].against_sampled == [ratio, ratio]
        assert found[cell].cost == ratio
        once = seconds[cell]
        assert found[cell].steps_per_second == [round(1 / once, 2), round(1 / (2 * once), 2)]


@pytest.mark.parametrize(("budget", "steps"), [(0.0, 6), (38.0, 8)])
def test_a_step_time_is_the_median_without_the_first_three(budget, steps, monkeypatch):
    """Steps take 9, 9, 9, 1, 2, 3, 4, ... seconds by a fake clock."""
    taken = [9.0, 9.0, 9.0, *map(float, range(1, 30))]
    ticks = itertools.chain.from_iterable((100.0 * i, 100.0 * i + s) for i, s in enumerate(taken))
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(ticks))
    done = []
    monkeypatch.setattr(pace, "step", lambda *_, number, **__: done.append(number))
    parts = SimpleNamespace(
        model=None, optimizer=None, windows=SimpleNamespace(batch=lambda number: number)
    )
    found, following = pace._seconds_of_a_step(parts, budget, 5)
    kept = sorted(taken[3:steps])
    middle = len(kept) // 2
    want = kept[middle] if len(kept) % 2 else (kept[middle - 1] + kept[middle]) / 2
    assert done == list(range(5, 5 + steps))
    assert following == 5 + steps
    assert found == want


@pytest.mark.parametrize("cell", [SAMPLED, TOP, PRIORITY, SAMPLED_8], ids=str)
def test_rows_are_those_that_a_step_reads_and_updates(cell, place):
    parts = build_run(SET_RUNS.run(cell, 0.1, 0.75, 0), place, *open_set(SET_RUNS.real_set, place))
    table, batch = parts.model.head.table, parts.windows.batch(0)
    found = count_rows(parts)
    assert found == count_rows(parts)  # looking changes nothing
    before = table.weight.detach().clone()
    step(parts.model, parts.optimizer, batch, seed=0, number=0, clip=None)
    moved = (table.weight != before).any(dim=1).numpy()
    assert found.in_loss == moved.sum()
    targets = {t for row in batch.target.tolist() for t in row if t >= 0}
    assert moved[sorted(targets)].all()
    n = 16 * cell.times
    assert max(n, len(targets)) <= found.in_loss <= n + len(targets)
    assert found.scored == (8 * n if cell.r == 8 else 0)
