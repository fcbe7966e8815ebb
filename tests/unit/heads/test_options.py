"""The class attributes of each method agree with its constructor."""

import inspect
import math
import re
import sys

import pytest
import torch
from contracts.heads import FLAT, HEADS, TREES, counts

import tapas
import tapas.heads as heads
from tapas import LocalTable, UsageError
from tapas.heads import METHODS, FlatHead
from tapas.heads.citations import BIBTEX
from tapas.heads.facts import BuildContext, Option, check_options, default_num_samples
from tapas.optim import SGD

C, D = 31, 4


def says(words):
    return pytest.raises(UsageError, match="^" + re.escape(words) + "$")


def keywords(kind):
    """The keywords of a constructor, with their defaults."""
    return {p.name: p.default for p in inspect.signature(kind).parameters.values()}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_class_has_all_its_facts(method):
    kind = METHODS[method]
    assert kind.method == method
    assert kind.title
    assert bool(kind.paper) == bool(kind.bibtex)
    assert set(kind.bibtex) <= set(BIBTEX)
    assert kind.reads <= {"counts", "pairs", "upcoming"} & keywords(kind).keys()
    assert not kind.every_row or issubclass(kind, FlatHead)
    assert kind.targets_softmax or not kind.estimates_probabilities


@pytest.mark.parametrize("method", METHODS)
def test_options_are_keywords_with_the_same_defaults_and_allow_what_they_would_try(method):
    """A default of None is resolved by the constructor or by `from_options`."""
    kind = METHODS[method]
    known = keywords(kind)
    for name, option in kind.options.items():
        assert option.help
        assert option.check(name, option.default) == option.default
        assert [option.check(name, value) for value in option.search] == list(option.search)
        if option.argument:  # constructors take objects for these
            assert option.argument in {"proposal", "selection", "temperature"} & known.keys()
            continue
        default = known[name]
        open_to_choice = default is inspect.Parameter.empty or None in (default, option.default)
        assert open_to_choice or default == option.default, name
    assert sum(bool(option.search) for option in kind.options.values()) <= 1


def test_every_method_is_under_contract():
    assert {name.split(",")[0] for name in HEADS} == set(METHODS)
    assert {name.split(",")[0] for name in FLAT} == {
        name for name, kind in METHODS.items() if issubclass(kind, FlatHead)
    }


NEW_FILE = """
from tapas.heads.full import FullSoftmax

class Again(FullSoftmax):
    method = "again"
    title = "Full softmax, again"
"""


def test_a_file_in_the_folder_is_enough(tmp_path, monkeypatch):
    (tmp_path / "again.py").write_text(NEW_FILE)
    monkeypatch.setattr(heads, "__path__", [*heads.__path__, str(tmp_path)])
    try:
        found = heads._find_methods()
    finally:
        del heads.again, sys.modules["tapas.heads.again"]
    assert found.keys() - METHODS.keys() == {"again"}
    assert found["again"].title == "Full softmax, again"


def context(num_classes=40, **more):
    sizes = {"counts": torch.arange(num_classes), "dim": 3, "seed": 5, "steps": 10}
    return BuildContext(**sizes, row_optimizer=SGD.fused(lr=0.5), **more)


def whole_context():
    return context(
        table=LocalTable(40, 3),
        pairs=lambda: (torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([3, 4])),
        upcoming=lambda step: torch.tensor([step]),
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_head_is_built_from_its_defaults(method):
    kind, options = METHODS[method], check_options(method, {}, METHODS)
    head = kind.from_options(options, whole_context())
    assert type(head) is kind
    assert (head.num_classes, head.dim, head.seed) == (40, 3, 5)
    if "num_samples" in kind.options:
        rows, factor = kind.rows_per_step(kind.resolve_options(options, 40), 40)
        assert rows == default_num_samples(40) == 5
        assert factor == (8 if method == "tapas" else 1)


def test_more_samples_than_classes_are_all_classes():
    options = check_options("sampled", {"num_samples": 1_000}, METHODS)
    assert METHODS["sampled"].from_options(options, whole_context()).num_samples == 40


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (Option(1, int, low=1), 0, "x must be at least 1, got 0."),
        (Option(1, int, low=1), 1.5, "x must be an integer, got 1.5."),
        (Option(1, int, low=1), True, "x must be an integer, got True."),
        (Option(1, int, low=1), None, "x must be an integer, got None."),
        (Option(0.5, float, low=0, high=1), 2, "x must be between 0 and 1, got 2.0."),
        (Option(0.5, float, low=0, high=1), float("nan"), "x must be between 0 and 1, got nan."),
        (Option(0.5, float, low=0, high=1), "half", "x must be a number, got 'half'."),
        (Option("a", ("a", "bee")), 3, "x must be a string, got 3."),
        (Option("a", ("a", "bee")), "be", "unknown x 'be'. Did you mean 'bee'? Known: a, bee."),
    ],
    ids=str,
)
def test_a_bad_value_in_a_configuration_is_refused(option, value, words):
    with says(words):
        option.check("x", value)


def test_integers_are_accepted_as_floats_and_none_if_it_is_the_default():
    found = Option(0.5, float, low=0, high=1).check("x", 1)
    assert (found, type(found)) == (1.0, float)
    assert Option(None, int, low=1).check("x", None) is None


def test_a_misspelt_option_and_a_context_that_lacks_something_are_refused():
    with says("unknown option of the method 'warp' 'trys'. Did you mean 'tries'? Known: tries."):
        check_options("warp", {"trys": 3}, METHODS)
    with pytest.raises(ValueError, match=r"^the head needs pairs, but the BuildContext has none$"):
        context().read("pairs")


def rate(value):
    return f"rate must be above 0 and at most 1, got {value!r}. Try 0.01."


def min_ess(value):
    return (
        f"min_ess must be between 1 and num_samples (11), got {value!r}: the "
        "effective sample size cannot exceed the draws. Raise num_samples or lower min_ess."
    )


def negatives(value):
    return (
        f"negatives must be a finite number above 0, got {value!r}. It is the total weight of a "
        "batch's draws beside one target; the paper takes 5 to 20, or 2 to 5 for large data."
    )


def calibration(value):
    return (
        f"calibration must be between 0 and 1, got {value!r}. 0 is plain binary cross-entropy, 1 "
        "corrects fully for the sampling."
    )


def penalty(value):
    return (
        f"penalty must be a finite number of at least 0, got {value!r}. It is the weight of "
        "(log Z)^2; 0 is no penalty."
    )


def share(value):
    return (
        f"share must be above 0 and at most 1, got {value!r}. It is the share of each batch that "
        "is normalised; without any, scores would grow without bound."
    )


def above_zero(name):
    return lambda value: (
        f"{name} must be at least 1, got 0."
        if value == 0
        else f"{name} must be an integer, got {value!r}."
    )


def cutoffs(value):
    return (
        "cutoffs must be increasing integers from 1 to 30, one less than the number of classes, "
        f"got {value!r}. Leave them out for the cheapest cutoffs."
    )


def div_value(value):
    return f"div_value must be a finite number of at least 1, got {value!r}."


def temperature(value):
    return f"temperature must be between 1e-06 and 1e+06, got {value!r}."


BAD = [  # method, option, values, and what is said of one
    ("in-batch", "rate", [0, 1.5, -0.1, math.nan, "fast"], rate),
    ("adaptive-importance", "rate", [0], rate),
    ("adaptive-importance", "min_ess", [12, 0.5, "all"], min_ess),
    ("adaptive-importance", "refresh_every", [0, 2.5], above_zero("refresh_every")),
    ("negative-sampling", "negatives", [0, -1.0, math.inf, math.nan, "5"], negatives),
    ("gbce", "calibration", [-0.1, 1.5, math.nan, "0.5"], calibration),
    ("self-normalised", "penalty", [-0.1, math.inf, math.nan, "1"], penalty),
    ("self-normalised", "share", [0, -0.1, 1.5, math.nan, "1"], share),
    ("warp", "tries", [0, 1.5], above_zero("tries")),
    ("dynamic-negatives", "presample_factor", [0, 0.5], above_zero("presample_factor")),
    ("tapas", "presample_factor", [0, 0.5], above_zero("presample_factor")),
    ("tapas", "temperature", [0.0, -1.0, math.nan, "warm", tapas.Anneal], temperature),
    ("sce", "num_buckets", [0, 2.5], above_zero("num_buckets")),
    ("sce", "bucket_queries", [0, 2.5], above_zero("bucket_queries")),
    ("sce", "bucket_classes", [0, 2.5], above_zero("bucket_classes")),
    ("two-level", "num_clusters", [0, 2.5], above_zero("num_clusters")),
    (
        "two-level",
        "num_clusters",
        [32],
        lambda value: (
            "num_clusters is 32, but there are only 31 classes. Leave it out for the square root "
            "of that."
        ),
    ),
    (
        "two-level",
        "row_optimiser",
        [None],
        lambda value: (
            "unknown option of TwoLevelSoftmax 'row_optimiser'. Did you mean 'row_optimizer'? "
            "Known: bias, counts, device, dim, ignore_index, num_clusters, reduction, "
            "row_optimizer, seed."
        ),
    ),
    ("adaptive", "cutoffs", [[], [0, 3], [3, 3], [5, 2], [C], [2.5], 7], cutoffs),
    ("adaptive", "div_value", [0.5, math.inf, math.nan, "4"], div_value),
    (
        "adaptive-importance",
        "pairs",
        [(torch.tensor([3]), torch.tensor([4]))],
        lambda value: (
            "pairs must be a tuple (previous, following, counts), got tuple of length 2. Pass "
            "three tensors of one shape, (N,)."
        ),
    ),
    (
        "partitioned",
        "upcoming",
        [[1, 2]],
        lambda value: (
            "upcoming must be a function from a step to the targets of that step, got [1, 2]. For "
            "a list of batches: lambda step: targets[step % len(targets)]."
        ),
    ),
]


@pytest.mark.parametrize(
    ("method", "option", "values", "words"), BAD, ids=[f"{row[0]} {row[1]}" for row in BAD]
)
def test_a_bad_value_in_a_constructor_is_refused(method, option, values, words):
    kind = METHODS[method]
    given = {"num_samples": 11} if "num_samples" in kind.options else {}
    size = (counts(C), D) if method in TREES else (C, D)
    for value in values:
        with says(words(value)):
            kind(*size, **(given | {option: value}))
