"""The sentence that says who is better."""

import math

import pytest

from tapas.evaluation.intervals import Interval
from tapas.evaluation.verdict import beside, beside_baselines

AHEAD, BEHIND = Interval(0.04, 0.03, 0.06), Interval(-0.02, -0.03, -0.001)
FAR = Interval(1, 0.5, 2)
LEVEL = Interval(0.001, -0.002, 0.005)


@pytest.mark.parametrize(
    ("lead", "words"),
    [
        (
            {"most popular": AHEAD, "own most frequent": AHEAD, "co-occurrence": FAR},
            ["The model is better than all three baselines: MAP@20 +0.0400 (+0.0300 to +0.0600) "
             "against most popular, the best of them."],
        ),
        (
            {"most popular": AHEAD, "own most frequent": BEHIND, "co-occurrence": LEVEL},
            ["Own most frequent is better than the model: MAP@20 +0.0200 (+0.0010 to +0.0300)."],
        ),
        (
            {"own most frequent": BEHIND, "co-occurrence": BEHIND},
            ["Own most frequent is better than the model: MAP@20 +0.0200 (+0.0010 to +0.0300).",
             "Co-occurrence is better than the model: MAP@20 +0.0200 (+0.0010 to +0.0300)."],
        ),
        (
            {"most popular": AHEAD, "co-occurrence": LEVEL},
            ["No significant difference between the model and co-occurrence: MAP@20 +0.0010 "
             "(-0.0020 to +0.0050)."],
        ),
        (
            {"most popular": Interval(0.1, 0.0, 0.2)},  # an end at 0 is not significant
            ["No significant difference between the model and most popular: MAP@20 +0.1000 "
             "(+0.0000 to +0.2000)."],
        ),
    ],
)  # fmt: skip
def test_beside_the_baselines(lead, words):
    assert beside_baselines("the model", lead, 10) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "1 user is too few to say who is better: at least 10 are needed."),
     (9, "9 users are too few to say who is better: at least 10 are needed.")],
)  # fmt: skip
def test_few_users_are_words_and_no_interval(number, words):
    nothing = Interval(0.5, -math.inf, math.inf)
    assert beside("the model", "mine.csv", AHEAD, number) == words
    assert beside_baselines("the model", {"most popular": nothing}, number) == [words]


def test_names_of_files_and_folders_keep_their_letters():
    assert beside("the model", "mine.csv", BEHIND, 99).startswith("mine.csv is better than the mod")
    assert beside("run-a", "run-b", AHEAD, 99).startswith("run-a is better than run-b: ")
