"""Counting parts of a model, mixed with its softmax.

    p(y | history) = g_softmax p_softmax(y) + g_copy p_copy(y) + g_follow p_follow(y)

Copying counts the items of the history itself, following counts what came after its latest items
in training. The few numbers of the parts and of their shares g are fitted on held-out events.
"""

from tapas.mixture.copy_part import CopyPart
from tapas.mixture.fit import SCALES, Targets, Watched, fit_parts, fit_shares
from tapas.mixture.follow_part import FollowPart
from tapas.mixture.mixture import Mixed, Mixture
from tapas.mixture.past import Past
from tapas.mixture.table_prediction import TablePrediction
from tapas.mixture.transitions import Transitions, count_transitions

__all__ = [
    "SCALES",
    "CopyPart",
    "FollowPart",
    "Mixed",
    "Mixture",
    "Past",
    "TablePrediction",
    "Targets",
    "Transitions",
    "Watched",
    "count_transitions",
    "fit_parts",
    "fit_shares",
]
