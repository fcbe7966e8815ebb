"""The recommendation and its sentences, for fake results of every case."""

import pytest
from oracle.comparison_results import comparison, method, reference

from tapas.comparison.recommendation import in_sentence, recommend_method


def recommend(*methods, **more):
    rule = recommend_method(comparison(*methods, **more))
    return rule.choice, " ".join(rule.sentences)


def paced(name, step_seconds, **more):
    return method(name, 0.2, noise=0.05, pace={"step_seconds": [step_seconds]}, **more)


CASES = {  # methods, the recommended one, some of the sentences
    "one that is better than all others": (
        (method("nce", 0.1), method("tapas", 0.2), method("full", 0.1)),
        "tapas",
        ["Use TAPAS, priority: its MAP@20 of 0.2000 (0.2000 to 0.2000) is significantly better "],
    ),
    "full softmax if it is the best, even if others are as good and faster": (
        (
            method("full", 0.2, noise=0.05),
            method("tapas", 0.199, noise=0.05, rise=(0.9, 1.0, 1.0, 1.0)),
            method("nce", 0.05),
        ),
        "full",
        [
            "Use full softmax: it is exact, and within this budget its MAP@20 of ",
            "No significant difference from the best: TAPAS, priority.",
        ],
    ),
    "among equally good ones the first to get there": (
        (
            method("sampled", 0.2, noise=0.05, rise=(0.2, 0.5, 0.8, 1.0)),
            method("tapas", 0.199, noise=0.05, rise=(0.2, 0.97, 0.98, 1.0), peak_bytes=10**10),
            method("mixed", 0.199, noise=0.05, rise=(0.2, 0.5, 0.97, 1.0)),
            method("full", 0.05),
        ),
        "tapas",
        [
            "is as good as the best (sampled softmax), and it gets there first: 95 % of ",
            "95 % of the best MAP@20 after 15 s of training.",
            "from the best: sampled softmax, in-batch and sampled.",
        ],
    ),
    "among equally early ones the one with the least memory": (
        (
            method("sampled", 0.2, noise=0.05, peak_bytes=900_000_000),
            method("tapas", 0.2, noise=0.05, peak_bytes=300_000_000),
            method("full", 0.05),
        ),
        "tapas",
        ["after 60 s of training, as others, but with the least memory: 300 MB."],
    ),
    "among those with equal memory the one with the fastest step": (
        (paced("sampled", 0.5), paced("tapas", 0.02), method("full", 0.05)),
        "tapas",
        ["as others, but with the fastest steps: 20 ms."],
    ),
    "none if the evidence is too thin": (
        tuple(method(name, 0.1, noise=0.05) for name in ("full", "tapas", "nce")),
        None,
        [
            "No recommendation: the evidence is too thin. ",
            "but not significantly higher than any of the 2 others. Use a larger --budget or more ",
        ],
    ),
    "none if two are equal": (
        (method("full", 0.1), method("nce", 0.1)),
        None,
        ["but not significantly higher than the other method."],
    ),
    "not one with a diverged seed": (
        (
            method("sampled", 0.9, seeds=1, diverged_seeds=(1,)),
            method("tapas", 0.2),
            method("full", 0.1),
        ),
        "tapas",
        ["Not recommended because a seed diverged: sampled softmax."],
    ),
    "titles with commas are separated by semicolons": (
        (
            *(method(name, 0.2, noise=0.05) for name in ("nce", "huffman", "two-level")),
            method("full", 0.05),
        ),
        "nce",
        ["from the best: hierarchical softmax, Huffman; hierarchical softmax, two "],
    ),
    "none if only one has results": (
        (method("nce", 0.1),),
        None,
        ["No recommendation: only NCE has results (MAP@20 0.1000)."],
    ),
    "none if every method was too slow or diverged": (
        (
            method("full", 0.1, finals=(), skipped="too slow for this budget: a step takes 9 s"),
            method("warp", 0.1, finals=(), skipped="too slow for this budget: a step takes 8 s"),
            method("nce", 0.1, finals=(), diverged_seeds=(0, 1)),
        ),
        None,
        [
            "No recommendation: no method has complete results. Too slow for this budget: full "
            "softmax, WARP. 2 of 2 seeds diverged: NCE. Use a larger --budget, or other --methods."
        ],
    ),
    "none if no method has finished": (
        (method("nce", 0.1, finals=()),),
        None,
        [
            "No recommendation: no method has complete results. Not finished: NCE. The same "
            "command continues where it stopped."
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_recommended_method_is(case):
    methods, wanted, sentences = CASES[case]
    choice, words = recommend(*methods)
    assert choice == wanted
    assert all(sentence in words for sentence in sentences), words


# 1,000 targets at 10 %: the standard error of a difference is 1.3 to 1.5 %, three are 4 to 4.5 %
@pytest.mark.parametrize(("tail", "named"), [(0.135, False), (0.15, True)])
def test_another_method_is_named_if_it_is_clearly_better_on_the_tail(tail, named):
    choice, words = recommend(method("tapas", 0.2), method("nce", 0.1, tail=tail))
    assert choice == "tapas"
    assert ("If rare classes matter most" in words) is named
    if named:
        assert (
            "If rare classes matter most, consider NCE: it finds 15.0 % of the tail instead of "
            "10.0 %, at a MAP@20 of 0.1000." in words
        )


def test_a_warning_if_counting_is_better_than_all_methods():
    _, words = recommend(
        method("tapas", 0.2),
        method("nce", 0.1),
        baselines=(reference("co-occurrence", 0.3), reference("the true distribution", 0.4, 5.0)),
    )
    assert words.startswith(
        "Beware: co-occurrence, without any training, is better than all of these. Use a larger "
        "--budget or another model before you choose. Use TAPAS"
    )
    _, words = recommend(
        method("tapas", 0.2), method("nce", 0.1), baselines=(reference("most popular", 0.1),)
    )
    assert "Beware" not in words


def test_a_warning_if_no_method_is_better_than_counting():
    _, words = recommend(
        method("tapas", 0.2),
        method("nce", 0.1),
        baselines=(reference("co-occurrence", 0.2), reference("most popular", 0.1)),
    )
    assert words.startswith(
        "Beware: no significant difference between the best of these and co-occurrence, without "
        "any training. Use a larger --budget or another model before you choose. Use TAPAS"
    )


def test_a_curve_that_falls_at_its_end_does_not_lower_what_others_must_reach():
    """The best overfits: its last moment has half of its best MAP@20, which others never reach."""
    falling = method("tapas", 0.2)
    for final in falling.finals:
        for point, part in zip(final["curve"], (0.9, 1, 0.8, 0.5), strict=True):
            point["map@20"] = point["validation"] = part * 0.2
    early = method("nce", 0.2, rise=(0.6, 0.6, 0.6, 0.6))
    choice, words = recommend(falling, early, method("full", 0.1))
    assert choice == "tapas"
    assert "it gets there first: 95 % of the best MAP@20 after 15 s of training" in words


def test_times_that_differ_by_less_than_a_step_are_equal():
    """The moment at 30 s is at 29.9 or 30.1 s, since steps are indivisible; memory decides."""

    def at(name, pace, memory):
        entry = method(name, 0.2)
        for final in entry.finals:
            final["peak_bytes"] = memory
            for point in final["curve"]:
                point["seconds"] *= pace
        return entry

    late, early = at("nce", 1.004, 300_000_000), at("tapas", 0.996, 900_000_000)
    choice, words = recommend(late, early, method("full", 0.1))
    assert choice == "nce"
    assert "as others, but with the least memory: 300 MB" in words


@pytest.mark.parametrize(
    ("name", "title"),
    [("full", "full softmax"), ("nce", "NCE"), ("gbce", "gBCE"), ("in-batch", "in-batch softmax"),
     ("tapas", "TAPAS, priority"), ("warp", "WARP")],
)  # fmt: skip
def test_titles_within_a_sentence(name, title):
    assert in_sentence(method(name, 0.1)) == title


def test_without_a_tail_and_with_a_single_seed():
    none = {"head": {"recall": 0.5, "targets": 9}, "tail": {"recall": None, "targets": 0}}
    one = method("tapas", 0.2, seeds=1, buckets=none)
    _, words = recommend(one, method("nce", 0.1, seeds=1, tail=0.9))
    assert "rare" not in words
    assert words.endswith(
        "One seed: the intervals do not include the variation between training runs."
    )
