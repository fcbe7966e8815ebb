"""Settings chosen from the log: each rule at both sides of its bound, nothing that was given."""

from dataclasses import replace

import numpy as np
import pytest

from tapas.data.description import Description
from tapas.data.times import DATETIME
from tapas.training.config import build_config, names_in
from tapas.training.recipe import Choice, Sizes, _choose, _Recipe, choose_for_time

RATINGS = Description(  # a sparse log of ratings: nobody rates an item twice
    num_events=200_000,
    num_users=22_000,
    num_items=12_000,
    num_baskets=190_000,
    first_time="",
    last_time="",
    time_kind=DATETIME,
    events_per_user=(5, 6, 16),
    items_per_basket=1.05,
    seen_once=0.0,
    top_fifth=0.6,
    repeats=0.0,
    remarks=(),
)
GROCERIES = replace(RATINGS, repeats=0.41, items_per_basket=9.6, events_per_user=(90, 400, 1300))


def chosen(found=RATINGS, *, events=150_000, users=22_000, points=1_000, **given):
    """The configuration for a log `found`, with settings `given` by section."""
    given = {"log": {"files": ["log.csv"]}, **given}
    recipe = _Recipe(build_config(given), names_in(given))
    lengths = np.full(users, events / users)
    _choose(recipe, found, Sizes(num_classes=found.num_items, num_points=points, lengths=lengths))
    return recipe


def test_a_sparse_log_without_repeats_gets_a_transformer_and_a_full_softmax():
    config = chosen().config
    assert (config.model.encoder, config.model.inputs, config.model.dropout) == (
        "transformer",
        "shared",
        0.5,
    )
    assert (config.model.copy, config.model.follow, config.loop.exclude_seen) == (False, True, True)
    assert config.head.method == "full"
    assert (config.optimizer.rows, config.optimizer.schedule) == ("lazy-adam", "cosine")
    assert config.optimizer.weight_decay == 0.001
    assert (config.loop.batch, config.loop.epochs) == (256, 20.0)


@pytest.mark.parametrize(
    ("points", "users"), [(1_999, 2_000), (2_001, 2_001), (4_999, 4_999), (22_000, 5_000)]
)
def test_checkpoints_are_chosen_by_more_users_where_there_are_more(points, users):
    assert chosen(points=points).config.loop.validation_examples == users


def test_baskets_that_repeat_are_copied_and_averaged():
    config = chosen(GROCERIES, events=1_200_000, users=2_400).config
    assert (config.model.encoder, config.model.history) == ("mean", 200)
    assert (config.model.copy, config.loop.exclude_seen) == (True, False)
    assert (config.loop.batch, config.loop.epochs) == (16, 2.5)


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ({"repeats": 0.0009}, "loop.exclude_seen", True),
        ({"repeats": 0.001}, "loop.exclude_seen", False),
        ({"repeats": 0.0099}, "model.copy", False),
        ({"repeats": 0.01}, "model.copy", True),
        ({"items_per_basket": 1.99}, "model.encoder", "transformer"),
        ({"items_per_basket": 2.0}, "model.encoder", "mean"),
        ({"num_items": 20_000}, "head.method", "full"),
        ({"num_items": 20_001}, "head.method", "tapas"),
        ({"num_items": 200_000}, "model.dim", 128),
        ({"num_items": 200_001}, "model.dim", 64),
        ({"num_items": 1_999_999}, "optimizer.rows", "lazy-adam"),
        ({"num_items": 2_000_000}, "optimizer.rows", "rowwise-adagrad"),
    ],
)
def test_each_rule_has_its_bound(change, name, value):
    section, _, field = name.partition(".")
    assert getattr(getattr(chosen(replace(RATINGS, **change)).config, section), field) == value


def test_what_was_given_is_kept_and_other_rules_see_it():
    recipe = chosen(model={"encoder": "gru"}, loop={"steps": 7, "exclude_seen": False})
    config = recipe.config
    assert (config.model.encoder, config.model.layers, config.model.dropout) == ("gru", 1, 0.0)
    assert (config.loop.steps, config.loop.exclude_seen) == (7, False)
    names = {choice.name for choice in recipe.choices}
    assert not names & {"model.encoder", "loop.steps", "loop.epochs", "loop.exclude_seen"}


@pytest.mark.parametrize(
    "head",
    [{"method": "tapas"}, {"method": "nce"}, {"num_samples": 50}, {"presample_factor": 4}],
    ids=str,
)
def test_a_method_or_an_option_of_one_is_never_replaced(head):
    found = chosen(head=head).config.head.as_table()
    assert found | head == found
    assert found["method"] == head.get("method", "tapas")


def test_dimensions_that_heads_cannot_share_get_one_head():
    assert chosen(model={"dim": 25}).config.model.attention_heads == 1
    assert chosen(model={"dim": 26}).config.model.attention_heads == 2


def test_targets_that_were_given_leave_the_method_open():
    config = chosen(head={"next_items": 1}).config
    assert (config.head.method, config.head.next_items) == ("full", 1)


def test_a_method_without_class_vectors_has_inputs_of_its_own():
    assert chosen(head={"method": "huffman"}).config.model.inputs == "own"


def test_every_choice_is_a_line_with_its_reason():
    recipe = chosen(replace(RATINGS, num_items=54_321))
    lines = {choice.name: str(choice) for choice in recipe.choices}
    assert lines["head.method"] == (
        "head.method = tapas: 54,321 items: too many for a full softmax"
    )
    assert lines["model.copy"] == (
        "model.copy = false: 0.0 % of events repeat an item of the same user"
    )
    assert len(lines) == len(recipe.choices)
    assert str(Choice("loop.batch", 1024, "so")) == "loop.batch = 1,024: so"
    for choice in recipe.choices:
        section, _, field = choice.name.partition(".")
        part = getattr(recipe.config, section)
        found = part.as_table()[field] if section == "head" else getattr(part, field)
        assert found == choice.value


@pytest.mark.parametrize(
    ("events", "head", "decay"),
    [(599_999, {}, 0.001), (600_000, {}, 0.0), (599_999, {"method": "tapas"}, 0.0)],
    ids=str,
)
def test_few_events_of_an_item_decay_the_rows_of_a_full_softmax(events, head, decay):
    """A sampled row is not in every step, so the same number would be another amount."""
    assert chosen(events=events, head=head).config.optimizer.weight_decay == decay


def test_a_few_users_with_most_of_the_events_make_a_step_no_larger():
    """1,000 users with 2 events, 10 with 10,000: windows of 50 have 34 events on average."""
    lengths = np.array([2] * 1_000 + [10_000] * 10)
    given = {"log": {"files": ["log.csv"]}}
    recipe = _Recipe(build_config(given), names_in(given))
    _choose(recipe, RATINGS, Sizes(num_classes=12_000, num_points=1_000, lengths=lengths))
    assert recipe.config.model.history == 50
    assert recipe.config.loop.batch == 64


@pytest.mark.parametrize(
    ("head", "epochs", "method"),
    [
        ({}, 7.9, "tapas"),
        ({}, 8.0, None),
        ({"method": "full"}, 1.0, None),  # it was given
        ({"next_items": 3}, 1.0, "tapas"),
    ],
    ids=str,
)
def test_in_a_short_time_a_full_softmax_gives_way_to_sampling(head, epochs, method):
    recipe = chosen(head=head)
    assert recipe.config.head.method == "full"
    found = choose_for_time(recipe.config, recipe.given, epochs)
    if method is None:
        assert found is None
        return
    config, choice = found
    assert config.head.method == method
    assert config.head.next_items == recipe.config.head.next_items
    assert str(choice) == (
        f"head.method = tapas: in this time a full softmax would see each event {epochs:.1f} times"
    )
