"""The model and its copy part, against plain loops over events and classes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tapas import TapasSoftmax, UsageError
from tapas.data.windows import SequenceBatch
from tapas.encoders import GRUEncoder, MeanEncoder, TransformerEncoder
from tapas.optim import SGD
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.training.copy_part import AGE_SCALE, CopyDistribution, CopyPart
from tapas.training.model import SequenceModel, target_weights

C, D, T = 13, 6, 7
ITEMS = torch.tensor([[3, 4, 3, 5, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0], [7, 3, 8, 7, 7, 9, 3]])
LENGTHS = torch.tensor([4, 1, 7])
BATCH = SequenceBatch(
    items=ITEMS,
    lengths=LENGTHS,
    query_index=torch.tensor([0, 3, 7, 16, 20]),
    target=torch.tensor([[4, 3, -100], [3, 3, 12], [6, -100, -100], [2, 8, 4], [7, 11, -100]]),
)
ENCODERS = {
    "mean": lambda: MeanEncoder(D, window=T, seed=1),
    "gru": lambda: GRUEncoder(D, seed=1),
    "transformer": lambda: TransformerEncoder(D, window=T, seed=1),
}


def learned(history=T, **options):
    """A copy part with random parameters, as after training."""
    copy = CopyPart(C, D, history=history, **options)
    draw = stream(5, "repeats")
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
        copy.age.mul_(0.1)
        copy.rate.weight.copy_(torch.randn(C, 1, generator=draw))
    return copy


def build(encoder="gru", *, separate_inputs=True, copy=True, weight_decay=0.0, **options):
    """All classes are sampled, so that the sampled loss is exact."""
    rows = SGD.fused(lr=0.5, weight_decay=weight_decay)
    head = TapasSoftmax(C, D, num_samples=C, presample_factor=1, row_optimizer=rows, seed=2)
    with torch.no_grad():
        head.table.weight.copy_(torch.randn(C, D, generator=stream(1, "rows")))
        head.table.bias.copy_(torch.linspace(-1, 1, C))
    inputs = LocalTable(C, D, row_optimizer=rows, bias=False, seed=3) if separate_inputs else None
    copy = learned(row_optimizer=rows) if copy else None
    return SequenceModel(ENCODERS[encoder](), head, inputs=inputs, copy=copy, **options)


def age_of(copy, back):
    """Linear interpolation of the learned values at 1, 2, 4, ... events."""
    place = math.log2(min(back + 1, copy.history))
    knots = (AGE_SCALE * copy.age.detach().double()).tolist()
    return float(np.interp(place, range(len(knots)), knots))


def probabilities(model, row, last):
    """Probabilities (C,) of the mixture after event `last` of `row`, by loops."""
    copy = model.copy
    items = ITEMS[row, : last + 1].tolist()
    vectors = model.inputs.rows(ITEMS[row, : last + 1])[0].double().numpy()
    query = model.states(ITEMS, LENGTHS)[row, last].detach().double().numpy()
    weight, bias = (part.double().numpy() for part in model.head.table.rows(torch.arange(C)))
    softmax = np.exp(weight @ query + bias)
    softmax /= softmax.sum()
    if copy is None:
        return softmax
    key = copy.key.detach().double().numpy()
    rate = copy.rate.weight[:, 0].tolist()
    score = [
        query @ key @ vectors[t] / math.sqrt(D) + age_of(copy, last - t) + rate[item]
        for t, item in enumerate(items)
    ]
    share = np.exp(score) / np.exp(score).sum()
    gate = query @ copy.gate.detach().double().numpy() + float(copy.gate_bias.detach())
    g = 1 / (1 + math.exp(-gate))
    mixed = (1 - g) * softmax
    for part, item in zip(share, items, strict=True):
        mixed[item] += g * part
    assert mixed.sum() == pytest.approx(1)
    return mixed


@pytest.mark.parametrize("separate_inputs", [True, False], ids=["own", "shared"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_states_are_those_of_each_row_alone_without_its_padding(encoder, separate_inputs):
    model = build(encoder, separate_inputs=separate_inputs)
    states = model.states(ITEMS, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        x = model.inputs.rows(ITEMS[row, :length])[0][None]
        alone = model.encoder(x, torch.tensor([length]))[0]
        torch.testing.assert_close(states[row, :length], alone)
        query = model.query(ITEMS[row : row + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(query[0], alone[-1])


@pytest.mark.parametrize("separate_inputs", [True, False], ids=["own", "shared"])
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("copy", "decay"), [(True, 1.0), (True, 0.5), (False, 1.0)])
def test_the_loss_is_that_of_the_mixture(encoder, separate_inputs, copy, decay):
    """Without the copy part, that of the softmax: a mean over positions of means over targets."""
    model = build(encoder, separate_inputs=separate_inputs, copy=copy, target_decay=decay)
    total = 0.0
    weights = target_weights(BATCH.target, decay).tolist()
    for place, targets, weight in zip(
        BATCH.query_index.tolist(), BATCH.target.tolist(), weights, strict=True
    ):
        p = probabilities(model, *divmod(place, T))
        pairs = zip(targets, weight, strict=True)
        total -= sum(share * math.log(p[target]) for target, share in pairs if target >= 0)
    assert float(model.loss(BATCH).detach()) == pytest.approx(total / 5, rel=1e-5)


@pytest.mark.parametrize("copy", [False, True])
def test_an_event_of_weight_2_is_a_target_counted_twice(copy):
    """Weights of events multiply those of the places, which still sum to 1 without them."""
    model = build(copy=copy, target_decay=0.5)
    events = torch.tensor([[2, 1, 0], [0.5, 1, 3], [2, 0, 0], [1, 1, 1], [1, 4, 0]]).float()
    total = 0.0
    for place, targets, counts in zip(
        BATCH.query_index.tolist(), BATCH.target.tolist(), events.tolist(), strict=True
    ):
        p = probabilities(model, *divmod(place, T))
        shares = [0.5**k for k, target in enumerate(targets) if target >= 0]
        for target, share, count in zip(targets, shares, counts, strict=False):
            total -= count * share / sum(shares) * math.log(p[target])
    loss = model.loss(replace(BATCH, weight=events))
    assert float(loss.detach()) == pytest.approx(total / 5, rel=1e-5)


@pytest.mark.parametrize("copy", [False, True])
def test_weights_of_1_change_nothing(copy):
    model = build(copy=copy)
    ones = replace(BATCH, weight=torch.ones(5, 3))
    torch.testing.assert_close(model.loss(ones), model.loss(BATCH), rtol=1e-6, atol=0)


def test_the_copy_part_starts_with_item_counts_and_half_of_the_probability():
    copy = CopyPart(C, D, history=T)
    x, query = torch.randn(3, T, D, generator=stream(0, "x")), torch.ones(3, D)
    found = copy(query, x, ITEMS, torch.tensor([3, 7, 20]))
    got = found.log_prob(torch.full((3, 2), -torch.inf), torch.tensor([[3, 4], [6, 1], [7, 12]]))
    want = torch.tensor([[2 / 4, 1 / 4], [1, 0], [3 / 7, 0]]) / 2
    torch.testing.assert_close(got.exp(), want)


@pytest.mark.parametrize("history", [1, 2, 3, 4, 7, 8, 9])
def test_ages_are_linear_between_powers_of_two_and_constant_beyond_the_history(history):
    copy = learned(history=history)
    want = [age_of(copy, back) for back in range(12)]
    assert copy._ages(12).tolist() == pytest.approx(want, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("k", [1, 4, C])
@pytest.mark.parametrize("exclude", [None, [[3, 5, -1], [-1, -1, -1], [0, 7, 12]]])
def test_lists_are_the_best_of_all_classes(k, exclude, copy):
    model = build(copy=copy)
    barred = None if exclude is None else torch.tensor(exclude)
    after = model.predict(ITEMS, LENGTHS)
    score, ids = after.topk(k, barred)
    log_prob = after.log_prob(torch.arange(C).expand(3, C))
    for row, length in enumerate(LENGTHS.tolist()):
        p = probabilities(model, row, length - 1)
        np.testing.assert_allclose(log_prob[row].numpy(), np.log(p), rtol=1e-4)
        left = [c for c in range(C) if exclude is None or c not in exclude[row]]
        best = sorted(left, key=lambda c: -p[c])[:k]
        short = k - len(best)
        assert ids[row].tolist() == best + [-1] * short
        if copy:  # without it, scores are logits
            want = [math.log(p[c]) for c in best] + [-math.inf] * short
            assert score[row].tolist() == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("copy", [True, False])
def test_histories_are_encoded_a_few_at_a_time_to_predict(copy, monkeypatch):
    model = build(copy=copy)
    every = torch.arange(C).expand(3, C)
    want = model.predict(ITEMS, LENGTHS).log_prob(every)
    monkeypatch.setattr("tapas.training.model.PLACES_AT_ONCE", 1)
    torch.testing.assert_close(model.predict(ITEMS, LENGTHS).log_prob(every), want)


def test_a_copied_item_the_softmax_ranks_last_can_be_first():
    model = build()
    with torch.no_grad():
        model.head.table.bias[6] = -50.0
        model.copy.gate_bias.fill_(20.0)
    _, ids = model.predict(ITEMS, LENGTHS).topk(1)
    assert ids[1].tolist() == [6]


def test_equal_probabilities_are_ordered_by_id():
    head = TapasSoftmax(C, D, num_samples=3)
    with torch.no_grad():
        head.table.weight.zero_()
    copies = CopyDistribution(
        items=torch.tensor([[9, 2, -1, 9]]),
        share=torch.tensor([[0.25, 0.5, 0.0, 0.25]]),
        gate=torch.zeros(1),
    )
    query = torch.ones(1, D)
    _, best = head.topk(query, 5)
    _, ids = copies.topk(best, lambda ids: head.log_prob(query, ids), C)
    assert ids.tolist() == [[2, 9, 0, 1, 3]]


@pytest.mark.parametrize("copy", [True, False], ids=["mixture", "softmax"])
@pytest.mark.parametrize("all_excluded", [True, False], ids=["all excluded", "some"])
def test_lists_and_log_probabilities_in_one_pass_are_those_of_two(copy, all_excluded):
    prediction = build(copy=copy).predict(ITEMS, LENGTHS)
    exclude = torch.tensor([[3, 9, 0, -1], [-1, -1, -1, -1], [7, 8, 9, 11]])
    if all_excluded:
        exclude = torch.cat([torch.arange(C).expand(1, C), torch.full((2, C), -1)])
    ids = torch.tensor([[0, 3], [12, 12], [9, 1]])
    best, log_prob = prediction.topk_and_log_prob(6, ids, exclude)
    assert torch.equal(best, prediction.topk(6, exclude)[1])
    assert torch.equal(best, prediction.topk_log_prob(6, exclude)[1])
    torch.testing.assert_close(log_prob, prediction.log_prob(ids))


@pytest.mark.parametrize("separate_inputs", [True, False], ids=["own", "shared"])
def test_gradients_are_those_of_finite_differences(separate_inputs):
    model = build(separate_inputs=separate_inputs)
    model.loss(BATCH).backward()
    fresh = build(separate_inputs=separate_inputs)  # backward has moved the rows
    dense = {n: p for n, p in model.copy.named_parameters() if "rate" not in n}
    for name, parameter in dense.items():
        there = dict(fresh.copy.named_parameters())[name]
        for place in range(0, parameter.numel(), 7):
            losses = []
            for step in (-1e-2, 1e-2):
                with torch.no_grad():
                    there.view(-1)[place] += step
                    losses.append(float(fresh.loss(BATCH)))
                    there.view(-1)[place] -= step
            slope = (losses[1] - losses[0]) / 2e-2
            assert float(parameter.grad.view(-1)[place]) == pytest.approx(slope, abs=2e-3), name


def test_only_rows_in_the_batch_are_updated_and_padding_does_not_even_decay():
    model = build(weight_decay=0.1)
    tables = (model.input_table, model.copy.rate)
    before = [table.weight.clone() for table in tables]
    model.loss(BATCH).backward()
    moved = [
        (table.weight != old).any(dim=1).nonzero()[:, 0].tolist()
        for table, old in zip(tables, before, strict=True)
    ]
    assert moved == [[3, 4, 5, 6, 7, 8, 9]] * 2  # 0 is padding; the rest is in no history


def test_shared_inputs_get_both_gradients_in_one_update():
    shared, apart = (
        build(separate_inputs=separate_inputs, copy=False) for separate_inputs in (False, True)
    )
    start = shared.head.table.weight.clone()
    with torch.no_grad():
        apart.input_table.weight.copy_(start)
    for model in (shared, apart):
        model.loss(BATCH).backward()
    as_class, as_input = apart.head.table.weight - start, apart.input_table.weight - start
    torch.testing.assert_close(shared.head.table.weight - start, as_class + as_input)


def test_an_encoder_in_half_precision_gives_queries_in_full():
    half, full = (
        build(encoder_dtype=d).query(ITEMS, LENGTHS) for d in (torch.bfloat16, torch.float32)
    )
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


def test_target_weights_decay_and_padding_has_none():
    target = torch.tensor([[4, 9, 2], [7, -100, -100], [1, 1, -100]])
    want = torch.tensor([[4 / 7, 2 / 7, 1 / 7], [1, 0, 0], [2 / 3, 1 / 3, 0]])
    torch.testing.assert_close(target_weights(target, 0.5), want)


def test_targets_outside_the_history_have_finite_gradients():
    model = build()
    target = torch.full_like(BATCH.target, 12)
    batch = SequenceBatch(BATCH.items, BATCH.lengths, BATCH.query_index, target)
    model.loss(batch).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_without_a_copy_part_every_tensor_is_that_of_the_head_alone_up_to_rounding(decay):
    plain, by_hand = (build(copy=False, target_decay=decay) for _ in range(2))
    weight = None if decay == 1 else target_weights(BATCH.target, decay)
    for _ in range(3):
        plain.loss(BATCH).backward()
        query = by_hand.states(ITEMS, LENGTHS).view(-1, D)[BATCH.query_index]
        by_hand.head(query, BATCH.target, weight).backward()
    mine, theirs = plain.state_dict(), by_hand.state_dict()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], msg=name)
    for one, two in zip(plain.encoder.parameters(), by_hand.encoder.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def mismatched():
    head = TapasSoftmax(C, D, num_samples=3)
    SequenceModel(GRUEncoder(4), head, inputs=LocalTable(C, 5))


BAD = {
    "history must be at least 1, got 0.": lambda: CopyPart(C, D, history=0),
    "a history is empty; expected at least one item in each.": lambda: build().predict(
        ITEMS, torch.tensor([4, 0, 7])
    ),
    "inputs, encoder and head have 5, 4 and 6 dimensions; expected the same dim for all three.": (
        mismatched
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_impossible_arguments_are_refused(words):
    with pytest.raises(UsageError) as error:
        BAD[words]()
    assert str(error.value) == words
