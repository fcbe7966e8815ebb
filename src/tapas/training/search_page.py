"""The page of a search for settings: what was tried, for how long, and what came of it."""

import math
from collections.abc import Sequence

from tapas.charts import Line, line_chart
from tapas.durations import duration
from tapas.page import Block, Charts, Heading, Paragraph, Table, as_html
from tapas.phrases import counted
from tapas.training.settings_search import SearchPlan, Trial, in_round, in_words

SEARCH_PAGE = "search.html"


def search_page(plan: SearchPlan, trials: Sequence[Trial], winner: int | None = None) -> str:
    """HTML of the trials made so far; `winner` is the candidate that was chosen."""
    blocks: list[Block] = [
        Paragraph(
            f"{counted(len(plan.candidates), 'candidate')} in {counted(plan.num_rounds, 'round')}: "
            "the better half of each round is tried again, for twice as long, and so is what was "
            "chosen from the log. MAP@20 is that of the validation users. The number of users "
            "limits how small a difference means anything."
        )
    ]
    if winner is not None:
        words = in_words(plan.candidates[winner])
        blocks.append(Paragraph(f"Chosen: {words}.", "rule"))
    if any(trial.score is not None for trial in trials):
        blocks.append(_chart(plan, trials, winner))
    for number in range(plan.num_rounds, 0, -1):
        made = {trial.candidate: trial for trial in trials if trial.round == number}
        if not made:
            continue
        blocks.append(
            Heading(f"Round {number}: {duration(plan.trial_seconds * 2 ** (number - 1))} each")
        )
        order = [n for n in in_round(plan, trials, number) if n in made]
        order.sort(key=lambda n: (made[n].score is None, -(made[n].score or 0), n))
        blocks.append(
            Table(
                ("settings", "MAP@20", "steps", "seconds"),
                [
                    (
                        in_words(plan.candidates[n]),
                        made[n].problem if made[n].score is None else f"{made[n].score:.4f}",
                        f"{made[n].steps:,}",
                        f"{made[n].seconds:.0f}",
                    )
                    for n in order
                ],
            )
        )
    return as_html("Search for settings", blocks)


def _chart(plan: SearchPlan, trials: Sequence[Trial], winner: int | None) -> Charts:
    """MAP@20 of every candidate after the time of each round that it was in."""
    names = {winner: "chosen", 0: "from the log"} | ({0: "chosen"} if winner == 0 else {})
    lines = [
        Line(
            names.get(candidate, ""),
            [
                (trial.seconds, math.nan if trial.score is None else trial.score)
                for trial in trials
                if trial.candidate == candidate
            ],
            quiet=candidate not in names,
        )
        for candidate in range(len(plan.candidates))
    ]
    title = "MAP@20 after seconds of training"
    return Charts({title: line_chart(lines, x="seconds", title=title)}, "Grey: other candidates.")
