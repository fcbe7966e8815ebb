"""What a claim of the paper is, how a verdict on it is found, and the table of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from tapas.errors import DataError

Verdict = tuple[str, str]  # "reproduced", "partly" or "not", and the evidence in words
Results = TypeVar("Results")


class Claim(NamedTuple):
    """What the paper says, the study that tests it, and what we found."""

    text: str
    study: str
    verdict: str  # "reproduced", "partly", "not" or "missing"
    evidence: str


def check_claims(
    claims: Iterable[tuple[str, str, Callable[[Results], Verdict]]], read: Callable[[], Results]
) -> list[Claim]:
    """A row for each claim (text, study, rule); "missing" where there is nothing to judge by."""
    rows = []
    for text, study, rule in claims:
        try:
            verdict, evidence = rule(read())
        except DataError as error:
            verdict, evidence = "missing", str(error)
        rows.append(Claim(text, study, verdict, evidence))
    return rows


def claims_table(claims: Sequence[Claim]) -> list[str]:
    rows = [[c.text, f"**{c.verdict}**", c.evidence] for c in claims]
    return markdown_table(["claim", "verdict", "evidence"], rows)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return [lines[0], "|---" * len(headings) + "|", *lines[1:]]
