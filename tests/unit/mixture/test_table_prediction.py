"""Predictions from a class table and counting parts equal loops over all classes."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from unit.mixture.cases import C, cases

from tapas.mixture import TablePrediction
from tapas.tables import LocalTable


def predicted(case, mixture=True):
    """The prediction of a table whose logits are those of `case`."""
    table = LocalTable(C, C)
    with torch.no_grad():
        table.weight.copy_(torch.eye(C))
        table.bias.zero_()
    parts = (case.mixture, case.past) if mixture else (None, None)
    return TablePrediction(table, case.logits, *parts)


def every(case):
    return torch.arange(C).repeat(len(case.items), 1)


def best_of(log_prob, case, k):
    """Ids of the k best classes that are not excluded, the smaller id first where they tie."""
    rows = []
    for b, row in enumerate(log_prob.tolist()):
        left = [c for c in range(C) if c not in case.excluded(b)]
        rows.append(sorted(left, key=lambda c: (-row[c], c))[:k])
    return rows


@given(case=cases(), k=st.sampled_from([1, 4, C]))
def test_best_classes_and_log_probabilities_are_those_of_the_mixture(case, k):
    prediction = predicted(case)
    wanted = torch.stack([torch.as_tensor(case.oracle(b)[0]) for b in range(len(case.items))])
    _, log_prob = prediction.topk_and_log_prob(k, every(case), case.exclude)
    torch.testing.assert_close(log_prob.exp().double(), wanted.double(), rtol=1e-3, atol=1e-6)
    score, ids = prediction.topk(k, case.exclude)
    assert torch.equal(ids, prediction.topk_log_prob(k, case.exclude)[1])
    for b, row in enumerate(ids.tolist()):
        found = [c for c in row if c >= 0]
        assert not set(found) & set(case.excluded(b))
        left = best_of(log_prob, case, k)[b]
        assert len(found) == len(left)
        torch.testing.assert_close(
            score[b, : len(found)], log_prob[b, left].to(score.dtype), rtol=1e-4, atol=1e-4
        )
        assert row[len(found) :] == [-1] * (k - len(found))


@given(case=cases(), k=st.sampled_from([1, 4, C]))
def test_without_counting_parts_it_is_the_softmax_of_the_table(case, k):
    prediction = predicted(case, mixture=False)
    wanted = case.logits.log_softmax(dim=1)
    score, ids = prediction.topk(k, case.exclude)
    log_score, same = prediction.topk_log_prob(k, case.exclude)
    assert torch.equal(ids, same)
    for b, row in enumerate(ids.tolist()):
        found = [c for c in row if c >= 0]
        assert len(found) == len(best_of(wanted, case, k)[b])
        torch.testing.assert_close(score[b, : len(found)], case.logits[b, found])
        torch.testing.assert_close(
            log_score[b, : len(found)], wanted[b, found], rtol=1e-4, atol=1e-5
        )
    best, log_prob = prediction.topk_and_log_prob(k, every(case), case.exclude)
    assert torch.equal(best, ids)
    torch.testing.assert_close(log_prob, wanted, rtol=1e-4, atol=1e-4)


@given(case=cases())
def test_contributions_of_the_parts_add_up_to_the_probability(case):
    prediction = predicted(case)
    found = prediction.contributions(every(case), case.exclude)
    assert found.shape == (len(case.items), C, len(prediction.part_names))
    assert prediction.part_names == ("softmax", *case.mixture.names)
    _, log_prob = prediction.topk_and_log_prob(1, every(case), case.exclude)
    torch.testing.assert_close(found.sum(dim=2).float(), log_prob.exp(), rtol=1e-3, atol=1e-6)
    padded = every(case)
    padded[:, 1::2] = -1
    some = prediction.contributions(padded, case.exclude)
    assert torch.equal(some[:, ::2], found[:, ::2])


@given(case=cases())
def test_without_counting_parts_the_softmax_is_the_only_part(case):
    prediction = predicted(case, mixture=False)
    assert prediction.part_names == ("softmax",)
    found = prediction.contributions(every(case))
    assert torch.equal(found, torch.ones(len(case.items), C, 1, dtype=torch.float64))
