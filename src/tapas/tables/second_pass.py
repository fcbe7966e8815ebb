"""`SecondPass`: selecting the classes of a pool that are kept, on the shard of their rows.

All random numbers are drawn once for a batch; each shard then keeps its quota among its own
rows. So the draws do not depend on how rows are sharded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.rng import check_generator, new_key, philox
from tapas.selection import Selection, SelectionInput, check_selected
from tapas.tables.ranks import GlobalBatch

if TYPE_CHECKING:
    from tapas.tables.local import LocalTable


@dataclass(frozen=True, slots=True)
class SecondPass:
    """How `keep` classes of a pool are chosen; the same for every shard."""

    keep: int
    rule: Selection
    temperature: float
    query: Tensor  # (A, D) float32, the queries that score the pool
    target: Tensor  # (A, L) int64, their targets; negative is padding
    complete: bool  # whether they are all queries of the batch
    noise: Tensor  # (P,) uniform in (0, 1] for each class of the pool; (0,) if not needed

    @staticmethod
    def draw(
        batch: GlobalBatch,
        pool: Candidates,
        keep: int,
        rule: Selection,
        temperature: float,
        *,
        generator: torch.Generator,
    ) -> "SecondPass | None":
        """Draw the queries that score, if the rule wants only some, and the noise.

        Returns None, and draws nothing, if the pool has at most `keep` classes: all are kept.
        """
        check_generator(generator)
        if len(pool) <= keep:
            return None
        query, target = batch.query.detach(), batch.target
        choose = rule.score_queries or 0
        if choose >= query.shape[0]:
            choose = 0
        size = len(pool) if rule.random else 0
        if choose or size:
            key = new_key(generator)
            query, target, noise = draw_second_pass(key, query, target, choose, size)
        else:
            noise = query.new_empty(0)
        return SecondPass(keep, rule, temperature, query, target, not choose, noise)

    def for_part(self, positions: Tensor, quota: int) -> "SecondPass":
        """The second pass for the classes at `positions` of the pool, keeping `quota`."""
        noise = self.noise.index_select(0, positions) if len(self.noise) else self.noise
        return replace(self, keep=quota, noise=noise)


def draw_second_pass(
    key: int, query: Tensor, target: Tensor, choose: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`choose` of the queries (B, D) with their targets (B, L), and noise (size,) in (0, 1].

    All queries if `choose` is 0. The numbers of `key` are first those of queries, of which the
    least are chosen, padded to a multiple of 64, then those of the noise.
    """
    fits = query.dtype == torch.float32 and query.shape[0] == target.shape[0]
    if fits and native.supports(query, target):
        return native.second_pass(key, query, target, choose, size)
    before = -(-query.shape[0] // 64) * 64 if choose else 0
    numbers = philox(key, before + size)
    if choose:
        order = np.argsort(numbers[: query.shape[0]], kind="stable")[:choose]
        chosen = torch.from_numpy(np.sort(order)).to(query.device)
        query, target = query.index_select(0, chosen), target.index_select(0, chosen)
    noise = 1 - (numbers[before:] >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    return query, target, torch.from_numpy(noise).to(query.device)


def classes_at(pool: Candidates, positions: Tensor) -> Candidates:
    """The classes at `positions` of `pool`."""
    return Candidates(pool.ids.index_select(0, positions), pool.log_q.index_select(0, positions))


def merge_candidates(parts: Sequence[Candidates]) -> Candidates:
    """The classes of all `parts`, by ascending id."""
    ids, order = torch.cat([part.ids for part in parts]).sort()
    return Candidates(ids, torch.cat([part.log_q for part in parts])[order])


def shard_quota(keep: int, num_shards: int, shard: int) -> int:
    """How many of `keep` classes `shard` keeps."""
    return keep // num_shards + (shard < keep % num_shards)


def select_here(
    table: "LocalTable", part: Candidates, rows: Tensor, second_pass: SecondPass
) -> Candidates:
    """The classes of `part` that `second_pass` keeps; `rows` (P,) are their rows in `table`."""
    quota = second_pass.keep
    if len(part) <= quota:
        return part
    if not quota:
        return Candidates(part.ids[:0], part.log_q[:0])
    rule, query, weight = second_pass.rule, second_pass.query, table.weight
    native_rows = None
    if native.readable(weight, query):
        native_rows = native.PoolRows(weight, table.bias_or_none(), rows)
    given = SelectionInput(
        ids=part.ids,
        log_q=part.log_q,
        rows=partial(_read_range, table, rows),
        query=query,
        target=second_pass.target,
        complete=second_pass.complete,
        temperature=second_pass.temperature,
        noise=second_pass.noise,
        native=native_rows,
    )
    kept, log_weight = check_selected(rule, *rule.select(given, quota), quota, len(part))
    return Candidates(
        part.ids.index_select(0, kept), part.log_q.index_select(0, kept).sub_(log_weight)
    )


def _read_range(table: "LocalTable", rows: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    return table._read(rows[start:stop])
