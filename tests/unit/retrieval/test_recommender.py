"""Recommendations with an encoder and a ranking whose results are obvious."""

import numpy as np
import pytest
import torch

from tapas import UsageError
from tapas.retrieval import Recommender

C, T = 31, 4


class Recorder:
    """The query is the sum of the ids; the best classes are the lowest that are not excluded."""

    def __init__(self):
        self.seen, self.excluded = [], []

    def encode(self, items, lengths):
        assert items.dtype == lengths.dtype == torch.int64
        self.seen.append((items, lengths))
        return items.sum(dim=1, keepdim=True).float()

    def topk(self, query, k, exclude):
        self.excluded.append(exclude)
        excluded = [[]] * len(query) if exclude is None else exclude.tolist()
        ids = [[c for c in range(C) if c not in row][:k] for row in excluded]
        return query.expand(-1, k), torch.tensor(ids)


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def recommender(recorder):
    return Recommender(encode=recorder.encode, topk=recorder.topk, history_length=T)


def test_the_model_sees_the_last_items_padded_with_zeros_at_the_end(recommender, recorder):
    histories = [np.array([9, 1, 2, 3, 4, 5], dtype=np.int32), np.array([7])]
    scores, ids = recommender.recommend(histories, 3, exclude_seen=False)
    items, lengths = recorder.seen[0]
    assert items.tolist() == [[2, 3, 4, 5], [7, 0, 0, 0]]
    assert lengths.tolist() == [4, 1]
    assert scores.tolist() == [[14.0] * 3, [7.0] * 3]
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert recorder.excluded == [None]


def test_the_full_history_is_excluded_not_only_what_the_model_sees(recommender, recorder):
    histories = [np.array([0, 0, 1, 5, 6, 7, 8]), np.array([2, 2])]
    _, ids = recommender.recommend(histories, 3, exclude_seen=True)
    assert ids.tolist() == [[2, 3, 4], [0, 1, 3]]
    assert recorder.excluded[0].tolist() == [[0, 1, 5, 6, 7, 8], [2, -1, -1, -1, -1, -1]]


@pytest.mark.parametrize("num_histories", [0, 1, 256, 257, 600])
def test_many_histories_are_ranked_in_batches_and_returned_in_order(
    recommender, recorder, num_histories
):
    histories = [np.array([i % C]) for i in range(num_histories)]
    scores, ids = recommender.recommend(histories, 2, exclude_seen=False)
    assert scores.shape == ids.shape == (num_histories, 2)
    assert scores[:, 0].tolist() == [i % C for i in range(num_histories)]
    assert all(len(items) <= 256 for items, _ in recorder.seen)


def test_errors_name_the_bad_history(recommender):
    good = np.array([1])
    empty = (
        "history 1 is empty, so there is nothing to predict from. Recommend the most popular "
        "items instead, or give --history."
    )
    for bad, k, words in (
        (good[:0], 2, empty),
        (good[None], 2, "history 1 has shape (1, 1); expected (H,) class"),
        (good / 2, 2, "history 1 has dtype float64; expected integer class ids"),
        (-good, 2, "history 1 contains class -1; ids start at 0"),
        (good, 0, "k must be at least 1, got 0"),
    ):
        with pytest.raises(UsageError) as error:
            recommender.recommend([good, bad], k, exclude_seen=True)
        assert str(error.value).startswith(words)
    with pytest.raises(UsageError, match=r"history_length must be at least 1, got 0"):
        Recommender(encode=None, topk=None, history_length=0)
