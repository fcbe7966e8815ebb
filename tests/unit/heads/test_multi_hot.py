"""`ids_of`: flags of classes, dense and sparse, read as padded lists of ids."""

import re

import pytest
import torch

import tapas
from tapas import UsageError
from tapas.rng import stream

C = 31
AS = {
    "dense": lambda flags: flags,
    "COO": lambda flags: flags.to_sparse_coo(),
    "CSR": lambda flags: flags.to_sparse_csr(),
    "CSC": lambda flags: flags.to_sparse_csc(),
}


def drawn_flags(shape):
    drawn = torch.rand(*shape, C, generator=stream(0, "flags")) < 0.2
    drawn.view(-1, C)[:1] = False  # an example without a class
    return drawn


def padded_ids(flags, padding):
    rows = [[c for c, flag in enumerate(row) if flag] for row in flags.view(-1, C).tolist()]
    width = max([len(row) for row in rows], default=0)
    return [row + [padding] * (width - len(row)) for row in rows], width


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.uint16], ids=str)
@pytest.mark.parametrize("shape", [(5,), (2, 3), (0,), (4, 0)], ids=str)
def test_flags_of_classes_are_read_as_lists_of_them(dtype, shape):
    flags = drawn_flags(shape)
    ids = tapas.ids_of(flags.to(dtype), ignore_index=-7)
    want, width = padded_ids(flags, -7)
    assert ids.dtype == torch.int64
    assert ids.shape == (*shape, width)
    assert ids.view(len(want), width).tolist() == want


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["COO", "CSR", "CSC"])
@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta")
def test_sparse_flags_give_the_same(layout, dtype):
    flags = drawn_flags((9,))
    assert tapas.ids_of(AS[layout](flags.to(dtype))).tolist() == padded_ids(flags, -100)[0]


def test_sparse_flags_may_have_more_dimensions_and_stored_zeros():
    flags = drawn_flags((2, 3))
    assert torch.equal(tapas.ids_of(flags.to_sparse_coo()), tapas.ids_of(flags))
    stored = torch.sparse_coo_tensor([[0, 1], [4, 6]], [0.0, 1.0], (2, C))
    assert tapas.ids_of(stored).tolist() == [[-100], [6]]


def test_a_head_learns_from_them():
    flags = drawn_flags((6,))
    loss = tapas.TapasSoftmax(C, 4, num_samples=9)(torch.zeros(6, 4), tapas.ids_of(flags))
    assert loss.isfinite()


HALF = "expected only 0 and 1. For probabilities or weights pass the ids of the few that matter, "
WRONG = [
    (torch.tensor(1), "multi_hot has shape (); expected (..., C)."),
    (torch.zeros(3, 0), "multi_hot has shape (3, 0); expected (..., C)."),
    (torch.tensor([[0, 2]]), f"multi_hot holds 2; {HALF}and the values as target_weight."),
    (torch.tensor([[1, 0.5]]), f"multi_hot holds 0.5; {HALF}and the values as target_weight."),
    (torch.tensor([[torch.nan]]), f"multi_hot holds nan; {HALF}and the values as target_weight."),
    (
        torch.tensor([[0, -1]]).to_sparse_coo(),
        f"multi_hot holds -1; {HALF}and the values as target_weight.",
    ),
    ([[0, 1]], "multi_hot must be a torch.Tensor, got list. torch.as_tensor makes one."),
]


@pytest.mark.parametrize(("flags", "words"), WRONG, ids=[words[:24] for _, words in WRONG])
def test_what_is_not_multi_hot_is_refused(flags, words):
    with pytest.raises(UsageError, match="^" + re.escape(words) + "$"):
        tapas.ids_of(flags)


def test_a_class_that_would_be_taken_for_padding_is_refused():
    flags = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0]])
    assert tapas.ids_of(flags, ignore_index=0).tolist() == [[1, 3], [2, 0]]
    words = "multi_hot has class 3, which is ignore_index: it would be taken for padding. Choose a "
    with pytest.raises(UsageError, match=f"^{words}negative ignore_index, here and in the head.$"):
        tapas.ids_of(flags, ignore_index=3)


def test_both_of_two_classes_may_be_targets_as_integers_but_not_as_flags():
    head = tapas.TapasSoftmax(2, 4, num_samples=2)
    both = torch.tensor([[0, 1], [1, 0]])
    assert head(torch.zeros(2, 4), both).isfinite()
    for flags in (both.bool(), both.float()):
        with pytest.raises(UsageError, match="it looks multi-hot"):
            head(torch.zeros(2, 4), flags)
    with pytest.raises(UsageError, match="probabilities of all classes are not supported"):
        head(torch.zeros(2, 4), torch.full((2, 2), 0.5))
