"""In-batch negatives: the estimated frequency of a class, and its weight in the sample."""

import math

import pytest
import torch
from oracle.flat_heads import B, C, D, L, queries, random_table, sample_of
from oracle.sampling_heads import Gaps, mixed_weight

import tapas
from tapas.heads.in_batch import InBatchSoftmax, MixedSoftmax

N = 7
PROPOSAL = tapas.Squashed(torch.arange(1, C + 1), alpha=0.5)


def targets(step):
    """Some classes often, with padding and repeats."""
    target = tapas.LogUniform(C).draw(B * L, generator=tapas.rng.stream(1, "target", step))
    target = target.view(B, L)
    target[step % B, 1:] = -100
    return target


def test_estimates_are_those_of_the_loops():
    head, oracle = InBatchSoftmax(table=random_table(), rate=0.3), Gaps(0.3)
    for step in range(20):
        kept = sample_of(head, queries(), targets(step))
        head(queries(), targets(step))
        met = oracle.meet(targets(step).flatten(), step)
        assert kept.ids.tolist() == met
        want = torch.tensor([-math.log(oracle.gap[c]) for c in met])
        torch.testing.assert_close(kept.log_q, want)
    torch.testing.assert_close(
        head.gap, torch.tensor([float(oracle.gap.get(c, 0)) for c in range(C)])
    )
    assert head.last_seen.tolist() == [oracle.last.get(c, -1) for c in range(C)]
    assert max(oracle.gap.values()) > 5


def test_a_mixed_sample_weighs_each_class_as_the_loops_do():
    head = MixedSoftmax(table=random_table(), num_samples=N, proposal=PROPOSAL, rate=0.3, seed=3)
    oracle, prob, both = Gaps(0.3), PROPOSAL.log_prob(torch.arange(C)).exp(), 0
    for step in range(20):
        drawn = PROPOSAL.sample(N, generator=tapas.rng.stream(3, "draws", step))
        drawn = dict(zip(drawn.ids.tolist(), drawn.log_q.exp().tolist(), strict=True))
        kept = sample_of(head, queries(), targets(step))
        head(queries(), targets(step))
        met = oracle.meet(targets(step).flatten(), step)
        assert kept.ids.tolist() == sorted({*met, *drawn})
        both += len({*met} & {*drawn})
        want = []
        for c in kept.ids.tolist():
            chance = 1 / oracle.gap.get(c, step + 1)
            weight = mixed_weight(chance, float(prob[c]), N, met=c in met, drawn=drawn.get(c))
            want.append(-math.log(weight))
        torch.testing.assert_close(kept.log_q, torch.tensor(want))
    assert both > 10


def test_a_second_pass_keeps_n_of_the_pool_beside_the_batch_and_prefers_hard_classes():
    table = random_table()
    head = MixedSoftmax(table=table, num_samples=N, presample_factor=4, proposal=PROPOSAL, seed=3)
    query, target = 5 * queries(), torch.full((B, 1), 2)
    probability = torch.softmax(table.weight @ query.T, dim=0).mean(dim=1)
    kept, drawn = torch.zeros(C), torch.zeros(C)
    for step in range(300):
        head.step = step
        ids = sample_of(head, query, target).ids
        assert 2 in ids
        assert len(ids) in (N, N + 1)  # the target may be in the pool, too
        kept[ids] += 1
        drawn[PROPOSAL.sample(4 * N, generator=tapas.rng.stream(3, "draws", step)).ids] += 1
    hard = probability.topk(3).indices
    hard = hard[hard != 2]
    assert float((kept[hard] / drawn[hard]).min()) > 2 * N / (4 * N)


def test_shards_that_would_keep_nothing_are_refused():
    words = "num_shards is 4, but only num_samples=3 classes are kept: some shards would keep none"
    with pytest.raises(tapas.UsageError, match=words):
        MixedSoftmax(9, 2, num_samples=3, presample_factor=2, num_shards=4)


@pytest.mark.slow
def test_an_estimate_that_is_still_learning_is_unbiased_too():
    """E[B | class comes] = 1 / p at any rate, long after the start."""
    num_classes, steps = 31 * 500, 200  # of a class that comes 1 time in 20: all have a past
    chance = (0.05 + 0.9 * torch.linspace(0, 1, 31)).repeat(500)
    head = InBatchSoftmax(num_classes, 1, rate=0.3)
    for step in range(steps):
        come = torch.rand(num_classes, generator=tapas.rng.stream(0, "come", step)) < chance
        met = come.nonzero()[:, 0]
        if step < steps - 1:
            head(torch.zeros(1, 1), met[None])
    kept = sample_of(head, torch.zeros(1, 1), met[None])
    weight = torch.zeros(num_classes, dtype=torch.float64)
    weight[kept.ids] = (-kept.log_q).double().exp()
    # each class counts 1 on average; at 4 standard errors, fails 1 seed in 16,000
    error = weight.std() / math.sqrt(num_classes)
    assert float(abs(weight.mean() - 1)) < 4 * float(error)
    assert float(error) < 0.02


@pytest.mark.slow
def test_it_converges_to_the_probability_of_a_class_to_be_in_a_batch():
    head, size, steps = InBatchSoftmax(table=random_table(), rate=0.05), 6, 1_000
    prob = tapas.LogUniform(C).log_prob(torch.arange(C)).exp()
    query = torch.zeros(size, D)
    for step in range(steps):
        head(query, tapas.LogUniform(C).draw(size, generator=tapas.rng.stream(3, "target", step)))
    want = 1 - (1 - prob) ** size
    often = want > 0.3  # after 300 occurrences the first no longer matters
    assert int(often.sum()) >= 3
    # the smoothed gap varies by sqrt(rate / (2 - rate) * (1 - p)) of itself
    spread = ((0.05 / 1.95) * (1 - want)).sqrt()
    off = (head.gap.double() * want - 1).abs() / spread
    assert float(off[often].max()) < 4  # fails 1 seed in 16,000 for each class
    assert head.scores_per_example == pytest.approx(float(want.sum()), abs=0.2)


def test_only_targets_are_touched_and_one_alone_costs_nothing():
    head = InBatchSoftmax(table=random_table())
    head(queries(2), torch.tensor([[3, -100], [9, 3]])).backward()
    assert head.table.gradients.summed().ids.tolist() == [3, 9]
    head.zero_grad()
    assert head(queries(1), torch.tensor([3])).item() == 0.0
