"""The adaptive softmax is that of torch, with ids in any order and sparse updates."""

import pytest
import torch
from oracle.tables import dense_gradients
from oracle.trees import clustered_log_probs, log_softmax, weighted_loss
from torch import nn

import tapas
from tapas.heads.adaptive import AdaptiveSoftmax, cheapest_cutoffs, tail_dim

B, L, C, D = 6, 3, 31, 8
CUTOFFS = [5, 14]
FALLING = 1000 // (torch.arange(C) + 1)
ORDER = torch.randperm(C, generator=tapas.rng.stream(0, "order"))  # class ids by descending count


def make(counts=FALLING, **options):
    defaults = {"cutoffs": CUTOFFS, "div_value": 2.0, "seed": 3, "row_optimizer": None}
    return AdaptiveSoftmax(counts, D, **(defaults | options))


def queries(num=B):
    return torch.randn(num, D, generator=tapas.rng.stream(0, "query"))


def torch_twin(head, rank_at, *, head_bias):
    """torch's module, over classes sorted by frequency, with the weights of `head`.

    `rank_at` has, for the head and each tail, the positions of its rows in that order.
    """
    state = torch.random.get_rng_state()
    twin = nn.AdaptiveLogSoftmaxWithLoss(
        D, C, head.cutoffs, div_value=head.div_value, head_bias=head_bias
    )
    torch.random.set_rng_state(state)
    with torch.no_grad():
        n = head.cutoffs[0]
        rows = torch.cat([rank_at[0], torch.arange(n, n + len(head.tails))])
        twin.head.weight[rows] = head.head.weight
        if head_bias:
            twin.head.bias[rows] = head.head.bias
        for i, tail in enumerate(head.tails):
            twin.tail[i][0].weight.copy_(head.proj[i])
            twin.tail[i][1].weight[rank_at[1 + i] - head.cutoffs[i]] = tail.weight
    return twin


def compare(head, twin, target, rank):
    query, again = queries().requires_grad_(), queries().requires_grad_()
    loss = head(query, target)
    want = twin(again, rank[target]).loss
    torch.testing.assert_close(loss, want)
    got = head.log_prob(query, torch.arange(C).expand(B, C))
    torch.testing.assert_close(got, twin.log_prob(again)[:, rank].detach(), rtol=1e-5, atol=1e-5)
    loss.backward()
    want.backward()
    torch.testing.assert_close(query.grad, again.grad)
    for i in range(len(head.tails)):
        torch.testing.assert_close(head.proj[i].grad, twin.tail[i][0].weight.grad)
    best = twin.log_prob(again).argmax(dim=1)
    assert torch.equal(rank[head.topk(query.detach(), 1)[1][:, 0]], best)


@pytest.mark.parametrize("head_bias", [False, True])
def test_sorted_ids_are_those_of_torch(head_bias):
    head = make(bias=head_bias)
    if head_bias:  # torch has none in its tails
        with torch.no_grad():
            for tail in head.tails:
                tail.bias.zero_()
            head.head.bias.normal_(generator=tapas.rng.stream(0, "bias"))
    twin = torch_twin(head, torch.arange(C).tensor_split(CUTOFFS), head_bias=head_bias)
    compare(head, twin, torch.tensor([0, 4, 5, 13, 14, 30]), torch.arange(C))
    weight_grad, bias_grad = dense_gradients(head.head)
    torch.testing.assert_close(weight_grad, twin.head.weight.grad)
    if head_bias:
        torch.testing.assert_close(bias_grad, twin.head.bias.grad)
    for i, tail in enumerate(head.tails):
        torch.testing.assert_close(dense_gradients(tail)[0], twin.tail[i][1].weight.grad)


def test_ids_in_any_order_are_those_of_torch_sorted_by_count():
    counts = torch.empty(C, dtype=torch.int64)
    counts[ORDER] = torch.arange(2 * C, C, -1)  # no ties
    rank = torch.empty(C, dtype=torch.int64)
    rank[ORDER] = torch.arange(C)
    head = make(counts, bias=False)
    twin = torch_twin(
        head, [rank[ids] for ids in head.class_at.tensor_split(CUTOFFS)], head_bias=False
    )
    compare(head, twin, torch.randint(C, (B,), generator=tapas.rng.stream(0, "target")), rank)


@pytest.mark.parametrize("cutoffs", [[1], [30], [5, 14], [1, 2, 3], None], ids=str)
def test_loss_and_log_prob_are_those_of_the_formula(cutoffs):
    head = make(FALLING[ORDER], cutoffs=cutoffs, reduction="none")
    query = queries()
    target = torch.cat([ORDER[:12].view(4, 3), torch.tensor([[7, 7, 2], [0, -100, -100]])])
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    n = head.cutoffs[0]
    parts = [ids.tolist() for ids in head.class_at.tensor_split(head.cutoffs)]

    def in_head(q):
        return log_softmax(q, *head.head.rows(torch.arange(n + len(head.tails))))

    def inner(g, q):
        if g < n:
            return [0.0]
        tail = head.tails[g - n]
        small = head.proj[g - n].detach().double() @ q.double()
        return log_softmax(small, *tail.rows(torch.arange(tail.num_classes)))

    members = [[c] for c in parts[0]] + parts[1:]
    log_p = clustered_log_probs(query, members, in_head, inner)
    got = head.log_prob(query, torch.arange(C).expand(B, C))
    torch.testing.assert_close(got.double(), torch.from_numpy(log_p), rtol=1e-5, atol=1e-5)
    want = torch.tensor(weighted_loss(log_p, target, weight), dtype=torch.float32)
    torch.testing.assert_close(head(query, target, weight), want)


def test_a_tail_without_a_target_is_not_touched():
    head = make(row_optimizer=tapas.optim.LazyAdam.fused(lr=0.1, weight_decay=0.1))
    before = [tail.weight.clone() for tail in head.tails]
    head(queries(2), torch.tensor([[2, -100], [20, 3]])).backward()
    assert torch.equal(head.tails[0].weight, before[0])
    assert not bool(head.proj[0].grad.any())
    assert bool((head.tails[1].weight != before[1]).any(dim=1).all())
    assert bool(head.proj[1].grad.abs().sum() > 0)
    assert [tail.num_updates for tail in head.tails] == [0, 1]


def test_projections_are_the_only_dense_parameters():
    head = make(row_optimizer=tapas.optim.SGD.fused(lr=0.1))
    trained = {name: p for name, p in head.named_parameters() if p.requires_grad}
    anchors = tapas.optim.anchors(head)
    assert len(anchors) == len(head.tables()) == 3
    dense = {name: tuple(p.shape) for name, p in trained.items() if p not in anchors}
    assert dense == {"proj.0": (4, D), "proj.1": (2, D)}
    assert [tail.dim for tail in head.tails] == [4, 2]
    assert tail_dim(8, 4.0, 3) == 1  # never 0


def test_default_cutoffs_cost_less_than_their_neighbours_and_than_none():
    counts = (10**7 / (torch.arange(20_000) + 1)).long()
    cuts = cheapest_cutoffs(counts.numpy(), 64, 4.0)
    assert cuts == sorted(set(cuts))
    assert cuts[0] >= 1
    assert cuts[-1] < 20_000
    share = (counts + 1.0).double() / (counts + 1.0).sum()

    def cost(ends):
        total = (64 + 32) * (ends[0] + len(ends))
        for i, (start, stop) in enumerate(zip(ends, [*ends[1:], 20_000], strict=True)):
            width = 64 // 4 ** (i + 1)
            total += float(share[start:stop].sum()) * ((width + 32) * (stop - start) + 64 * width)
        return total

    for i in range(len(cuts)):
        for factor in (0.5, 2):
            other = [*cuts[:i], int(cuts[i] * factor), *cuts[i + 1 :]]
            if other == sorted(set(other)) and other[-1] < 20_000:
                assert cost(cuts) <= cost(other)
    assert cost(cuts) < (64 + 32) * 20_000 / 4
    assert len(cheapest_cutoffs(counts.numpy(), 4, 4.0)) == 1  # one dimension: no further tail


def test_scores_per_example_are_the_head_and_the_mean_tail():
    tail = int(FALLING[5:14].sum()) * 9 + int(FALLING[14:].sum()) * 17
    assert make().scores_per_example == pytest.approx(5 + 2 + tail / int(FALLING.sum()))
