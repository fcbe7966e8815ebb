"""The rule follows the numbers: made-up results for every branch, and the words it says."""

import dataclasses
import re

import pytest
from oracle.comparison_results import comparison, reference, standing

from tapas.comparison.recommendation import in_sentence, recommend_method


def said(*standings, **more):
    rule = recommend_method(comparison(*standings, **more))
    return rule.choice, " ".join(rule.sentences)


def test_the_one_that_is_better_than_all_others():
    choice, words = said(standing("nce", 0.1), standing("tapas", 0.2), standing("full", 0.1))
    assert choice == "tapas"
    assert words == (
        "Use TAPAS, priority: its MAP@20 of 0.2000 (0.2000 to 0.2000) is better than that of "
        "every other."
    )


def test_the_full_softmax_if_it_is_best_even_if_others_are_as_good_and_sooner_there():
    choice, words = said(
        standing("full", 0.2, noise=0.05),
        standing("tapas", 0.199, noise=0.05, rise=(0.9, 1.0, 1.0, 1.0)),
        standing("nce", 0.05),
    )
    assert choice == "full"
    assert words.startswith(
        "Use plain full softmax: it is exact, needs no sampling, and within this budget its MAP@20 "
        "of 0.2000 ("
    )
    assert (
        "As good as the best, as far as these seeds and users can tell: TAPAS, priority." in words
    )


def test_of_those_as_good_the_one_that_is_there_first():
    choice, words = said(
        standing("sampled", 0.2, noise=0.05, rise=(0.2, 0.5, 0.8, 1.0)),
        standing("tapas", 0.199, noise=0.05, rise=(0.2, 0.97, 0.98, 1.0), peak_bytes=10**10),
        standing("mixed", 0.199, noise=0.05, rise=(0.2, 0.5, 0.97, 1.0)),
        standing("full", 0.05),
    )
    assert choice == "tapas"
    assert "is as good as the best (sampled softmax), and of these it is there first: 95 % of " in (
        words
    )
    assert "95 % of the best MAP@20 after 15 s of training." in words
    assert "can tell: sampled softmax, in-batch and sampled." in words


def test_of_those_there_at_once_the_lightest():
    choice, words = said(
        standing("sampled", 0.2, noise=0.05, peak_bytes=900_000_000),
        standing("tapas", 0.2, noise=0.05, peak_bytes=300_000_000),
        standing("full", 0.05),
    )
    assert choice == "tapas"
    assert "; 95 % of the best MAP@20 after 60 s of training, as others, but with the least " in (
        words
    )
    assert "memory: 300 MB." in words


def test_of_those_as_light_the_fastest_step():
    light = {"noise": 0.05, "peak_bytes": 300_000_000}
    slow = dataclasses.replace(standing("sampled", 0.2, **light), pace={"step_seconds": [0.5]})
    fast = dataclasses.replace(standing("tapas", 0.2, **light), pace={"step_seconds": [0.02]})
    choice, words = said(slow, fast, standing("full", 0.05))
    assert choice == "tapas"
    assert "as others, but with the fastest steps: 20 ms." in words


def test_evidence_that_is_too_thin():
    choice, words = said(
        standing("full", 0.1, noise=0.05),
        standing("tapas", 0.101, noise=0.05),
        standing("nce", 0.099, noise=0.05),
    )
    assert choice is None
    assert words.startswith("The evidence is too thin for a rule. TAPAS, priority has the highest ")
    assert "but none of the 2 others is clearly behind it. Give a larger --budget or more " in words
    choice, words = said(standing("full", 0.1), standing("nce", 0.1))
    assert choice is None
    assert "but the other is not clearly behind it." in words


def test_a_lucky_seed_is_not_recommended():
    choice, words = said(
        standing("sampled", 0.9, seeds=1, diverged_seeds=(1,)),
        standing("tapas", 0.2),
        standing("full", 0.1),
    )
    assert choice == "tapas"
    assert words.endswith("Not recommended because a seed diverged: sampled softmax.")


# 1,000 targets at 10 %: the standard error of a difference is 1.3 to 1.5 %, three are 4 to 4.5 %
@pytest.mark.parametrize(("tail", "told"), [(0.135, False), (0.15, True)])
def test_a_word_on_the_tail_if_another_is_clearly_better_there(tail, told):
    choice, words = said(standing("tapas", 0.2), standing("nce", 0.1, tail=tail))
    assert choice == "tapas"
    assert ("If rare classes matter most" in words) is told
    if told:
        assert (
            "If rare classes matter most, look at NCE: it finds 15.0 % of the tail instead of "
            "10.0 %, at a MAP@20 of 0.1000." in words
        )


def test_counting_that_is_better_than_all():
    _, words = said(
        standing("tapas", 0.2),
        standing("nce", 0.1),
        references=(reference("co-occurrence", 0.3), reference("the true distribution", 0.4, 5.0)),
    )
    assert words.endswith(
        "Beware: co-occurrence, without any training, is better than all of these. Give a larger "
        "--budget or another model before you choose."
    )
    _, words = said(
        standing("tapas", 0.2), standing("nce", 0.1), references=(reference("most popular", 0.1),)
    )
    assert "Beware" not in words


def test_whole_steps_are_no_difference_in_time():
    """A moment of 30 s is 29.9 or 30.1 s, as steps are long or short; memory decides then."""

    def at(name, pace, memory):
        entry = standing(name, 0.2)
        for final in entry.finals:
            final["peak_bytes"] = memory
            for point in final["curve"]:
                point["seconds"] *= pace
        return entry

    late, early = at("nce", 1.004, 300_000_000), at("tapas", 0.996, 900_000_000)
    choice, words = said(late, early, standing("full", 0.1))
    assert choice == "nce"
    assert "as others, but with the least memory: 300 MB" in words


@pytest.mark.parametrize(
    ("name", "title"),
    [("full", "full softmax"), ("nce", "NCE"), ("gbce", "gBCE"), ("in-batch", "in-batch softmax"),
     ("tapas", "TAPAS, priority"), ("warp", "WARP")],
)  # fmt: skip
def test_titles_within_a_sentence(name, title):
    assert in_sentence(standing(name, 0.1)) == title


def test_titles_with_commas_are_told_apart():
    _, words = said(
        *(standing(name, 0.2, noise=0.05) for name in ("nce", "huffman", "two-level")),
        standing("full", 0.05),
    )
    assert re.search(r"can tell: [^;]+; [^;]+\.", words)


def test_too_little_to_choose_from_is_said():
    assert said(standing("nce", 0.1)) == (
        None, "Only NCE has been judged (MAP@20 0.1000): there is nothing to compare it with."
    )  # fmt: skip
    assert said(standing("nce", 0.1, finals=())) == (
        None,
        "No contender has finished without diverging, so that there is nothing to choose. Give a "
        "larger --budget, or other --methods.",
    )
    none = {"head": {"recall": 0.5, "targets": 9}, "tail": {"recall": None, "targets": 0}}
    one = standing("tapas", 0.2, seeds=1, buckets=none)
    _, words = said(one, standing("nce", 0.1, seeds=1, tail=0.9))
    assert "rare" not in words  # the log has no tail
    assert words.endswith("One seed: the intervals know nothing of the chance in training.")
