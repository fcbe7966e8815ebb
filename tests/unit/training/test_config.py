"""Configurations: from TOML and flags, checked by name and value, and written back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas import UsageError
from tapas.training.config import as_tables, as_toml, build_config, read_toml

LOG = {"log": {"files": ["a.parquet"]}}


def test_defaults_are_there_and_later_layers_win():
    config = build_config(LOG, {"model": {"dim": 8}}, {"model": {"dim": 16}, "loop": {"seed": 3}})
    assert (config.model.dim, config.loop.seed, config.model.encoder) == (16, 3, "gru")
    assert config.log.files == ("a.parquet",)


@given(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
    st.floats(1e-6, 1e6),
    st.integers(1, 10**9),
    st.booleans(),
)
def test_what_is_written_reads_back_the_same(tmp_path_factory, name, number, whole, seen):
    config = build_config(
        {
            "log": {"files": [name, "b.csv"], "item": name},
            "head": {"temperature": number, "num_samples": whole},
            "loop": {"exclude_seen": seen},
        }
    )
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(as_toml(config), encoding="utf-8")
    assert build_config(read_toml(path)) == config
    assert build_config(as_tables(config)) == config


BAD = [
    ({"modle": {}}, "unknown section 'modle'. Did you mean 'model'? Known: head, log, loop, model"),
    (
        {"model": {"encodr": "gru"}},
        "unknown name in [model] 'encodr'. Did you mean 'encoder'? Known: attention_heads, dim",
    ),
    ({"model": {"encoder": "lstm"}}, "unknown model.encoder 'lstm'. Known: gru, mean, transfo"),
    ({"model": {"dim": 0}}, "model.dim must be at least 1, got 0."),
    ({"model": {"dim": 1.5}}, "model.dim must be a whole number, got 1.5."),
    ({"model": {"dim": True}}, "model.dim must be a whole number, got True."),
    ({"model": {"dropout": "high"}}, "model.dropout must be a number, got 'high'."),
    ({"head": {"alpha": 1.5}}, "head.alpha must be between 0 and 1, got 1.5."),
    ({"head": {"alpha": float("nan")}}, "head.alpha must be between 0 and 1, got nan."),
    (
        {"head": {"samples": 9}},
        "unknown name in [head] 'samples'. Did you mean 'num_samples'?",
    ),
    (
        {"head": {"presample": 9}},
        "unknown name in [head] 'presample'. Did you mean 'presample_factor'? Known: alpha, ann",
    ),
    ({"head": {"cls": 9}}, "unknown name in [head] 'cls'."),
    ({"head": {"options": {}}}, "unknown name in [head] 'options'."),
    ({"head": {"next_items": 0}}, "head.next_items must be at least 1, got 0."),
    ({"head": {"next_items": "5"}}, "head.next_items must be a whole number, got '5'."),
    ({"head": {"num_samples": True}}, "head.num_samples must be a whole number, got True."),
    ({"head": {"selection": 3}}, "head.selection must be a string, got 3."),
    ({"head": {"selection": "topp"}}, "unknown head.selection 'topp'. Did you mean 'top'?"),
    ({"optimizer": {"rows_lr": 0}}, "optimizer.rows_lr must be between 1e-12 and 1e+06, got 0.0."),
    ({"loop": {"steps": 0}}, "loop.steps must be at least 1, got 0."),
    ({"loop": {"exclude_seen": "yes"}}, "loop.exclude_seen must be a bool, got 'yes'."),
    ({"log": {"files": [3]}}, "log.files must be a list of strings, got [3]."),
]


@pytest.mark.parametrize(("layer", "words"), BAD, ids=lambda x: str(x)[:40])
def test_a_bad_name_or_value_is_told(layer, words):
    with pytest.raises(UsageError, match="^" + re.escape(words)):
        build_config(LOG, layer)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[model\n", "config.toml is not TOML: "),
        ("model = 3\n", "config.toml: 'model' must be a table, [model], got 3."),
        ("[modle]\n", "config.toml 'modle'. Did you mean 'model'?"),
    ],
)
def test_a_file_that_is_no_configuration_is_told(tmp_path, content, words):
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        read_toml(path)


def test_a_missing_file_is_told(tmp_path):
    words = f"cannot read {tmp_path / 'none.toml'}: No such file or directory."
    with pytest.raises(UsageError, match=re.escape(words)):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({"beta": 0}, "head.beta must be between 1e-300 and 1, got 0.0."),
        ({"beta": -0.5}, "head.beta must be between 1e-300 and 1, got -0.5."),
        ({"beta": 1.5}, "head.beta must be between 1e-300 and 1, got 1.5."),
        ({"beta": float("nan")}, "head.beta must be between 1e-300 and 1, got nan."),
        ({"beta": "low"}, "head.beta must be a number, got 'low'."),
        ({"score_queries": 0}, "head.score_queries must be at least 1, got 0."),
        ({"score_queries": 2.5}, "head.score_queries must be a whole number, got 2.5."),
    ],
    ids=str,
)
def test_a_bad_floor_or_number_of_scoring_queries_is_told(head, words):
    with pytest.raises(UsageError) as error:
        build_config(LOG, {"head": head})
    assert str(error.value) == words


@pytest.mark.parametrize("head", [{}, {"beta": 1}, {"beta": 1e-12, "score_queries": 1}], ids=str)
def test_a_floor_and_scoring_queries_are_written_and_left_out_if_they_were(head, tmp_path):
    config = build_config(LOG, {"head": head})
    assert (config.head.options["beta"], config.head.options["score_queries"]) == (
        head.get("beta"),
        head.get("score_queries"),
    )
    path = tmp_path / "config.toml"
    path.write_text(as_toml(config))
    assert build_config(read_toml(path)) == config
    assert ("beta" in path.read_text(), "score_queries" in path.read_text()) == (
        "beta" in head,
        "score_queries" in head,
    )


def test_repeats_and_the_papers_rule_do_not_mix():
    layer = {"log": {"files": ["a.csv"]}, "model": {"repeats": True}, "head": {"selection": "top"}}
    words = "which head.selection 'top' overestimates by design. Use 'priority'."
    with pytest.raises(UsageError, match=re.escape(words)):
        build_config(layer)
    build_config(layer, {"head": {"presample_factor": 1}})  # no second pass, no rule
