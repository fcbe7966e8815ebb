"""The model: which rows it reads, which it moves, and what its loss is the mean of."""

import math

import pytest
import torch

from tapas import TapasSoftmax, UsageError
from tapas.data.windows import SequenceBatch
from tapas.encoders import GRUEncoder, MeanEncoder, TransformerEncoder
from tapas.optim import SGD
from tapas.tables import LocalTable
from tapas.training.model import SequenceModel, decaying

NUM_ITEMS, DIM, WIDTH = 11, 6, 5
ENCODERS = {
    "mean": lambda: MeanEncoder(DIM, window=WIDTH, seed=1),
    "gru": lambda: GRUEncoder(DIM, seed=1),
    "transformer": lambda: TransformerEncoder(DIM, window=WIDTH, seed=1),
}
BATCH = SequenceBatch(
    items=torch.tensor([[3, 4, 5, 0, 0], [6, 0, 0, 0, 0], [7, 3, 8, 9, 3]]),
    lengths=torch.tensor([3, 1, 5]),
    places=torch.tensor([0, 2, 5, 14]),
    target=torch.tensor([[4, 5, -100], [6, -100, -100], [2, 3, 4], [1, 9, -100]]),
)


def build(encoder="gru", *, own=True, weight_decay=0.0, **options):
    """Every class is kept, so that the sampled loss is the exact one."""
    rows = SGD.fused(lr=0.5, weight_decay=weight_decay)
    head = TapasSoftmax(
        NUM_ITEMS, DIM, num_samples=NUM_ITEMS, presample_factor=1, row_optimizer=rows, seed=2
    )
    inputs = LocalTable(NUM_ITEMS, DIM, row_optimizer=rows, bias=False, seed=3) if own else None
    return SequenceModel(ENCODERS[encoder](), head, inputs=inputs, **options)


def rows(table):
    return table.rows(torch.arange(NUM_ITEMS))[0].clone()


def train_step(model):
    with model.head.accumulate():
        loss = model.loss(BATCH)
        loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize("own", [True, False], ids=["own", "shared"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_states_are_those_of_each_row_alone_without_its_padding(encoder, own):
    model = build(encoder, own=own)
    table = rows(model.own_inputs if own else model.head.table)
    states = model.states(BATCH.items, BATCH.lengths)
    for row, length in enumerate(BATCH.lengths.tolist()):
        x = torch.stack([table[i] for i in BATCH.items[row, :length].tolist()])[None]
        alone = model.encoder(x, torch.tensor([length]))[0]
        torch.testing.assert_close(states[row, :length], alone)
        query = model.query(BATCH.items[row : row + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(query[0], alone[-1])


@pytest.mark.parametrize("own", [True, False], ids=["own", "shared"])
def test_the_loss_is_the_mean_over_positions_of_the_mean_over_their_targets(own):
    model = build(own=own)
    weight, bias = model.head.table.rows(torch.arange(NUM_ITEMS))
    flat = model.states(BATCH.items, BATCH.lengths).detach().reshape(-1, DIM)
    total = 0.0
    for place, targets in zip(BATCH.places.tolist(), BATCH.target.tolist(), strict=True):
        logits = [float(flat[place] @ weight[c] + bias[c]) for c in range(NUM_ITEMS)]
        real = [t for t in targets if t >= 0]
        log_sum = math.log(sum(map(math.exp, logits)))
        total += sum(log_sum - logits[t] for t in real) / len(real)
    assert float(model.loss(BATCH).detach()) == pytest.approx(total / len(BATCH.places), rel=1e-5)


def test_own_inputs_move_where_the_batch_has_items_and_nowhere_else():
    model = build(own=True)
    before = rows(model.own_inputs)
    train_step(model)
    moved = (rows(model.own_inputs) != before).any(dim=1).nonzero()[:, 0].tolist()
    read_before_a_prediction = [3, 4, 5, 6, 7, 8, 9]  # 0 is padding; the rest is in no history
    assert moved == read_before_a_prediction


def test_padding_touches_no_row_not_even_to_let_it_decay():
    model = build(own=True, weight_decay=0.1)
    before = rows(model.own_inputs)[0]
    for _ in range(3):
        train_step(model)
    assert torch.equal(rows(model.own_inputs)[0], before)


def test_shared_inputs_get_both_gradients_in_one_update():
    shared, apart = build(own=False), build(own=True)
    start = rows(shared.head.table)
    with torch.no_grad():
        apart.own_inputs.weight.copy_(start)
    assert train_step(shared) == train_step(apart)
    as_class = rows(apart.head.table) - start
    as_input = rows(apart.own_inputs) - start
    torch.testing.assert_close(rows(shared.head.table) - start, as_class + as_input)


def test_an_encoder_in_half_precision_gives_queries_in_full():
    half, full = build(encoder_dtype=torch.bfloat16), build()
    query = half.query(BATCH.items, BATCH.lengths)
    assert query.dtype == torch.float32
    exact = full.query(BATCH.items, BATCH.lengths)
    assert not torch.equal(query, exact)
    torch.testing.assert_close(query, exact, rtol=0.05, atol=0.05)


def test_dimensions_that_do_not_fit_are_told_apart():
    head = TapasSoftmax(NUM_ITEMS, DIM, num_samples=3)
    with pytest.raises(UsageError) as error:
        SequenceModel(GRUEncoder(4), head, inputs=LocalTable(NUM_ITEMS, 5))
    assert str(error.value) == (
        "inputs, encoder and head have 5, 4 and 6 dimensions; expected one number."
    )


def test_targets_weigh_less_and_less_and_padding_nothing():
    target = torch.tensor([[4, 9, 2], [7, -100, -100], [1, 1, -100]])
    want = torch.tensor([[4 / 7, 2 / 7, 1 / 7], [1, 0, 0], [2 / 3, 1 / 3, 0]])
    torch.testing.assert_close(decaying(target, 0.5), want)
