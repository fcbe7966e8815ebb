"""Pieces of sentences for users: numbers with their noun, and the closest of some names."""

from collections.abc import Iterable
from difflib import get_close_matches


def counted(number: int, one: str, many: str | None = None) -> str:
    """
    >>> counted(1, "user"), counted(2000, "user"), counted(2, "history", "histories")
    ('1 user', '2,000 users', '2 histories')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" if one of the `known` names is close; else nothing."""
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
