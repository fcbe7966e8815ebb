"""The contract of `Head`, tested for every method."""

import contextlib
import copy
import io
import math
import re

import pytest
import safetensors.torch
import torch
from contracts.heads import (
    ADAGRAD,
    DRAWING,
    FLAT,
    HEADS,
    TREES,
    C,
    D,
    N,
    build,
    dense_of,
    everything,
    tables_of,
)
from oracle.flat_heads import empty_batch

from tapas import DataError, Squashed, Uniform, UsageError
from tapas.heads import METHODS, FullSoftmax, Head
from tapas.optim import SGD, RowwiseAdagrad
from tapas.proposals import Bigram
from tapas.rng import stream

B = 7
TARGET = torch.tensor([4, 9, 30, 3, 4, 0, 17])
SEVERAL = torch.tensor(
    [[4, 9, 4], [9, -100, -100], [30, 1, 2], [3, 3, 3], [-100, 4, 5], [0, 6, -100], [17, 18, 30]]
)


def draw(*shape, name="query", scale=1.0):
    return scale * torch.randn(*shape, generator=stream(0, name), dtype=torch.float32)


@pytest.fixture(params=HEADS)
def method(request):
    return request.param


def kind_of(method):
    return METHODS[method.split(",")[0]]


def says(words, end=""):
    return pytest.raises((UsageError, DataError), match="^" + re.escape(words) + end)


def test_the_loss_is_a_finite_number_that_moves_rows_and_query(method):
    head, query, target = build(method), draw(B, D).requires_grad_(), TARGET.clone()
    target[2] = -100
    before, kept_target = everything(head), target.clone()
    loss = head(query, target)
    assert torch.equal(query, draw(B, D))
    assert torch.equal(target, kept_target)
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


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 1, 3)], ids=str)
def test_any_leading_shape_gives_the_loss_of_its_flat_batch(method, shape):
    size = math.prod(shape)
    query, target = draw(*shape, D), torch.arange(size).view(shape)
    head = build(method, reduction="none")
    flat = build(method, reduction="none")(query.view(size, D), target.view(size))
    assert torch.equal(head(query, target), flat.view(shape))
    score, ids = head.topk(query, 4)
    assert torch.equal(ids, head.topk(query.view(size, D), 4)[1].view(*shape, 4))
    assert head.log_prob(query, ids).shape == score.shape == (*shape, 4)


def test_targets_need_not_be_contiguous(method):
    strided = SEVERAL.T.contiguous().T
    assert not strided.is_contiguous()
    assert torch.equal(build(method)(draw(B, D), strided), build(method)(draw(B, D), SEVERAL))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_head_that_was_cast_still_trains(method, dtype):
    head = build(method).to(dtype)
    for _ in range(2):
        loss = head(draw(B, D), TARGET)
        loss.backward()
    assert loss.dtype == torch.float32
    assert bool(loss.isfinite())
    assert bool((head.topk(draw(B, D), 4)[1] >= 0).all())


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


AMBIENT = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default float64": lambda: default_dtype(torch.float64),
    "default bfloat16": lambda: default_dtype(torch.bfloat16),
}


# these four make a tensor without saying of what type


@pytest.mark.parametrize("ambient", AMBIENT)
def test_autocast_and_the_default_dtype_change_nothing(method, ambient):
    found = []
    for surroundings in (contextlib.nullcontext, AMBIENT[ambient]):
        query = draw(B, D).requires_grad_()
        with surroundings():
            head = build(method, ADAGRAD)
            score, ids = head.topk(query, 4)
            exact = score, ids, head.log_prob(query, ids), head.full_loss(query, SEVERAL)
            loss = head(query, SEVERAL)
        loss.backward()  # outside, as torch wants it
        found.append([*exact, loss.detach(), query.grad, *everything(head).values()])
    assert all(map(torch.equal, *found))


def test_a_bfloat16_query_gets_a_bfloat16_gradient_of_a_float32_loss(method):
    low = draw(B, D).bfloat16().requires_grad_()
    same = low.detach().float().requires_grad_()
    losses = [build(method)(query, TARGET) for query in (low, same)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    assert torch.equal(low.grad, same.grad.bfloat16())


def test_every_step_gives_all_dense_parameters_a_gradient(method):
    """DistributedDataParallel waits for one."""
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


def test_targets_of_an_example_have_equal_weights_by_default(method):
    real = (SEVERAL != -100).float()
    weight = real / real.sum(dim=1, keepdim=True)
    shared, weighed = build(method), build(method)
    torch.testing.assert_close(
        shared(draw(B, D), SEVERAL), weighed(draw(B, D), SEVERAL, weight), rtol=1e-6, atol=1e-6
    )


def test_twice_the_weight_is_twice_the_loss_and_weight_0_is_no_loss(method):
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
    assert bool(head.topk(query, 5)[0].isfinite().all())


def test_only_rows_that_the_method_uses_move(method):
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
    else:  # complete clusters, but not all of them
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


@pytest.mark.parametrize("method", FLAT)
def test_another_seed_and_another_step_draw_others(method):
    head, other = build(method, seed=5), build(method, seed=6)
    first, second, third = (each(draw(B, D), SEVERAL) for each in (head, head, other))
    assert (first != third) == (method in DRAWING)
    if method in DRAWING:
        assert first != second


def test_only_training_counts_as_a_step(method):
    head = build(method)
    head(draw(B, D), TARGET)
    assert head.step == 1
    before, scores = everything(head), head.scores_per_example
    with torch.no_grad():
        shown = head(draw(B, D), SEVERAL)
    assert torch.equal(head.eval()(draw(B, D), SEVERAL), shown)
    assert head.step == 1
    assert head.scores_per_example == scores
    assert all(map(torch.equal, before.values(), everything(head).values()))
    assert torch.equal(head.train()(draw(B, D), SEVERAL), shown)  # the draws of the next step


def test_a_head_continues_from_its_state_bit_for_bit(method):
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


def test_a_state_includes_its_seed(method):
    """Otherwise a resumed run would draw other classes."""
    one, two = build(method, seed=5), build(method, seed=6)
    two.load_state_dict(one.state_dict())
    assert two.seed == 5
    assert [table.seed for table in tables_of(two)] == [table.seed for table in tables_of(one)]
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
    if method in FLAT:
        logits = draw(B, D) @ head.table.weight.T + head.table.bias
        torch.testing.assert_close(log_prob, logits.log_softmax(dim=1))
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
    found, same = head.topk_log_prob(draw(B, D), k)
    assert torch.equal(same, ids)
    torch.testing.assert_close(found, log_prob.gather(1, ids))


def test_excluded_classes_are_left_out_of_the_top(method):
    head, query = build(method), draw(2, 2, D)
    _, best = head.topk(query, 3)
    score, ids = head.topk(query, C, exclude=torch.cat([best, torch.full((2, 2, 1), -1)], dim=2))
    assert (score.shape, ids.shape) == ((2, 2, C), (2, 2, C))
    assert bool((ids[..., C - 3 :] == -1).all())
    assert bool(score[..., C - 3 :].isneginf().all())
    log_prob, same = head.topk_log_prob(query, C, exclude=best)
    assert torch.equal(same, ids)
    assert bool(log_prob[..., C - 3 :].isneginf().all())
    assert not bool((ids[..., :, None] == best[..., None, :]).any())


def test_equal_scores_come_by_ascending_id(method):
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
    """Bit for bit: gradients are summed in the same order in both."""
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


def test_training_rows_without_an_optimizer_is_refused(method):
    head = build(method, None)
    head(draw(B, D), TARGET).backward()
    with says("the class rows have gradients from an earlier backward pass, but no optimizer"):
        head(draw(B, D), TARGET)


def test_looking_at_gradients_moves_nothing(method):
    head, query = build(method), draw(B, D).requires_grad_()
    before = everything(head)
    (grad,) = torch.autograd.grad(head(query, TARGET), query)
    assert bool(grad.abs().sum() > 0)
    after = everything(head)
    changed = [n for n in before if not torch.equal(before[n], after[n])]
    assert not [name for name in changed if "weight" in name or "bias" in name]


def test_each_context_learns_its_class(method):
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
    head.eval()(draw(B, D), TARGET)
    assert math.isnan(head.scores_per_example) or head.scores_per_example > 0
    head.train()(draw(B, D), TARGET).backward()
    assert 0 < head.scores_per_example <= 2 * C


@pytest.mark.parametrize("method", [name for name in FLAT if hasattr(kind_of(name), "losses")])
def test_a_rank_without_examples_has_no_loss_and_pushes_nothing(method):
    head = build(method, None)
    loss = head.losses(empty_batch(head), None)
    assert loss.shape == (0,)
    loss.sum().backward()
    waiting = head.table.gradients.summed()
    assert waiting is None or not bool(waiting.weight.any())


@pytest.mark.parametrize("method", [name for name in FLAT if "proposal" in kind_of(name).options])
def test_a_proposal_that_uses_the_context_gets_it(method):
    known = torch.tensor([4, 4, 9]), torch.tensor([11, 17, 30]), torch.full((3,), 1e9)
    head = build(method)
    head.proposal = Bigram(*known, unigram=Uniform(C), kappa=1e-6)
    assert head.wants_context
    with says("a Bigram proposal needs the previous class of every example: pass context="):
        head(draw(B, D), TARGET)
    head.eval()
    first, same, other = (
        head(draw(B, D), TARGET, context=torch.full((B,), previous)) for previous in (4, 4, 9)
    )
    assert first == same != other
    target, previous = TARGET.clone(), torch.full((B,), 4)
    target[2] = -100
    before = head(draw(B, D), target, context=previous)
    previous[2] = 9  # of an example without a target
    assert head(draw(B, D), target, context=previous) == before


def test_it_knows_its_method_and_what_to_cite(method):
    head = build(method)
    assert isinstance(head, Head)
    assert head.method == method.split(",")[0]
    assert all(isinstance(key, str) for key in head.bibtex)
    assert repr(head).startswith(type(head).__name__)
    assert f"num_samples={getattr(head, 'num_samples', None)}" in repr(head) + "num_samples=None"


RANGE = "expected ids from 0 to 30 (num_classes=31)."
BAD = [
    (
        lambda head: head(draw(B, D) * torch.nan, TARGET),
        "query row 0 holds NaN or inf. The encoder has diverged or its input is bad: check that "
        "row's input, lower the learning rate or clip gradients.",
    ),
    (lambda head: head.topk(draw(B, D) / 0, 2), "query row 0 holds NaN or inf. The encoder has"),
    (
        lambda head: head(draw(B, D + 1), TARGET),
        "query has shape (7, 7); expected (..., D=6), the dim of the table.",
    ),
    (
        lambda head: head(torch.ones(B, D).long(), TARGET),
        "query has dtype torch.int64; expected floating point.",
    ),
    (
        lambda head: head(draw(B, D).numpy(), TARGET),
        "query must be a torch.Tensor, got ndarray. torch.as_tensor makes one.",
    ),
    (
        lambda head: head(draw(B, D), TARGET.tolist()),
        "target must be a torch.Tensor, got list. torch.as_tensor makes one.",
    ),
    (
        lambda head: head(draw(B, D), TARGET + 1),
        f"target holds class 31; {RANGE} Padding is ignore_index=-100.",
    ),
    (
        lambda head: head(draw(B, D), TARGET - 1),
        f"target holds class -1; {RANGE} Padding is ignore_index=-100.",
    ),
    (
        lambda head: head(draw(B, D), TARGET.float()),
        "target has dtype torch.float32; expected int64 class ids. Keep ids as integers: floats "
        "corrupt them.",
    ),
    (
        lambda head: head(draw(B, D), TARGET[:3]),
        "target has shape (3,); expected (7) or (7, L) for a query of shape (7, 6).",
    ),
    (
        lambda head: head(draw(B, D), SEVERAL[:, :0]),
        "target has shape (7, 0): no example has a target. Skip such a batch.",
    ),
    (
        lambda head: head(draw(B, D), torch.eye(C)[TARGET]),
        "target has shape (7, 31) and holds only 0 and 1: it looks multi-hot. Pass class ids, "
        "(..., L), padded with ignore_index: tapas.ids_of(target) makes them.",
    ),
    (
        lambda head: head(draw(B, D), torch.full((B, C), 1 / C)),
        "target has shape (7, 31) and torch.float32: probabilities of all classes are not "
        "supported. Pass the ids of the few that matter, (..., L), and their probabilities as "
        "target_weight.",
    ),
    (
        lambda head: head(draw(0, D), TARGET[:0]),
        "the batch is empty: query has shape (0, 6). Skip such a batch.",
    ),
    (
        lambda head: head(draw(B, D), torch.full((B,), -100)),
        "every target is ignore_index (-100): the batch has nothing to learn from. Skip such a "
        "batch, or check the padding value.",
    ),
    (
        lambda head: head(draw(B, D), TARGET, torch.full((B,), -0.5)),
        "target_weight holds -0.5; expected finite numbers of at least 0.",
    ),
    (
        lambda head: head(draw(B, D), TARGET, torch.full((B,), torch.nan)),
        "target_weight holds nan; expected finite numbers of at least 0.",
    ),
    (
        lambda head: head(draw(B, D), SEVERAL, torch.ones(B)),
        "target_weight has shape (7,); expected (7, 3), as target.",
    ),
    (
        lambda head: head(draw(B, D), TARGET, [1.0] * B),
        "target_weight must be a torch.Tensor, got list. torch.as_tensor makes one.",
    ),
    (
        lambda head: head(draw(B, D), TARGET, torch.ones(B, requires_grad=True)),
        "target_weight requires a gradient, which the head does not give. Detach it, or use "
        "reduction='none' and multiply.",
    ),
    (
        lambda head: head(draw(B, D), TARGET, context=TARGET[:1]),
        "context has shape (1,); expected (7,), the previous class of every example.",
    ),
    (
        lambda head: head(draw(B, D), TARGET, context=[1] * B),
        "context must be a torch.Tensor, got list. torch.as_tensor makes one.",
    ),
    (lambda head: head.topk(draw(B, D), C + 1), f"k is {C + 1}, but there are only {C} classes."),
    (lambda head: head.topk(draw(B, D), 0), "k must be at least 1, got 0."),
    (
        lambda head: head.topk(draw(B, D), 2, exclude=torch.zeros(3, 1).long()),
        "exclude has shape (3, 1); expected one row of ids for each query of (7, 6). Pad rows "
        "with -1.",
    ),
    (
        lambda head: head.topk(draw(3, 2, D), 2, exclude=torch.zeros(2, 3, 1).long()),
        "exclude has shape (2, 3, 1); expected one row of ids for each query of (3, 2, 6). Pad "
        "rows with -1.",
    ),
    (lambda head: head.topk(draw(1, D), 1, exclude=torch.tensor([[C]])), "exclude holds class 31;"),
    (
        lambda head: head.log_prob(draw(B, D), TARGET),
        "ids has shape (7,); expected one row of ids for each query of (7, 6).",
    ),
    (lambda head: head.log_prob(draw(B, D), TARGET[:, None] + 1), f"ids holds class 31; {RANGE}"),
]


def test_bad_input_is_refused_and_changes_nothing(method):
    head = build(method)
    before = everything(head)
    for ask, words in BAD:
        with says(words, "$" if words.endswith(".") else ""):
            ask(head)
    assert head.step == 0
    assert all(map(torch.equal, before.values(), everything(head).values()))


def test_no_queries_give_empty_results(method):
    head = build(method)
    assert head.topk(draw(0, D), 3, exclude=torch.zeros(0, 4).long())[1].shape == (0, 3)
    assert head.log_prob(draw(0, D), torch.zeros(0, 4).long()).shape == (0, 4)


def test_bad_options_are_refused(method):
    with says("reduction must be one of mean, sum, none, got 'max'."):
        build(method, reduction="max")
    with says("seed must be an integer, got 1.5."):
        build(method, seed=1.5)


FEW = "With so few, plain cross_entropy is exact and faster."
BAD_DRAWS = [
    ({"num_samples": 0}, "num_samples must be at least 1, got 0."),
    ({"num_samples": 2.5}, "num_samples must be an integer, got 2.5."),
    ({"num_samples": 32}, f"num_samples is 32, but there are only 31 classes. {FEW}"),
    (
        {"proposal": Uniform(30)},
        "the proposal has 30 classes, the table has 31. Build both with the same number.",
    ),
    (
        {"counts": torch.ones(30)},
        "counts are for 30 classes, the table has 31. Build both with the same number.",
    ),
    (
        {"counts": torch.ones(31), "proposal": Uniform(31)},
        "pass counts or a proposal, not both: counts=c is short for proposal=tapas.Squashed(c).",
    ),
    (
        {"counts": {0: 3}},
        "counts must be numbers, one for each class, or a tuple (ids, counts), got dict.",
    ),
    (
        {"proposal": "unigram"},
        "proposal must be a Proposal such as tapas.Squashed(counts), got str.",
    ),
]
REPEATED = {"nce", "negative-sampling"}  # draw with replacement, any number


@pytest.mark.parametrize("name", METHODS)
def test_bad_draws_are_refused(name):
    kind = METHODS[name]
    needed = {"num_samples": N} if "num_samples" in kind.options else {}
    if "upcoming" in kind.reads:
        needed["upcoming"] = lambda step: TARGET
    for options, words in BAD_DRAWS:
        if not options.keys() - {"counts"} <= kind.options.keys():
            continue
        if "counts" in options and "proposal" not in kind.options:
            continue
        if options == {"num_samples": 32} and name in REPEATED:
            continue
        with says(words, "$"):
            kind(C, D, **(needed | options))


@pytest.mark.parametrize("name", [name for name in METHODS if "proposal" in METHODS[name].options])
def test_counts_are_short_for_squashed_counts(name):
    seen = torch.arange(C) ** 2
    few = (seen > 0).nonzero()[:, 0]
    losses = []
    for options in (
        {"proposal": Squashed(seen, alpha=0.75)},
        {"counts": seen},
        {"counts": (few, seen[few])},
    ):
        head = METHODS[name](C, D, num_samples=N, **options)
        losses.append(head(draw(B, D), TARGET))
        assert head.proposal.alpha == 0.75
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])
    drawn_uniformly = METHODS[name](C, D, num_samples=N)
    assert isinstance(drawn_uniformly.proposal, Uniform)


def test_rows_must_be_a_table():
    with says("table must be a ClassTable such as tapas.LocalTable(...), got 3."):
        FullSoftmax(table=3)
