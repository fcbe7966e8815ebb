"""Help that a stranger understands: short summaries, and a sentence for every option."""

import re

import pytest
from oracle.command_line import COMMANDS, invoke

JOURNEY = ["inspect", "train", "evaluate", "recommend", "similar", "export"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def summaries(*words):
    text = invoke(*words, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    return dict(
        re.findall(r"^  ([a-z]+) +([A-Z].*)$", text.partition("Commands:")[2], re.MULTILINE)
    )


def test_the_main_commands_come_first_and_no_summary_is_cut():
    found = summaries()
    assert list(found)[: len(JOURNEY)] == JOURNEY
    assert len(found) == len({words[0] for words in COMMANDS})
    for summary in (found | summaries("checkpoint")).values():
        assert summary.endswith(".")
        assert not summary.endswith(("...", "…"))
        assert len(summary) <= 60  # click cuts longer ones at 80 columns


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_is_explained_in_a_sentence(words):
    for option in COMMANDS[words].params:
        help_text = option.help or ""
        assert len(help_text.split()) >= 3, f"{option.name}: {help_text!r}"
        assert help_text.endswith("."), f"{option.name}: {help_text!r}"
        assert help_text[0].isupper() or help_text.startswith("With --"), option.name
    text = invoke(*words, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
