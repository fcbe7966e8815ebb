"""An encoder rebuilt from its weights gives the queries of the model, bit for bit."""

import json

import pytest
import torch
from error_text import raises_text
from safetensors.torch import load_file, save_file

from tapas import DataError, TapasSoftmax
from tapas.encoders import ENCODERS, build_encoder
from tapas.retrieval.encoder_weights import FORMAT, read_encoder, write_encoder
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.training.model import SequenceModel

C, T, D = 31, 9, 6
MISFIT = (
    "encoder.safetensors does not fit the settings of the encoder in export.json, or the class "
    "rows. Export it again."
)


def settings(**changed):
    plain = {"kind": "gru", "dim": D, "history": T, "layers": 2, "attention_heads": 3}
    return {**plain, "precision": "float32", **changed}


def rows():
    return torch.randn(C, D, generator=stream(0, "rows"))


def stored(path, **changed):
    """A file of an encoder that reads the class rows, and the encoder."""
    known = settings(**changed)
    encoder = build_encoder(
        known["kind"], D, history=T, layers=2, attention_heads=3, dropout=0.5, seed=4
    )
    write_encoder(path / "encoder.safetensors", encoder, None)
    return path / "encoder.safetensors", encoder


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("inputs", ["own", "shared"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_queries_are_those_of_the_model_bit_for_bit(tmp_path, kind, inputs, precision):
    path = tmp_path / "encoder.safetensors"
    encoder = build_encoder(kind, D, history=T, layers=2, attention_heads=3, dropout=0.5, seed=4)
    head = TapasSoftmax(C, D, num_samples=5, seed=2)
    own = LocalTable(C, D, bias=False, seed=3) if inputs == "own" else None
    dtype = getattr(torch, precision)
    model = SequenceModel(encoder, head, inputs=own, encoder_dtype=dtype).eval()
    write_encoder(path, encoder, None if own is None else own.weight)
    known = json.loads(json.dumps(settings(kind=kind, precision=precision)))
    rebuilt = read_encoder(path, known, head.table.weight)
    assert rebuilt.history_length == T
    for num_rows, width in ((1, 1), (5, 7), (3, T)):
        items = torch.randint(C, (num_rows, width), generator=stream(0, "items"))
        lengths = torch.randint(1, width + 1, (num_rows,), generator=stream(0, "lengths"))
        got = rebuilt(items, lengths)
        assert torch.equal(got, model.query(items, lengths))
        assert not got.requires_grad


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "os:system"},
        {"kind": ["gru"]},
        {"kind": "transformer"},
        {"dim": D + 1},
        {"dim": 10**9},
        {"layers": 10**9},
        {"layers": True},
        {"layers": 1},
        {"history": "9"},
        {"history": 0},
        {"attention_heads": -1},
        {"precision": "float16"},
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_built(tmp_path, changed):
    path, _ = stored(tmp_path)
    with raises_text(MISFIT, DataError):
        read_encoder(path, settings(**changed), rows())
    for odd in (None, [], {}, "gru"):
        with raises_text(MISFIT, DataError):
            read_encoder(path, odd, rows())


def test_a_transformer_of_other_heads_is_refused(tmp_path):
    path, _ = stored(tmp_path, kind="transformer")
    with raises_text(MISFIT, DataError):  # 4 heads do not divide 6 dimensions
        read_encoder(path, settings(kind="transformer", attention_heads=4), rows())


def test_damaged_and_foreign_files_and_other_vectors_are_refused(tmp_path):
    path, encoder = stored(tmp_path)
    for inputs in (torch.zeros(C + 1, D), torch.full((C, D), torch.nan)):
        tensors = load_file(path) | {"inputs": inputs}
        save_file(tensors, path, metadata={"format": FORMAT})
        with raises_text(MISFIT, DataError):
            read_encoder(path, settings(), rows())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"encoder\.safetensors is damaged \(.*\)\. Export it ag"):
        read_encoder(path, settings(), rows())
    save_file({"a": torch.zeros(9)}, path)
    with raises_text("has format None; expected tapas-encoder-1, as `tapas export` ", DataError):
        read_encoder(path, settings(), rows())
    with torch.no_grad():
        encoder.out.weight[0, 0] = torch.inf
    with raises_text("encoder.out.weight contains NaN or inf. The model has diverged", DataError):
        write_encoder(tmp_path / "b.safetensors", encoder, None)
    assert not (tmp_path / "b.safetensors").exists()
