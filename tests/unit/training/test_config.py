"""Configurations: read from TOML and flags, checked, and written back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapas import UsageError
from tapas.heads import METHODS, FlatHead
from tapas.training.config import as_tables, as_toml, build_config, read_toml, without_replaced

LOG = {"log": {"files": ["a.parquet"]}}


@given(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
    st.floats(1e-6, 1e6),
    st.integers(1, 10**9),
    st.booleans(),
)
def test_what_is_written_reads_back_the_same(tmp_path_factory, name, number, count, seen):
    config = build_config(
        {
            "log": {"files": [name, "b.csv"], "item": name},
            "head": {"temperature": number, "num_samples": count},
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
        "unknown name in [model] 'encodr'. Did you mean 'encoder'? Known: attention_heads, copy",
    ),
    (
        {"model": {"repeats": True}},  # its name in earlier versions
        "unknown name in [model] 'repeats'. Did you mean 'copy'? Known: attention_heads, copy, dim",
    ),
    ({"model": {"encoder": "lstm"}}, "unknown model.encoder 'lstm'. Known: gru, mean, transfo"),
    ({"model": {"dim": 0}}, "model.dim must be at least 1, got 0."),
    ({"model": {"dim": 1.5}}, "model.dim must be an integer, got 1.5."),
    ({"model": {"dim": True}}, "model.dim must be an integer, got True."),
    ({"model": {"dropout": "high"}}, "model.dropout must be a number, got 'high'."),
    ({"head": {"alpha": 1.5}}, "head.alpha must be between 0 and 1, got 1.5."),
    ({"head": {"alpha": float("nan")}}, "head.alpha must be between 0 and 1, got nan."),
    (
        {"head": {"presample": 9}},
        "unknown name in [head] 'presample'. Did you mean 'presample_factor'? Known: alpha, ann",
    ),
    ({"head": {"beta": 0}}, "head.beta must be between 1e-300 and 1, got 0.0."),
    ({"head": {"score_queries": 0}}, "head.score_queries must be at least 1, got 0."),
    ({"head": {"cls": 9}}, "unknown name in [head] 'cls'."),
    ({"head": {"options": {}}}, "unknown name in [head] 'options'."),
    ({"head": {"next_items": 0}}, "head.next_items must be at least 1, got 0."),
    ({"head": {"num_samples": True}}, "head.num_samples must be an integer, got True."),
    ({"head": {"selection": 3}}, "head.selection must be a string, got 3."),
    ({"head": {"selection": "topp"}}, "unknown head.selection 'topp'. Did you mean 'top'?"),
    (
        {"head": {"method": "hufman"}},
        "unknown head.method 'hufman'. Did you mean 'huffman'? Known: adaptive, ",
    ),
    (
        {"head": {"method": "nce", "presample_factor": 4}},
        "head.presample_factor is not an option of the method 'nce', but of dynamic-negatives, "
        "mixed, tapas. Leave it out.",
    ),
    (
        {"head": {"method": "nce", "proposal": "bigram"}, "service": {"servers": 2}},
        "head.proposal 'bigram' is counted from the full log, which workers do not read: use "
        "'squashed', or train without --servers.",
    ),
    (
        {"service": {"workers": 2}},
        "service.workers and service.max_staleness need servers, but service.servers is 0. Add "
        "--servers 2, for example.",
    ),
    (
        {"service": {"servers": 2, "start_seconds": 0}},
        "service.start_seconds must be between 1 and 1e+06, got 0.0.",
    ),
    ({"optimizer": {"rows_lr": 0}}, "optimizer.rows_lr must be between 1e-12 and 1e+06, got 0.0."),
    ({"loop": {"exclude_seen": "yes"}}, "loop.exclude_seen must be a bool, got 'yes'."),
    ({"log": {"files": [3]}}, "log.files must be a list of strings, got [3]."),
]


@pytest.mark.parametrize(("layer", "words"), BAD, ids=lambda x: str(x)[:40])
def test_a_bad_name_or_value_is_an_error(layer, words):
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
def test_a_file_that_is_no_configuration_is_an_error(tmp_path, content, words):
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        read_toml(path)


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_cannot_use_servers_or_shared_inputs_are_refused(method):
    kind = METHODS[method]
    has_rows = issubclass(kind, FlatHead)
    head, refused = {"head": {"method": method}}, {}
    for layer in ({"service": {"servers": 2}}, {"model": {"inputs": "shared"}}):
        try:
            build_config(LOG, head, layer)
        except UsageError as error:
            refused[next(iter(layer))] = str(error)
    served = None
    if kind.learns_state or not has_rows:
        what = "learns state besides its rows" if has_rows else "has no rows for servers"
        served = f"the method '{method}' {what}: train it in one process, without --servers."
    assert refused.pop("service", None) == served
    shared = f"model.inputs is 'shared', but the method '{method}' has no class vectors to share. "
    assert refused == ({} if has_rows else {"model": f"{shared}Use 'own'."})


def test_a_method_or_split_on_the_command_line_replaces_that_of_a_file_with_its_options():
    head = {"method": "tapas", "num_samples": 5, "presample_factor": 2, "next_items": 3}
    tables = {"head": head, "split": {"kind": "time", "validation": 0.1, "test": 0.2, "seed": 1}}
    kept = {"method": "tapas", "num_samples": 5, "next_items": 3}
    assert without_replaced(tables, {}, {"head": {"method": "nce"}}) == tables | {"head": kept}
    typo = {"head": {"typo": 1}}
    assert without_replaced(typo, {"head": {"method": "full"}}) == typo  # an error later
    other = {"split": {"kind": "last"}}
    assert without_replaced(tables, other) == tables | {"split": {"kind": "time", "seed": 1}}
    for layer in ({}, {"split": {"kind": "time"}}, {"split": {"test": 0.3}}):
        assert without_replaced(tables, layer) == tables


def test_settings_without_a_log_are_refused():
    with pytest.raises(UsageError, match=r"^log\.files is missing: name the files of the log\.$"):
        build_config({"model": {"dim": 4}})
