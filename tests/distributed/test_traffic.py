"""The bytes that a rank counts equal those of its sockets and of the formula."""

import os
import socket
import struct
import time
from stat import S_ISSOCK

import pytest
import torch
from ranks import run_ranks

from tapas import ShardedTable, TapasSoftmax
from tapas.optim import RowwiseAdagrad
from tapas.rng import stream

C, D, L, B = 5_003, 48, 3, 1_536  # B examples of all ranks, a number that 2 and 3 divide
ACKED_AT = 120  # tcpi_bytes_acked, 64 bits, in Linux's struct tcp_info
STEPS = 3


def bytes_acknowledged():
    """Bytes acknowledged on all TCP connections of this process."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6):
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("<Q", info, ACKED_AT)[0]
    return total


def settled():
    """The same after all data has arrived."""
    before, now = -1, bytes_acknowledged()
    while now != before:
        time.sleep(0.1)
        before, now = now, bytes_acknowledged()
    return now


def on_ranks(ranks):
    table = ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1))
    head = TapasSoftmax(table=table, num_samples=97, presample_factor=3)
    mine = B // ranks.size
    query = torch.randn(mine, D, generator=stream(0, ranks.rank)).requires_grad_()
    target = torch.randint(0, C, (mine, L), generator=stream(1, ranks.rank))
    head(query, target).backward()
    counted, sent = table.ranks.sent_bytes, settled()
    for _ in range(STEPS):
        head(query, target).backward()
    step = table.ranks.sent_bytes - counted, settled() - sent
    table.rows(target[0])  # no rank exits while others count
    return step


def by_formula(m):
    """Queries and targets, logits, their gradients, and the gradients of queries."""
    away = (m - 1) / m * B
    header = (2 * 5 * 8 + 4 * 8) * (m - 1)  # two headers, four names of messages
    return away * (4 * D + 8 * L) + 2 * away * 4 * (L + 1) + away * 4 * D + header


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the sockets of Linux")
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_counted_bytes_equal_sent_bytes(num_ranks):
    for counted, sent in run_ranks(num_ranks, on_ranks):
        assert counted == STEPS * by_formula(num_ranks)
        assert sent == pytest.approx(counted, rel=0.02)
        assert sent > counted  # gloo adds headers
