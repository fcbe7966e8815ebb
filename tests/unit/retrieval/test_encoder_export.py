"""An exported encoder computes what the module computes, for any number of rows."""

import copy
import zipfile

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence

from tapas import DataError, UsageError
from tapas.retrieval import Recommender, export_encoder, load_encoder
from tapas.rng import stream

pytestmark = pytest.mark.slow

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


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.place = nn.Embedding(C, D), nn.Embedding(T, D)
        self.mix, self.norm = nn.Linear(D, 3 * D), nn.LayerNorm(D)

    def forward(self, items, lengths):
        rows, width = items.shape
        x = self.item(items) + self.place.weight[:width]
        q, k, v = (p.view(rows, width, 2, -1).transpose(1, 2) for p in self.mix(x).chunk(3, -1))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.norm(x + mixed.transpose(1, 2).reshape(rows, width, D))
        return x.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, D)).squeeze(1)


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
    """A module in the midst of training with a frozen part, exported by a single row."""
    module = build(Recurrent).train()
    module.item.eval()
    path = tmp_path_factory.mktemp("recurrent") / "encoder.pt2"
    export_encoder(module, path, example(1))
    return module, path


@pytest.fixture(scope="module")
def attentive(tmp_path_factory):
    module = build(Attentive).eval()
    path = tmp_path_factory.mktemp("attentive") / "encoder.pt2"
    export_encoder(module, path, example(3))
    return module, path


def test_training_goes_on_after_an_export(recurrent):
    module, path = recurrent
    modes = {name: part.training for name, part in module.named_modules()}
    assert modes == {"": True, "item": False, "drop": True, "gru": True}
    assert [p.name for p in path.parent.iterdir()] == ["encoder.pt2"]


@pytest.mark.parametrize("kind", ["recurrent", "attentive"])
def test_what_is_loaded_computes_what_was_exported(kind, request):
    module, path = request.getfixturevalue(kind)
    encoder, module = load_encoder(path), copy.deepcopy(module).eval()
    assert encoder.history_length == T
    for num_rows in (1, 2, 3, 57):
        items, lengths = example(num_rows, "other")
        got = encoder(items, lengths)
        torch.testing.assert_close(got, module(items, lengths).detach())
        assert not got.requires_grad


def test_a_recommender_runs_on_an_exported_encoder(attentive):
    module, path = attentive
    encoder = load_encoder(path)
    recommender = Recommender(
        encode=encoder,
        topk=lambda query, k, exclude: query.topk(k, dim=1),
        history_length=encoder.history_length,
    )
    items, _ = example(4)
    histories = [row[: n + 1].numpy() for n, row in enumerate(items)]
    scores, _ = recommender.recommend(histories, D, exclude_seen=False)
    want = module(items, torch.arange(1, 5)).sort(dim=1, descending=True).values
    torch.testing.assert_close(scores, want.detach())


def test_what_cannot_be_exported_is_told_why(tmp_path):
    path = tmp_path / "encoder.pt2"
    with pytest.raises(UsageError, match=r"Packed cannot be exported \(.*\)\. Usual causes: pack"):
        export_encoder(build(Packed), path, example(2))
    with pytest.raises(
        UsageError, match=r"Counted cannot be exported .* len\(items\) for items\.sh"
    ):
        export_encoder(build(Counted), path, example(2))
    with pytest.raises(UsageError, match=r"the exported Noisy differs from the module by .* on 2"):
        export_encoder(build(Noisy), path, example(2))
    with pytest.raises(UsageError, match=r"lengths has shape \(2,\); expected \(B=3\)"):
        export_encoder(build(Recurrent), path, (example(3)[0], example(2)[1]))
    with pytest.raises(UsageError, match=r"encoder\.onnx must end in \.pt2\. Call it encoder\.pt2"):
        export_encoder(build(Recurrent), path.with_suffix(".onnx"), example(2))
    assert list(tmp_path.iterdir()) == []


def test_another_width_or_file_is_named(attentive, tmp_path):
    path = tmp_path / "encoder.pt2"
    with pytest.raises(UsageError, match=r"there is no file .*encoder\.pt2\."):
        load_encoder(path)
    path.write_bytes(attentive[1].read_bytes())
    items, lengths = example(2)
    with pytest.raises(UsageError, match=r"items has shape \(2, 8\); expected \(B=2, T=9\)\."):
        load_encoder(path)(items[:, 1:], lengths)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"encoder\.pt2 is damaged, no exported encoder, or of"):
        load_encoder(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hello", "world")
    with pytest.raises(DataError, match=r"encoder\.pt2 is damaged, no exported encoder, or of"):
        load_encoder(path)
