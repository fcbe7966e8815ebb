"""Noise-contrastive estimation against plain loops, and its theory in standard errors."""

import math

import pytest
import torch
from oracle import binary as oracle
from oracle.binary import TARGET, WEIGHT, B, C, D, biased_table, check_against, nobody
from oracle.tables import dense_gradients

import tapas
from tapas.errors import UsageError
from tapas.heads.nce import NCE

N = 40  # of 31 classes: some are drawn twice, and some are targets


def unigram():
    return tapas.Squashed(torch.arange(C) % 7, alpha=0.75)


def make(table=None, **options):
    options = {"num_samples": N, "proposal": unigram(), "seed": 3} | options
    return NCE(table=table or biased_table(), **options)


def draws_of(head, step=0):
    generator = tapas.rng.stream(head.seed, "draws", step)
    return head.proposal.draw(head.num_samples, generator=generator).tolist()


def test_loss_and_gradients_are_those_of_the_loops():
    head = make(reduction="none")
    draws = draws_of(head)
    assert len(set(draws)) < N
    assert set(draws) & set(TARGET.flatten().tolist())
    log_q = head.proposal.log_prob(torch.arange(C)).tolist()
    check_against(head, lambda *given: oracle.nce(*given, draws, log_q))


@pytest.mark.slow
def test_at_the_true_distribution_the_expected_gradient_is_nothing():
    """For any noise, normalised scores are where NCE comes to rest."""
    steps, classes, size = 1_200, 11, 8
    p = torch.softmax(torch.randn(classes, generator=tapas.rng.stream(0, "p")), dim=0)
    table = tapas.LocalTable(classes, 1, row_optimizer=None, bias=p.log())
    proposal = tapas.Squashed(torch.arange(classes) + 1, alpha=1.0)
    head = NCE(table=table, num_samples=6, proposal=proposal)
    target = torch.multinomial(p, steps * size, True, generator=tapas.rng.stream(0, "targets"))
    grads = torch.empty(steps, classes)
    for step, mine in enumerate(target.view(steps, size)):
        head.zero_grad()
        head(torch.zeros(size, 1), mine).backward()
        grads[step] = dense_gradients(table)[1]
    # 11 comparisons at 4.5 standard errors: a correct gradient fails 1 seed in 13,000
    assert bool((grads.mean(dim=0).abs() < 4.5 * grads.std(dim=0) / math.sqrt(steps)).all())


def test_only_targets_and_noise_are_touched_and_padding_is_not():
    table = tapas.LocalTable(
        C, D, row_optimizer=tapas.optim.LazyAdam.fused(lr=0.1, weight_decay=0.1)
    )
    head = make(table, num_samples=4)
    before = table.weight.clone()
    target = torch.tensor([[17, -100], [19, 17]])
    head(torch.randn(2, D, generator=tapas.rng.stream(0, "q")), target).backward()
    moved = (before != table.weight).any(dim=1).nonzero()[:, 0].tolist()
    assert moved == sorted({17, 19} | set(draws_of(head)))
    assert 0 not in moved
    assert table.num_updates == 1


def test_draws_are_named_by_seed_and_step():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    one, other, stranger = make(), make(), make(seed=4)
    assert torch.equal(one(query, TARGET), other(query, TARGET))
    first, second = make()(query, TARGET), one(query, TARGET)
    assert first != second
    assert first != stranger(query, TARGET)
    with torch.no_grad():
        assert other(query, TARGET) == second == other(query, TARGET)  # not a training call


def test_a_saved_head_goes_on_with_the_same_numbers():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    one, other = make(), make()
    one(query, TARGET)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(query, TARGET), other(query, TARGET))


def test_extreme_scores_stay_finite():
    head = make(reduction="none")
    query = torch.full((B, D), 3e4, requires_grad=True)
    loss = head(query, TARGET, target_weight=WEIGHT)
    loss.sum().backward()
    assert float((query.detach() @ head.table.weight.detach().T).abs().max()) > 1e4
    for part in (loss, query.grad, head.table.gradients.summed().weight):
        assert bool(part.isfinite().all())


def test_a_bigram_is_asked_with_the_context():
    bigram = tapas.proposals.Bigram(
        torch.tensor([2, 3]), torch.tensor([5, 6]), torch.tensor([9, 9]), unigram=unigram()
    )
    head = make(proposal=bigram, reduction="none")
    context = torch.tensor([2, 3, -1, 2, 2])
    given = bigram.given(context)
    draws = given.draw(N, generator=tapas.rng.stream(3, "draws", 0)).tolist()
    log_q = given.log_prob(torch.arange(C)).tolist()
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    got = head(query, TARGET, target_weight=WEIGHT, context=context)
    score = (query @ head.table.weight.T + head.table.bias).tolist()
    want = oracle.nce(score, TARGET.tolist(), WEIGHT.tolist(), draws, log_q)
    torch.testing.assert_close(got, torch.tensor(want))


def test_scores_are_counted_without_repeats_and_over_training_calls():
    head, query = make(), torch.randn(B, D, generator=tapas.rng.stream(0, "q"))
    assert math.isnan(head.scores_per_example)
    head.eval()(query, TARGET)
    assert math.isnan(head.scores_per_example)
    head.train()
    for _ in range(3):
        head(query, TARGET)
    assert head.scores_per_example == sum(len(set(draws_of(head, s))) for s in range(3)) / 3


def test_a_rank_without_examples_has_no_noise_and_no_loss():
    bigram = tapas.proposals.Bigram(*torch.ones(3, 1).long(), unigram=unigram())
    for proposal in (unigram(), bigram):
        head = make(proposal=proposal)
        loss = head.losses(nobody(head), torch.empty(0).long())
        assert loss.shape == (0,)
        loss.sum().backward()
        assert math.isnan(head.scores_per_example)


def test_bad_options_are_told():
    with pytest.raises(UsageError, match=r"^num_samples must be at least 1, got 0\.$"):
        make(num_samples=0)
    with pytest.raises(UsageError, match=r"over 5 classes, the table has 31\. Build both from"):
        make(proposal=tapas.Uniform(5))


def test_its_options_are_shown():
    assert repr(make(proposal=None)).startswith("NCE(\n  num_samples=40, proposal=Uniform(31)")
