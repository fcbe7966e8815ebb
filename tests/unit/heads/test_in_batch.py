"""In-batch negatives: the estimate of how often a class comes, and the sums it corrects."""

import io
import math

import pytest
import torch
from oracle.sampling_heads import Waits, loss_of, mixed_weight
from oracle.tables import dense_gradients

import tapas
from tapas.heads.in_batch import InBatchSoftmax, MixedSoftmax
from tapas.tables.ranks import GlobalBatch

B, L, C, D, N = 5, 3, 31, 4, 7
PROPOSAL = tapas.Squashed(torch.arange(1, C + 1), alpha=0.5)


def rows_of(head):
    return head.table.weight.detach(), head.table.bias.detach()


def make(method=InBatchSoftmax, *, row_optimizer=None, **options):
    table = tapas.LocalTable(C, D, row_optimizer=row_optimizer)
    with torch.no_grad():
        table.weight.copy_(torch.randn(C, D, generator=tapas.rng.stream(0, "rows")))
        table.bias.copy_(torch.randn(C, generator=tapas.rng.stream(0, "biases")))
    if method is MixedSoftmax:
        options = {"num_samples": N, "proposal": PROPOSAL, "seed": 3, **options}
    return method(table=table, **options)


def queries():
    return torch.randn(B, D, generator=tapas.rng.stream(0, "query"))


def targets(step, *shape):
    """Some classes often, with padding and repeats."""
    target = tapas.LogUniform(C).draw(
        math.prod(shape), generator=tapas.rng.stream(1, "target", step)
    )
    target = target.view(shape)
    target[step % len(target), 1:] = -100
    return target


def meeting_of(query, target, context=None):
    target = target.masked_fill(target < 0, -1)
    return GlobalBatch(query, target, context, (len(query),), target.shape[1])


def test_losses_and_estimates_are_those_of_the_loops():
    head, query, oracle = make(rate=0.3, reduction="none"), queries(), Waits(0.3)
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    for step in range(20):
        target = targets(step, B, L)
        share = (weight, None, 2 * weight)[step % 3]
        loss = head(query, target, share)
        met = oracle.meet(target.flatten(), step)
        log_q = [-math.log(oracle.gap[c]) for c in met]
        want = loss_of(query, *rows_of(head), target, met, log_q, share)
        torch.testing.assert_close(loss, torch.tensor(want))
    torch.testing.assert_close(
        head.gap, torch.tensor([float(oracle.gap.get(c, 0)) for c in range(C)])
    )
    assert head.last_seen.tolist() == [oracle.last.get(c, -1) for c in range(C)]
    assert max(oracle.gap.values()) > 5


def test_a_mixed_sample_weighs_each_class_as_the_loops_do():
    head, query, oracle = make(MixedSoftmax, rate=0.3), queries(), Waits(0.3)
    prob = PROPOSAL.log_prob(torch.arange(C)).exp()
    both = 0
    for step in range(20):
        target = targets(step, B, L)
        drawn = PROPOSAL.sample(N, generator=tapas.rng.stream(3, "draws", step))
        drawn = dict(zip(drawn.ids.tolist(), drawn.log_q.exp().tolist(), strict=True))
        kept = head.candidates(meeting_of(query, target))
        loss = head(query, target)
        met = oracle.meet(target.flatten(), step)
        assert kept.ids.tolist() == sorted({*met, *drawn})
        both += len({*met} & {*drawn})
        want = [
            mixed_weight(
                1 / oracle.gap.get(c, step + 1),
                float(prob[c]),
                N,
                met=c in met,
                drawn=drawn.get(c),
            )
            for c in kept.ids.tolist()
        ]
        torch.testing.assert_close(kept.log_q, -torch.tensor(want).log())
        want = loss_of(query, *rows_of(head), target, kept.ids, kept.log_q)
        torch.testing.assert_close(loss, torch.tensor(want).mean())
    assert both > 10


@pytest.mark.parametrize("method", [InBatchSoftmax, MixedSoftmax])
def test_gradients_are_those_of_the_dense_formula(method):
    head, query = make(method), queries().requires_grad_()
    target = torch.tensor([4, 30, 0, 4, 17])
    kept = head.candidates(meeting_of(query, target[:, None]))
    head(query, target).backward()
    again, weight, bias = (
        x.detach().clone().requires_grad_() for x in (query, head.table.weight, head.table.bias)
    )
    logit = again @ weight.T + bias
    mine = target[:, None] == kept.ids
    negative = (logit[:, kept.ids] - kept.log_q).masked_fill(mine, -torch.inf)
    own = logit.gather(1, target[:, None])
    (torch.cat([own, negative], dim=1).logsumexp(dim=1) - own[:, 0]).mean().backward()
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table), (weight.grad, bias.grad))


def settled(method, chance, **options):
    """A head that has learnt how often each class is in a batch."""
    head = make(method, rate=1e-7, **options)
    head.gap.copy_(1 / chance)
    head.last_seen.zero_()
    head.step = 1
    return head


@pytest.mark.parametrize("method", [InBatchSoftmax, MixedSoftmax])
def test_with_the_right_estimate_the_sum_over_a_sample_is_unbiased(method):
    """For a query of another batch; an example's own targets are in its batch for certain."""
    draws, size = 2_000, 6
    prob = tapas.LogUniform(C).log_prob(torch.arange(C)).exp()
    head = settled(method, 1 - (1 - prob) ** size)
    query = queries()
    logits = (query @ head.table.weight.T + head.table.bias).detach().double()
    estimate = torch.empty(draws, B, dtype=torch.float64)
    for step in range(draws):
        head.step = step + 1
        target = tapas.LogUniform(C).draw(size, generator=tapas.rng.stream(2, "target", step))
        kept = head.candidates(meeting_of(torch.zeros(size, D), target[:, None]))
        estimate[step] = (logits[:, kept.ids] - kept.log_q.double()).exp().sum(dim=1)
    error = (estimate.mean(dim=0) - logits.exp().sum(dim=1)).abs()
    # 5 comparisons at 4.4 standard errors: a correct estimate fails 1 seed in 18,000
    assert bool((error < 4.4 * estimate.std(dim=0) / math.sqrt(draws)).all())


def test_an_estimate_that_learns_as_it_goes_is_unbiased_too():
    """E[B | class comes] = 1 / p at any rate, once the start is long ago."""
    num_classes, steps = 31 * 500, 200  # of a class that comes 1 time in 20: all have a past
    chance = (0.05 + 0.9 * torch.linspace(0, 1, 31)).repeat(500)
    head = InBatchSoftmax(num_classes, 1, rate=0.3)
    for step in range(steps):
        come = torch.rand(num_classes, generator=tapas.rng.stream(0, "come", step)) < chance
        met = come.nonzero()[:, 0]
        if step < steps - 1:
            head(torch.zeros(1, 1), met[None])
    kept = head.candidates(meeting_of(torch.zeros(1, 1), met[None]))
    weight = torch.zeros(num_classes, dtype=torch.float64)
    weight[kept.ids] = (-kept.log_q).double().exp()
    # each class counts 1 on average; at 4 standard errors, fails 1 seed in 16,000
    error = weight.std() / math.sqrt(num_classes)
    assert float(abs(weight.mean() - 1)) < 4 * float(error)
    assert float(error) < 0.02


def test_it_settles_on_the_chance_of_a_class_to_be_in_a_batch():
    head, size, steps = make(rate=0.05), 6, 1_000
    prob = tapas.LogUniform(C).log_prob(torch.arange(C)).exp()
    query = torch.zeros(size, D)
    for step in range(steps):
        head(query, tapas.LogUniform(C).draw(size, generator=tapas.rng.stream(3, "target", step)))
    want = 1 - (1 - prob) ** size
    often = want > 0.3  # 300 sights have washed out the first
    assert int(often.sum()) >= 3
    # the smoothed gap varies by sqrt(rate / (2 - rate) * (1 - p)) of itself
    spread = ((0.05 / 1.95) * (1 - want)).sqrt()
    off = (head.gap.double() * want - 1).abs() / spread
    assert float(off[often].max()) < 4  # fails 1 seed in 16,000 for each class
    assert head.scores_per_example == pytest.approx(float(want.sum()), abs=0.2)


@pytest.mark.parametrize("method", [InBatchSoftmax, MixedSoftmax])
def test_evaluation_changes_no_estimate(method):
    head, query = make(method), queries()
    assert math.isnan(head.scores_per_example)
    head(query, targets(0, B, L))
    gap, last, scores = head.gap.clone(), head.last_seen.clone(), head.scores_per_example
    with torch.no_grad():
        one = head(query, targets(1, B, L))
    head.eval()
    two = head(query, targets(1, B, L))
    head.train()
    assert torch.equal(head.gap, gap)
    assert torch.equal(head.last_seen, last)
    assert head.scores_per_example == scores
    three = head(query, targets(1, B, L))
    assert torch.equal(one, two)
    assert torch.equal(one, three)
    assert not torch.equal(head.gap, gap)


@pytest.mark.parametrize("method", [InBatchSoftmax, MixedSoftmax])
def test_a_resumed_run_is_bit_identical(method):
    def run(head, first, last):
        losses = []
        for step in range(first, last):
            loss = head(queries() + step, targets(step, B, L))
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses)

    options = {"row_optimizer": tapas.optim.SGD.fused(lr=0.1), "rate": 0.3}
    whole, first, second = (make(method, **options) for _ in range(3))
    want = run(whole, 0, 9)
    assert torch.equal(run(first, 0, 4), want[:4])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(second, 4, 9), want[4:])
    assert torch.equal(second.gap, whole.gap)


def test_only_targets_are_touched_and_one_alone_costs_nothing():
    head = make()
    target = torch.tensor([[3, -100], [9, 3]])
    head(queries()[:2], target).backward()
    touched = head.table.gradients.summed().ids
    assert touched.tolist() == [3, 9]
    alone = make()
    assert alone(queries()[:1], torch.tensor([3])).item() == 0.0


def test_every_class_drawn_is_the_full_softmax():
    head = make(MixedSoftmax, num_samples=C)
    loss = head(queries(), targets(0, B, L))
    torch.testing.assert_close(loss.detach(), head.full_loss(queries(), targets(0, B, L)))


@pytest.mark.parametrize("method", [InBatchSoftmax, MixedSoftmax])
def test_logits_of_ten_thousand_stay_finite(method):
    head, query = make(method), queries().requires_grad_()
    with torch.no_grad():
        head.table.bias.copy_(torch.linspace(-1e4, 1e4, C))
    loss = head(query, targets(0, B, L))
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(query.grad.isfinite().all())


def test_draws_are_named_by_seed_and_step():
    one, two, other = make(MixedSoftmax), make(MixedSoftmax), make(MixedSoftmax, seed=4)
    query, target = queries(), targets(0, B, L)
    first = one(query, target)
    assert torch.equal(two(query, target), first)
    assert other(query, target) != first


def test_a_bigram_proposal_hears_the_context():
    pairs = torch.tensor([4, 4, 4]), torch.tensor([9, 17, 30]), torch.full((3,), 1e9)
    proposal = tapas.proposals.Bigram(*pairs, unigram=tapas.Uniform(C), kappa=1e-6)
    head = make(MixedSoftmax, num_samples=3, proposal=proposal)
    meeting = meeting_of(queries(), torch.full((B, 1), 2), torch.full((B,), 4))
    assert head.candidates(meeting).ids.tolist() == [2, 9, 17, 30]


@pytest.mark.parametrize("rate", [0, 1.5, -0.1, math.nan, "fast"])
def test_bad_rates_are_told(rate):
    words = rf"rate must be above 0 and at most 1, got {rate!r}\. Try 0\.01\."
    with pytest.raises(tapas.UsageError, match=words):
        make(rate=rate)


def test_bad_options_are_told():
    with pytest.raises(tapas.UsageError, match="num_samples is 32, but there are only 31 classes"):
        make(MixedSoftmax, num_samples=32)
    with pytest.raises(tapas.UsageError, match="num_samples must be at least 1, got 0"):
        make(MixedSoftmax, num_samples=0)
    with pytest.raises(tapas.UsageError, match="the proposal is over 9 classes, the table has 31"):
        make(MixedSoftmax, proposal=tapas.Uniform(9))
    assert repr(make()).startswith("InBatchSoftmax(\n  rate=0.01\n")
    mixed = repr(make(MixedSoftmax, proposal=None))
    assert "num_samples=7, proposal=Uniform(31), rate=0.01" in mixed
