"""The mixed distribution and its best classes, against all classes one by one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import mixture as oracle
from unit.mixture.cases import PARTS, C, cases, mixture_of

from tapas import LocalTable
from tapas.mixture import Mixed, Past, softmax_part


@given(case=cases())
def test_probabilities_are_those_of_a_loop_over_all_classes_and_sum_to_1(case):
    mixed = case.mixture(case.past, case.exclude)
    every = torch.arange(C).expand(len(case.items), C)
    prob = mixed.log_prob(case.softmax, every).exp().numpy()
    for b in range(len(case.items)):
        want, shares = case.oracle(b)
        np.testing.assert_allclose(mixed.log_shares[b].exp(), shares, rtol=1e-6, atol=1e-30)
        np.testing.assert_allclose(prob[b], want, rtol=1e-4, atol=1e-30)
        assert prob[b].sum() == pytest.approx(1, abs=1e-5)


@given(case=cases())
def test_contributions_of_the_parts_add_up_to_the_probabilities(case):
    every = torch.arange(C).expand(len(case.items), C)
    want = case.mixture(case.past, case.exclude).log_prob(case.softmax, every).exp()
    found = case.mixture.contributions(case.past, every, case.softmax, case.exclude)
    assert found.shape == (*every.shape, 1 + len(case.mixture.names))
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.sum(dim=2).float(), want, rtol=1e-4, atol=1e-30)
    shares = case.mixture(case.past, case.exclude).log_shares.exp()
    torch.testing.assert_close(found.sum(dim=1), shares, rtol=1e-4, atol=1e-6)


@given(case=cases(), k=st.sampled_from([1, 3, C, C + 2]))
def test_the_best_classes_are_those_of_all_probabilities(case, k):
    """With ties, and -1 where no class is left."""
    mixed = case.mixture(case.past, case.exclude)
    every = torch.arange(C).expand(len(case.items), C)
    dense, softmax = mixed.log_prob(case.softmax, every), case.softmax
    score, ids = mixed.topk(case.best_of_softmax(k), lambda ids: softmax.gather(1, ids))
    for b in range(len(case.items)):
        want = oracle.best(dense[b].tolist(), k, case.excluded(b))
        assert ids[b].tolist() == want
        values = [float(dense[b, c]) if c >= 0 else -math.inf for c in want]
        # a probability near 1 is rounded to 6e-8, and its logarithm is as large
        assert score[b].tolist() == pytest.approx(values, rel=1e-6, abs=2e-7)


@st.composite
def masses(draw, batch=2):
    """Adversarial masses: equal ones, tiny ones, almost all of the probability, none."""
    value = st.sampled_from([0.0, 1e-42, 1e-9, 1e-3, 0.25, 0.25, 1.0])
    rows = [draw(st.dictionaries(st.integers(0, C - 1), value, max_size=C)) for _ in range(batch)]
    width = max(1, *map(len, rows))
    items, mass = torch.full((batch, width), -1), torch.zeros(batch, width)
    rest = torch.empty(batch)
    for b, row in enumerate(rows):
        total = draw(st.sampled_from([1e-6, 0.5, 1 - 1e-6])) if sum(row.values()) else 0.0
        for place, (item, each) in enumerate(sorted(row.items())):
            items[b, place], mass[b, place] = item, total * each / max(sum(row.values()), 1e-300)
        rest[b] = 1 - total
    return Mixed(items, mass, rest.log(), rest.log()[:, None])


@given(
    mixed=masses(), k=st.integers(1, C),
    logits=st.lists(st.integers(-60, 3), min_size=2 * C, max_size=2 * C),
)  # fmt: skip
def test_no_class_is_lost_by_leaving_out_those_without_hope(mixed, k, logits):
    softmax = torch.tensor(logits).view(2, C).float().log_softmax(dim=1)
    best = torch.tensor([oracle.best(row.tolist(), k) for row in softmax])
    dense = mixed.log_prob(softmax, torch.arange(C).expand(2, C))
    _, ids = mixed.topk(best, lambda ids: softmax.gather(1, ids))
    assert ids.tolist() == [oracle.best(row.tolist(), k) for row in dense]


@pytest.mark.parametrize(
    ("often", "scored", "best"), [([97, 99], [97, 99], [100, 97, 99]), ([101, 102], [0], None)]
)
def test_only_classes_with_hope_are_scored(often, scored, best):
    """The softmax is sure of class 100, and all but two followers have little mass."""
    mass = torch.full((1, 103), 1e-6)
    mass[0, often] = 0.1
    log_rest = (1 - mass.sum(dim=1)).log()
    mixed = Mixed(torch.arange(103)[None], mass, log_rest, log_rest[:, None])
    softmax = torch.tensor([-30.0] * 100 + [0.0, -20.0, -20.0]).log_softmax(dim=0)[None]
    asked = []

    def log_prob(ids):
        asked.append(ids.tolist())
        return softmax.gather(1, ids)

    _, ids = mixed.topk(torch.tensor([[100, 101, 102]]), log_prob)
    assert ids.tolist() == [best or [100, 101, 102]]
    first, second = asked
    assert first == [[100, 101, 102]]
    assert sorted(second[0]) == scored  # if there is no hope, one is: other ranks may have some


def test_classes_that_softmax_and_counts_both_offer_are_put_in_order():
    """All that is offered is among the best of the softmax, but in another order."""
    count = np.zeros((C, C))
    count[0, 2] = 1
    mixture = mixture_of(["follow"], count, gate=[[3.0, 0, 0, 0, 0]])
    mixed = mixture(Past.of(torch.tensor([[0]]), torch.tensor([1])))
    softmax = torch.arange(0.0, -C, -1).log_softmax(dim=0)[None]
    _, ids = mixed.topk(torch.tensor([[0, 1, 2, 3]]), lambda ids: softmax.gather(1, ids))
    assert ids.tolist() == [[2, 0, 1, 3]]


@given(case=cases(), k=st.sampled_from([1, 4, C]))
def test_lists_of_a_table_are_those_of_the_mixture(case, k):
    """The row of each class is a unit vector: queries are logits."""
    table = LocalTable(C, C, bias=torch.zeros(C))
    with torch.no_grad():
        table.weight.copy_(torch.eye(C))
    score, ids = case.mixture.topk(table, case.logits, case.past, k, case.exclude)
    for b in range(len(case.items)):
        prob, _ = case.oracle(b)
        left = [c for c in range(C) if c not in case.excluded(b)]
        want = sorted(prob[left])[::-1][:k]
        found = [c for c in ids[b].tolist() if c >= 0]
        assert set(found) <= set(left)
        assert len(set(found)) == len(found) == min(k, len(left))
        np.testing.assert_allclose(prob[found], want, rtol=1e-4)  # ties may be rounded apart
        np.testing.assert_allclose(score[b, : len(found)].exp(), want, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("parts", PARTS)
def test_a_part_starts_with_1_over_e_of_the_share_of_the_softmax(parts):
    mixture = mixture_of(parts, np.ones((C, C)))
    mixed = mixture(Past.of(torch.tensor([[3, 4]]), torch.tensor([2])))
    total = 1 + len(parts) / math.e
    want = [1 / total] + [1 / math.e / total] * len(parts)
    assert mixed.log_shares.exp()[0].tolist() == pytest.approx(want)
    assert float(mixture.scale) == 1


def test_a_part_with_nothing_to_offer_gets_no_share():
    count = np.zeros((C, C))
    count[5, 6] = 2
    mixture = mixture_of(["copy", "follow"], count)
    items, lengths = torch.tensor([[5], [4], [5]]), torch.ones(3, dtype=torch.int64)
    exclude = torch.tensor([[-1, -1], [4, -1], [6, 5]])
    shares = mixture(Past.of(items, lengths), exclude).log_shares.exp()
    assert (shares > 0).tolist() == [[True] * 3, [True, False, False], [True, False, False]]
    assert shares[1:, 0].tolist() == [1, 1]


def test_no_histories_have_no_lists():
    """As on a rank that has no examples."""
    mixture = mixture_of(["copy", "follow"], np.ones((C, C)))
    past = Past.of(torch.empty(0, 2, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    score, ids = mixture.topk(LocalTable(C, 4), torch.empty(0, 4), past, 3, None)
    assert score.shape == ids.shape == (0, 3)


def test_numbers_are_saved_and_stay_on_the_cpu_in_full_precision():
    mixture = mixture_of(["copy", "follow"], np.ones((C, C)), scale=0.75)
    names = {"gate", "scale", "copy.decay", "copy.log_power", "follow.decay", "follow.trust"}
    assert set(mixture.state_dict()) == names
    assert not list(mixture.parameters())
    model = torch.nn.Sequential(mixture).to("meta").half()
    assert all(x.device.type == "cpu" and x.dtype == torch.float32 for x in model.buffers())
    again = mixture_of(["copy", "follow"], np.ones((C, C)))
    again.load_state_dict(mixture.state_dict())
    assert float(again.scale) == 0.75


@pytest.mark.parametrize("rows_at_once", [1, 7, 1 << 17])
def test_logits_are_computed_a_few_queries_at_a_time(monkeypatch, rows_at_once):
    monkeypatch.setattr(softmax_part, "ROWS_AT_ONCE", rows_at_once)
    table = LocalTable(C, 3, bias=torch.linspace(-1, 1, C))
    query, ids = torch.linspace(-2, 2, 15).view(5, 3), torch.arange(20).view(5, 4) % C
    want = (query @ table.weight.t() + table.bias).gather(1, ids)
    torch.testing.assert_close(softmax_part.logits_of(table, query, ids), want)
    assert softmax_part.logits_of(table, query[:0], ids[:0]).shape == (0, 4)
