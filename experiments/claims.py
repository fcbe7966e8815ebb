"""A claim of the paper, the verdict on it, and the Markdown tables of verdicts.

Verdicts, by a rule that is written beside each claim:

    reproduced      the rule holds; of a claim about real data, on every set
    partly          one of the rule's conditions holds, or it holds on some of the sets
    not reproduced  the rule does not hold: the results contradict the claim, or the 95 % interval
                    of the difference includes 0
    missing         the study has not been run
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tapas.errors import DataError

REPRODUCED, PARTLY, NOT, MISSING = "reproduced", "partly", "not reproduced", "missing"
START, END = "<!-- claims -->", "<!-- /claims -->"
Verdict = tuple[str, str]  # REPRODUCED, PARTLY or NOT, and the evidence in words
Results = TypeVar("Results")


class SetAnswer(NamedTuple):
    """Whether a claim holds on one set, and the numbers."""

    name: str
    holds: bool
    evidence: str


class Claim(NamedTuple):
    """What the paper says, the study that tests it, and what we found."""

    text: str
    study: str
    verdict: str  # REPRODUCED, PARTLY, NOT or MISSING
    evidence: str
    sets: tuple[SetAnswer, ...] = ()  # of a claim about real data: one for each set that was run

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "sets": [answer._asdict() for answer in self.sets]}

    @property
    def one_line(self) -> str:
        """For the terminal, with the answers of the sets in brackets."""
        sets = ", ".join(f"{s.name} {_yes(s.holds)} ({s.evidence})" for s in self.sets)
        return f"{self.verdict}: {self.text} {self.evidence}" + (f": {sets}" if sets else "")


def check_claims(
    claims: Iterable[tuple[str, str, Callable[[Results], Verdict]]], read: Callable[[], Results]
) -> list[Claim]:
    """One row for each claim (text, study, rule); MISSING where there are no results."""
    rows = []
    for text, study, rule in claims:
        try:
            verdict, evidence = rule(read())
        except DataError as error:
            verdict, evidence = MISSING, str(error)
        rows.append(Claim(text, study, verdict, evidence))
    return rows


def claims_rows(claims: Sequence[Claim], indent: str) -> list[list[str]]:
    """Text, verdict and evidence of each claim; below it an indented row for each of its sets."""
    rows = []
    for claim in claims:
        rows.append([claim.text, claim.verdict, claim.evidence])
        rows += [[indent + s.name, _yes(s.holds), s.evidence] for s in claim.sets]
    return rows


def claims_table(claims: Sequence[Claim]) -> list[str]:
    """Markdown: the verdict on every claim, with the evidence."""
    verdicts = {claim.verdict for claim in claims}
    rows = [
        [text, f"**{answer}**" if answer in verdicts else answer, evidence]
        for text, answer, evidence in claims_rows(claims, indent="&emsp;")
    ]
    return markdown_table(["claim", "verdict", "evidence"], rows)


def sets_table(claims: Sequence[Claim]) -> list[str]:
    """Markdown: on how many of the sets that were run each claim about real data holds."""
    rows = [
        [claim.text, f"{sum(answer.holds for answer in claim.sets)} of {len(claim.sets)} sets"]
        for claim in claims
        if claim.sets
    ]
    return markdown_table(["claim", "holds on"], rows)


def count_verdicts(claims: Sequence[Claim]) -> str:
    """How many claims have which verdict, as a sentence without its full stop."""
    found = Counter(claim.verdict for claim in claims)
    return (
        f"of {len(claims)}, {found[REPRODUCED]} are reproduced, {found[PARTLY]} partly, "
        f"{found[NOT]} not"
    )


def replace_block(page: Path, claims: Sequence[Claim]) -> str:
    """The text of `page` with today's `sets_table` between its two markers.

    Raises DataError if the page has no such markers.
    """
    text = page.read_text()
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise DataError(
            f"{page} lacks the lines {START} and {END}. Write both where the table is to be."
        )
    block = "\n".join([START, "", *sets_table(claims), "", END])
    return before + block + after


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return [lines[0], "|---" * len(headings) + "|", *lines[1:]]


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
