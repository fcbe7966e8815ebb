"""Every head keeps what `Head` promises, whatever its method."""

import copy
import io
import re

import pytest
import safetensors.torch
import torch
from contracts.heads import (
    ADAGRAD,
    FLAT,
    HEADS,
    TREES,
    C,
    D,
    build,
    dense_of,
    everything,
    tables_of,
)

from tapas import DataError, UsageError
from tapas.heads import FullSoftmax, Head
from tapas.optim import SGD, RowwiseAdagrad
from tapas.rng import stream

B = 7
TARGET = torch.tensor([4, 9, 30, 3, 4, 0, 17])
SEVERAL = torch.tensor(
    [[4, 9, 4], [9, -100, -100], [30, 1, 2], [3, 3, 3], [-100, 4, 5], [0, 6, -100], [17, 18, 30]]
)


def draw(*shape, name="query", scale=1.0):
    return scale * torch.randn(*shape, generator=stream(0, name))


@pytest.fixture(params=HEADS)
def method(request):
    return request.param


def says(words):
    return pytest.raises((UsageError, DataError), match="^" + re.escape(words))


def test_the_loss_is_a_finite_number_that_moves_rows_and_query(method):
    head, query = build(method), draw(B, D).requires_grad_()
    before = everything(head)
    loss = head(query, TARGET)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert bool(loss.isfinite())
    loss.backward()
    assert bool(query.grad.isfinite().all())
    assert bool(query.grad.abs().sum() > 0)
    after = everything(head)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_reductions_agree(method):
    target = TARGET.clone()
    target[2] = -100
    each, mean, whole = (
        build(method, reduction=how)(draw(B, D), target) for how in ("none", "mean", "sum")
    )
    assert each.shape == (B,)
    assert each[2] == 0
    torch.testing.assert_close(each.sum(), whole)
    torch.testing.assert_close(mean, whole / (B - 1))


def test_any_leading_shape_is_that_of_its_rows_in_turn(method):
    query, target = draw(2, 3, D), torch.arange(6).view(2, 3)
    found = build(method, reduction="none")(query, target)
    flat = build(method, reduction="none")(query.view(6, D), target.view(6))
    assert torch.equal(found, flat.view(2, 3))


def test_targets_need_not_be_contiguous(method):
    strided = SEVERAL.T.contiguous().T
    assert not strided.is_contiguous()
    assert torch.equal(build(method)(draw(B, D), strided), build(method)(draw(B, D), SEVERAL))


def test_a_head_that_was_cast_goes_on(method):
    head = build(method).to(torch.float64)
    for _ in range(2):
        loss = head(draw(B, D), TARGET)
        loss.backward()
    assert bool(loss.isfinite())


def test_every_step_gives_all_dense_parameters_a_gradient(method):
    """Or DistributedDataParallel would wait for one."""
    head = build(method)
    head(draw(B, D), torch.zeros_like(TARGET)).backward()
    assert all(p.grad is not None for p in head.parameters() if p.requires_grad)


def test_padding_and_repeats_of_the_weight_add_nothing(method):
    single = TARGET[:, None]
    padded = torch.cat([single, torch.full((B, 2), -100)], dim=1)
    losses, rows = [], []
    for target in (single, padded):
        head = build(method, ADAGRAD)
        loss = head(draw(B, D), target)
        loss.backward()
        losses.append(loss.detach())
        rows.append(everything(head))
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*rows)


def test_targets_share_an_example_evenly_unless_weighed(method):
    real = (SEVERAL != -100).float()
    weight = real / real.sum(dim=1, keepdim=True)
    shared, weighed = build(method), build(method)
    torch.testing.assert_close(
        shared(draw(B, D), SEVERAL), weighed(draw(B, D), SEVERAL, weight), rtol=1e-6, atol=1e-6
    )


def test_twice_the_weight_is_twice_the_loss_and_none_is_none(method):
    weight = draw(B, 3, name="weight").abs()
    one, two, none = (
        build(method)(draw(B, D), SEVERAL, factor * weight) for factor in (1.0, 2.0, 0.0)
    )
    torch.testing.assert_close(two, 2 * one, rtol=1e-5, atol=1e-6)
    assert none == 0


def test_logits_of_ten_thousands_stay_finite(method):
    head = build(method, start=100.0)
    query = draw(B, D, scale=100.0).requires_grad_()
    for _ in range(3):
        loss = head(query, SEVERAL)
        assert bool(loss.isfinite())
        loss.backward()
        assert bool(query.grad.isfinite().all())
        assert all(bool(v.isfinite().all()) for v in everything(head).values())


def test_no_row_moves_that_the_method_does_not_look_at(method):
    """2,003 classes; weight decay would move a row whose gradient is 0."""
    head = build(method, SGD.fused(lr=0.5, weight_decay=0.1), num_classes=2_003)
    before = everything(head)
    target = TARGET if method in FLAT else torch.zeros_like(TARGET)  # the most frequent class
    head(draw(B, D), target).backward()
    after = everything(head)
    moved = {
        name: (before[name] != after[name]).flatten(1).any(dim=1)
        for name in before
        if name.endswith("table.weight") or (method in TREES and name.endswith(".weight"))
    }
    assert moved
    if head.every_row:
        assert all(bool(rows.all()) for rows in moved.values())
    elif method in FLAT:
        assert bool(moved["table.weight"][TARGET.unique()].any())
        assert int(moved["table.weight"].sum()) < 22  # 6 targets, and 15 at most beside them
    elif method == "huffman":
        assert sum(int(rows.sum()) for rows in moved.values()) < 6 * 14
    else:  # whole clusters, but not all of them
        share = torch.cat(list(moved.values())).float().mean()
        assert 0 < float(share) < 1


def test_equal_seeds_give_equal_steps(method):
    one, two = build(method, ADAGRAD, seed=5), build(method, ADAGRAD, seed=5)
    for step in range(4):
        query = draw(B, D, name=f"query {step}")
        losses = [head(query, SEVERAL) for head in (one, two)]
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
    assert all(map(torch.equal, everything(one).values(), everything(two).values()))


def test_only_training_counts_as_a_step(method):
    head = build(method)
    head(draw(B, D), TARGET)
    assert head.step == 1
    before = everything(head)
    with torch.no_grad():
        head(draw(B, D), TARGET)
    head.eval()(draw(B, D), TARGET)
    assert head.step == 1
    assert all(map(torch.equal, before.values(), everything(head).values()))


def test_a_head_goes_on_from_its_state_as_if_nothing_had_happened(method):
    one, two = build(method, ADAGRAD), build(method, ADAGRAD)
    for step in range(3):
        one(draw(B, D, name=f"query {step}"), SEVERAL).backward()
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(one)
    for _ in range(2):
        losses = [head(draw(B, D), TARGET) for head in (one, two, copied)]
        assert torch.equal(losses[0], losses[1])
        assert torch.equal(losses[0], losses[2])
        for loss in losses:
            loss.backward()
    assert all(map(torch.equal, everything(one).values(), everything(two).values()))


def test_a_state_brings_its_seed_along(method):
    """Or a resumed run would draw other classes than the one that was stopped."""
    one, two = build(method, seed=5), build(method, seed=6)
    two.load_state_dict(one.state_dict())
    assert two.seed == 5
    assert torch.equal(one(draw(B, D), TARGET), two(draw(B, D), TARGET))


def test_all_of_a_state_are_tensors_that_safetensors_can_hold(method):
    one, two = build(method, ADAGRAD), build(method, ADAGRAD)
    one(draw(B, D), SEVERAL).backward()
    two.load_state_dict(safetensors.torch.load(safetensors.torch.save(one.state_dict())))
    assert all(map(torch.equal, everything(one).values(), everything(two).values()))
    assert two.step == 1


def test_probabilities_of_all_classes_sum_to_one(method):
    head = build(method)
    every = torch.arange(C).expand(B, C)
    log_prob = head.log_prob(draw(B, D), every)
    total = log_prob.double().exp().sum(dim=1)
    torch.testing.assert_close(total, torch.ones(B).double(), rtol=1e-5, atol=0)
    loss = head.full_loss(draw(B, D), TARGET)
    torch.testing.assert_close(loss, -log_prob.gather(1, TARGET[:, None]).mean())


@pytest.mark.parametrize("k", [1, 4, C])
def test_the_top_is_the_most_probable(method, k):
    head = build(method)
    log_prob = head.log_prob(draw(B, D), torch.arange(C).expand(B, C))
    score, ids = head.topk(draw(B, D), k)
    assert (score.shape, ids.shape) == ((B, k), (B, k))
    assert bool((score.diff(dim=1) <= 0).all())
    # in exact arithmetic the order is that of the probabilities
    torch.testing.assert_close(
        log_prob.gather(1, ids), log_prob.sort(dim=1, descending=True).values[:, :k]
    )
    assert all(len(set(row)) == k for row in ids.tolist())


def test_excluded_classes_are_left_out_of_the_top(method):
    head, query = build(method), draw(2, 2, D)
    _, best = head.topk(query, 3)
    score, ids = head.topk(query, C, exclude=torch.cat([best, torch.full((2, 2, 1), -1)], dim=2))
    assert (score.shape, ids.shape) == ((2, 2, C), (2, 2, C))
    assert bool((ids[..., C - 3 :] == -1).all())
    assert bool(score[..., C - 3 :].isneginf().all())
    assert not bool((ids[..., :, None] == best[..., None, :]).any())


def test_equal_scores_come_by_rising_id(method):
    head = build(method)
    for table in tables_of(head):
        with torch.no_grad():
            table.weight.zero_()
            table.bias.zero_()
    score, ids = head.topk(draw(1, D), C)
    for value in score.unique():
        tied = ids[score == value]
        assert tied.tolist() == sorted(tied.tolist())


def test_frozen_rows_do_not_move(method):
    head = build(method).requires_grad_(False)
    before = everything(head)
    query = draw(B, D).requires_grad_()
    head(query, TARGET).backward()
    assert bool(query.grad.abs().sum() > 0)
    after = everything(head)
    changed = [n for n in before if not torch.equal(before[n], after[n])]
    assert not [name for name in changed if "weight" in name or "bias" in name]


def test_accumulated_passes_are_one_update(method):
    """Adagrad is not linear: two updates by g are not one by 2 g."""
    one, two = build(method, ADAGRAD), build(method, ADAGRAD)
    before = everything(one)
    with one.accumulate():
        loss = one(draw(B, D), TARGET)
        loss.backward(retain_graph=True)
        loss.backward()
        rows = everything(one)
        assert all(torch.equal(rows[n], before[n]) for n in rows if n.endswith("weight"))
    (2 * two(draw(B, D), TARGET)).backward()
    torch.testing.assert_close(everything(one), everything(two), rtol=1e-5, atol=1e-6)


def test_an_optimizer_of_rows_moves_them_as_the_fused_update_does(method):
    """To the bit: gradients are summed in the same order, whoever applies them."""
    fused, given = build(method, ADAGRAD), build(method, None)
    optimizer = RowwiseAdagrad(given, lr=ADAGRAD.lr)
    for step in range(3):
        query = draw(B, D, name=f"query {step}")
        fused(query, SEVERAL).backward()
        optimizer.zero_grad()
        given(query, SEVERAL).backward()
        optimizer.step()
    for mine, theirs in zip(tables_of(fused), tables_of(given), strict=True):
        assert torch.equal(mine.weight, theirs.weight)
        assert torch.equal(mine.bias, theirs.bias)
        assert torch.equal(mine.weight_sum, theirs.gradients.state["weight_sum"])


def test_rows_that_nobody_moves_are_told(method):
    head = build(method, None)
    head(draw(B, D), TARGET).backward()
    with says("the class rows have gradients from an earlier backward pass, and no optimizer"):
        head(draw(B, D), TARGET)


def test_looking_at_gradients_moves_nothing(method):
    head, query = build(method), draw(B, D).requires_grad_()
    before = everything(head)
    (grad,) = torch.autograd.grad(head(query, TARGET), query)
    assert bool(grad.abs().sum() > 0)
    after = everything(head)
    changed = [n for n in before if not torch.equal(before[n], after[n])]
    assert not [name for name in changed if "weight" in name or "bias" in name]


def test_each_context_learns_its_own_class(method):
    """Six contexts, one-hot, and one class for each: no other answer fits."""
    head = build(method, ADAGRAD, num_classes=12)
    query, answer = torch.eye(D), torch.tensor([11, 2, 7, 3, 0, 5])
    optimizer = torch.optim.Adam(dense_of(head), lr=0.02) if dense_of(head) else None
    for _ in range(150):
        loss = head(3 * query, answer)
        if optimizer:
            optimizer.zero_grad()
        loss.backward()
        if optimizer:
            optimizer.step()
    assert torch.equal(head.topk(3 * query, 1)[1][:, 0], answer)


def test_a_learned_head_prefers_what_came_more_often(method):
    """Two classes follow every context, one of them four times as often."""
    head = build(method, ADAGRAD, num_classes=12)
    query = 3 * torch.eye(D)[[0, 1, 0, 1, 0, 1, 0, 1, 0, 1]]
    target = torch.tensor([2, 7, 2, 7, 2, 7, 2, 7, 5, 9])
    optimizer = torch.optim.Adam(dense_of(head), lr=0.02) if dense_of(head) else None
    for _ in range(200):
        loss = head(query, target)
        if optimizer:
            optimizer.zero_grad()
        loss.backward()
        if optimizer:
            optimizer.step()
    assert head.topk(query[:2], 2)[1].tolist() == [[2, 5], [7, 9]]


def test_how_many_scores_a_step_computes_is_known(method):
    head = build(method)
    head(draw(B, D), TARGET).backward()
    assert 0 < head.scores_per_example <= 2 * C


def test_it_says_its_method_and_whom_to_cite(method):
    head = build(method)
    assert isinstance(head, Head)
    assert head.method == method.split(",")[0]
    assert all(isinstance(key, str) for key in head.bibtex)
    assert repr(head)


BAD = [
    (lambda head: head(draw(B, D) * torch.nan, TARGET), "query row 0 holds NaN or inf."),
    (lambda head: head(draw(B, D + 1), TARGET), "query has shape (7, 7)"),
    (lambda head: head(draw(B, D), TARGET + 1), "target holds class 31; expected ids from 0 to"),
    (lambda head: head(draw(B, D), TARGET.float()), "target has dtype torch.float32"),
    (lambda head: head(draw(B, D), TARGET[:3]), "target has shape (3,); expected (7) or (7, L)"),
    (lambda head: head(draw(0, D), TARGET[:0]), "the batch is empty"),
    (lambda head: head(draw(B, D), torch.full((B,), -100)), "every target is ignore_index"),
    (lambda head: head(draw(B, D), TARGET, -torch.ones(B)), "target_weight holds -1"),
    (lambda head: head.topk(draw(B, D), C + 1), f"k is {C + 1}, but there are only {C} classes."),
    (lambda head: head.topk(draw(B, D), 0), "k must be at least 1, got 0."),
    (
        lambda head: head.topk(draw(B, D), 2, exclude=torch.zeros(3, 1).long()),
        "exclude has shape (3, 1); expected one row of ids for each query of (7, 6). Pad rows",
    ),
    (
        lambda head: head.log_prob(draw(B, D), TARGET),
        "ids has shape (7,); expected one row of ids for each query of (7, 6).",
    ),
    (lambda head: head.log_prob(draw(B, D), TARGET[:, None] + 1), "ids holds class 31; expected"),
]


@pytest.mark.parametrize(("ask", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_bad_input_is_told_and_changes_nothing(method, ask, words):
    head = build(method)
    before = everything(head)
    with says(words):
        ask(head)
    assert head.step == 0
    assert all(map(torch.equal, before.values(), everything(head).values()))


def test_bad_options_are_told(method):
    with says("reduction must be one of mean, sum, none, got 'max'."):
        build(method, reduction="max")
    with says("seed must be a whole number, got 1.5."):
        build(method, seed=1.5)


def test_rows_must_be_a_table():
    with says("table must be a ClassTable such as tapas.LocalTable(...), got 3."):
        FullSoftmax(table=3)
