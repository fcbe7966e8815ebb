"""Native draws of classes and of second passes, and permutations; see draws.h and order.h."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapas.native.arguments import F32, I64, address_of
from tapas.native.library import call


class FloorAndHead(NamedTuple):
    """A uniform distribution over all classes and an alias table over H of them, the head."""

    num_classes: int
    floor_share: float  # chance of a draw from the uniform part
    floor_not_drawn: float  # log(1 - Q) of a class outside of the head
    buckets: Tensor  # (H, 2) int32: bits of threshold, in units of 2^-32, and partner
    head_ids: Tensor  # (H,) int64, ascending
    not_drawn: Tensor  # (H,) float64, log(1 - Q)
    first: Tensor  # int32 directory: heads with ids from (i << shift) begin at first[i]
    shift: int


def draw_classes(given: FloorAndHead, key: int, count: int) -> Tensor:
    """`count` independent classes, (count,) int64; the same for the same `key`."""
    draws = torch.empty(count, dtype=I64, device="cpu")
    call("tapas_pool", *_of_proposal(given, key, count, 0), draws.data_ptr(), None, None)
    return draws


def pool(given: FloorAndHead, key: int, count: int, k: int) -> tuple[Tensor, Tensor] | None:
    """The first k distinct classes of `draw_classes`, or None if `count` draws have at most k.

    Returns: ids (k,), ascending, and the log expected count of each, (k,) float32.
    """
    ids = torch.empty(k, dtype=I64, device="cpu")
    log_q = torch.empty(k, dtype=F32, device="cpu")
    arguments = _of_proposal(given, key, count, k)
    too_few = call("tapas_pool", *arguments, None, ids.data_ptr(), log_q.data_ptr())
    return None if too_few else (ids, log_q)


def _of_proposal(given: FloorAndHead, key: int, count: int, k: int) -> list[Any]:
    size = given.buckets.shape[0]
    return [
        key,
        count,
        k,
        given.num_classes,
        given.floor_share,
        given.floor_not_drawn,
        size,
        address_of(given.buckets, torch.int32, size, 2),
        address_of(given.head_ids, I64, size),
        address_of(given.not_drawn, torch.float64, size),
        address_of(given.first, torch.int32, (given.num_classes - 1 >> given.shift) + 2),
        given.shift,
        torch.get_num_threads(),
    ]


def race(probability: Tensor, key: int, k: int) -> tuple[Tensor, Tensor] | None:
    """The first k of C classes to arrive, whose rates are `probability` (C,) float64; k < C.

    Returns: ids (k,), ascending, and the log of the chance of each to arrive before the next class,
    (k,) float32; or None if fewer than k classes have a chance.
    """
    size = probability.shape[0]
    ids = torch.empty(k, dtype=I64, device="cpu")
    log_q = torch.empty(k, dtype=F32, device="cpu")
    too_few = call(
        "tapas_race",
        key,
        address_of(probability, torch.float64, size),
        size,
        k,
        torch.get_num_threads(),
        ids.data_ptr(),
        log_q.data_ptr(),
    )
    return None if too_few else (ids, log_q)


def distinct(draws: Tensor, k: int, num_classes: int) -> tuple[int, Tensor, Tensor] | None:
    """The first k distinct ids of `draws` (T,), or None if there are at most k.

    Returns: the number of the draw of the next distinct id, the ids (k,), ascending, and how
    often each was repeated before that draw, (k,).
    """
    ids, again = draws.new_empty(k), draws.new_empty(k)
    end = call(
        "tapas_distinct",
        address_of(draws, I64, draws.shape[0]),
        draws.shape[0],
        k,
        num_classes,
        ids.data_ptr(),
        again.data_ptr(),
    )
    return None if end <= 0 else (end, ids, again)


def permute(ids: Tensor, half: int, keys: Tensor, size: int, *, backwards: bool) -> Tensor:
    """`Permutation.permute` of `ids` (any shape) below `size`; backwards, `inverse`."""
    ids = ids.contiguous()
    out = torch.empty_like(ids)
    call(
        "tapas_permute",
        address_of(ids, I64, *ids.shape),
        ids.numel(),
        half,
        address_of(keys, I64, *keys.shape),
        size,
        backwards,
        torch.get_num_threads(),
        out.data_ptr(),
    )
    return out


def second_pass(
    key: int, query: Tensor, target: Tensor, choose: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`choose` of the queries (B, D) with their targets (B, L), or all if 0, and noise (size,).

    As `draw_second_pass` in tables/second_pass.py.
    """
    query, target = query.contiguous(), target.contiguous()
    (num_queries, dim), num_targets = query.shape, target.shape[1]
    choose = min(choose, num_queries)
    chosen = query.new_empty(choose, dim) if choose else query
    chosen_target = target.new_empty(choose, num_targets) if choose else target
    noise = query.new_empty(size)
    call(
        "tapas_second_pass",
        key,
        address_of(query, F32, num_queries, dim),
        num_queries,
        dim,
        address_of(target, I64, num_queries, num_targets),
        num_targets,
        choose,
        size,
        chosen.data_ptr(),
        chosen_target.data_ptr(),
        noise.data_ptr(),
    )
    return chosen, chosen_target, noise
