"""The tables of docs/scaling.md are those of the memory plan of today."""

from pathlib import Path


def test_the_page_on_scaling_holds_the_tables_of_the_plan(load):
    tables = load("scaling_tables")
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    assert f"\n\n{tables.designs_table()}\n\n" in page
    assert f"\n\n{tables.billion_table()}\n\n" in page
