"""The paper's rule, `Top`, against plain loops."""

import numpy as np
import pytest
import torch
from error_text import raises_text
from oracle import selection as oracle
from oracle.selection_inputs import draw, make_selection_input

from tapas import Priority, Top
from tapas.selection.base import largest
from tapas.selection.top import CHUNK, batch_score

SIZES = [(1, 1, 2), (5, 3, 17), (67, 7, 31), (3, 2, CHUNK + 1)]  # queries, dim, pool


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("temperature", "scale"), [(1.0, 1), (0.1, 1), (3.0, 1), (0.1, 1e3)])
def test_scores_and_choice_are_those_of_the_loops(sizes, temperature, scale):
    """log_q and targets do not matter to `Top`; scores of 10^4 do not overflow."""
    num_queries, dim, size = sizes
    query = scale * draw(num_queries, dim, name="query")
    noise = torch.full((size,), torch.nan)  # any use of it would show
    given = make_selection_input(*sizes, temperature=temperature, query=query, noise=noise)
    weight, bias = given.rows(0, size)
    want = oracle.top_scores(oracle.logit(given.query, weight, bias), given.temperature)
    np.testing.assert_allclose(batch_score(given).numpy(), want, rtol=1e-5, atol=1e-4 * scale)
    for keep in {1, len(given) // 2, len(given) - 1}:
        kept, log_weight = Top().select(given, keep)
        assert kept.tolist() == oracle.keep_largest(want, keep)
        assert torch.equal(log_weight, torch.zeros(keep))


@pytest.mark.parametrize("keep", range(1, 9))
def test_largest_prefers_the_lower_position_in_ties_and_nan_to_all(keep):
    score = torch.tensor([1.0, 2.0, -torch.inf, 2.0, torch.nan, 1.0, 2.0, -torch.inf, 1.0])
    order = [4, 1, 3, 6, 0, 5, 8, 2, 7]
    kept, left_out = largest(score, keep)
    assert kept.tolist() == sorted(order[:keep])
    assert left_out == score[order[keep]]


@pytest.mark.parametrize("rule", [Top, Priority])
def test_a_bad_number_of_scoring_queries_is_refused(rule):
    with raises_text("score_queries must be at least 1, got 0."):
        rule(score_queries=0)
    for value in (2.5, True):
        with raises_text(f"score_queries must be an integer, got {value}."):
            rule(score_queries=value)
    assert rule(score_queries=None).score_queries is None
    assert rule(score_queries=3).score_queries == 3
