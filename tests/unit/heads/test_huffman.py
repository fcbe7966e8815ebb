"""The Huffman tree has the shortest codes, and the softmax follows its paths."""

import pytest
import torch
from oracle.flat_heads import count_reads
from oracle.trees import code_length, codes, tree_log_probs, weighted_loss

import tapas
from tapas.heads.huffman import HuffmanSoftmax, huffman_tree

B, L, C, D = 5, 3, 29, 4
TARGET = torch.tensor([[1, 5, 28], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9]])
COUNTS = {
    "random": torch.randint(1000, (C,), generator=tapas.rng.stream(0, "counts")),
    "ties": torch.arange(C) // 7,
    "all zero": torch.zeros(C, dtype=torch.int64),
    "dominant": torch.ones(C, dtype=torch.int64).index_fill(0, torch.tensor([11]), 10**15),
    "powers": 2 ** torch.arange(C),
    "two": torch.tensor([3, 0]),
    "odd": torch.tensor([2**53 + 1, 2**53, 2**53 + 3, 1, 2, 2**53 + 2]),  # not floats
}


def make(counts=COUNTS["random"], **options):
    head = HuffmanSoftmax(counts, D, **({"seed": 3} | options))
    with torch.no_grad():
        head.nodes.weight.normal_(generator=tapas.rng.stream(0, "rows"))
        head.nodes.bias.normal_(generator=tapas.rng.stream(0, "biases"))
    return head


def queries(num=B):
    return torch.randn(num, D, generator=tapas.rng.stream(0, "query"))


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_codes_are_prefix_free_and_as_short_as_any(counts):
    ways = codes(huffman_tree(counts.numpy()).down)
    assert sorted(ways) == list(range(len(counts)))
    # a binary tree whose leaves are these has just 2^-depth of each: no code begins another
    assert sum(2.0 ** -len(way) for way in ways.values()) == 1
    assert not any(a != b and b.startswith(a) for a in ways.values() for b in ways.values())
    length = sum(int(counts[c]) * len(way) for c, way in ways.items())
    assert length == code_length(counts.tolist())


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_paths_up_are_the_codes_down(counts):
    head = make(counts)
    position, edge = head.paths(torch.arange(len(counts)))
    for class_id, code in codes(head.down).items():
        steps = edge[position == class_id]
        assert "".join(str(int(step) & 1) for step in steps.flip(0)) == code
        assert int(steps[-1]) >> 1 == 0  # the root


def test_scores_per_example_is_the_mean_length_of_a_code():
    counts = COUNTS["random"]
    want = code_length(counts.tolist()) / int(counts.sum())
    assert make(counts).scores_per_example == pytest.approx(want)
    assert make(torch.zeros(8)).scores_per_example == 3


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_an_untrained_tree_gives_every_class_its_frequency(counts):
    head = HuffmanSoftmax(counts, D)
    log_p = head.log_prob(queries(1), torch.arange(len(counts))[None])[0]
    want = ((counts.double() + 1) / (counts.double() + 1).sum()).log()
    torch.testing.assert_close(log_p.double(), want, rtol=1e-5, atol=1e-5)


def test_without_biases_every_decision_starts_even():
    head = HuffmanSoftmax(COUNTS["powers"], D, bias=False)
    log_p = head.log_prob(queries(1), torch.tensor([[C - 1, C - 2]]))[0]
    torch.testing.assert_close(log_p.exp(), torch.tensor([0.5, 0.25]))


def test_loss_and_log_prob_are_those_of_a_loop_over_the_path():
    head, query = make(reduction="none", row_optimizer=None), queries()
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    log_p = tree_log_probs(query, head.down, head.nodes.weight.detach(), head.nodes.bias.detach())
    want = torch.tensor(weighted_loss(log_p, TARGET, weight), dtype=torch.float32)
    torch.testing.assert_close(head(query, TARGET, weight), want)
    got = head.log_prob(query, torch.arange(C).expand(B, C))
    torch.testing.assert_close(got.double(), torch.from_numpy(log_p), rtol=1e-5, atol=1e-5)


def test_only_nodes_on_the_path_to_a_target_move():
    head = make(row_optimizer=tapas.optim.LazyAdam.fused(lr=0.1, weight_decay=0.1))
    before = head.nodes.weight.clone()
    head(queries(2), torch.tensor([[4, -100], [9, 4]])).backward()
    moved = (head.nodes.weight != before).any(dim=1).nonzero()[:, 0].tolist()
    _owner, edge = head.paths(torch.tensor([4, 9]))
    assert moved == sorted(set((edge >> 1).tolist()))
    assert len(moved) < C - 1


def test_the_search_does_not_visit_all_nodes():
    """A search without pruning would also be exact, but slow."""
    counts = torch.full((2000,), 1)
    head = HuffmanSoftmax(counts, D)
    with torch.no_grad():
        head.nodes.weight.normal_(0, 5, generator=tapas.rng.stream(0, "rows"))
    seen = count_reads(head.nodes)
    ids = head.topk(queries(1), 3)[1]
    log_p = head.log_prob(queries(1), torch.arange(2000)[None])
    assert torch.equal(ids, log_p.topk(3).indices)
    assert sum(seen[:-1]) < 1000
