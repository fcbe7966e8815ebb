"""The second pass where the rows live: one part of a pool, one shard's share of what is kept."""

from collections.abc import Callable, Sequence
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


class SecondPass(NamedTuple):
    """Which `keep` of `pool` shall stay; shards look at their part of it."""

    pool: Candidates  # ids rising
    keep: int
    question: Question
    noise: Tensor  # (P,) uniform in (0, 1], or (0,) for a rule without chance

    @property
    def is_settled(self) -> bool:
        """Whether all of the pool stays, and nobody need score it."""
        return len(self.pool) <= self.keep

    def part(self, places: Tensor) -> "tuple[Candidates, Tensor]":
        """The classes at `places` of the pool, and their noise."""
        pool = self.pool
        part = Candidates(pool.ids.index_select(0, places), pool.log_q.index_select(0, places))
        return part, self.noise.index_select(0, places) if len(self.noise) else self.noise


def second_pass_of(
    pool: Candidates, keep: int, question: Question, generator: torch.Generator
) -> SecondPass:
    """With one number of `generator` for each class of the pool, if the rule is random.

    Shards take those of their classes, so that no layout of the rows can change them.
    """
    question = question._replace(own=question.own.long())
    if len(pool) <= keep or not question.rule.random:
        return SecondPass(pool, keep, question, pool.log_q[:0])
    draws = torch.rand(len(pool), generator=generator, dtype=torch.float32, device="cpu")
    return SecondPass(pool, keep, question, (1 - draws).to(pool.log_q.device))


def joined(parts: Sequence[Candidates]) -> Candidates:
    """The classes of all `parts`, by rising id."""
    ids, order = torch.cat([part.ids for part in parts]).sort()
    return Candidates(ids, torch.cat([part.log_q for part in parts])[order])


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
