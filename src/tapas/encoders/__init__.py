"""Sequence encoders: from item vectors to a query at every position."""

from tapas.encoders.base import Encoder, Places, last_state, latest
from tapas.encoders.build import ENCODERS, build_encoder, num_parameters
from tapas.encoders.gru import GRUEncoder
from tapas.encoders.mean import MeanEncoder
from tapas.encoders.packed import Packed
from tapas.encoders.transformer import TransformerEncoder

__all__ = [
    "ENCODERS",
    "Encoder",
    "GRUEncoder",
    "MeanEncoder",
    "Packed",
    "Places",
    "TransformerEncoder",
    "build_encoder",
    "last_state",
    "latest",
    "num_parameters",
]
