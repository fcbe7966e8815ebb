"""Engines: how processes are started, found and brought together."""

from tapas.engines.torchrun import join_ranks

__all__ = ["join_ranks"]
