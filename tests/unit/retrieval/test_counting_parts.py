"""Counting parts of an exported model: read as written, and refused if they are damaged."""

import numpy as np
import pytest
import torch
from error_text import raises_text
from safetensors.torch import save_file
from unit.mixture.cases import PARTS, mixture_of

from tapas import DataError
from tapas.retrieval.counting_parts import (
    FORMAT,
    read_counting_parts,
    write_counting_parts,
)
from tapas.retrieval.tensor_file import open_tensors

C = 5
COUNT = np.arange(C * C).reshape(C, C) % 4 / 2.0


def write(path, parts=("copy", "follow")):
    mixture = mixture_of(parts, COUNT, scale=0.75, copy_decay=1.5, follow_trust=-0.25)
    write_counting_parts(path, mixture)
    return mixture


@pytest.mark.parametrize("parts", PARTS)
def test_a_mixture_is_read_as_it_was_written(parts, tmp_path):
    wrote = write(tmp_path / "counting.safetensors", parts)
    found = read_counting_parts(tmp_path / "counting.safetensors", C)
    assert found.names == parts
    numbers = wrote.state_dict()
    assert found.state_dict().keys() == numbers.keys()
    assert all(torch.equal(x, numbers[name]) for name, x in found.state_dict().items())
    if "follow" in parts:
        for name in ("starts", "followers", "counts"):
            mine, theirs = (getattr(each.follow.transitions, name) for each in (wrote, found))
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype


SIZES = "is damaged: what it counts does not fit 5 items. Export again."
NUMBERS = "is damaged: its numbers are not those of a mixture. Export again."


def changed(tensors, name, change):
    return tensors | {name: change(tensors[name])}


def set_first(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


DAMAGE = {
    "starts of fewer items": (SIZES, lambda t: changed(t, "starts", lambda x: x[:-1])),
    "starts of another type": (SIZES, lambda t: changed(t, "starts", lambda x: x.int())),
    "starts below 0": (SIZES, lambda t: changed(t, "starts", set_first(-1))),
    "starts that fall": (SIZES, lambda t: changed(t, "starts", lambda x: x.flip(0))),
    "starts beyond the end": (SIZES, lambda t: changed(t, "starts", lambda x: 2 * x)),
    "fewer followers": (SIZES, lambda t: changed(t, "followers", lambda x: x[1:])),
    "fewer followers and counts": (
        SIZES, lambda t: {k: v[1:] if k in ("followers", "counts") else v for k, v in t.items()}
    ),
    "a follower beyond the items": (SIZES, lambda t: changed(t, "followers", set_first(5))),
    "a follower below 0": (SIZES, lambda t: changed(t, "followers", set_first(-1))),
    "followers of another type": (SIZES, lambda t: changed(t, "followers", lambda x: x.long())),
    "counts of another shape": (SIZES, lambda t: changed(t, "counts", lambda x: x[:, None])),
    "a count of 0": (SIZES, lambda t: changed(t, "counts", set_first(0))),
    "a count that is NaN": (SIZES, lambda t: changed(t, "counts", set_first(torch.nan))),
    "a count that is inf": (SIZES, lambda t: changed(t, "counts", set_first(torch.inf))),
    "no counts": (SIZES, lambda t: {k: v for k, v in t.items() if k != "counts"}),
    "no transitions": (
        NUMBERS,
        lambda t: {k: v for k, v in t.items() if k not in ("starts", "followers", "counts")},
    ),
    "a number that is NaN": (NUMBERS, lambda t: changed(t, "numbers.scale", set_first(torch.nan))),
    "a number that is inf": (NUMBERS, lambda t: changed(t, "numbers.gate", set_first(torch.inf))),
    "numbers of another type": (NUMBERS, lambda t: changed(t, "numbers.scale", torch.Tensor.half)),
    "a gate of one part": (NUMBERS, lambda t: changed(t, "numbers.gate", lambda x: x[:1])),
    "an unknown number": (NUMBERS, lambda t: t | {"numbers.trust": torch.zeros(())}),
    "a missing number": (NUMBERS, lambda t: {k: v for k, v in t.items() if "copy.decay" not in k}),
    "no part": (
        "is damaged: it has no counting part. Export again.",
        lambda t: {"numbers.gate": t["numbers.gate"][:0], "numbers.scale": t["numbers.scale"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(damage, tmp_path):
    path = tmp_path / "counting.safetensors"
    write(path)
    with open_tensors(path, FORMAT) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    words, change = DAMAGE[damage]
    save_file(
        {name: x.contiguous() for name, x in change(tensors).items()}, path, {"format": FORMAT}
    )
    with raises_text(f"{path} {words}", DataError):
        read_counting_parts(path, C)


def test_a_file_of_another_vocabulary_is_refused(tmp_path):
    path = tmp_path / "counting.safetensors"
    write(path)
    with raises_text(f"{path} is damaged: what it counts does not fit 6 items. Export", DataError):
        read_counting_parts(path, C + 1)
