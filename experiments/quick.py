"""What --quick changes in pages and figures: they say so first, and name their own command.

Quick runs are for trying the code out. They are short and on made-up data, so that nothing follows
from them: no claim is checked, and `python -m experiments claims` does not read them.
"""

import re
from typing import TYPE_CHECKING

from tapas.cli.terminal import status

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTICE = "Quick run on a made-up log: no verdicts."
COMMAND = re.compile(r"python -m experiments\s+[a-z0-9-]+")


def quick_page(page: str) -> str:
    """`page` (Markdown) with the notice as its first line and --quick in its commands."""
    return f"{NOTICE}\n\n{_quick_commands(page)}"


def quick_figure(figure: "Figure") -> "Figure":
    """The figure, with the notice before its title and --quick in its commands."""
    for text in figure.texts:
        text.set_text(_quick_commands(text.get_text()))
    title = figure.texts[0]
    title.set_text(f"{NOTICE} {title.get_text()}")
    return figure


def say_quick() -> None:
    status(NOTICE)


def _quick_commands(text: str) -> str:
    return COMMAND.sub(lambda found: f"{found[0]} --quick", text)
