"""Every cell of the tables, for fake results."""

from dataclasses import replace

from oracle.comparison_results import comparison, method, result

from tapas.comparison.tables import (
    DETAILS_HEADING,
    HEADING,
    NONE,
    TERMINAL_DETAILS,
    TERMINAL_QUALITY,
    TERMINAL_SETTINGS,
    detail_rows,
    details_table_rows,
    gap_to,
    loss_of,
    quality_rows,
    ranked,
    seed_sentences,
    setting_rows,
    table_rows,
)


def test_rows_are_ordered_by_quality_with_methods_without_results_last():
    late = method("warp", 0.9, finals=(), skipped="too slow for this budget: a step takes 9 s")
    found = comparison(late, method("nce", 0.1), method("full", 0.3), method("sce", 0.2))
    assert [each.name for each in ranked(found)] == ["full", "sce", "nce"]
    rows = table_rows(found)
    assert [row[0] for row in rows] == ["Full softmax", "Scalable cross-entropy", "NCE", "WARP"]
    assert rows[-1] == ["WARP", "too slow for this budget", NONE, "50", NONE]
    assert {len(row) for row in rows} == {len(HEADING)}
    assert rows[0] == ["Full softmax", "0.3000 ±0.0000", "0.6000", "50", "best"]
    assert rows[1][-1] == "-0.1000 (-0.1000 to -0.1000)"
    details = details_table_rows(found)
    assert [row[0] for row in details] == [row[0] for row in rows[:-1]]
    assert {len(row) for row in details} == {len(DETAILS_HEADING)}
    assert details[0][:7] == [
        "Full softmax", "0.1500", "6.000 ±0.000", "50.0 / 20.0 / 10.0 %", "1,200", "1,000",
        "500 MB",
    ]  # fmt: skip


def test_tables_for_a_terminal_have_the_methods_with_results():
    late = method("warp", 0.9, finals=(), skipped="too slow for this budget: a step takes 9 s")
    found = comparison(late, method("nce", 0.1), method("two-level", 0.3))
    assert quality_rows(found)[0][:2] == ["Hierarchical, two levels", "0.3000 ±0.0000"]
    assert detail_rows(found)[0] == [
        "Hierarchical, two levels",
        "best",
        "6.000",
        "10.0 %",
        "500 MB",
    ]
    assert detail_rows(found)[1][:2] == ["NCE", "-0.2000 ±0.0000"]
    assert setting_rows(found)[0][1:3] == ["1,200", "50"]
    for rows, heading in (
        (quality_rows(found), TERMINAL_QUALITY),
        (detail_rows(found), TERMINAL_DETAILS),
        (setting_rows(found), TERMINAL_SETTINGS),
    ):
        assert [row[0] for row in rows] == ["Hierarchical, two levels", "NCE"]
        assert {len(row) for row in rows} == {len(heading)}


def test_unknown_numbers_are_left_out():
    bare = method("full", 0.3, peak_bytes=None, pace=None, scores_per_example=None)
    for final in bare.finals:
        del final["loss"], final["blocks"]["loss"], final["precision@1"]
    row = dict(zip(HEADING, table_rows(comparison(bare))[0], strict=True))
    row |= dict(zip(DETAILS_HEADING, details_table_rows(comparison(bare))[0], strict=True))
    assert loss_of(bare) is None
    for name in ("loss, nats", "precision@1", "ms a step", "scores per example", "peak memory"):
        assert row[name] == NONE


def test_without_a_common_seed_there_is_no_difference():
    one = method("tapas", 0.2, seeds=1)
    other = method("nce", 0, finals=(result("nce", 0.1, seed=1),))
    assert gap_to(other, one) is None
    assert table_rows(comparison(one, other))[1][4] == NONE


def test_the_best_has_no_seed_that_diverged():
    lucky = method("nce", 0.9, seeds=1, diverged_seeds=(1,), num_seeds=2)
    rows = table_rows(comparison(lucky, method("full", 0.2)))
    assert [row[0] for row in rows] == ["NCE (1 of 2 seeds diverged)", "Full softmax"]
    assert [row[4] for row in rows] == ["+0.7000 (+0.7000 to +0.7000)", "best"]


def test_seeds_that_are_not_done_are_said_once():
    half = [replace(method(name, value, finals=(result(name, value),)), num_seeds=2)
            for name, value in (("full", 0.3), ("nce", 0.1))]  # fmt: skip
    done = replace(half[0], num_seeds=1)
    assert [row[0] for row in table_rows(comparison(*half))] == ["Full softmax", "NCE"]
    assert seed_sentences(comparison(*half)) == ["1 of 2 seeds done: every method."]
    assert seed_sentences(comparison(done, half[1])) == ["1 of 2 seeds done: NCE."]
    assert seed_sentences(comparison(done)) == []
