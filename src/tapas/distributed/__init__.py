"""Ranks of torch.distributed that share the rows of a table."""

from tapas.distributed.sharded import ShardedTable
from tapas.distributed.torchrun import join_ranks

__all__ = ["ShardedTable", "join_ranks"]
