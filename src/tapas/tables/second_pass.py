"""The second pass where the rows live: one part of a pool, one shard's share of what is kept."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.selection import PoolView, Selection, Stored, check_pick

Read = Callable[[Tensor], tuple[Tensor, Tensor]]


class Question(NamedTuple):
    """What a pool is scored by; the same for every shard."""

    query: Tensor  # (A, D) float32, the queries that score
    own: Tensor  # (A, L) int64, their targets; negative is padding
    complete: bool  # whether they are the whole batch
    temperature: float
    rule: Selection


def noise_for(pool: Candidates, rule: Selection, generator: torch.Generator) -> Tensor:
    """One number in (0, 1] for each class of the whole `pool`, or (0,) for a rule without chance.

    Shards take those of their classes, so that no layout of the rows can change them.
    """
    if not rule.random:
        return pool.log_q[:0]
    draws = torch.rand(len(pool), generator=generator, dtype=torch.float32, device="cpu")
    return (1 - draws).to(pool.log_q.device)


def share_of(keep: int, num_shards: int, shard: int) -> int:
    """How many of `keep` are for `shard` to keep."""
    return keep // num_shards + (shard < keep % num_shards)


def keep_of(
    part: Candidates,
    places: Tensor,
    noise: Tensor,
    share: int,
    question: Question,
    *,
    weight: Tensor,
    bias: Tensor | None,
    read: Read,
) -> Candidates:
    """The `share` of `part` (P classes) that the rule picks.

    Args:
        places: (P,) the row of each class in `weight` (N, D) and `bias` (N,), and for `read`.
        noise:  (P,) or (0,)
    """
    if len(part) <= share:
        return part
    if not share:
        return Candidates(part.ids[:0], part.log_q[:0])
    query, own, complete, temperature, rule = question
    stored = None
    if native.readable(weight, query):
        stored_bias = query.new_zeros(len(places)) if bias is None else bias[places].float()
        stored = Stored(weight, places, stored_bias)
    view = PoolView(
        ids=part.ids,
        log_q=part.log_q,
        rows=partial(_stretch, read, places),
        query=query,
        own=own,
        complete=complete,
        temperature=temperature,
        noise=noise,
        stored=stored,
    )
    kept, log_weight = check_pick(rule, *rule.pick(view, share), share, len(part))
    return Candidates(
        part.ids.index_select(0, kept), part.log_q.index_select(0, kept).sub_(log_weight)
    )


def _stretch(read: Read, places: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    return read(places[start:stop])
