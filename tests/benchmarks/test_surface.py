"""The benchmark of all sizes: its steps, its turns, its targets, its page, and how it goes on."""

import sys

import pytest
import torch


@pytest.fixture(scope="module")
def grid(load):
    return load("surface_grid")


@pytest.fixture(scope="module")
def bench(load):
    return load("bench_surface")


def constant(**seconds: float) -> dict[str, list[float]]:
    names = {
        "r1": "ours r=1",
        "r8": "ours r=8",
        "plain": "plain PyTorch",
        "floor": "floor",
        "tf": "TensorFlow",
    }
    return {names[name]: [value] * 3 for name, value in seconds.items()}


def fake_cells(grid, change, cells=None) -> list[dict[str, object]]:
    """Good times, `change` (a dict by cell) in some cells; no TensorFlow at one thread."""
    found = []
    for cell in cells or grid.grid():
        times = {"r1": 1.0, "r8": 1.1, "plain": 2.5, "floor": 0.8, "tf": 3.0} | change.get(cell, {})
        if cell.threads == 1:
            del times["tf"]
        found.append(
            {**cell._asdict(), "seconds": constant(**times), "other_cores": 0.02, "left_out": ""}
        )
    return found


def test_the_surface_is_every_size_with_tables_of_one_dimension_at_a_time(grid):
    cells = list(grid.grid())
    assert len(set(cells)) == len(cells) == 5 * 5 * 4 * 2
    dims = [cell.D for cell in cells]
    assert dims == sorted(dims)
    assert set(grid.grid(quick=True)) < set(cells)


def test_a_target_names_its_worst_cell_and_leaves_out_cells_of_other_sizes(grid):
    change = {
        grid.Cell(2, 32, 128, 64): {"plain": 1.5},  # below 1.6
        grid.Cell(2, 32, 256, 64): {"plain": 1.55},
        grid.Cell(1, 32, 16, 64): {"plain": 0.1},  # one thread has no targets
        grid.Cell(2, 512, 16, 64): {"r8": 1.4},
        grid.Cell(2, 128, 512, 64): {"r8": 9.0},  # D and the pool are beyond the promise
        grid.Cell(2, 128, 256, 8000): {"r8": 9.0},
        grid.Cell(2, 128, 64, 8000): {"floor": 0.1},
        grid.Cell(2, 4096, 64, 8000): {"floor": 0.5},
    }
    results = {"cells": fake_cells(grid, change)}
    found = {target.measure: target for target in grid.verdicts(grid.surface_of(results, 2))}
    assert {name: target.verdict for name, target in found.items()} == {
        "plain PyTorch / ours r=1, D <= 128: worst cell (B=32, D=128, n=64)": "MISSED",
        "plain PyTorch / ours r=1, D = 256: worst cell (B=32, D=256, n=64)": "met",
        "plain PyTorch / ours r=1, D = 512: worst cell (B=32, D=512, n=64)": "met",
        "plain PyTorch / ours r=1, all sizes: median of the cells": "met",
        "ours r=8 / ours r=1, B >= 1024: worst cell (B=1,024, D=16, n=64)": "met",
        "ours r=8 / ours r=1, B = 512: worst cell (B=512, D=16, n=64)": "met",
        "plain PyTorch / ours r=8, B < 512, D <= 256, pools up to C / 10: "
        "worst cell (B=32, D=128, n=64)": "met",
        "ours r=1 / floor, B >= 512: worst cell (B=4,096, D=64, n=8,000)": "MISSED",
        "ours r=1 / floor, B >= 512: median of the cells": "met",
    }
    (one,) = (t for t in grid.verdicts(grid.surface_of(results, 1)) if "D <= 128" in t.measure)
    assert one.found == "0.10 × [0.10, 0.10]"


def test_the_page_has_figures_both_threads_and_why_something_is_left_out(load, grid):
    few = [cell for cell in grid.grid() if cell.B > 1000 and cell.D > 100 and cell.n > 100]
    cells = fake_cells(grid, {}, few)
    cells[0]["left_out"] = "TensorFlow cannot be installed: no network"
    del cells[0]["seconds"]["TensorFlow"]
    results = {"cells": cells}
    text = load("sections").surface({"results": results})
    assert "Left out: TensorFlow cannot be installed: no network." in text
    assert "TensorFlow / ours r=8: 2.73 to 2.73 ×, median 2.73 ×." in text
    assert "| plain PyTorch / ours r=1, D = 256: worst cell (B=1,024, D=256, n=256) |" in text
    assert "Other processes kept at most 0.02 cores busy meanwhile." in text
    assert text.count("| 4,096 | 512 | 8,000 | 1.00 s [1.00, 1.00] |") == 2
    drawn = load("surface_figure").draw_surface({"results": results})
    for name, png in drawn.items():
        assert f"(figures/{name})" in text
        assert png.startswith(b"\x89PNG")
    assert len(drawn) == 2


def test_a_frame_marks_a_cell_that_misses_its_own_target(grid):
    assert grid.missed(grid.PLAIN_ONE, grid.Cell(2, 32, 128, 64), 1.59)
    assert not grid.missed(grid.PLAIN_ONE, grid.Cell(2, 32, 256, 64), 1.59)
    assert grid.missed(grid.ONE_FLOOR, grid.Cell(2, 512, 16, 64), 1.51)
    assert not grid.missed(grid.ONE_FLOOR, grid.Cell(2, 128, 16, 64), 9.0)
    assert not grid.missed(grid.TENSORFLOW_TWO, grid.Cell(2, 128, 16, 64), 0.1)


def test_steps_move_the_rows_of_their_own_table_and_the_floor_moves_none(load, grid):
    steps = load("surface_steps")
    tables = steps.Tables(5, num_classes=201)

    def rows() -> dict[str, torch.Tensor]:
        ours = {f"ours r={r}": table.weight for r, table in tables.ours.items()}
        found = ours | {"plain PyTorch": tables.plain.weight.weight, "floor": tables.bare}
        return {name: weight.detach().clone() for name, weight in found.items()}

    for name, run in tables.contenders(grid.Cell(1, 7, 5, 11)).items():
        before = rows()
        assert len(run(2)) == 2
        moved = {other for other, weight in rows().items() if not weight.equal(before[other])}
        assert moved == {name} - {"floor"}


def test_short_steps_are_repeated_in_a_turn_after_one_that_does_not_count(bench):
    calls = []

    def contender(name, seconds):
        return lambda count: calls.append((name, count)) or [seconds] * count

    short, long = contender("short", 0.001), contender("long", 0.25)
    found = bench.take_turns({"short": short, "long": long})
    turns = int(bench.CELL_SECONDS / (5 * 0.001 + 0.25))
    assert found == {"short": [0.001] * turns, "long": [0.25] * turns}
    first = [("short", 2), ("long", 2)]  # to warm up and to decide
    assert calls[:6] == [*first, ("long", 0), ("long", 1), ("short", 1), ("short", 4)]


def test_an_interrupted_run_goes_on_where_it_was(bench, grid, monkeypatch, tmp_path, capsys):
    measured = []

    def measure(tables, tensorflow, cell):
        measured.append(cell)
        seconds = constant(r1=1.0, r8=1.0, plain=1.0, floor=1.0)
        return {**cell._asdict(), "seconds": seconds, "other_cores": 0.0, "left_out": ""}

    class Nothing:
        def __init__(self, dim):
            pass

        def close(self):
            pass

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "Tables", Nothing)
    monkeypatch.setattr(bench, "TensorFlowTable", Nothing)
    cells = [grid.Cell(2, 32, dim, n) for dim in (16, 64) for n in (64, 256)]
    state = bench.State(tmp_path)
    bench.measure_all(cells[:1], state, end=float("inf"))
    with state.file.open("a") as file:
        file.write('\n{"threads": 2, "B": 3')  # killed while it wrote
    with pytest.raises(SystemExit, match=r"^1 of 4 cells are finished: run again to continue\.$"):
        bench.measure_all(cells, state, end=0)
    found = bench.measure_all(cells, state, end=float("inf"))
    assert measured == cells
    assert [cell["n"] for cell in found] == [64, 256, 64, 256]
    assert bench.State(tmp_path).read().keys() == set(cells)
    assert "1 cells are in" in capsys.readouterr().out


def test_a_cell_is_measured_again_while_others_are_busy(bench, grid, monkeypatch):
    cores = [0.9, 0.4, 0.04, 0.0]

    class Machine:
        process = None
        why_not = "not here"

        def __init__(self, pids=()):
            pass

        def cores(self):
            return cores.pop(0)

        def contenders(self, cell):
            return {"a": lambda count: [0.5] * count}

        def contender(self, cell):
            return {}

    threads = torch.get_num_threads()
    monkeypatch.setattr(bench, "OtherWork", Machine)
    found = bench.measure(Machine(), Machine(), grid.Cell(threads, 7, 5, 11))
    assert (found["other_cores"], cores) == (0.04, [0.0])
    assert found["seconds"] == {"a": [0.5] * bench.FEWEST}
    assert found["left_out"] == "not here"


def test_tensorflow_that_cannot_be_installed_is_a_reason_and_no_contender(
    bench, load, grid, monkeypatch
):
    environment = load("peers.environment")
    monkeypatch.setattr(environment, "install", lambda environment: "no network")
    missing = bench.TensorFlowTable(16)
    assert missing.why_not == "TensorFlow cannot be installed: no network"
    assert missing.contender(grid.Cell(2, 32, 16, 64)) == {}
    monkeypatch.setattr(sys, "argv", ["bench_surface.py", "--quick"])
    monkeypatch.setattr(environment.Environment, "installed", lambda environment: False)
    assert bench.TensorFlowTable(16).why_not == (
        "its environment is not installed; a run without --quick installs it"
    )


def test_a_worker_answers_with_the_seconds_of_each_step(load):
    worker = load("peers.worker")

    class Counting:
        steps = ()

        def step(self, number):
            self.steps += (number,)

    clock = worker.Clock(Counting())
    assert len(clock.steps(3)) == 3
    assert len(clock.steps(2)) == 2
    assert clock.contender.steps == (0, 1, 2, 3, 4)
