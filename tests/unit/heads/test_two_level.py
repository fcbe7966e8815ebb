"""Clusters are balanced, and the softmax over them is the product of two."""

import numpy as np
import pytest
import torch
from oracle.trees import clustered_log_probs, log_softmax, weighted_loss

import tapas
from tapas.heads.two_level import LARGEST, TwoLevelSoftmax, by_frequency

B, L, C, D = 5, 3, 31, 4
TARGET = torch.tensor([[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])
COUNTS = 1000 // (torch.randperm(C, generator=tapas.rng.stream(0, "order")) + 1)


def make(counts=COUNTS, **options):
    return TwoLevelSoftmax(counts, D, **({"seed": 3} | options))


def queries(num=B):
    return torch.randn(num, D, generator=tapas.rng.stream(0, "query"))


def members(head):
    return [(head.cluster_of == g).nonzero()[:, 0].tolist() for g in range(head.num_clusters)]


def oracle(head, query):
    groups = members(head)
    weight, bias = head.clusters.rows(torch.arange(head.num_clusters))

    def inner(g, q):
        return log_softmax(q, *head.classes.rows(head.place_of[torch.tensor(groups[g])]))

    return clustered_log_probs(query, groups, lambda q: log_softmax(q, weight, bias), inner)


@pytest.mark.parametrize("options", [{}, {"num_clusters": 1}, {"num_clusters": C}, {"bias": False}])
def test_loss_and_log_prob_are_a_product_of_two_softmaxes(options):
    head = make(reduction="none", row_optimizer=None, **options)
    query = queries()
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    log_p = oracle(head, query)
    want = torch.tensor(weighted_loss(log_p, TARGET, weight), dtype=torch.float32)
    torch.testing.assert_close(head(query, TARGET, weight), want)
    got = head.log_prob(query, torch.arange(C).expand(B, C))
    torch.testing.assert_close(got.double(), torch.from_numpy(log_p), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_clusters", [1, 3, 32, 400, 1000])
def test_clusters_have_equal_mass_where_sizes_allow(num_clusters):
    counts = (10**6 / np.arange(1, 1001)).astype(np.int64)
    cluster = by_frequency(counts, num_clusters)
    sizes = np.bincount(cluster)
    assert sizes.min() >= 1  # numbered without gaps
    assert sizes.max() <= LARGEST * -(-1000 // num_clusters)
    assert (np.diff(cluster) >= 0).all()  # frequent classes first
    share = np.bincount(cluster, weights=counts + 1.0) / (counts + 1.0).sum()
    # a class of more mass has a cluster alone; others exceed theirs by their last class at most
    several = np.array([share[g] for g in range(len(sizes)) if sizes[g] > 1])
    assert (several <= 1 / num_clusters + (counts[1:2] + 1) / (counts + 1.0).sum()).all()


def test_a_large_cluster_of_rare_classes_is_cut_into_equal_ones():
    counts = np.array([10**9] * 10 + [0] * 990)
    sizes = np.bincount(by_frequency(counts, 10))
    assert sizes.tolist() == [
        2,
        *[1] * 8,
        330,
        330,
        330,
    ]  # uncut, the last cluster would have all 990


def test_rows_of_a_cluster_are_adjacent_by_ascending_id():
    head = make()
    for g, ids in enumerate(members(head)):
        first, last = int(head.first[g]), int(head.first[g + 1])
        assert head.class_at[first:last].tolist() == ids
        assert head.place_of[ids].tolist() == list(range(first, last))


def test_only_classes_of_the_targets_clusters_move():
    head = make(row_optimizer=tapas.optim.LazyAdam.fused(lr=0.1, weight_decay=0.1))
    before, clusters = head.classes.weight.clone(), head.clusters.weight.clone()
    head(queries(2), torch.tensor([[4, -100], [9, 4]])).backward()
    moved = (head.classes.weight != before).any(dim=1)[head.place_of].nonzero()[:, 0].tolist()
    touched = {int(head.cluster_of[4]), int(head.cluster_of[9])}
    assert moved == [c for c in range(C) if int(head.cluster_of[c]) in touched]
    assert len(moved) < C
    assert bool((head.clusters.weight != clusters).any(dim=1).all())


def test_scores_per_example_are_clusters_and_the_mean_cluster():
    head = make()
    groups = members(head)
    total = sum(int(COUNTS[c]) * len(ids) for ids in groups for c in ids)
    want = len(groups) + total / int(COUNTS.sum())
    assert head.scores_per_example == pytest.approx(want)


def test_the_search_does_not_visit_all_clusters(monkeypatch):
    import tapas.heads.two_level as module

    head, visits, search = make(torch.ones(900)), [], module.topk_in_cluster
    with torch.no_grad():
        head.clusters.weight.mul_(20)
    monkeypatch.setattr(
        module, "topk_in_cluster", lambda *a, **o: visits.append(len(a[3])) or search(*a, **o)
    )
    ids = head.topk(queries(), 3)[1]
    log_p = head.log_prob(queries(), torch.arange(900).expand(B, -1))
    assert torch.equal(ids, log_p.topk(3).indices)
    assert sum(visits) < B * head.num_clusters / 2
