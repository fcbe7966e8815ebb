"""Exported class rows are read back unchanged, and a failed export leaves no file."""

import errno

import pytest
import torch
from safetensors.torch import load_file, save_file

from tapas import DataError, UsageError
from tapas.retrieval import tensor_file
from tapas.retrieval.embeddings import export_embeddings, load_embeddings
from tapas.rng import stream

C, D = 11, 3
KEYS = ["milk", "Käse", 7, 2**70, "7", "", "line\nbreak", -1, "b", "c", "d"]


def rows(dtype=torch.float32):
    weight = torch.randn(C, D, generator=stream(0, "weight")).to(dtype)
    return weight, torch.randn(C, generator=stream(0, "bias")).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_and_keys_are_read_back_unchanged_by_any_safetensors_reader(tmp_path, dtype):
    weight, bias = rows(dtype)
    export_embeddings(tmp_path / "rows.safetensors", weight, bias, KEYS)
    got = load_embeddings(tmp_path / "rows.safetensors")
    assert torch.equal(got.weight, weight)
    assert torch.equal(got.bias, bias)
    assert got.keys == KEYS
    found = {
        name: tensor.dtype for name, tensor in load_file(tmp_path / "rows.safetensors").items()
    }
    assert found == {"weight": dtype, "bias": dtype, "keys": torch.uint8}
    assert [p.name for p in tmp_path.iterdir()] == ["rows.safetensors"]


def test_parameters_and_views_of_shared_memory_can_be_exported(tmp_path):
    both = torch.randn(C, D + 1, generator=stream(0, "whole"), requires_grad=True)
    export_embeddings(tmp_path / "a.safetensors", both[:, :D], both[:, D], KEYS)
    assert torch.equal(load_embeddings(tmp_path / "a.safetensors").bias, both.detach()[:, D])
    flat = torch.arange(C * (D + 1)).float()
    export_embeddings(tmp_path / "b.safetensors", flat[: C * D].view(C, D), flat[C * D :], KEYS)
    got = load_embeddings(tmp_path / "b.safetensors")
    assert torch.equal(torch.cat([got.weight.flatten(), got.bias]), flat)


def test_the_old_file_is_kept_if_the_new_one_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "rows.safetensors"
    weight, bias = rows()
    export_embeddings(path, weight, bias, KEYS)

    def full(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "save_file", full)
    with pytest.raises(UsageError, match=r"No space left on device\. Free some space or choose"):
        export_embeddings(path, weight + 1, bias, KEYS)
    assert torch.equal(load_embeddings(path).weight, weight)
    assert list(tmp_path.iterdir()) == [path]


def test_errors_name_the_bad_input(tmp_path):
    weight, bias = rows()
    path = tmp_path / "rows.safetensors"
    with pytest.raises(
        UsageError, match=r"there are 10 keys but 11 classes; expected one key per class"
    ):
        export_embeddings(path, weight, bias, KEYS[:-1])
    with pytest.raises(UsageError, match=r"bias has shape \(10,\); expected \(C=11\)\."):
        export_embeddings(path, weight, bias[:-1], KEYS)
    with pytest.raises(UsageError, match=r"key 10 is 1\.5, a float; expected str or int"):
        export_embeddings(path, weight, bias, [*KEYS[:-1], 1.5])
    with pytest.raises(DataError, match=r"key 'milk' belongs to both class 0 and class 10\."):
        export_embeddings(path, weight, bias, [*KEYS[:-1], "milk"])
    with pytest.raises(DataError, match=r"bias contains NaN or inf\. The model has diverged"):
        export_embeddings(path, weight, bias / 0, KEYS)
    with pytest.raises(UsageError, match=r"rows\.pt must end in \.safetensors\. Call it rows\.saf"):
        export_embeddings(tmp_path / "rows.pt", weight, bias, KEYS)
    assert list(tmp_path.iterdir()) == []


def test_rows_with_nan_are_refused_when_they_are_read(tmp_path, monkeypatch):
    weight, bias = rows()
    weight[7, 1] = torch.nan
    path = tmp_path / "rows.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("tapas.retrieval.tensor_file.all_finite", lambda _: True)
        export_embeddings(path, weight, bias, KEYS)
    with pytest.raises(DataError, match=r"weight in .*rows\.safetensors contains NaN or inf\. The"):
        load_embeddings(path)


def test_missing_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "rows.safetensors"
    with pytest.raises(UsageError, match=r"there is no file .*rows\.safetensors\."):
        load_embeddings(path)
    export_embeddings(path, *rows(), KEYS)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"rows\.safetensors is damaged \(.*\)\. Export it again\."):
        load_embeddings(path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(DataError, match=r"has format None; expected tapas-embeddings-1, as"):
        load_embeddings(path)
