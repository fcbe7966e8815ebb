"""First pass: distributions over the classes, from which a pool of distinct ones is drawn."""

from tapas.proposals.base import Proposal
from tapas.proposals.bigram import Bigram
from tapas.proposals.by_rank import ByRank
from tapas.proposals.log_uniform import LogUniform
from tapas.proposals.mixture import Mixture
from tapas.proposals.squashed import Squashed
from tapas.proposals.uniform import Uniform

__all__ = ["Bigram", "ByRank", "LogUniform", "Mixture", "Proposal", "Squashed", "Uniform"]
