"""What counting parts read of a history, against loops."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tapas.mixture.past import Groups, Past, places_of, within

C = 7
rows = st.integers(1, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(-1, C - 1), min_size=width, max_size=width), min_size=1, max_size=5
    )
)


@given(rows=rows)
def test_groups_are_the_distinct_classes_of_a_row_and_sum_over_equal_ones(rows):
    items = torch.tensor(rows)
    groups = Groups.of(items)
    value = torch.arange(items.numel()).view_as(items).double() + 1
    sums = groups.sum(value)
    for row, values, found, sum_ in zip(
        rows, value.tolist(), groups.items.tolist(), sums.tolist(), strict=True
    ):
        distinct = sorted({item for item in row if item >= 0})
        assert found == distinct + [-1] * (len(row) - len(distinct))
        want = [sum(v for item, v in zip(row, values, strict=True) if item == c) for c in distinct]
        assert sum_[: len(distinct)] == want


def test_the_groups_of_no_history_are_empty():
    assert Groups.of(torch.empty(0, 3, dtype=torch.int64)).items.shape == (0, 3)


@given(one=rows, other=rows)
def test_within_is_true_for_ids_of_the_same_row_only(one, other):
    """-1 is padding on both sides, and never equal to the last class of the row before."""
    size = min(len(one), len(other))
    found = within(torch.tensor(one[:size]), torch.tensor(other[:size]))
    for ids, others, mask in zip(one, other, found.tolist(), strict=False):
        assert mask == [i >= 0 and i in others for i in ids]


@given(rows=rows, wanted=rows)
def test_places_are_those_of_the_same_row_or_minus_one(rows, wanted):
    size = min(len(rows), len(wanted))
    items = Groups.of(torch.tensor(rows[:size])).items
    found = places_of(items, torch.tensor(wanted[:size]))
    for row, ids, places in zip(items.tolist(), wanted, found.tolist(), strict=False):
        assert places == [row.index(i) if i >= 0 and i in row else -1 for i in ids]


def test_padding_has_no_item_and_no_age():
    items, lengths = torch.tensor([[5, 6, 5], [3, 3, 3]]), torch.tensor([3, 1])
    given_ages = torch.tensor([[2, 1, 1], [1, 9, 9]])
    for age, want in ((None, [[3, 2, 1], [1, 0, 0]]), (given_ages, [[2, 1, 1], [1, 0, 0]])):
        past = Past.of(items, lengths, age)
        assert past.items.tolist() == [[5, 6, 5], [3, -1, -1]]
        assert past.age.tolist() == want
