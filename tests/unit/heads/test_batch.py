"""`Batch`: checks and flattening, also on a rank without examples."""

import re

import pytest
import torch

from tapas import DataError, UsageError
from tapas.heads.batch import check_any_example, prepare
from tapas.rng import stream

C, D = 31, 3


def ask(query, target, weight=None, **options):
    return prepare(query, target, weight, num_classes=C, dim=D, ignore_index=-100, **options)


EMPTY = [  # shapes of the query's leading dimensions and of the target
    ((0,), (0,)),
    ((0,), (0, 1)),
    ((0,), (0, 4)),
    ((0, 5), (0, 5)),
    ((5, 0), (5, 0)),
    ((0, 5), (0, 5, 2)),
]


@pytest.mark.parametrize(("leading", "shape"), EMPTY)
@pytest.mark.parametrize("weighted", [False, True])
def test_an_empty_batch_has_the_fields_and_widths_of_another(leading, shape, weighted):
    query, target = torch.empty(*leading, D), torch.empty(shape, dtype=torch.int64)
    weight = torch.empty(shape) if weighted else None
    batch = ask(query, target, weight, may_be_empty=True)
    num_targets = 1 if shape == leading else shape[-1]
    full = ask(
        torch.zeros(2, D),
        torch.zeros(2, num_targets).long(),
        torch.ones(2, num_targets) if weighted else None,
    )
    for name in ("query", "target", "weight", "counted"):
        nothing, some = getattr(batch, name), getattr(full, name)
        assert (nothing is None) == (some is None), name
        if some is not None:
            assert nothing.shape == (0, *some.shape[1:]), name
            assert nothing.dtype == some.dtype, name
    assert batch.shape == leading
    for reduction, shape_of in (("mean", ()), ("sum", ()), ("none", leading)):
        loss = batch.reduce(torch.empty(0), reduction, 2.5)
        assert loss.shape == shape_of
        assert not bool(loss.any())


def test_a_rank_may_have_nothing_but_padding():
    batch = ask(torch.zeros(2, D), torch.full((2, 3), -100), may_be_empty=True)
    assert batch.query.shape == (0, D)
    assert batch.target.shape == batch.weight.shape == batch.counted.shape == (0, 3)
    loss = batch.reduce(torch.empty(0), "none", 2.5)
    assert loss.tolist() == [0.0, 0.0]
    assert float(batch.reduce(torch.empty(0), "mean", 2.5)) == 0.0


EMPTY_BATCH = "the batch is empty: query has shape (0, 3). Skip such a batch."
WRONG = [  # query, target, whether the batch may be empty, and the error
    (
        torch.empty(0, 4),
        torch.empty(0).long(),
        True,
        "query has shape (0, 4); expected (..., D=3), the dim of the table.",
    ),
    (
        torch.empty(0, D),
        torch.empty(1).long(),
        True,
        "target has shape (1,); expected (0) or (0, L) for a query of shape (0, 3).",
    ),
    (torch.empty(0, D), torch.empty(0, 0).long(), True, EMPTY_BATCH),
    (
        torch.empty(2, D) * torch.nan,
        torch.zeros(2).long(),
        True,
        "query row 0 holds NaN or inf. The encoder has diverged or its input is bad: check that "
        "row's input, lower the learning rate or clip gradients.",
    ),
    (torch.empty(0, D), torch.empty(0).long(), False, EMPTY_BATCH),
    (
        torch.zeros(2, D),
        torch.full((2,), -100),
        False,
        "every target is ignore_index (-100): the batch has nothing to learn from. Skip such a "
        "batch, or check the padding value.",
    ),
    *(
        (
            torch.zeros(C, D),
            torch.eye(C).to(dtype),
            False,
            "target has shape (31, 31) and holds only 0 and 1: it looks multi-hot. Pass class ids, "
            "(..., L), padded with ignore_index: tapas.ids_of(target) makes them.",
        )
        for dtype in (torch.int64, torch.uint8, torch.bool, torch.float32)
    ),
    (
        torch.zeros(2, D),
        torch.ones(2, 30, dtype=torch.bool),
        False,
        "target has shape (2, 30) and holds only 0 and 1: it looks multi-hot. Pass class ids, "
        "(..., L), padded with ignore_index: tapas.ids_of(target) makes them.",
    ),
    (
        torch.zeros(C, D),
        torch.eye(C).to_sparse(),
        False,
        "target has shape (31, 31) and is sparse: it looks multi-hot. Pass class ids, (..., L), "
        "padded with ignore_index: tapas.ids_of(target) makes them.",
    ),
    (
        torch.zeros(2, D),
        torch.ones(2, dtype=torch.bool),
        False,
        "target has dtype torch.bool; expected int64 class ids.",
    ),
]


@pytest.mark.parametrize(("query", "target", "may_be_empty", "words"), WRONG)
def test_what_is_wrong_with_a_batch_is_refused(query, target, may_be_empty, words):
    with pytest.raises((UsageError, DataError), match="^" + re.escape(words) + "$"):
        ask(query, target, may_be_empty=may_be_empty)


def test_as_many_targets_as_classes_are_accepted():
    every = torch.arange(C).expand(6, C)
    padded = torch.tensor([0, 1] + [-100] * (C - 2)).expand(6, C)
    for target in (every, padded):
        ask(torch.zeros(6, D), target)
    both = torch.tensor([[0, 1], [1, 1]])  # two flags for two classes could also be two ids
    prepare(torch.zeros(2, D), both, None, num_classes=2, dim=D, ignore_index=-100)


def test_the_mean_over_ranks_of_their_means_is_the_mean_over_examples():
    loss = torch.randn(7, generator=stream(0, "loss"), dtype=torch.float64)
    sizes = (4, 0, 3)
    means = []
    for part in torch.split(loss, sizes):
        batch = ask(torch.zeros(len(part), D), torch.zeros(len(part)).long(), may_be_empty=True)
        means.append(batch.reduce(part, "mean", sum(sizes) / 3))
    torch.testing.assert_close(torch.stack(means).mean(), loss.mean())
    assert torch.equal(batch.reduce(part, "mean", 3.0), part.mean())


def test_no_example_on_any_rank_is_an_error():
    check_any_example(0.5)
    with pytest.raises(UsageError) as error:
        check_any_example(0)
    assert str(error.value) == "no rank has an example in this batch. Skip it on all of them."
