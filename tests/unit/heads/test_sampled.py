"""Sampled softmax: the loss of its own sample, which tends to the loss over all classes."""

import math

import pytest
import torch
from oracle.sampling_heads import loss_of
from oracle.tables import dense_gradients

import tapas
from tapas.heads.sampled import SampledSoftmax
from tapas.tables.ranks import GlobalBatch

B, L, C, D, N = 5, 3, 31, 4, 7
TARGET = torch.tensor([[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])


def make(*, num_samples=N, **options):
    table = tapas.LocalTable(C, D, row_optimizer=None)
    with torch.no_grad():
        table.weight.copy_(torch.randn(C, D, generator=tapas.rng.stream(0, "rows")))
        table.bias.copy_(torch.randn(C, generator=tapas.rng.stream(0, "biases")))
    options = {"proposal": tapas.Squashed(torch.arange(C)), "seed": 3, **options}
    return SampledSoftmax(table=table, num_samples=num_samples, **options)


def queries():
    return torch.randn(B, D, generator=tapas.rng.stream(0, "query"))


def sample_of(head, query, target):
    return head.candidates(GlobalBatch(query, target, None, (len(query),), target.shape[1]))


def test_the_loss_is_that_of_the_loops_for_what_it_draws():
    head, query = make(reduction="none"), queries()
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    for share in (weight, None, 2 * weight):
        kept = sample_of(head, query, TARGET)
        want = loss_of(
            query,
            head.table.weight.detach(),
            head.table.bias.detach(),
            TARGET,
            kept.ids,
            kept.log_q,
            share,
        )
        torch.testing.assert_close(head(query, TARGET, share), torch.tensor(want))


def test_gradients_are_those_of_the_dense_formula():
    head, query = make(), queries().requires_grad_()
    target = torch.tensor([4, 30, 0, 4, 17])
    kept = sample_of(head, query, target[:, None])
    head(query, target).backward()
    again, weight, bias = (
        x.detach().clone().requires_grad_() for x in (query, head.table.weight, head.table.bias)
    )
    logit = again @ weight.T + bias
    negative = (logit[:, kept.ids] - kept.log_q).masked_fill(
        target[:, None] == kept.ids, -torch.inf
    )
    own = logit.gather(1, target[:, None])
    loss = (torch.cat([own, negative], dim=1).logsumexp(dim=1) - own[:, 0]).mean()
    loss.backward()
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table), (weight.grad, bias.grad))


def test_the_kept_sum_is_an_unbiased_estimate_of_the_partition_sum():
    draws, head, query = 4_000, make(), queries()
    logits = (query @ head.table.weight.T + head.table.bias).detach().double()
    estimate = torch.empty(draws, B, dtype=torch.float64)
    for step in range(draws):
        head.step = step
        kept = sample_of(head, query, TARGET)
        estimate[step] = (logits[:, kept.ids] - kept.log_q.double()).exp().sum(dim=1)
    error = (estimate.mean(dim=0) - logits.exp().sum(dim=1)).abs()
    # 5 comparisons at 4.4 standard errors: a correct estimate fails 1 seed in 18,000
    assert bool((error < 4.4 * estimate.std(dim=0) / math.sqrt(draws)).all())


def test_all_classes_as_a_sample_is_the_full_loss():
    head = make(num_samples=C)
    assert head.scores_per_example == C
    got = head(queries(), TARGET)
    torch.testing.assert_close(got.detach(), head.full_loss(queries(), TARGET))


def test_draws_are_named_by_seed_and_step():
    one, two, other = make(), make(), make(seed=4)
    query = queries()
    first, second = one(query, TARGET), one(query, TARGET)
    assert first != second
    assert torch.equal(two(query, TARGET), first)
    assert other(query, TARGET) != first
    two.eval()
    assert torch.equal(two(query, TARGET), second)
    assert two.step == 1


def test_a_bigram_hears_the_context():
    pairs = torch.tensor([4, 4, 4]), torch.tensor([9, 17, 30]), torch.full((3,), 1e9)
    proposal = tapas.proposals.Bigram(*pairs, unigram=tapas.Uniform(C), kappa=1e-6)
    head = make(num_samples=3, proposal=proposal)
    meeting = GlobalBatch(queries(), TARGET, torch.full((B,), 4), (B,), L)
    assert head.candidates(meeting).ids.tolist() == [9, 17, 30]
    with pytest.raises(tapas.UsageError, match="pass context=previous to the head"):
        head(queries(), TARGET)


def test_bad_options_are_told():
    with pytest.raises(tapas.UsageError, match="num_samples is 32, but there are only 31 classes"):
        make(num_samples=32)
    with pytest.raises(tapas.UsageError, match="num_samples must be at least 1, got 0"):
        make(num_samples=0)
    with pytest.raises(tapas.UsageError, match="the proposal is over 9 classes, the table has 31"):
        make(proposal=tapas.Uniform(9))
    with pytest.raises(tapas.UsageError, match=r"proposal must be one such as tapas\.Squashed"):
        make(proposal="unigram")
    assert repr(make(proposal=None)).startswith(
        "SampledSoftmax(\n  num_samples=7, proposal=Uniform(31)"
    )
