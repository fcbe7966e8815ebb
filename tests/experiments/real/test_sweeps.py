"""One setting at a time: what is changed, what is left alone."""

from dataclasses import asdict

from oracle.real_results import made_up_plan

from experiments.real.cells import (
    ALL_QUERIES,
    PRIORITY,
    SEARCH_SEED,
    TOP,
    around_the_default,
    cures,
    floors_run,
    known,
    larger_floor,
)  # fmt: skip

FIELDS = {
    "n": {"num_samples"}, "r": {"presample_factor"}, "tau": {"temperature"}, "beta": {"beta"},
    "score_queries": {"score_queries"}, "batch": {"batch"},
}  # fmt: skip


def differences(a, b):
    return {name for name, value in asdict(a).items() if asdict(b)[name] != value}


def test_every_trial_changes_one_setting(tmp_path):
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", lambda cell: 0.1)
    trials = around_the_default(plan, ledger, [1e-4])
    start = plan.trial(PRIORITY, *plan.best(ledger, PRIORITY))
    for setting, fields in FIELDS.items():
        mine = [trial for trial in trials if trial.setting == setting]
        assert [t.run == start for t in mine] == [t.is_default for t in mine]
        assert sum(t.is_default for t in mine) == 1
        assert all(differences(t.run, start) == fields for t in mine if not t.is_default)
        assert [t.value for t in mine] == sorted(t.value for t in mine)
    assert all(t.run.points == "validation" and t.run.seed == SEARCH_SEED for t in trials)


def test_floors_leave_room_for_frequencies(tmp_path):
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", lambda cell: 0.1)
    _, alpha = plan.best(ledger, PRIORITY)
    assert larger_floor(plan, ledger, 1_000_000) == [1e-4**alpha]
    assert larger_floor(plan, ledger, 100) == []
    assert floors_run(ledger) == []


def test_cures_start_from_the_papers_rule_and_take_twice_as_long(tmp_path):
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", lambda cell: 0.1)
    trials = cures(plan, ledger)
    assert {t.run.steps for t in trials} == {2 * plan.real_set.search_steps}
    top = next(t for t in trials if t.is_default)
    assert (top.value, top.run.method) == ("top", TOP.method)
    allowed = {"method", "temperature", "anneal_to", "presample_factor", "alpha"}
    assert all(differences(t.run, top.run) <= allowed for t in trials)
    assert len({t.run.key() for t in trials}) == len(trials)


def test_values_in_words_and_what_is_known(tmp_path):
    plan, ledger = made_up_plan(tmp_path / "made.jsonl", lambda cell: 0.1)
    trials = around_the_default(plan, ledger, [1e-4])
    assert [t.words for t in trials if t.setting == "beta"] == ["of a class seen once", "0.0001"]
    words = [t.words for t in trials if t.setting == "score_queries"]
    assert words == ["8", "64", "256", "all"]
    assert ALL_QUERIES > 1_000_000
    assert [trial.is_default for trial, _ in known(trials, ledger)] == [True] * len(FIELDS)
