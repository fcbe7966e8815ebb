"""The facts of a method stand on its class, and are true of its constructor."""

import inspect
import re
import sys

import pytest
import torch
from contracts.heads import FLAT, HEADS

import tapas.heads as heads
from tapas import LocalTable, UsageError
from tapas.heads import METHODS, FlatHead
from tapas.heads.citations import BIBTEX
from tapas.heads.facts import BuildContext, Option, check_options, default_num_samples
from tapas.optim import SGD

READABLE = {"counts", "pairs", "upcoming"}
PART_OF = {"proposal", "selection", "temperature"}  # constructors take objects for them


def keywords(kind):
    """The keywords of a constructor, with their defaults."""
    return {p.name: p.default for p in inspect.signature(kind).parameters.values()}


@pytest.mark.parametrize("method", METHODS)
def test_a_class_says_what_it_is(method):
    kind = METHODS[method]
    assert kind.method == method
    assert kind.title
    assert bool(kind.paper) == bool(kind.bibtex)
    assert set(kind.bibtex) <= set(BIBTEX)
    assert kind.reads <= READABLE
    assert not kind.every_row or issubclass(kind, FlatHead)
    assert kind.targets_softmax or not kind.estimates_probabilities


@pytest.mark.parametrize("method", METHODS)
def test_every_option_is_a_keyword_of_the_constructor_with_the_same_default(method):
    """None is left to whoever builds: the constructor, or `from_options`."""
    kind = METHODS[method]
    known = keywords(kind)
    for name, option in kind.options.items():
        if option.part_of:
            assert option.part_of in PART_OF & known.keys()
            continue
        assert name in known
        default = known[name]
        open_to_choice = default is inspect.Parameter.empty or None in (default, option.default)
        assert open_to_choice or default == option.default, name
    assert kind.reads <= known.keys()


@pytest.mark.parametrize("method", METHODS)
def test_options_are_explained_and_allow_what_they_would_try(method):
    options = METHODS[method].options
    for name, option in options.items():
        assert option.help
        assert option.check(name, option.default) == option.default
        assert [option.check(name, value) for value in option.search] == list(option.search)
    assert sum(bool(option.search) for option in options.values()) <= 1


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
    return BuildContext(
        counts=torch.arange(num_classes),
        dim=3,
        seed=5,
        steps=10,
        row_optimizer=SGD.fused(lr=0.5),
        table=LocalTable(num_classes, 3),
        pairs=lambda: (torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([3, 4])),
        upcoming=lambda step: torch.tensor([step]),
        **more,
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_head_is_built_from_its_defaults(method):
    kind, options = METHODS[method], check_options(method, {}, METHODS)
    head = kind.from_options(options, context())
    assert type(head) is kind
    assert (head.num_classes, head.dim, head.seed) == (40, 3, 5)
    if "num_samples" in kind.options:
        rows, factor = kind.rows_per_step(kind.resolve_options(options, 40), 40)
        assert rows == default_num_samples(40) == 5
        assert factor == (8 if method == "tapas" else 1)


def test_more_samples_than_classes_are_all_classes():
    options = check_options("sampled", {"num_samples": 1_000}, METHODS)
    assert METHODS["sampled"].from_options(options, context()).num_samples == 40


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (Option(1, int, low=1), 0, "x must be at least 1, got 0."),
        (Option(1, int, low=1), 1.5, "x must be a whole number, got 1.5."),
        (Option(1, int, low=1), True, "x must be a whole number, got True."),
        (Option(1, int, low=1), None, "x must be a whole number, got None."),
        (Option(0.5, float, low=0, high=1), 2, "x must be between 0 and 1, got 2.0."),
        (Option(0.5, float, low=0, high=1), float("nan"), "x must be between 0 and 1, got nan."),
        (Option(0.5, float, low=0, high=1), "half", "x must be a number, got 'half'."),
        (Option("a", ("a", "bee")), 3, "x must be a string, got 3."),
        (Option("a", ("a", "bee")), "be", "unknown x 'be'. Did you mean 'bee'? Known: a, bee."),
    ],
    ids=str,
)
def test_a_bad_value_is_told(option, value, words):
    with pytest.raises(UsageError, match="^" + re.escape(words) + "$"):
        option.check("x", value)


def test_whole_numbers_are_welcome_as_fractions_and_none_where_it_is_the_default():
    found = Option(0.5, float, low=0, high=1).check("x", 1)
    assert (found, type(found)) == (1.0, float)
    assert Option(None, int, low=1).check("x", None) is None


def test_a_misspelt_option_is_told_its_name():
    words = "unknown option of the method 'warp' 'trys'. Did you mean 'tries'? Known: tries."
    with pytest.raises(UsageError, match="^" + re.escape(words) + "$"):
        check_options("warp", {"trys": 3}, METHODS)


def test_what_a_context_does_not_have_cannot_be_read():
    bare = BuildContext(
        counts=torch.arange(9), dim=3, seed=0, steps=1, row_optimizer=SGD.fused(lr=0.5)
    )
    with pytest.raises(ValueError, match=r"^a head wants pairs, which this context does not have$"):
        bare.read("pairs")
