"""What every `TreeHead` promises: exact, normalised, sparse, and saved completely."""

import re

import numpy as np
import pytest
import torch
from oracle.tables import dense_gradients
from oracle.tables import top as slow_top

import tapas
from tapas.heads.adaptive import AdaptiveSoftmax
from tapas.heads.huffman import HuffmanSoftmax
from tapas.heads.two_level import TwoLevelSoftmax

B, C, D = 5, 37, 6
HEADS = {"huffman": HuffmanSoftmax, "two-level": TwoLevelSoftmax, "adaptive": AdaptiveSoftmax}
COUNTS = torch.randint(50, (C,), generator=tapas.rng.stream(0, "counts")) ** 2 // 100  # many are 0
TARGET = torch.tensor([[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])


@pytest.fixture(params=HEADS)
def kind(request):
    return HEADS[request.param]


@pytest.fixture
def make(kind):
    def build(counts=COUNTS, dim=D, *, scale=1.0, **options):
        defaults = {"seed": 3, "row_optimizer": tapas.optim.RowwiseAdagrad.fused(lr=0.1)}
        head = kind(counts, dim, **(defaults | options))
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
        exclude = log_p.topk(3, dim=1).indices  # exclude the best ones
        exclude[1] = -1
        exclude[2, 1:] = exclude[2, :1]
    value, ids = head.topk(query, k, exclude=exclude)
    want, want_ids = slow_top(log_p.numpy(), k, None if exclude is None else exclude.numpy())
    torch.testing.assert_close(value.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-5)
    assert ids.tolist() == want_ids.tolist()


def test_equal_scores_come_by_ascending_id(make):
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


def test_a_state_of_other_counts_is_refused(make):
    other = make(COUNTS.flip(0))
    head = make()
    before = head.tables()[0].weight.clone()
    with pytest.raises(
        tapas.UsageError,
        match=r"this state is from a head with other counts or options: its rows would belong to "
        r"other classes\. Build the head from the counts and options it was saved with\.",
    ):
        head.load_state_dict(other.state_dict())
    assert torch.equal(head.tables()[0].weight, before)


INTEGERS = "expected integers of at least 0, how often each class was seen."
NUMBERS = "counts must be a tensor or array of numbers, one for each class, got "
WRONG = [  # counts, options, and the error
    (torch.zeros(0), {}, "counts has 0 entries; expected at least 2 classes."),
    (torch.ones(1), {}, "counts has 1 entries; expected at least 2 classes."),
    (torch.tensor([1, -2, 3]), {}, f"counts[1] is -2; {INTEGERS}"),
    (torch.tensor([1.0, 2.0, torch.nan]), {}, f"counts[2] is nan; {INTEGERS}"),
    (np.array([1.0, np.inf]), {}, f"counts[1] is inf; {INTEGERS}"),
    (np.array([1.5, 1.0]), {}, f"counts[0] is 1.5; {INTEGERS}"),
    (torch.ones(2, 2), {}, f"{NUMBERS}shape (2, 2)."),
    ([1, 2], {}, f"{NUMBERS}list."),
    (np.full(4, 2**61), {}, "counts sum to 9.22337e+18, above 2^62. Scale them."),
    (COUNTS, {"dim": 0}, "dim must be at least 1, got 0."),
]


def test_bad_counts_and_options_are_refused(make):
    for counts, options, words in WRONG:
        with pytest.raises(tapas.UsageError, match="^" + re.escape(words) + "$"):
            make(counts, **options)


def test_a_tensor_of_biases_is_refused(kind):
    words = (
        f"bias of a {kind.__name__} must be True (initial values from the counts) or False, "
        "got Tensor."
    )
    with pytest.raises(tapas.UsageError, match="^" + re.escape(words) + "$"):
        kind(COUNTS, D, bias=torch.zeros(C))


def test_all_tensors_of_a_tree_are_on_the_default_device(kind):
    with torch.device("meta"):
        head = kind(COUNTS, D)
    assert all(part.is_meta for part in (*head.parameters(), *head.buffers()))


def test_biases_start_at_the_frequencies(kind):
    head = kind(COUNTS, D)
    with torch.no_grad():
        for table in head.tables():
            table.weight.zero_()
    want = ((COUNTS + 1.0) / (COUNTS + 1.0).sum()).log()
    torch.testing.assert_close(every(head, queries(1))[0], want, rtol=1e-5, atol=1e-5)


def test_probabilities_without_biases_are_normalised(make):
    head = make(bias=False)
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
