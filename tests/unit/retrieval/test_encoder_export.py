"""An exported encoder gives the results of the module, for any number of rows."""

import copy
import zipfile

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tapas import DataError, TapasSoftmax, UsageError
from tapas.encoders import GRUEncoder, MeanEncoder, TransformerEncoder
from tapas.retrieval import export_encoder, load_encoder
from tapas.retrieval.encoder_export import QueryModule
from tapas.rng import stream
from tapas.training.model import SequenceModel

C, T, D = 31, 9, 8


def example(num_rows, name="example"):
    items = torch.randint(C, (num_rows, T), generator=stream(0, name, "items"))
    return items, torch.randint(1, T + 1, (num_rows,), generator=stream(0, name, "lengths"))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(C, D)
        self.drop = nn.Dropout(0.5)
        self.gru = nn.GRU(D, D, batch_first=True)

    def forward(self, items, lengths):
        state, _ = self.gru(self.drop(self.item(items)))
        return state[torch.arange(items.shape[0], device=items.device), lengths - 1]


class Packed(Recurrent):
    def forward(self, items, lengths):
        packed = pack_padded_sequence(
            self.item(items), lengths, batch_first=True, enforce_sorted=False
        )
        return self.gru(packed)[1][0]


class Counted(nn.Module):
    def forward(self, items, lengths):
        return items * torch.ones(len(items), 1)


class Noisy(nn.Module):
    calls = 0

    def forward(self, items, lengths):
        self.calls += 1
        return items * float(self.calls)


def build(kind):
    with torch.random.fork_rng():
        module = kind()
    for name, parameter in module.named_parameters():
        parameter.data.normal_(generator=stream(0, name))
    return module


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """A module in training mode with a frozen submodule, exported with an example of one row."""
    module = build(Recurrent).train()
    module.item.eval()
    path = tmp_path_factory.mktemp("recurrent") / "encoder.pt2"
    export_encoder(module, path, example(1))
    return module, path


@pytest.mark.slow
def test_a_loaded_encoder_equals_the_module_and_training_modes_are_restored(recurrent):
    module, path = recurrent
    modes = {name: child.training for name, child in module.named_modules()}
    assert modes == {"": True, "item": False, "drop": True, "gru": True}
    assert [p.name for p in path.parent.iterdir()] == ["encoder.pt2"]
    encoder, module = load_encoder(path, trust=True), copy.deepcopy(module).eval()
    assert encoder.history_length == T
    for num_rows in (1, 2, 3, 57):
        items, lengths = example(num_rows, "other")
        got = encoder(items, lengths)
        torch.testing.assert_close(got, module(items, lengths).detach())
        assert not got.requires_grad


@pytest.mark.slow
def test_the_error_says_why_a_module_cannot_be_exported(tmp_path):
    path = tmp_path / "encoder.pt2"
    mixed = (example(3)[0], example(2)[1])
    for kind, to, rows, words in (
        (Packed, path, example(2), r"Packed cannot be exported \(.*\)\. Usual causes: pack"),
        (Counted, path, example(2), r"Counted cannot be exported .* len\(items\) for items\.sh"),
        (Noisy, path, example(2), r"the exported Noisy differs from the module by .* on 2"),
        (Recurrent, path, mixed, r"lengths has shape \(2,\); expected \(B=3\)"),
        (
            Recurrent,
            path.with_suffix(".onnx"),
            example(2),
            r"encoder\.onnx must end in \.pt2\. Call it encoder\.pt2",
        ),
    ):
        with pytest.raises(UsageError, match=words):
            export_encoder(build(kind), to, rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_wrong_width_or_file_is_refused(recurrent, tmp_path):
    path = tmp_path / "encoder.pt2"
    with pytest.raises(UsageError, match=r"there is no file .*encoder\.pt2\."):
        load_encoder(path, trust=True)
    path.write_bytes(recurrent[1].read_bytes())
    items, lengths = example(2)
    with pytest.raises(UsageError, match=r"items has shape \(2, 8\); expected \(B=2, T=9\)\."):
        load_encoder(path, trust=True)(items[:, 1:], lengths)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"encoder\.pt2 is damaged, not an exported encoder, or"):
        load_encoder(path, trust=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hello", "world")
    with pytest.raises(DataError, match=r"encoder\.pt2 is damaged, not an exported encoder, or"):
        load_encoder(path, trust=True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"history_length": "x"}', "[" * 100_000])
def test_a_program_that_tapas_did_not_export_is_named(tmp_path, monkeypatch, content):
    def load(file, extra_files):
        extra_files["tapas.json"] = content

    monkeypatch.setattr(torch.export, "load", load)
    (tmp_path / "a.pt2").touch()
    words = r"a\.pt2 was not written by `tapas export`: tapas\.json in it is missing or damaged\.$"
    with pytest.raises(DataError, match=words):
        load_encoder(tmp_path / "a.pt2", trust=True)


ENCODERS = {
    "mean": lambda: MeanEncoder(D, window=T, dropout=0.5, seed=1),
    "gru": lambda: GRUEncoder(D, num_layers=2, dropout=0.5, seed=1),
    "transformer": lambda: TransformerEncoder(D, dropout=0.5, seed=1),
}


@pytest.fixture(params=ENCODERS)
def model(request):
    return SequenceModel(ENCODERS[request.param](), TapasSoftmax(C, D, num_samples=5, seed=2))


def as_module(model):
    weight, _ = model.inputs.rows(torch.arange(C))
    return QueryModule(weight, copy.deepcopy(model.encoder))


def test_the_query_module_needs_no_tables(model):
    """Its queries are those of the model, whatever the padding, and do not follow later updates."""
    module, (items, lengths) = as_module(model), example(11)
    want = module(items, lengths)
    torch.testing.assert_close(want, model.query(items, lengths))
    other = torch.where(torch.arange(T) < lengths[:, None], items, (items + 1) % C)
    assert torch.equal(module(other, lengths), want)
    model.inputs.weight.add_(1)
    assert torch.equal(module(items, lengths), want)
    assert not module.weight.requires_grad


@pytest.mark.slow
def test_the_query_module_can_be_exported_for_any_number_of_rows(model, tmp_path):
    export_encoder(as_module(model), tmp_path / "encoder.pt2", example(3))
    reloaded = load_encoder(tmp_path / "encoder.pt2", trust=True)
    assert reloaded.history_length == T
    for num_rows in (1, 2, 17):
        items, lengths = example(num_rows, "other")
        torch.testing.assert_close(reloaded(items, lengths), model.query(items, lengths))
