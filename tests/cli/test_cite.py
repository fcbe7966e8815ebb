"""`tapas cite`, and runs of methods other than TAPAS."""

import json
import re
from pathlib import Path

import pytest
from oracle.command_line import TINY, invoke, last_line, names, write_chain

from tapas.cli.cite import SOFTWARE

pytestmark = pytest.mark.slow


def keys(text):
    return re.findall(r"@\w+\{(\w+),", text)


@pytest.fixture
def log(at):
    return write_chain(at / "log.parquet", num_users=30, num_items=60)


def trained(*settings):
    flags = [part for setting in settings for part in ("--set", setting)]
    return invoke("train", "log.parquet", "--out", "out", "--cache", "cache", *TINY, *flags)


def test_without_a_run_the_library_and_the_paper_are_cited():
    done = invoke("cite")
    assert done.returncode == 0
    assert keys(done.stdout) == ["tapas_softmax", "bai2017tapas"]
    cff = (Path(__file__).parents[2] / "CITATION.cff").read_text()
    for field, value in re.findall(r"^  (title|version|license) = \{([^{}]+)\},$", SOFTWARE, re.M):
        assert f"\n{field}: {value}\n" in cff
    assert "- name: The tapas-softmax developers\n" in cff
    assert "{{The tapas-softmax developers}}" in done.stdout


def test_a_run_is_cited(at, log):
    assert trained("head.method=tapas", "optimizer.rows=rowwise-adagrad").returncode == 0
    done = invoke("cite", "out")
    assert done.returncode == 0
    assert keys(done.stdout) == [
        "bai2017tapas", "duffield2007priority", "duchi2011adaptive", "tapas_softmax"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "cited"),
    [("huffman", "morin2005hierarchical"), ("partitioned", "jean2015large"),
     ("adaptive-importance", "bengio2008adaptive")],
)  # fmt: skip
def test_another_method_works_with_every_command(at, log, method, cited):
    done = trained(f"head.method={method}")
    assert done.returncode == 0, done.stderr
    assert f'method = "{method}"' in (at / "out" / "config.toml").read_text()
    assert invoke("train", "--resume", "out").returncode == 0
    scores = json.loads(invoke("evaluate", "out", "--json").stdout)
    assert scores["scores"]["model"]["num_examples"] > 0
    done = invoke("recommend", "out", "--user", "u1", "--top", 3)
    assert done.returncode == 0, done.stderr
    assert keys(invoke("cite", "out").stdout)[0] == cited


def test_a_tree_has_no_rows_to_export(at, log):
    assert trained("head.method=huffman").returncode == 0
    assert last_line(invoke("export", "out", "--to", "rows.parquet")) == (
        "the method 'huffman' has no table of class vectors, which shared inputs, exports and "
        "similar items need. `tapas recommend` works without it."
    )
    assert "rows.parquet" not in names(at)


def test_an_option_of_another_method_is_refused(at, log):
    done = trained("head.method=nce", "head.presample_factor=4")
    assert last_line(done) == (
        "head.presample_factor is not an option of the method 'nce', but of dynamic-negatives, "
        "mixed, tapas. Leave it out."
    )


def test_a_folder_without_a_run_is_refused(at):
    (at / "empty").mkdir()
    assert "empty" in last_line(invoke("cite", "empty"))


def test_a_comparison_is_cited(at):
    (at / "compare").mkdir()
    settings = {"contenders": ["full", "nce", "tapas-top"], "optimizer": {"rows": "lazy-adam"}}
    (at / "compare" / "settings.json").write_text(json.dumps(settings))
    done = invoke("cite", "compare")
    assert keys(done.stdout) == [
        "gutmann2012noise", "mnih2012fast", "bai2017tapas", "kingma2015adam", "tapas_softmax"
    ]  # fmt: skip
    (at / "compare" / "settings.json").write_text("{}")
    assert last_line(invoke("cite", "compare")) == (
        "compare/settings.json cannot be read as the settings of a comparison: 'contenders'. "
        "Restore it from a backup."
    )
