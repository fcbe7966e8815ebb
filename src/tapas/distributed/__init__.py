"""Class tables sharded over the ranks of torch.distributed."""

from tapas.distributed.sharded import ShardedTable
from tapas.distributed.torchrun import join_ranks

__all__ = ["ShardedTable", "join_ranks"]
