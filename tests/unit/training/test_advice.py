"""Advice on the next run: given where it fits, and left out where it does not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tapas.data.description import Description
from tapas.data.times import DATETIME, TEXT_POSITION
from tapas.training.advice import Advice, advise, next_training, run_again
from tapas.training.config import HeadConfig

LOG = Description(
    num_events=1_000,
    num_users=100,
    num_items=10_000,
    num_baskets=900,
    first_time="",
    last_time="",
    time_kind=DATETIME,
    events_per_user=(1, 2, 3),
    items_per_basket=1.1,
    seen_once=0.1,
    top_fifth=0.6,
    repeats=0.19,
    remarks=(),
)
REPEATING = replace(LOG, repeats=0.413)
COPY = Advice(("--copy",), "41 % of events repeat an item that the user had before")
FULL = Advice(("--method", "full"), "with 9,999 items a full softmax is exact and fast enough")


def test_a_log_that_fits_the_defaults_needs_no_advice():
    assert advise(LOG) == []
    assert advise(LOG, better=["most popular"]) == []


def test_many_repeats_call_for_copying():
    assert advise(REPEATING) == [COPY]
    assert advise(replace(LOG, repeats=0.2)) != []


@pytest.mark.parametrize(
    ("log", "options"),
    [
        (REPEATING, {"copy": True}),
        (replace(REPEATING, time_kind=TEXT_POSITION), {}),
        (REPEATING, {"head": HeadConfig.of(method="nce")}),  # which has no probabilities to mix
        (REPEATING, {"head": HeadConfig.of(method="tapas", selection="top")}),
    ],
)
def test_copying_is_not_advised_where_it_is_on_or_cannot_be(log, options):
    assert advise(log, **options) == []


def test_fewer_repeats_are_enough_if_counting_them_is_better_than_the_model():
    assert advise(LOG, better=["own most frequent"])[0].options == ("--copy",)
    assert advise(replace(LOG, repeats=0.04), better=["own most frequent"]) == []


def test_few_items_call_for_the_full_softmax():
    small = replace(REPEATING, num_items=9_999)
    assert advise(small) == [COPY, FULL]
    assert advise(small, HeadConfig.of(method="nce")) == [COPY, FULL]  # full can copy
    assert advise(small, HeadConfig.of(method="full"), copy=True) == []


def test_the_next_command_has_all_options_and_each_has_its_reason():
    head = SimpleNamespace(method="tapas")
    command = run_again(SimpleNamespace(path="my run", config=SimpleNamespace(head=head)))
    assert next_training(command, [COPY, FULL], first="Try") == [
        "Try: tapas train --config 'my run/config.toml' --out 'my run-2' --copy --method full",
        "  --copy: 41 % of events repeat an item that the user had before",
        "  --method full: with 9,999 items a full softmax is exact and fast enough",
    ]
    assert next_training(["tapas", "train"], []) == ["Next: tapas train"]
    head.method = "mine:Own"
    own = run_again(SimpleNamespace(path="run", config=SimpleNamespace(head=head)))
    assert own[-2:] == ["--method", "mine:Own"]
