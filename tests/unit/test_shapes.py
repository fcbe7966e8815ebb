"""Argument checks and their error messages."""

import numpy as np
import pytest
import torch
from error_text import raises_text

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
INF = float("inf")


def test_sizes_are_bound_across_tensors_and_the_given_ones_are_not_changed():
    given = {"B": B}
    sizes = check_shape(given, a=(torch.zeros(B, K), "B K"), b=(torch.zeros(K, D), "K D"))
    assert sizes == {"B": B, "K": K, "D": D}
    assert given == {"B": B}


def test_a_wrong_shape_is_shown_beside_the_expected_one():
    for shape, spec, expected in (
        ((6, 7), "B K", "(B=5, K)"),
        ((5,), "B K", "(B=5, K)"),
        ((), "B", "(B=5)"),
        ((3, 4), "D D", "(D=3, D=3)"),
    ):
        with raises_text(f"negative has shape {shape}; expected {expected}."):
            check_shape({"B": B}, negative=(torch.zeros(shape), spec))
    with raises_text("log_q has shape (6,); expected (K=7)."):
        check_shape({}, negative=(torch.zeros(B, K), "B K"), log_q=(torch.zeros(6), "K"))
    with raises_text("ids must be a torch.Tensor, got list. torch.as_tensor makes one."):
        check_shape({}, ids=([1, 2], "K"))


def test_every_integer_dtype_becomes_int64():
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        got = check_integer("ids", torch.tensor([1, 100], dtype=dtype))
        assert got.dtype == torch.int64
        assert got.tolist() == [1, 100]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
def test_float_and_bool_ids_are_refused(dtype):
    words = f"ids has dtype {dtype}; expected int64 class ids."
    if dtype != torch.bool:
        words += " Keep ids as integers: floats corrupt them."
    with raises_text(words):
        check_integer("ids", torch.ones(3).to(dtype))
    with raises_text(words):
        check_ids("ids", torch.ones(3).to(dtype), C)


def test_ids_in_range_are_returned_and_others_are_named():
    ids = torch.tensor([[0, 30], [7, 7]])
    assert check_ids("target", ids, C) is ids
    assert check_ids("target", torch.tensor([3_000_000_000]), 3_000_000_001).item() == 3 * 10**9
    assert check_ids("target", torch.empty(0, dtype=torch.int64), C).shape == (0,)
    for ids, bad in (([0, 31], 31), ([5, -1, 3], -1), ([99, -4], -4), ([2**40], 2**40)):
        with raises_text(f"target holds class {bad}; expected ids from 0 to 30 (num_classes=31)."):
            check_ids("target", torch.tensor(ids), C)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_query_of_any_float_and_any_batch_shape_becomes_a_float32_matrix(dtype):
    query = torch.arange(30, dtype=dtype).reshape(2, 5, 3).requires_grad_()
    got = check_query(query, 3)
    assert got.dtype == torch.float32
    assert torch.equal(got, torch.arange(30.0).reshape(10, 3))
    got.sum().backward()
    assert torch.equal(query.grad, torch.ones_like(query))
    assert check_query(torch.zeros(3), 3).shape == (1, 3)
    assert check_query(torch.zeros(0, 3), 3).shape == (0, 3)


def test_a_query_of_the_wrong_kind_is_refused():
    with raises_text("query has dtype torch.int64; expected floating point."):
        check_query(torch.ones(B, D).long(), D)
    with raises_text("query has shape (5, 4); expected (..., D=3), the dim of the table."):
        check_query(torch.ones(B, 4), D)
    with raises_text("query has shape (); expected (..., D=3), the dim of the table."):
        check_query(torch.tensor(1.0), D)


def test_the_first_bad_row_of_a_query_is_named_and_large_numbers_are_fine():
    for bad in (float("nan"), INF, -INF):
        for row in (0, 4):
            query = torch.ones(B, D)
            query[row:, 1] = bad
            words = (
                f"query row {row} holds NaN or inf. The encoder has diverged or its input is bad: "
                "check that row's input, lower the learning rate or clip gradients."
            )
            with raises_text(words, DataError):
                check_query(query, D)
    query = torch.ones(B, D)
    query[1, 0], query[2, 0] = INF, -INF  # which cancel in a sum
    with raises_text("query row 1 holds NaN or inf", DataError):
        check_query(query, D)
    query = torch.full((B, D), 3e38)
    assert torch.equal(check_query(query, D), query)
    assert all_finite(query)
    assert all_finite(torch.empty(0))
    assert not all_finite(torch.tensor([INF, -INF]))


def test_only_positive_integers_are_accepted():
    assert check_positive("k", 3_000_000_000) == 3_000_000_000
    assert check_positive("k", np.int64(3)) == 3
    for value in (2.0, True, "3", None):
        with raises_text(f"k must be an integer, got {value!r}."):
            check_positive("k", value)
    for value in (0, -3):
        with raises_text(f"k must be at least 1, got {value}."):
            check_positive("k", value)


def test_errors_are_tapas_errors_and_value_errors():
    for kind in (UsageError, DataError):
        assert issubclass(kind, TapasError)
        assert issubclass(kind, ValueError)
