"""The model and its counting parts, against plain loops over events and classes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from contracts import heads
from oracle import mixture as oracle

from tapas import TapasSoftmax, UsageError
from tapas.data.windows import SequenceBatch
from tapas.encoders import GRUEncoder, MeanEncoder, TransformerEncoder
from tapas.heads import METHODS
from tapas.mixture import CopyPart, FollowPart, Mixture, count_transitions
from tapas.optim import SGD
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.training.model import SequenceModel, target_weights

C, D, T = 13, 6, 7
ITEMS = torch.tensor([[3, 4, 3, 5, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0], [7, 3, 8, 7, 7, 9, 3]])
LENGTHS = torch.tensor([4, 1, 7])
AGES = torch.tensor([[3, 2, 2, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [4, 4, 3, 2, 2, 2, 1]])
LOG = np.array([3, 5, 4, 9, 9, 8, 1, 0, 7, 12, 3]), np.arange(11), np.array([0, 4, 11])
BATCH = SequenceBatch(
    items=ITEMS,
    lengths=LENGTHS,
    query_index=torch.tensor([0, 3, 7, 16, 20]),
    target=torch.tensor([[4, 3, -100], [3, 3, 12], [6, -100, -100], [2, 8, 4], [7, 11, -100]]),
)
ENCODERS = {
    "mean": lambda: MeanEncoder(D, window=T, seed=1),
    "gru": lambda: GRUEncoder(D, seed=1),
    "transformer": lambda: TransformerEncoder(D, seed=1),
}


def mixture():
    """Both counting parts, with numbers as after a fit."""
    counted = count_transitions(*LOG, LOG[2][1:], C)
    found = Mixture(copy=CopyPart(), follow=FollowPart(counted))
    draw = stream(5, "numbers")
    for number in found.buffers():
        number.add_(0.3 * torch.randn(number.shape, generator=draw))
    return found


def build(encoder="gru", *, separate_inputs=True, mixed=True, weight_decay=0.0, **options):
    """All classes are sampled, so that the sampled loss is exact."""
    rows = SGD.fused(lr=0.5, weight_decay=weight_decay)
    head = TapasSoftmax(C, D, num_samples=C, presample_factor=1, row_optimizer=rows, seed=2)
    with torch.no_grad():
        head.table.weight.copy_(torch.randn(C, D, generator=stream(1, "rows")))
        head.table.bias.copy_(torch.linspace(-1, 1, C))
    inputs = LocalTable(C, D, row_optimizer=rows, bias=False, seed=3) if separate_inputs else None
    options["mixture"] = mixture() if mixed else None
    return SequenceModel(ENCODERS[encoder](), head, inputs=inputs, **options)


def logits(model, row, last):
    """Logits (C,) of the softmax after event `last` of `row`."""
    query = model.states(ITEMS, LENGTHS)[row, last].detach().double().numpy()
    weight, bias = (part.double().numpy() for part in model.head.table.rows(torch.arange(C)))
    return weight @ query + bias


def probabilities(model, row, excluded=()):
    """Probabilities (C,) after the history of `row`, by loops; with counting parts if it has any.

    Numbers are read as they are; `model` is asked for nothing but its queries and rows.
    """
    length = int(LENGTHS[row])
    scores = logits(model, row, length - 1)
    if model.mixture is None:
        return oracle.softmax(scores)
    count = oracle.transitions(*LOG, LOG[2][1:], C)
    history = ITEMS[row, :length].tolist(), AGES[row, :length].tolist()
    return oracle.mixed(model.mixture, count, *history, scores, excluded)[0]


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
@pytest.mark.parametrize(("mixed", "decay"), [(True, 1.0), (False, 0.5)])
def test_the_loss_is_that_of_the_softmax_alone(encoder, separate_inputs, mixed, decay):
    """A mean over positions of means over targets; counting parts have none of it."""
    model = build(encoder, separate_inputs=separate_inputs, mixed=mixed, target_decay=decay)
    total = 0.0
    weights = target_weights(BATCH.target, decay).tolist()
    for place, targets, weight in zip(
        BATCH.query_index.tolist(), BATCH.target.tolist(), weights, strict=True
    ):
        p = oracle.softmax(logits(model, *divmod(place, T)))
        pairs = zip(targets, weight, strict=True)
        total -= sum(share * math.log(p[target]) for target, share in pairs if target >= 0)
    assert float(model.loss(BATCH).detach()) == pytest.approx(total / 5, rel=1e-5)


def test_an_event_of_weight_2_is_a_target_counted_twice():
    """Weights of events multiply those of the places, which still sum to 1 without them."""
    model = build(target_decay=0.5)
    events = torch.tensor([[2, 1, 0], [0.5, 1, 3], [2, 0, 0], [1, 1, 1], [1, 4, 0]]).float()
    total = 0.0
    for place, targets, counts in zip(
        BATCH.query_index.tolist(), BATCH.target.tolist(), events.tolist(), strict=True
    ):
        p = oracle.softmax(logits(model, *divmod(place, T)))
        shares = [0.5**k for k, target in enumerate(targets) if target >= 0]
        for target, share, count in zip(targets, shares, counts, strict=False):
            total -= count * share / sum(shares) * math.log(p[target])
    loss = model.loss(replace(BATCH, weight=events))
    assert float(loss.detach()) == pytest.approx(total / 5, rel=1e-5)


def test_weights_of_1_change_nothing():
    model = build()
    ones = replace(BATCH, weight=torch.ones(5, 3))
    torch.testing.assert_close(model.loss(ones), model.loss(BATCH), rtol=1e-6, atol=0)


@pytest.mark.parametrize("mixed", [True, False], ids=["mixture", "softmax"])
@pytest.mark.parametrize("k", [1, 4, C])
@pytest.mark.parametrize("exclude", [None, [[3, 5, -1], [-1, -1, -1], [0, 7, 12]]])
def test_lists_are_the_best_of_all_classes(k, exclude, mixed):
    model = build(mixed=mixed)
    barred = None if exclude is None else torch.tensor(exclude)
    after = model.predict(ITEMS, LENGTHS, AGES)
    score, ids = after.topk(k, barred)
    log_prob = after.log_prob(torch.arange(C).expand(3, C))
    for row in range(3):
        np.testing.assert_allclose(log_prob[row], np.log(probabilities(model, row)), rtol=1e-4)
        excluded = () if exclude is None else exclude[row]
        p = probabilities(model, row, excluded)
        best = oracle.best(p, k, excluded)
        assert ids[row].tolist() == best
        if mixed:  # without counting parts, scores are logits
            want = [math.log(p[c]) if c >= 0 else -math.inf for c in best]
            assert score[row].tolist() == pytest.approx(want, rel=1e-4)


def test_every_part_says_what_it_adds_to_a_listed_item():
    after = build(mixed=True).predict(ITEMS, LENGTHS, AGES)
    score, ids = after.topk(4)
    found = after.contributions(ids)
    assert after.part_names == ("softmax", "copy", "follow")
    torch.testing.assert_close(found.sum(dim=2).log().float(), score, rtol=1e-4, atol=1e-5)
    plain = build(mixed=False).predict(ITEMS, LENGTHS, AGES)
    assert plain.part_names == ("softmax",)
    assert plain.contributions(ids).tolist() == [[[1.0]] * 4] * 3


@pytest.mark.parametrize("mixed", [True, False], ids=["mixture", "softmax"])
def test_histories_are_encoded_a_few_at_a_time_to_predict(mixed, monkeypatch):
    model = build(mixed=mixed)
    every = torch.arange(C).expand(3, C)
    want = model.predict(ITEMS, LENGTHS).log_prob(every)
    monkeypatch.setattr("tapas.training.model.PLACES_AT_ONCE", 1)
    torch.testing.assert_close(model.predict(ITEMS, LENGTHS).log_prob(every), want)


def test_the_encoder_reads_the_last_items_and_counting_parts_read_all():
    """Item 3 of the first row is in its first event, too."""
    model, short = build(), build(history=2)
    after = short.predict(ITEMS, LENGTHS, AGES)
    last_two = torch.tensor([[3, 5], [6, 0], [9, 3]])
    torch.testing.assert_close(after.query, model.query(last_two, LENGTHS.clamp(max=2)))
    torch.testing.assert_close(after.query, short.query(ITEMS, LENGTHS))
    mine, theirs = after.mixed(), model.predict(ITEMS, LENGTHS, AGES).mixed()
    assert torch.equal(mine.items, theirs.items)
    assert torch.equal(mine.mass, theirs.mass)


def test_without_ages_each_event_is_a_basket_of_its_own():
    model = build()
    ages = torch.tensor([[4, 3, 2, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [7, 6, 5, 4, 3, 2, 1]])
    found, want = (model.predict(ITEMS, LENGTHS, age).mixed() for age in (None, ages))
    assert torch.equal(found.mass, want.mass)


def test_a_copied_item_the_softmax_ranks_last_can_be_first():
    model = build()
    with torch.no_grad():
        model.head.table.bias[6] = -50.0
    model.mixture.gate[:, 0] = 20.0
    _, ids = model.predict(ITEMS, LENGTHS).topk(1)
    assert ids[1].tolist() == [6]


@pytest.mark.parametrize("mixed", [True, False], ids=["mixture", "softmax"])
@pytest.mark.parametrize("all_excluded", [True, False], ids=["all excluded", "some"])
def test_lists_and_log_probabilities_in_one_pass_are_those_of_two(mixed, all_excluded):
    """But counting parts give nothing to excluded classes, and more to the others."""
    model = build(mixed=mixed)
    prediction = model.predict(ITEMS, LENGTHS, AGES)
    exclude = torch.tensor([[3, 9, 0, -1], [-1, -1, -1, -1], [7, 8, 9, 11]])
    if all_excluded:
        exclude = torch.cat([torch.arange(C).expand(1, C), torch.full((2, C), -1)])
    ids = torch.tensor([[0, 3], [12, 12], [9, 1]])
    best, log_prob = prediction.topk_and_log_prob(6, ids, exclude)
    assert torch.equal(best, prediction.topk(6, exclude)[1])
    assert torch.equal(best, prediction.topk_log_prob(6, exclude)[1])
    for row, mine in enumerate(ids):
        want = np.log(probabilities(model, row, exclude[row].tolist() if mixed else ())[mine])
        np.testing.assert_allclose(log_prob[row], want, rtol=1e-4)
    _, log_prob = prediction.topk_and_log_prob(6, ids)
    torch.testing.assert_close(log_prob, prediction.log_prob(ids))


@pytest.mark.parametrize("method", METHODS)
def test_counting_parts_mix_with_every_method(method):
    """Probabilities sum to 1, and lists are sorted by them."""
    head = heads.build(method, row_optimizer=None)
    found = Mixture(copy=CopyPart())
    inputs = LocalTable(heads.C, heads.D, bias=False, seed=3)
    model = SequenceModel(GRUEncoder(heads.D, seed=1), head, inputs=inputs, mixture=found)
    after = model.predict(ITEMS, LENGTHS, AGES)
    log_prob = after.log_prob(torch.arange(heads.C).expand(3, heads.C))
    torch.testing.assert_close(log_prob.exp().sum(dim=1), torch.ones(3), rtol=1e-4, atol=0)
    score, ids = after.topk(5)
    torch.testing.assert_close(score, log_prob.gather(1, ids), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(score, log_prob.topk(5).values, rtol=1e-4, atol=1e-5)


def test_only_rows_in_the_batch_are_updated_and_padding_does_not_even_decay():
    model = build(weight_decay=0.1)
    before = model.input_table.weight.clone()
    numbers = [number.clone() for number in model.mixture.buffers()]
    model.loss(BATCH).backward()
    moved = (model.input_table.weight != before).any(dim=1).nonzero()[:, 0].tolist()
    assert moved == [3, 4, 5, 6, 7, 8, 9]  # 0 is padding; the rest is in no history
    assert all(map(torch.equal, model.mixture.buffers(), numbers))


def test_shared_inputs_get_both_gradients_in_one_update():
    shared, apart = (build(separate_inputs=separate_inputs) for separate_inputs in (False, True))
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


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_after_training_every_tensor_is_that_of_the_head_alone_up_to_rounding(decay):
    plain, by_hand = (build(target_decay=decay) for _ in range(2))
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
    "this model has no counting parts.": lambda: build(mixed=False).predict(ITEMS, LENGTHS).mixed(),
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
