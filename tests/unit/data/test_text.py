"""Words of a text and their places."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tapas.data.text import places, words_of


def test_words_are_runs_of_letters_and_digits_in_lower_case():
    words, counts = words_of(pl.Series(["Don't stop: 42 TIMES!", "...", "a-b"]), "words")
    assert words.to_list() == ["don't", "stop", "42", "times", "a", "b"]
    assert counts.tolist() == [4, 0, 2]


def test_spaces_keep_words_as_written():
    words, counts = words_of(pl.Series(["Don't  stop:", " Ä\tb\n"]), "spaces")
    assert words.to_list() == ["Don't", "stop:", "Ä", "b"]
    assert counts.tolist() == [2, 2]


@given(st.lists(st.integers(0, 4)))
def test_places_count_up_within_a_document(documents):
    seen = dict.fromkeys(range(5), -1)
    want = []
    for document in documents:
        seen[document] += 1
        want.append(seen[document])
    assert places(np.array(documents, dtype=np.uint32)).tolist() == want
