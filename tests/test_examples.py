"""Every example runs as it stands, and does what its first lines promise."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from forked import Forked, torchrun

EXAMPLES = Path(__file__).parent.parent / "examples"


def output_of(name, *arguments, cwd):
    """What the example prints; warnings are errors."""
    environment = {**os.environ, "TMPDIR": str(cwd), "PYTHONWARNINGS": "error"}
    done = Forked(EXAMPLES / name, *arguments, work=run_here, cwd=cwd, env=environment).end()
    assert done.returncode == 0, done.stderr
    return done.stdout


def number_after(words, text):
    """The number that follows `words` in `text`."""
    found = re.search(rf"{re.escape(words)}\s*(-?[\d.,]+\d|\d)", text)
    assert found, f"no {words!r} in {text!r}"
    return float(found[1].replace(",", ""))


def run_here(script, *arguments):
    sys.argv = [str(script), *map(str, arguments)]
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.slow
def test_swapping_the_loss_keeps_the_loss(tmp_path):
    before, after = output_of("swap_the_loss.py", 40, cwd=tmp_path).splitlines()
    assert before.startswith("cross_entropy")
    assert after.startswith("TapasSoftmax")
    assert number_after("loss", after) < number_after("loss", before) + 0.1
    assert number_after("loss", before) < 9  # log(30,000) is 10.3


@pytest.mark.slow
def test_several_labels_are_found_more_often_than_the_popular_ones(tmp_path):
    popular, model = output_of("several_labels.py", cwd=tmp_path).splitlines()
    assert number_after(":", popular) < 0.3
    assert number_after(":", model) > 2 * number_after(":", popular)


@pytest.mark.slow
def test_a_log_becomes_a_model_that_names_the_next_track(tmp_path):
    said = output_of("log_to_topk.py", cwd=tmp_path)
    assert number_after("model: recall@20", said) > 0.5
    assert number_after("most popular: recall@20", said) < 0.2
    assert said.splitlines()[-1].startswith("after track 50, track 51: track 52, ")


@pytest.mark.slow
def test_tied_weights_halve_the_rows_and_lower_the_loss(tmp_path):
    separate, tied = output_of("tied_weights.py", cwd=tmp_path).splitlines()
    assert number_after("rows:", separate) == 2 * number_after("rows:", tied)
    assert number_after("loss", tied) < number_after("loss", separate) - 0.2


@pytest.mark.slow
def test_a_proposal_that_fits_the_data_lowers_the_loss(tmp_path):
    """With the rule "priority" and with the example's rule."""
    total, uniform, proposal, rule = output_of(
        "own_rule_and_proposal.py", cwd=tmp_path
    ).splitlines()
    assert number_after("sum to", total) == 1
    assert number_after("loss", proposal) < number_after("loss", uniform)
    assert number_after("loss", rule) < number_after("loss", uniform)


def test_the_list_of_examples_is_complete_and_each_is_one_page():
    files = {path.name for path in EXAMPLES.glob("*.py")}
    listed = re.findall(r"^\| \[(\w+\.py)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert files == set(listed)
    assert {f for f in files if len((EXAMPLES / f).read_text().splitlines()) >= 80} == set()


@pytest.mark.slow
def test_many_ranks_train_the_same_model_as_one(tmp_path):
    """And one rank continues from the checkpoint of two."""
    script, words = EXAMPLES / "many_ranks.py", "full softmax loss:"
    short = ("--steps", 50)
    alone = output_of("many_ranks.py", *short, cwd=tmp_path)
    done = torchrun(2, script, *short, "--folder", "run", work=run_here, cwd=tmp_path).end()
    assert done.returncode == 0, done.stderr
    assert "ranks: 2" in done.stdout
    assert number_after(words, done.stdout) == pytest.approx(number_after(words, alone), rel=0.05)
    assert number_after(words, alone) < 6  # 11.5 before the first step
    resumed = Forked(script, *short, "--folder", "run", work=run_here, cwd=tmp_path).end()
    assert resumed.stdout == done.stdout.replace("ranks: 2", "ranks: 1")
