"""Dynamic negatives against their definition, and against the softmax they end in."""

import numpy as np
import pytest
import torch
from oracle import ranking_heads as oracle
from oracle.tables import dense_gradients
from torch.nn import functional

import tapas
from tapas.heads import dynamic_negatives
from tapas.heads.dynamic_negatives import DynamicNegatives
from tapas.losses.hard_negatives import log_sum_without, own_logits

B, L, C, D = 6, 3, 41, 5
N, R = 7, 3
TARGET = torch.tensor(
    [[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9], [-100, 12, 40]]
)
WEIGHT = torch.tensor(
    [[0.5, 1.0, 2.0], [1.0, 0.25, 3.0], [1.5, 9, 9], [0, 2, 9], [1, 2, 3], [9, 0.3, 0.7]]
)


def make(num_samples=N, presample_factor=R, **options):
    table = tapas.LocalTable(C, D, row_optimizer=options.pop("row_optimizer", None))
    with torch.no_grad():
        table.bias.copy_(torch.randn(C, generator=tapas.rng.stream(0, "bias")))
    options = {"seed": 3} | options
    return DynamicNegatives(
        table=table, num_samples=num_samples, presample_factor=presample_factor, **options
    )


def queries():
    return torch.randn(B, D, generator=tapas.rng.stream(0, "query"))


def dense(head, query, target, weight, kept):
    """The loss by a (B, C) matrix, of which each row sees its targets and what it keeps."""
    seen = torch.zeros(B, C, dtype=torch.bool)
    soft = torch.zeros(B, C)
    for b in range(B):
        seen[b, list(oracle.real_targets(target[b])) + list(kept[b])] = True
        for column in range(target.shape[1]):
            if target[b, column] >= 0:
                soft[b, target[b, column]] += weight[b, column]
    rows = head.table.weight.detach().clone().requires_grad_()
    bias = head.table.bias.detach().clone().requires_grad_()
    logits = (query @ rows.T + bias).masked_fill(~seen, -1e9)
    return functional.cross_entropy(logits, soft, reduction="sum"), rows, bias


def kept_by(head, query, target):
    size = min(head.presample_factor * head.num_samples, C)
    pool = head.proposal.sample(size, generator=tapas.rng.stream(head.seed, "draws", 0)).ids
    logits = (query @ head.table.weight.T + head.table.bias).detach().double().numpy()
    return logits, oracle.hardest(logits, target.numpy(), pool, head.num_samples)


@pytest.mark.parametrize("r", [1, R, 100])
def test_the_loss_is_that_of_the_definition(r):
    proposal = tapas.Squashed(torch.arange(C), alpha=0.75)
    head = make(presample_factor=r, proposal=proposal, reduction="none")
    query = queries()
    logits, kept = kept_by(head, query, TARGET)
    want = oracle.softmax_beside(logits, TARGET.numpy(), WEIGHT.numpy(), kept)
    got = head(query, TARGET, WEIGHT).detach().double().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_gradients_are_those_of_the_dense_formula():
    head, query = make(reduction="sum"), queries().requires_grad_()
    head(query, TARGET, WEIGHT).backward()
    again = query.detach().clone().requires_grad_()
    _, kept = kept_by(head, again, TARGET)
    loss, rows, bias = dense(head, again, TARGET, WEIGHT, kept)
    loss.backward()
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table), (rows.grad, bias.grad))


def test_keeping_a_pool_of_every_class_is_the_full_softmax():
    query, target = queries(), torch.arange(B)
    head = make(num_samples=C, presample_factor=1)
    torch.testing.assert_close(head(query, target).detach(), head.full_loss(query, target))
    several = head(query, TARGET, WEIGHT).detach()
    torch.testing.assert_close(several, head.full_loss(query, TARGET, WEIGHT))


def test_examples_keep_classes_of_their_own():
    query = queries()
    _, kept = kept_by(make(), query, TARGET)
    assert len({frozenset(each) for each in kept}) > 1
    assert all(len(each) == N for each in kept)


def test_the_batch_cut_in_pieces_is_the_same(monkeypatch):
    query = queries()
    want = make(reduction="none")(query, TARGET, WEIGHT)
    monkeypatch.setattr(dynamic_negatives, "SCORES_AT_ONCE", 4 * N * R)
    torch.testing.assert_close(make(reduction="none")(query, TARGET, WEIGHT), want)


def test_an_example_that_owns_all_that_was_drawn_has_a_gradient_of_zero():
    proposal = tapas.Squashed(torch.tensor([1e12] + [1e-12] * (C - 1)), alpha=1.0, beta=1e-12)
    head = make(num_samples=1, presample_factor=1, proposal=proposal)
    query = queries().requires_grad_()
    loss = head(query, torch.zeros(B, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0
    assert not query.grad.any()
    assert not head.table.gradients.summed().weight.any()


def test_only_targets_and_the_pool_are_touched():
    head = make()
    head(queries(), TARGET).backward()
    pool = head.proposal.sample(N * R, generator=tapas.rng.stream(3, "draws", 0)).ids.tolist()
    touched = set(head.table.gradients.summed().ids.tolist())
    assert touched == set(pool) | {c for c in TARGET.flatten().tolist() if c >= 0}


def test_a_fused_row_optimizer_moves_rows_by_the_gradients_that_would_wait():
    head, twin = make(row_optimizer=tapas.optim.SGD.fused(lr=0.1)), make()
    for each in (head, twin):
        each(queries(), TARGET, WEIGHT).backward()
    moved = twin.table.weight - 0.1 * dense_gradients(twin.table)[0]
    torch.testing.assert_close(head.table.weight, moved)


def test_weights_scale_the_loss():
    query = queries()
    want = make(reduction="none")(query, TARGET, WEIGHT)
    torch.testing.assert_close(make(reduction="none")(query, TARGET, 2 * WEIGHT), 2 * want)
    assert not make(reduction="none")(query, TARGET, torch.zeros_like(WEIGHT)).any()


def test_the_same_step_draws_the_same_and_another_one_others():
    query = queries()
    one, two = make(), make()
    losses = [one(query, TARGET), two(query, TARGET), two(query, TARGET)]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[1], losses[2])
    three = make()
    three.load_state_dict(one.state_dict())
    assert torch.equal(three(query, TARGET), losses[2])


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_logits_of_ten_thousand_stay_finite(sign):
    head = make()
    with torch.no_grad():
        head.table.bias.copy_(sign * torch.linspace(-1e4, 1e4, C))
    query = queries().requires_grad_()
    loss = head(query, TARGET)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(query.grad.isfinite().all())
    assert bool(head.table.gradients.summed().weight.isfinite().all())


def test_a_sum_of_nothing_has_a_gradient():
    logit = torch.zeros(2, 3, requires_grad=True)
    own = torch.tensor([[True, True, True], [False, True, False]])
    log_sum = log_sum_without(logit, own)
    functional.softplus(log_sum).sum().backward()
    assert bool(log_sum[0].isneginf())
    assert not logit.grad[0].any()
    torch.testing.assert_close(logit.grad[1], torch.tensor([1 / 3, 0.0, 1 / 3]))


def test_own_logits_are_read_row_by_row():
    query, target = queries()[:2], torch.tensor([[3, -1, 4], [-1, 5, -1]])
    rows = torch.arange(15.0).view(3, D)
    bias = torch.tensor([0.5, 1.0, 1.5])
    got = own_logits(query, target, rows, bias)
    assert torch.equal(got.isneginf(), target < 0)
    want = [query[0] @ rows[0] + 0.5, query[0] @ rows[1] + 1.0, query[1] @ rows[2] + 1.5]
    torch.testing.assert_close(got[target >= 0], torch.stack(want))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_samples": 0}, r"num_samples must be at least 1, got 0\."),
        ({"num_samples": 42}, r"num_samples is 42, but there are only 41 classes\."),
        ({"presample_factor": 0}, r"presample_factor must be at least 1, got 0\."),
        (
            {"proposal": "unigram"},
            r"proposal must be one such as tapas\.Squashed\(counts\), got str",
        ),
        ({"proposal": tapas.Uniform(9)}, r"the proposal is over 9 classes, the table has 41\."),
    ],
)
def test_bad_options_are_told(options, words):
    with pytest.raises(tapas.UsageError, match=words):
        make(**options)


def test_it_says_what_it_is():
    head = make()
    assert head.scores_per_example == N * R
    assert make(presample_factor=100).scores_per_example == C
    assert "num_samples=7, presample_factor=3, proposal=Uniform(41)" in repr(head)
