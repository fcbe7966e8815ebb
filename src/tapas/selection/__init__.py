"""Second pass: rules that select n classes of the pool by their scores for the batch."""

from tapas.errors import UsageError, choice
from tapas.selection.base import Selection, SelectionInput, check_selected
from tapas.selection.priority import Priority
from tapas.selection.top import Top

__all__ = [
    "Priority",
    "Selection",
    "SelectionInput",
    "Top",
    "as_selection",
    "check_selected",
]

RULES: dict[str, type[Priority | Top]] = {"priority": Priority, "top": Top}


def as_selection(rule: str | Selection) -> Selection:
    """The rule named "priority" or "top" with its defaults; a `Selection` is returned as it is."""
    if isinstance(rule, Selection):
        return rule
    if not isinstance(rule, str):
        raise UsageError(
            f"selection must be a name or a Selection object such as tapas.Top(), got {rule!r}."
        )
    return choice("selection", rule, RULES)()
