"""What --quick changes in pages and figures: they say so first, and name their own command.

Quick runs are for trying the code out. They are short and on made-up data, so that nothing follows
from them: no claim is checked, and `python -m experiments claims` does not read them.
"""

import re
from typing import TYPE_CHECKING

from tapas.cli.terminal import status
from tapas.comparison.figure_style import NOTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MADE_UP_LOG = "Quick run on a made-up log: no verdicts."
GENERATED_POINTS = "Quick run on generated points: no verdicts."
FEW_REPEATS = "Quick run with few repeats: no verdicts."
COMMAND = re.compile(r"python -m experiments\s+[a-z0-9-]+")


def quick_page(page: str, notice: str = MADE_UP_LOG) -> str:
    """`page` (Markdown) with the notice as its first line and --quick in its commands."""
    return f"{notice}\n\n{_quick_commands(page)}"


def quick_figure(figure: "Figure", notice: str = MADE_UP_LOG) -> "Figure":
    """The figure, with the notice below its title and --quick in its commands."""
    for text in figure.texts:
        text.set_text(_quick_commands(text.get_text()))
    left, height = figure.texts[0].get_position()
    below = height - 0.24 / figure.get_figheight()
    figure.text(left, below, notice, fontsize=9.5, color=NOTE, va="center")
    return figure


def say_quick(notice: str = MADE_UP_LOG) -> None:
    status(notice)


def _quick_commands(text: str) -> str:
    return COMMAND.sub(lambda found: f"{found[0]} --quick", text)
