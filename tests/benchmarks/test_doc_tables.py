"""Numbers in README.md and docs/ agree with the newest records and the memory plan."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "part"),
    [
        ("docs/scaling.md", "designs_table"),
        ("docs/scaling.md", "billion_table"),
        ("docs/accuracy.md", "bias_table"),
        ("results/demo/README.md", "demo_table"),
        ("results/demo/README.md", "demo_sentence"),
        ("results/demo/README.md", "made_up_table"),
        ("results/demo/README.md", "made_up_sentence"),
        ("README.md", "step_sentence"),
        ("README.md", "classes_sentence"),
    ],
)
def test_the_page_shows_what_the_records_say(load, page, part):
    assert getattr(load("doc_tables"), part)() in (ROOT / page).read_text()
