"""Building an encoder from its settings, of a run or of an export."""

from tapas.encoders.base import Encoder
from tapas.encoders.gru import GRUEncoder
from tapas.encoders.mean import MeanEncoder
from tapas.encoders.transformer import BUCKETS, TransformerEncoder
from tapas.errors import choice

ENCODERS = {"mean": MeanEncoder, "gru": GRUEncoder, "transformer": TransformerEncoder}


def num_parameters(kind: str, dim: int, *, layers: int = 1, attention_heads: int = 2) -> int:
    """The number of parameters of `build_encoder`, without building it.

    >>> num_parameters("mean", 64)
    4160
    """
    choice("encoder", kind, ENCODERS)
    square = dim * (dim + 1)
    if kind == "mean":
        return square
    if kind == "gru":
        return 6 * layers * square + square
    return 2 * dim + attention_heads * BUCKETS + layers * (12 * dim**2 + 13 * dim)


def build_encoder(
    kind: str,
    dim: int,
    *,
    history: int,
    layers: int = 1,
    attention_heads: int = 2,
    dropout: float = 0.0,
    seed: int = 0,
) -> Encoder:
    """The encoder `kind`, one of `ENCODERS`, for up to `history` items."""
    built = choice("encoder", kind, ENCODERS)
    if built is MeanEncoder:
        return MeanEncoder(dim, window=history, dropout=dropout, seed=seed)
    if built is GRUEncoder:
        return GRUEncoder(dim, num_layers=layers, dropout=dropout, seed=seed)
    return TransformerEncoder(
        dim,
        num_layers=layers,
        num_heads=attention_heads,
        dropout=dropout,
        seed=seed,
    )
