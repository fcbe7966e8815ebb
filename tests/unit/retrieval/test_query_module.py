"""The exported query is the model's, from a file that knows nothing of tables."""

import copy

import pytest
import torch

from tapas import TapasSoftmax
from tapas.encoders import GRUEncoder, MeanEncoder, TransformerEncoder
from tapas.retrieval import export_encoder, load_encoder
from tapas.retrieval.encoder_export import QueryModule
from tapas.rng import stream
from tapas.training.model import SequenceModel

C, T, D = 23, 7, 8
ENCODERS = {
    "mean": lambda: MeanEncoder(D, window=T, dropout=0.5, seed=1),
    "gru": lambda: GRUEncoder(D, num_layers=2, dropout=0.5, seed=1),
    "transformer": lambda: TransformerEncoder(D, window=T, dropout=0.5, seed=1),
}


def histories(num_rows):
    items = torch.randint(C, (num_rows, T), generator=stream(0, "items"))
    return items, torch.randint(1, T + 1, (num_rows,), generator=stream(0, "lengths"))


@pytest.fixture(params=ENCODERS)
def model(request):
    return SequenceModel(ENCODERS[request.param](), TapasSoftmax(C, D, num_samples=5, seed=2))


def as_module(model):
    weight, _ = model.inputs.rows(torch.arange(C))
    return QueryModule(weight, copy.deepcopy(model.encoder))


def test_it_says_what_the_model_says(model):
    items, lengths = histories(11)
    torch.testing.assert_close(as_module(model)(items, lengths), model.query(items, lengths))


def test_what_stands_behind_the_end_does_not_matter(model):
    items, lengths = histories(11)
    other = torch.where(torch.arange(T) < lengths[:, None], items, (items + 1) % C)
    module = as_module(model)
    assert torch.equal(module(items, lengths), module(other, lengths))


@pytest.mark.slow
def test_exported_and_read_back_it_says_the_same_for_any_number_of_rows(model, tmp_path):
    export_encoder(as_module(model), tmp_path / "encoder.pt2", histories(3))
    reloaded = load_encoder(tmp_path / "encoder.pt2")
    assert reloaded.history_length == T
    for num_rows in (1, 2, 17):
        items, lengths = histories(num_rows)
        torch.testing.assert_close(reloaded(items, lengths), model.query(items, lengths))


def test_it_keeps_its_own_rows_when_the_table_moves_on(model):
    module, (items, lengths) = as_module(model), histories(4)
    before = module(items, lengths)
    model.inputs.weight.add_(1)
    assert torch.equal(module(items, lengths), before)
    assert not module.weight.requires_grad
