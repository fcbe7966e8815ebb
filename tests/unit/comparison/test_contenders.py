"""The table of contenders is complete, and all have valid searches of equal size."""

import pytest

from tapas.comparison.contenders import (
    CONTENDERS,
    MOST_TRIALS,
    Trial,
    by_name,
    pick_contenders,
)
from tapas.comparison.figure_style import COLOURS
from tapas.errors import UsageError
from tapas.heads import METHODS


def test_every_method_is_a_contender():
    assert {contender.method for contender in CONTENDERS.values()} == set(METHODS)
    assert all(name == contender.name for name, contender in CONTENDERS.items())
    assert set(METHODS) <= set(CONTENDERS)  # the plain one has the name of its method
    assert len({contender.title for contender in CONTENDERS.values()}) == len(CONTENDERS)
    assert len({contender.colour for contender in CONTENDERS.values()}) == len(CONTENDERS)


def test_n_is_the_pool_of_dynamic_negatives():
    options = CONTENDERS["dynamic-negatives"].head(1_000, None).options
    assert (options["num_samples"], options["presample_factor"]) == (64, 15)
    options = CONTENDERS["dynamic-negatives"].head(20, None).options
    assert (options["num_samples"], options["presample_factor"]) == (2, 10)


def test_a_method_has_the_same_colour_as_in_other_figures():
    titles = {
        "sampled": "sampled softmax", "tapas-top": "TAPAS top", "tapas": "TAPAS priority",
        "full": "full softmax",
    }  # fmt: skip
    for name, title in titles.items():
        assert CONTENDERS[name].colour == COLOURS[title]


@pytest.mark.parametrize("count", range(1, MOST_TRIALS + 1))
def test_all_have_the_same_number_of_distinct_trials(count):
    for contender in CONTENDERS.values():
        trials = contender.trials(count)
        assert len(trials) == len(set(trials)) == count, contender.name
    assert CONTENDERS["sampled"].trials(4) == [
        Trial(0.3, 0.75), Trial(1.0, 0.75), Trial(0.3, 1.0), Trial(1.0, 1.0)
    ]  # fmt: skip
    assert CONTENDERS["full"].trials(4) == [Trial(rate, None) for rate in (0.3, 1.0, 0.1, 3.0)]
    assert {trial.knob for trial in CONTENDERS["tapas"].trials(8)} == {0.0, 0.5, 0.75, 1.0}


@pytest.mark.parametrize("contender", CONTENDERS.values(), ids=lambda c: c.name)
def test_a_knob_is_an_option_of_its_method_and_every_trial_can_be_built(contender):
    assert contender.knob is None or contender.knob in contender.kind.options
    assert len(contender.values) in ((0,) if contender.knob is None else (2, 4))
    for trial in contender.trials(MOST_TRIALS):
        head = contender.head(64, trial.knob)
        assert head.method == contender.method
        assert head.next_items == 5
        rows, _ = contender.kind.rows_per_step(head.options, 100_000)
        assert not contender.draws or rows == 64 * contender.times
        if contender.knob is not None:
            assert head.options[contender.knob] == trial.knob


def test_methods_are_selected_by_name():
    assert pick_contenders("tapas, full,tapas") == ("tapas", "full")
    assert pick_contenders("all") == pick_contenders("full,all") == tuple(CONTENDERS)
    assert [contender.name for contender in by_name(["nce", "full"])] == ["nce", "full"]
    with pytest.raises(UsageError, match=r"^unknown method 'nosuch'"):
        pick_contenders("all,nosuch")
