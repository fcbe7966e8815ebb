"""What all heads that decide in steps promise: exact, normalised, sparse, and fit to be saved."""

import copy
import io

import numpy as np
import pytest
import torch
from oracle.tables import dense_gradients
from oracle.tables import top as slow_top

import tapas
from tapas.heads.adaptive import AdaptiveSoftmax
from tapas.heads.huffman import HuffmanSoftmax
from tapas.heads.two_level import TwoLevelSoftmax

B, L, C, D = 5, 3, 37, 6
HEADS = {"huffman": HuffmanSoftmax, "two-level": TwoLevelSoftmax, "adaptive": AdaptiveSoftmax}
COUNTS = torch.randint(50, (C,), generator=tapas.rng.stream(0, "counts")) ** 2 // 100  # many are 0
TARGET = torch.tensor([[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])


@pytest.fixture(params=HEADS)
def make(request):
    def build(counts=COUNTS, dim=D, *, scale=1.0, **options):
        defaults = {"seed": 3, "row_optimizer": tapas.optim.RowwiseAdagrad.fused(lr=0.1)}
        head = HEADS[request.param](counts, dim, **(defaults | options))
        for number, table in enumerate(head.tables()):
            with torch.no_grad():
                table.weight.normal_(0, scale, generator=tapas.rng.stream(0, "rows", number))
                table.bias.normal_(0, scale, generator=tapas.rng.stream(0, "biases", number))
        return head

    return build


def queries(num=B, dim=D):
    return torch.randn(num, dim, generator=tapas.rng.stream(0, "query"))


def every(head, query):
    ids = torch.arange(head.num_classes).expand(len(query), -1)
    return head.log_prob(query, ids)


@pytest.mark.parametrize(
    "counts",
    [COUNTS, torch.zeros(C), torch.ones(2), torch.tensor([0, 10**12, 0, 1, 1]), np.arange(C)],
    ids=["zeros", "all zero", "two", "dominant", "numpy"],
)
def test_probabilities_of_all_classes_sum_to_one(make, counts):
    head = make(counts)
    total = every(head, queries()).double().exp().sum(dim=1)
    torch.testing.assert_close(total, torch.ones(B, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("k", [1, 4, C])
@pytest.mark.parametrize("excluding", [False, True])
def test_top_is_a_sort_of_all_log_probabilities(make, k, excluding):
    head, query = make(), queries()
    log_p = every(head, query)
    exclude = None
    if excluding:
        exclude = log_p.topk(3, dim=1).indices  # the very best are not to be had
        exclude[1] = -1
        exclude[2, 1:] = exclude[2, :1]
    value, ids = head.topk(query, k, exclude=exclude)
    want, want_ids = slow_top(log_p.numpy(), k, None if exclude is None else exclude.numpy())
    torch.testing.assert_close(value.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-5)
    assert ids.tolist() == want_ids.tolist()


def test_equal_scores_come_by_rising_id(make):
    """All decisions are even: a tree of 256 classes of nearly equal counts has all at depth 8."""
    counts = 1000 + torch.randperm(256, generator=tapas.rng.stream(0, "order"))
    head, query = make(counts, scale=0.0), queries()
    log_p = every(head, query)
    assert len(log_p.unique()) < 12
    want, want_ids = slow_top(log_p.numpy(), 9)
    value, ids = head.topk(query, 9)
    assert ids.tolist() == want_ids.tolist()
    torch.testing.assert_close(value.double(), torch.from_numpy(want), rtol=1e-6, atol=1e-6)


def test_many_classes_and_queries_in_blocks_change_nothing(make, monkeypatch):
    counts = torch.arange(300) ** 2 % 89
    head, query = make(counts, scale=0.5), queries(23)
    want = head.topk(query, 7)
    monkeypatch.setattr("tapas.heads.tree_search.QUERIES_PER_BLOCK", 5)
    monkeypatch.setattr("tapas.heads.tree_search.FLOATS_PER_CHUNK", 11 * D)
    monkeypatch.setattr("tapas.heads.tree_search.LEAVES_HELD", 2000)
    value, ids = head.topk(query, 7)
    assert torch.equal(ids, want[1])
    torch.testing.assert_close(value, want[0])
    log_p = every(head, query)
    assert ids.tolist() == slow_top(log_p.numpy(), 7)[1].tolist()


def test_where_too_few_remain_ids_end_in_minus_one(make):
    head, query = make(torch.arange(4)), queries(2)
    exclude = torch.tensor([[0, 1, 2], [3, 3, -1]])
    value, ids = head.topk(query, 4, exclude=exclude)
    assert ids[0].tolist() == [3, -1, -1, -1]
    assert sorted(ids[1, :3].tolist()) == [0, 1, 2]
    assert ids[1, 3] == -1
    assert torch.equal(value == -torch.inf, ids == -1)


def test_any_leading_shape_is_answered_in_kind(make):
    head, query = make(), queries(6)
    nested = query.view(2, 3, D)
    exclude = torch.tensor([[1], [2], [3], [4], [-1], [-1]])
    value, ids = head.topk(nested, 4, exclude=exclude.view(2, 3, 1))
    flat_value, flat_ids = head.topk(query, 4, exclude=exclude)
    assert torch.equal(ids, flat_ids.view(2, 3, 4))
    assert torch.equal(value, flat_value.view(2, 3, 4))
    assert head.log_prob(nested, ids).shape == (2, 3, 4)
    assert head.topk(query[:0], 4)[1].shape == (0, 4)
    assert head.log_prob(query[:0], ids[:0, 0]).shape == (0, 4)


def test_the_loss_is_the_full_loss_with_several_weighted_targets(make):
    head, query = make(row_optimizer=None), queries()
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    log_p = every(head, query).gather(1, TARGET.clamp(min=0))
    want = -(log_p * weight).masked_fill(TARGET < 0, 0.0).sum(dim=1)
    loss = head(query, TARGET, weight)
    torch.testing.assert_close(loss, want.mean())
    torch.testing.assert_close(head.full_loss(query, TARGET, weight), want.mean())
    torch.testing.assert_close(head(query, TARGET, 2 * weight), 2 * want.mean())
    assert float(head(query, TARGET, 0 * weight).detach()) == 0
    head.reduction = "none"
    torch.testing.assert_close(head(query, TARGET, weight), want)


def test_gradients_are_those_of_finite_differences(make):
    """Central differences of a float32 loss, 1e-2 apart: off by 1e-3 at most, where all is O(1)."""
    head, query = make(row_optimizer=None, scale=0.5), queries().requires_grad_()
    head(query, TARGET).backward()
    wiggled = [("query", query, query.grad)]
    for number, table in enumerate(head.tables()):
        weight_grad, bias_grad = dense_gradients(table)
        wiggled += [
            (f"rows {number}", table.weight, weight_grad),
            (f"biases {number}", table.bias, bias_grad),
        ]
    for name, value in head.named_parameters():
        if value.requires_grad and value not in tapas.optim.anchors(head):
            wiggled.append((name, value, value.grad))
    assert len(wiggled) >= 3
    for name, value, grad in wiggled:
        for place in torch.randint(
            value.numel(), (12,), generator=tapas.rng.stream(0, "at", name)
        ).tolist():
            ends = []
            for move in (1e-2, -1e-2):
                with torch.no_grad():
                    value.view(-1)[place] += move
                    ends.append(float(head.full_loss(query, TARGET)))
                    value.view(-1)[place] -= move
            want = (ends[0] - ends[1]) / 2e-2
            assert abs(float(grad.reshape(-1)[place]) - want) < 1e-3, (name, place)


def test_one_backward_is_one_update_of_each_table_that_was_touched(make):
    head = make()
    head(queries(), TARGET).backward()
    assert max(table.num_updates for table in head.tables()) == 1


def test_accumulated_batches_move_rows_as_one_batch_would(make):
    whole, halves = (make(reduction="sum") for _ in range(2))
    query, target = queries(), TARGET[:, 0]
    whole(query, target).backward()
    with halves.accumulate():
        halves(query[:2], target[:2]).backward()
        halves(query[2:], target[2:]).backward()
    for one, other in zip(whole.tables(), halves.tables(), strict=True):
        assert one.num_updates == other.num_updates
        torch.testing.assert_close(one.weight, other.weight)
        torch.testing.assert_close(one.bias, other.bias)


def test_a_step_inside_autocast_is_one_in_float32(make):
    plain, cast = (make(row_optimizer=None) for _ in range(2))
    plain(queries(), TARGET).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast(queries(), TARGET).backward()
    for one, other in zip(plain.tables(), cast.tables(), strict=True):
        assert one.gradients.waits == other.gradients.waits
        torch.testing.assert_close(dense_gradients(one), dense_gradients(other))
    assert any(table.gradients.waits for table in plain.tables())


def test_frozen_rows_stay(make):
    head, query = make().requires_grad_(False), queries().requires_grad_()
    before = [table.weight.clone() for table in head.tables()]
    head(query, TARGET).backward()
    assert bool(query.grad.abs().sum() > 0)
    for table, was in zip(head.tables(), before, strict=True):
        assert torch.equal(table.weight, was)
    assert not any(p.requires_grad for p in head.parameters())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logits_of_ten_thousand_stay_finite(make, sign):
    head = make(row_optimizer=None)
    query = (sign * 1e4 * queries()).requires_grad_()
    loss = head(query, TARGET)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(query.grad.isfinite().all())
    for value in head.parameters():
        assert value.grad is None or bool(value.grad.isfinite().all())
    for table in head.tables():
        assert all(bool(grad.isfinite().all()) for grad in dense_gradients(table))
    value, ids = head.topk(query.detach(), 5)
    assert bool(value.isfinite().all())
    assert bool((ids >= 0).all())


@pytest.mark.parametrize(
    "optimizer", [tapas.optim.RowwiseAdagrad.fused(lr=0.1), tapas.optim.LazyAdam.fused(lr=0.1)]
)
def test_a_resumed_run_is_bit_identical(make, optimizer):
    def run(head, first, last):
        moved = torch.optim.SGD(head.parameters(), lr=0.1)  # projections, where there are some
        for step in range(first, last):
            query = torch.randn(B, D, generator=tapas.rng.stream(0, "query", step))
            target = torch.randint(C, (B,), generator=tapas.rng.stream(0, "target", step))
            loss = head(query, target)
            loss.backward()
            moved.step()
            moved.zero_grad()
        return loss.detach()

    whole, first, second = (make(row_optimizer=optimizer) for _ in range(3))
    want = run(whole, 0, 6)
    run(first, 0, 3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.step == 3
    twin = copy.deepcopy(first)
    assert torch.equal(run(second, 3, 6), want)
    assert torch.equal(run(twin, 3, 6), want)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_a_state_of_other_counts_is_refused(make):
    other = make(COUNTS.flip(0))
    head = make()
    before = head.tables()[0].weight.clone()
    with pytest.raises(
        tapas.UsageError,
        match=r"this state is of a head with other counts or options: its rows would belong to "
        r"other classes\. Build the head from the counts and options it was saved with\.",
    ):
        head.load_state_dict(other.state_dict())
    assert torch.equal(head.tables()[0].weight, before)


def test_bfloat16_rows_keep_training(make):
    head = make().to(torch.bfloat16)
    loss = head(queries(), TARGET)
    loss.backward()
    assert loss.dtype == torch.float32
    assert bool(loss.isfinite())
    assert bool((head.topk(queries(), 4)[1] >= 0).all())


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (torch.zeros(0), r"counts are of 0 classes; expected at least 2 to choose from\."),
        (torch.ones(1), r"counts are of 1 classes; expected at least 2 to choose from\."),
        (
            torch.tensor([1, -2, 3]),
            r"counts\[1\] is -2; expected whole numbers of at least 0, how often each class was "
            r"seen\.",
        ),
        (torch.tensor([1.0, 2.0, torch.nan]), r"counts\[2\] is nan; expected whole numbers"),
        (np.array([1.0, np.inf]), r"counts\[1\] is inf; expected whole numbers"),
        (np.array([1.5, 1.0]), r"counts\[0\] is 1\.5; expected whole numbers"),
        (
            torch.ones(2, 2),
            r"counts must be a tensor or array of numbers, one for each class, got shape \(2, 2\)",
        ),
        ([1, 2], r"counts must be a tensor or array of numbers, one for each class, got list\."),
        (np.full(4, 2**61), r"counts sum to 9\.22337e\+18, above 2\^62\. Scale them\."),
    ],
    ids=str,
)
def test_bad_counts_are_told(make, counts, words):
    with pytest.raises(tapas.UsageError, match=words):
        make(counts)


def test_bad_questions_are_told(make):
    head = make()
    with pytest.raises(tapas.UsageError, match=rf"k is {C + 1}, but there are only {C} classes\."):
        head.topk(queries(), C + 1)
    with pytest.raises(tapas.UsageError, match=rf"exclude holds class {C}; expected ids from 0"):
        head.topk(queries(1), 1, exclude=torch.tensor([[C]]))
    with pytest.raises(tapas.UsageError, match=rf"ids holds class {C}; expected ids from 0"):
        head.log_prob(queries(1), torch.tensor([[C]]))
    with pytest.raises(
        tapas.UsageError,
        match=r"start_at_frequencies needs biases to start from, but bias is False\. Pass "
        r"start_at_frequencies=False, too\.",
    ):
        make(bias=False)
    with pytest.raises(tapas.UsageError, match=r"dim must be at least 1, got 0\."):
        make(dim=0)


def test_without_biases_all_is_still_normalised(make):
    head = make(bias=False, start_at_frequencies=False)
    assert all(len(table.bias) == 0 for table in head.tables())
    total = every(head, queries()).double().exp().sum(dim=1)
    torch.testing.assert_close(total, torch.ones(B, dtype=torch.float64), rtol=0, atol=1e-5)
    head(queries(), TARGET).backward()
    want = slow_top(every(head, queries()).numpy(), 5)[1]
    assert head.topk(queries(), 5)[1].tolist() == want.tolist()


def test_counts_in_any_order_name_the_same_classes(make):
    """Shuffled ids with shuffled counts start at the same frequencies."""
    order = torch.randperm(C, generator=tapas.rng.stream(0, "order"))
    counts = torch.arange(C) ** 2
    plain, shuffled = make(counts), make(counts[order])
    assert plain.scores_per_example == pytest.approx(shuffled.scores_per_example)
