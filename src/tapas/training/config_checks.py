"""What the sections of a configuration refuse, in one set of words."""

from tapas.errors import UsageError, pick


def one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    pick(name, value, dict.fromkeys(options))


def at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, got {value}.")


def within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is not
        raise UsageError(f"{name} must be between {low:g} and {high:g}, got {value!r}.")
