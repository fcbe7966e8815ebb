import re

import numpy as np
import pytest
import torch

from tapas.errors import DataError, TapasError, UsageError
from tapas.shapes import (
    all_finite,
    check_ids,
    check_integer,
    check_positive,
    check_query,
    check_shape,
)

B, K, C, D = 5, 7, 31, 3


def test_letters_bind_across_tensors():
    sizes = check_shape({"B": B}, a=(torch.zeros(B, K), "B K"), b=(torch.zeros(K, D), "K D"))
    assert sizes == {"B": B, "K": K, "D": D}


def test_the_sizes_handed_in_are_not_changed():
    sizes = {"B": B}
    check_shape(sizes, a=(torch.zeros(B, K), "B K"))
    assert sizes == {"B": B}


@pytest.mark.parametrize(
    ("shape", "spec", "words"),
    [
        ((6, 7), "B K", "negative has shape (6, 7); expected (B=5, K)."),
        ((5,), "B K", "negative has shape (5,); expected (B=5, K)."),
        ((), "B", "negative has shape (); expected (B=5)."),
        ((3, 4), "D D", "negative has shape (3, 4); expected (D=3, D=3)."),
    ],
)
def test_a_wrong_shape_is_shown_beside_the_expected_one(shape, spec, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_shape({"B": B}, negative=(torch.zeros(shape), spec))


def test_the_second_tensor_must_agree_with_the_first():
    words = "log_q has shape (6,); expected (K=7)."
    with pytest.raises(UsageError, match=re.escape(words)):
        check_shape({}, negative=(torch.zeros(B, K), "B K"), log_q=(torch.zeros(6), "K"))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_every_whole_dtype_becomes_int64(dtype):
    got = check_integer("ids", torch.tensor([1, 100], dtype=dtype))
    assert got.dtype == torch.int64
    assert got.tolist() == [1, 100]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
def test_ids_that_went_through_a_float_or_a_mask_are_refused(dtype):
    words = (
        f"ids has dtype {dtype}; expected int64 class ids. "
        "Convert before the ids ever pass through a float."
    )
    for check in (check_integer, lambda name, ids: check_ids(name, ids, C)):
        with pytest.raises(UsageError, match=re.escape(words)):
            check("ids", torch.ones(3).to(dtype))


def test_ids_of_any_shape_in_range_come_back_as_they_are():
    ids = torch.tensor([[0, 30], [7, 7]])
    assert check_ids("target", ids, C) is ids
    assert check_ids("target", torch.tensor([3_000_000_000]), 3_000_000_001).item() == 3 * 10**9
    assert check_ids("target", torch.empty(0, dtype=torch.int64), C).shape == (0,)


@pytest.mark.parametrize(
    ("ids", "bad"), [([0, 31], 31), ([5, -1, 3], -1), ([99, -4], -4), ([2**40], 2**40)]
)
def test_an_id_out_of_range_is_named(ids, bad):
    words = f"target holds class {bad}; expected ids from 0 to 30 (num_classes=31)."
    with pytest.raises(UsageError, match=re.escape(words)):
        check_ids("target", torch.tensor(ids), C)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_query_of_any_float_and_any_batch_shape_becomes_a_float32_matrix(dtype):
    query = torch.arange(30, dtype=dtype).reshape(2, 5, 3)
    got = check_query(query, 3)
    assert got.dtype == torch.float32
    assert torch.equal(got, torch.arange(30.0).reshape(10, 3))
    assert check_query(torch.zeros(3), 3).shape == (1, 3)
    assert check_query(torch.zeros(0, 3), 3).shape == (0, 3)


def test_gradients_flow_back_through_the_check():
    query = torch.ones(2, D, requires_grad=True)
    check_query(query, D).sum().backward()
    assert torch.equal(query.grad, torch.ones(2, D))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (torch.ones(B, D).long(), "query has dtype torch.int64; expected floating point."),
        (
            torch.ones(B, 4),
            "query has shape (5, 4); expected (..., D=3), the dim of the table.",
        ),
        (torch.tensor(1.0), "query has shape (); expected (..., D=3), the dim of the table."),
    ],
)
def test_a_query_of_the_wrong_kind_is_refused(query, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_query(query, D)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("row", [0, 4])
def test_the_first_bad_row_of_a_query_is_named(bad, row):
    query = torch.ones(B, D)
    query[row:, 1] = bad
    words = (
        f"query row {row} holds NaN or inf. The encoder has diverged or its input is bad: look at "
        "that row's input, lower the learning rate or clip gradients."
    )
    with pytest.raises(DataError, match=re.escape(words)):
        check_query(query, D)


def test_infinities_that_cancel_in_a_sum_are_found_too():
    query = torch.ones(B, D)
    query[1, 0], query[2, 0] = float("inf"), -float("inf")
    with pytest.raises(DataError, match=r"^query row 1 holds NaN or inf\."):
        check_query(query, D)


def test_a_large_but_finite_query_is_fine_though_its_sum_is_not():
    query = torch.full((B, D), 3e38)
    assert torch.equal(check_query(query, D), query)


def test_all_finite_is_about_entries_not_their_sum():
    assert all_finite(torch.full((7,), 3e38))
    assert all_finite(torch.empty(0))
    assert not all_finite(torch.tensor([1.0, float("nan")]))
    assert not all_finite(torch.tensor([float("inf"), -float("inf")]))


def test_a_positive_whole_number_comes_back():
    assert check_positive("k", 3_000_000_000) == 3_000_000_000


@pytest.mark.parametrize("value", [2.0, True, "3", None])
def test_a_number_that_is_not_whole_is_refused(value):
    words = f"k must be a whole number, got {value!r}."
    with pytest.raises(UsageError, match=re.escape(words)):
        check_positive("k", value)


@pytest.mark.parametrize("value", [0, -3])
def test_a_number_below_one_is_refused(value):
    with pytest.raises(UsageError, match=re.escape(f"k must be at least 1, got {value}.")):
        check_positive("k", value)


def test_errors_are_both_ours_and_value_errors():
    for kind in (UsageError, DataError):
        assert issubclass(kind, TapasError)
        assert issubclass(kind, ValueError)


def test_numpy_integers_are_whole_numbers():
    assert check_positive("k", np.int64(3)) == 3
