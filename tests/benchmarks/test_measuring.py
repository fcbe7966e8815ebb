"""Timing in turns, ratios, targets and records of the benchmarks, and `make bench`."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tapas.native as native
from tapas import LocalTable

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
FILES = sorted(file.name for file in FOLDER.glob("*.py"))


@pytest.fixture
def measuring(load, monkeypatch, tmp_path):
    module = load("measuring")
    monkeypatch.setattr(module, "RECORDS", tmp_path / "records")
    return module


def test_importing_a_benchmark_does_no_work_and_each_is_on_the_page(load, capsys):
    files = [name for name in FILES if name.startswith("bench_")]
    for name in files:
        assert callable(load(name.removesuffix(".py")).main)
        body = ast.parse((FOLDER / name).read_text()).body
        assert not [node for node in body if isinstance(node, ast.For | ast.While | ast.With)]
    assert not any(capsys.readouterr())
    assert set(files) <= {theme.file for theme in load("page").THEMES.values()}


def test_contenders_take_turns_and_the_slow_ones_leave_early(measuring):
    calls = []
    contenders = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = measuring.interleave(contenders, repeats={"a": 3, "b": 1}, warmup=2)
    # two rounds of warm-up, one with b; each round starts with the next contender
    assert "".join(calls) == "a" + "ab" + "ba" + "a" + "a"
    assert [len(seconds[name]) for name in "ab"] == [3, 1]


def test_quick_takes_few_repeats_and_writes_no_record(measuring, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_made_up.py", "7", "--quick"])
    assert len(measuring.interleave({"a": lambda: None}, repeats=100)["a"]) == 3
    assert measuring.arguments() == ["7"]
    measuring.write_record("made-up", {}, {})
    assert not measuring.RECORDS.exists()
    assert "no record: --quick is for trying out" in capsys.readouterr().out


def test_the_fastest_has_the_shortest_best_time(measuring, monkeypatch):
    found = {"steady": [2.0, 2.0], "lucky": [9.0, 1.0]}
    monkeypatch.setattr(measuring, "interleave", lambda *_, **__: found)
    assert measuring.fastest({}) == "lucky"


def test_a_ratio_is_of_medians_and_its_spread_of_turns(measuring):
    # medians 4 and 2; turn by turn 1, 2, 3 (the fourth turn had one contender only)
    assert measuring.ratio_quartiles([2.0, 4.0, 6.0], [2.0, 2.0, 2.0, 9.0]) == (2.0, 1.0, 3.0)
    assert measuring.ratio([2.0, 4.0, 6.0], [2.0, 2.0, 2.0]) == "2.00 [1.00, 3.00]"
    assert measuring.quartiles([5.0]) == (5.0, 5.0)
    assert measuring.quartiles([3.0, 1.0]) == (1.0, 3.0)
    assert measuring.quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (1.5, 4.5)
    target = measuring.ratio_target("a / b", [2.0, 4.0, 6.0], [2.0, 2.0, 2.0], "at most", 1.5)
    assert (target.reading, target.low, target.high) == (2.0, 1.0, 3.0)
    assert str(target) == "a / b: 2.00 × [1.00, 3.00], at most 1.50 ×: MISSED, within the spread"


def test_a_target_is_met_up_to_equality(measuring):
    for kind, missing in (("at least", 9.9), ("at most", 10.1)):
        for reading, met in ((10.0, True), (missing, False)):
            target = measuring.Target(measure="x", target=10, kind=kind, reading=reading)
            assert target.met == met
            assert str(target).endswith("met" if met else "MISSED")


def test_numbers_are_rounded_to_what_matters(measuring):
    values = (0.0, 0.0213, 1.064, 12.34, 4200.4)
    assert [measuring.rounded(v) for v in values] == ["0.00", "0.0213", "1.06", "12.3", "4,200"]


def test_a_profile_lists_operations_and_native_kernels(load):
    summary = load("profiling").profile_summary
    square = torch.zeros(300, 300)
    found = summary(lambda: [square @ square for _ in range(4)])
    assert found[0]["operation"] == "aten::mm"
    assert found[0]["calls"] == 4
    assert 0.2 < sum(row["share"] for row in found) <= 1.0  # the rest belongs to no operation
    if native.state() == "in use on CPUs":
        table, query = LocalTable(2_000, 8), torch.zeros(3, 8)
        names = {row["operation"] for row in summary(lambda: table.log_partition(query))}
        assert "tapas::log_sum" in names


def test_a_record_replaces_older_ones_of_its_theme_only(measuring):
    measuring.write_record("draw", {}, {"mark": 1})
    (first,) = measuring.RECORDS.iterdir()
    cpu = json.loads(first.read_text())["cpu"]
    stay = {f"2020-01-01_redraw_1x{cpu}.json", "2020-01-01_draw_1xOther.json"}
    for name in stay:
        (measuring.RECORDS / name).write_text("{}")
    first.rename(measuring.RECORDS / f"2020-01-01_draw_7x{cpu}.json")
    target = measuring.Target(measure="x", target=1, kind="at most", reading=2.0)
    measuring.write_record("draw", {"C": 5}, {"mark": 2}, targets=[target])
    names = {file.name for file in measuring.RECORDS.iterdir()}
    assert stay < names
    (written,) = names - stay
    record = json.loads((measuring.RECORDS / written).read_text())
    assert record["results"] == {"mark": 2}
    assert record["command"] == "python benchmarks/bench_made_up.py"
    assert measuring.Target(**record["targets"][0]) == target


def test_the_plain_sampled_softmax_learns_and_updates_only_drawn_rows(load):
    plain = load("plain_softmax")
    num_classes, dim, batch = 400, 6, 8
    head = plain.PlainSampledSoftmax(num_classes, dim, num_samples=20)
    optimizer = torch.optim.Adagrad(head.parameters(), lr=plain.LEARNING_RATE)
    query = torch.randn(batch, dim, generator=torch.Generator().manual_seed(1))
    target = torch.arange(batch) * 7
    before = head.weight.weight.detach().clone()
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = head(query, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == 1:
            moved = (head.weight.weight.detach() != before).any(dim=1).nonzero()[:, 0]
            assert set(target.tolist()) <= set(moved.tolist())
            assert len(moved) <= batch + 20
    assert sum(losses[-10:]) < sum(losses[:10]) / 2


def test_the_plain_sampled_softmax_estimates_the_full_one(load):
    plain = load("plain_softmax")
    num_classes, dim, draws = 50, 4, 200_000
    head = plain.PlainSampledSoftmax(num_classes, dim, num_samples=draws)
    full = plain.FullSoftmax(num_classes, dim)  # starts with the same rows
    query = torch.randn(3, dim, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([0, 7, 49])
    with torch.no_grad():
        score = (query @ full.weight.t()).double().exp()
        rank = torch.arange(num_classes, dtype=torch.float64)
        chance = torch.log1p(1 / (rank + 1)) / torch.tensor(num_classes + 1.0).log()
        total = score.sum(dim=1)
        variance = ((score.square() / chance).sum(dim=1) - total.square()) / draws
        error = (variance.sqrt() / total).max()  # of log Z, at most: targets are exact
        assert torch.equal(full.weight, head.weight.weight)
        # false alarm of a correct estimator: below 1 seed in 10^6
        assert abs(head(query, target) - full(query, target)) < 5 * error


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_benchmark_that_fails_does_not_stop_the_others(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "ran $1"\ncase $1 in *bench_draw.py) exit 3;; esac\n')
    python.chmod(0o755)
    ready = tmp_path / "ready"
    ready.touch()
    os.utime(ready, (2**32, 2**32))  # newer than its dependencies
    done = subprocess.run(
        ["make", "--no-print-directory", "bench", f"BIN={tmp_path}", f"READY={ready}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    ran = re.findall(r"^ran benchmarks/(.*)$", done.stdout, flags=re.MULTILINE)
    assert ran == [*(file for file in FILES if file.startswith("bench_")), "page.py"]
    assert done.returncode != 0
    assert "failed: benchmarks/bench_draw.py\n" in done.stderr
    assert re.search(r"bench took \d+ minutes", done.stdout)
