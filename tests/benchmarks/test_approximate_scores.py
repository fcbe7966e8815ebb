"""Rules with cheaper scores for priority, and the benchmark that compares them."""

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracle.selection_inputs import draw, make_selection_input

import tapas
import tapas.native as native

FOLDER = Path(__file__).parents[2] / "benchmarks"
A, D, P, KEEP = 7, 12, 53, 13


@pytest.fixture(scope="module")
def scores(load):
    return load("approximate_scores")


@pytest.fixture
def bench(load, monkeypatch, tmp_path):
    module = load("bench_scoring")
    monkeypatch.setattr(module, "QUALITY", tmp_path / "scoring_quality.json")
    return module


@pytest.mark.parametrize("complete", [True, False])
def test_in_two_parts_the_rule_is_still_priority(scores, complete):
    given = make_selection_input(A, D, P, complete=complete)
    got, want = (rule.select(given, KEEP) for rule in (scores.ByShare(), tapas.Priority()))
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.slow
def test_every_variant_is_unbiased(scores):
    given = make_selection_input(A, D, P, complete=False)
    weight, bias = given.rows(0, P)
    mass = torch.exp(draw(3, D, name="other query") @ weight.t() + bias - given.log_q).double()
    draws = 800
    for name, variant in scores.variants().items():
        variant.rule.select(replace(given, query=draw(A, D, name="older query")), KEEP)
        estimate = torch.empty(draws, 3, dtype=torch.float64)
        for i in range(draws):
            noise = 1 - torch.rand(P, generator=tapas.rng.stream(i, "noise"))
            kept, log_weight = variant.rule.select(replace(given, noise=noise), KEEP)
            estimate[i] = mass[:, kept] @ log_weight.double().exp()
        error = (estimate.mean(dim=0) - mass.sum(dim=1)) / (estimate.std(dim=0) / draws**0.5)
        assert error.abs().max() < 5, name  # 30 such: a correct rule fails 1 seed in 50,000


def test_coarse_scores_are_those_of_a_coarse_table(scores):
    given = make_selection_input(A, D, P, complete=False)
    weight, bias = given.rows(0, P)
    table = torch.zeros(200, D, dtype=torch.bfloat16)
    table[given.ids] = weight.bfloat16()
    if not native.supports(table):
        pytest.skip("needs the native kernels")
    stored = native.PoolRows(table, None, given.ids)
    query, log_q = given.query.bfloat16().float(), given.log_q - bias  # exact biases
    kernel = scores.ByShare().share(replace(given, native=stored, query=query, log_q=log_q))
    rule = scores.Coarse(coarsen=scores.to_bfloat16)
    stored = native.PoolRows(weight, bias, torch.arange(P))
    for seen in (given, replace(given, native=stored)):
        torch.testing.assert_close(rule.share(seen), kernel)


def test_int8_rows_are_within_half_a_step_and_give_the_shares_of_their_products(scores):
    rows, query = draw(P, D, name="rows"), draw(A, D, name="query")
    rows[3] = 0.0
    (integers, scale), (other, other_scale) = scores.to_int8(rows), scores.to_int8(query)
    assert integers.dtype == torch.int8
    assert integers.abs().amax(dim=1).tolist() == [127 if i != 3 else 0 for i in range(P)]
    assert ((integers * scale - rows).abs() <= 0.5001 * scale).all()
    product = (other.long() @ integers.long().t()) * other_scale * scale.t()
    coarse = scores.through_int8(query) @ scores.through_int8(rows).t()
    torch.testing.assert_close(coarse, product)
    given = make_selection_input(A, D, P)
    weight, bias = given.rows(0, P)
    share = scores.int8_share(
        scores.to_int8(weight), given.query, bias - given.log_q, given.ids, given.target
    )
    torch.testing.assert_close(scores.Coarse(coarsen=scores.through_int8).share(given), share)


def test_the_projection_is_orthogonal_and_keeps_sizes_on_average(scores):
    matrix = scores.projection(D).double()
    assert matrix.shape == (D, D // 4)
    torch.testing.assert_close(matrix.t() @ matrix, 4 * torch.eye(D // 4, dtype=torch.float64))
    assert scores.project(draw(P, D, name="rows")).shape == (P, D // 4)


def test_a_held_pool_is_repeated_until_the_next_draw(scores):
    plain = tapas.Uniform(1000)
    held = scores.HeldPool(plain, every=3)
    fresh = [plain.sample(20, generator=tapas.rng.stream(0, "pool", i)).ids for i in range(6)]
    pools = [held.sample(20, generator=tapas.rng.stream(0, "pool", i)).ids for i in range(6)]
    assert all(torch.equal(pools[i], fresh[3 * (i // 3)]) for i in range(6))
    assert torch.equal(held.log_prob(torch.arange(5)), plain.log_prob(torch.arange(5)))


def test_stale_scores_are_from_the_first_time_a_pool_is_seen(scores):
    rule, given = scores.Stale(), make_selection_input(A, D, P)
    first = rule.share(given).clone()
    later = replace(given, query=draw(A, D, name="later query"))
    rule.select(later, KEEP)
    assert torch.equal(rule.share(later), first)
    other = replace(later, ids=later.ids + 1, target=later.target - 1000)
    assert torch.equal(rule.share(other), scores.ByShare().share(other))


def test_a_variant_changes_the_pools_of_its_head(scores):
    def shared_by_neighbours(name):
        head = tapas.TapasSoftmax(5000, D, num_samples=200, presample_factor=2)
        scores.variants()[name].install(head)
        query, target = draw(9, D, name="query"), torch.arange(9)
        sets = []
        for _ in range(4):
            head(query, target)
            sets.append(set(head.sample(query, target).ids.tolist()))
        return [len(a & b) for a, b in itertools.pairwise(sets)]

    # of one pool of 400, two choices of 200 share about 100; of two pools of 5,000, about 8
    assert max(shared_by_neighbours(scores.DEFAULT)) < 30
    first, second, _ = shared_by_neighbours("scored every 4th step")
    assert first > 60  # sampled in calls 2 and 4, which have the same pool
    assert second < 30


def test_the_exact_rule_is_close_to_itself_and_a_blind_one_is_not(scores):
    task = scores.SyntheticTask()
    task.head.table.weight.mul_(20)  # as if it had learned a lot
    query, target = (x.detach() for x in task.draw())
    pool = task.head.proposal.sample(8 * task.num_samples, generator=tapas.rng.stream(0, "pool"))
    exact = scores.compare(task.head, query, target, pool, scores.ByShare(score_queries=None), 0)
    blind = scores.compare(
        task.head, query, target, pool, scores.ByShare(score_queries=1, floor=1.0), 0
    )
    assert exact.overlap == 1.0
    assert exact.correlation == pytest.approx(1.0)
    assert blind.overlap < 0.8
    assert blind.sum_error > 2 * exact.sum_error > 0


@pytest.mark.slow
def test_closeness_follows_the_training(scores):
    task = scores.SyntheticTask()
    task.train(20)
    found = scores.closeness(task.head, task.draw, task.train, steps=4)
    assert list(found) == list(scores.variants())
    assert found["all queries"].overlap == 1.0
    assert task.head.step == 24
    # fresh at one step of four, and older at the others
    stale, fresh = found["scored every 4th step"], found[scores.DEFAULT]
    assert 0 < stale.correlation < fresh.correlation < 1


def runs_of(scores, table):
    return [
        {"set": "rust", "variant": name, "seed": seed, "map@20": value}
        for name, values in zip(scores.variants(), table, strict=True)
        for seed, value in enumerate(values)
    ]


def test_intervals_of_gaps_come_from_the_residuals_of_all_variants(scores, bench):
    table = [[0.10, 0.12]] * 10
    assert bench.gaps(runs_of(scores, table))["int8"].half == pytest.approx(0.0)
    table[2] = [0.10, 0.14]  # one of 20 values is 0.02 higher
    found = bench.gaps(runs_of(scores, table))
    gap = found["16 queries"]
    assert gap.mean == pytest.approx(0.12)
    assert gap.percent == pytest.approx(100 * (0.12 / 0.11 - 1))
    # residuals: +-0.009 in its row, +-0.001 in the nine others; 9 degrees of freedom
    variance = (2 * 0.009**2 + 18 * 0.001**2) / 9
    assert gap.half == pytest.approx(100 * 2.262 * math.sqrt(2 * variance / 2) / 0.11)
    assert found[scores.DEFAULT].percent == 0.0
    runs = runs_of(scores, [[0.1, 0.2]] * 10)
    (gap,) = set(bench.gaps(runs[:-1]).values())  # seeds without all variants do not count
    assert gap == bench.Gap(pytest.approx(0.1), 0.0, math.inf, 1)
    assert bench.gaps(runs[2:]) == {}


def test_the_verdict_is_the_fastest_variant_that_is_as_good(scores, bench):
    names = list(scores.variants())
    seconds = {name: [10.0 - i] * 3 for i, name in enumerate(names)}
    good = {name: bench.Gap(0.1, -0.5, 2.0, 2) for name in names}
    words = bench.verdict(seconds, {"rust": good})
    assert words.startswith(
        f"Best trade-off: {names[-1]}, 0.10 [0.10, 0.10] of the default's time."
    )
    assert words.endswith("On rust, 2 seeds: differences above 2.0 % are significant.")
    for bad in (bench.Gap(0.1, -1.5, 2.0, 2), bench.Gap(0.1, -0.5, 0.4, 2)):
        words = bench.verdict(seconds, {"rust": good, "linux": good | {names[-1]: bad}})
        assert words.startswith(f"Best trade-off: {names[-2]}, ")
    one = {name: bench.Gap(0.1, 0.0, math.inf, 1) for name in names}
    assert bench.verdict(seconds, {"rust": one}).endswith("On rust, one seed: no interval.")
    assert "nothing is known about MAP@20" in bench.verdict(seconds, {})


def test_training_does_only_the_missing_runs(scores, bench, monkeypatch):
    calls = []

    def fake_run(run, variant, place):
        calls.append((run.set, run.seed, variant.rule))
        if len(calls) == 12:
            raise KeyboardInterrupt
        return {"map@20": 0.1}

    monkeypatch.setattr(bench, "train_one", fake_run)
    monkeypatch.setattr(bench, "TRAINED", {"rust": bench.TRAINED["rust"]})
    with pytest.raises(KeyboardInterrupt):
        bench.train(None)
    assert {seed for _, seed, _ in calls[:10]} == {0}  # all variants of a seed first
    assert len(bench.read_quality()["runs"]) == 11
    bench.train(None)
    bench.train(None)
    runs = bench.read_quality()["runs"]
    assert len(calls) == 21  # the interrupted one ran twice
    assert len({(run["set"], run["seed"], run["variant"]) for run in runs}) == len(runs) == 20


def test_a_wrong_command_line_is_an_error_with_the_usage(bench, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench_scoring.py", "--trian", "here"])
    words = r"expected --train DATA_FOLDER \[CACHE_FOLDER\], got --trian here"
    with pytest.raises(SystemExit, match=words):
        bench.main()


def test_the_committed_runs_have_known_variants_and_settings(scores, bench):
    quality = json.loads((FOLDER / "scoring_quality.json").read_text())
    keys = [(run["set"], run["seed"], run["variant"]) for run in quality["runs"]]
    assert len(set(keys)) == len(keys)
    assert {variant for _, _, variant in keys} <= set(scores.variants())
    for name, settings in quality["settings"].items():
        assert bench.TRAINED[name].items() <= settings.items()
        assert bench.gaps([run for run in quality["runs"] if run["set"] == name])


def test_the_table_has_a_row_for_every_variant(load, scores, bench):
    names = [*scores.variants(), bench.TORCH]
    seconds = {64_000: {name: [2.0, 2.0] for name in names} | {scores.DEFAULT: [4.0, 4.0]}}
    near = {"made-up": {name: scores.Closeness(0.5, 0.25, 0.125) for name in names[:-1]}}
    quality = {"rust": {name: bench.Gap(0.1, -1.0, 2.0, 2) for name in names[:-1]}}
    rows = bench.rows_of(seconds, near, quality)
    page = load("sections").rows({"results": {"rows": rows, "conclusion": "So."}})
    assert "| int8 | 0.50 [0.50, 0.50] | 50 % | 0.25 | 12 % | 0.1000 (-1.0 %) |" in page
    assert page.endswith(f"| {bench.TORCH} | 0.50 [0.50, 0.50] |  |  |  |  |\n\nSo.")
    assert [row["scores"] for row in rows] == names
