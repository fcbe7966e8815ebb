"""Advice on the next run: given where it fits, and left out where it does not."""

from dataclasses import replace
from types import SimpleNamespace

from tapas.data.description import Description
from tapas.data.times import DATETIME
from tapas.training.advice import Advice, advise, next_training, run_again
from tapas.training.config import build_config

LOG = Description(
    num_events=1_000,
    num_users=100,
    num_items=20_001,
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


def config(**sections):
    base = {"log": {"files": ["log.csv"]}, "head": {"method": "sampled"}}
    return build_config(base, {name: dict(table) for name, table in sections.items()})


def test_a_run_that_beats_all_baselines_needs_no_advice():
    assert advise(REPEATING, config(), []) == []
    assert advise(replace(REPEATING, num_items=9_999), config(), []) == []


def test_copying_is_advised_where_own_items_are_better_and_repeats_are_to_be_had():
    assert advise(REPEATING, config(), ["own most frequent"]) == [COPY]
    assert advise(REPEATING, config(), ["most popular"]) == []
    assert advise(REPEATING, config(model={"copy": True}), ["own most frequent"]) == []
    assert advise(REPEATING, config(loop={"exclude_seen": True}), ["own most frequent"]) == []
    assert advise(replace(LOG, repeats=0.009), config(), ["own most frequent"]) == []


def test_following_is_advised_where_co_occurrence_is_better():
    follow = Advice(
        ("--follow",), "counting what follows the latest items is better than the model"
    )
    assert advise(LOG, config(), ["co-occurrence"]) == [follow]
    assert advise(LOG, config(model={"follow": True}), ["co-occurrence"]) == []


def test_few_items_call_for_the_full_softmax():
    small = replace(LOG, num_items=9_999)
    assert advise(small, config(), ["most popular"]) == [FULL]
    assert advise(small, config(head={"method": "full"}), ["most popular"]) == []
    assert advise(LOG, config(), ["most popular"]) == []


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
