"""The second pass: which classes of a pool are kept, decided where their rows live.

What it needs is drawn once for a batch; each shard then keeps its quota of the classes that it
has rows of. No layout of the rows can change what was drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.rng import check_generator
from tapas.selection import NativeRows, Selection, SelectionInput, check_selected
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
    complete: bool  # whether they are the whole batch
    noise: Tensor  # (P,) uniform in (0, 1], one for each class of the pool; (0,) without chance

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
        """All that is random: the queries that score, if the rule wants few, and the noise.

        None if the pool has no more than `keep` classes: all stay, and nothing is drawn.
        """
        check_generator(generator)
        if len(pool) <= keep:
            return None
        query, target = batch.query.detach(), batch.target
        complete = rule.score_queries is None or rule.score_queries >= len(query)
        if not complete:
            chosen = torch.randperm(len(query), generator=generator, device="cpu")
            chosen = chosen[: rule.score_queries].to(query.device)
            query, target = query[chosen], target[chosen]
        noise = torch.empty(0, dtype=torch.float32, device="cpu")
        if rule.random:
            noise = 1 - torch.rand(
                len(pool), generator=generator, dtype=torch.float32, device="cpu"
            )
        noise = noise.to(query.device)
        return SecondPass(keep, rule, temperature, query, target, complete, noise)

    def for_part(self, positions: Tensor, quota: int) -> "SecondPass":
        """The same for the classes at `positions` of the pool, `quota` of which are kept."""
        noise = self.noise.index_select(0, positions) if len(self.noise) else self.noise
        return replace(self, keep=quota, noise=noise)


def classes_at(pool: Candidates, positions: Tensor) -> Candidates:
    """The classes at `positions` of `pool`."""
    return Candidates(pool.ids.index_select(0, positions), pool.log_q.index_select(0, positions))


def merge_candidates(parts: Sequence[Candidates]) -> Candidates:
    """The classes of all `parts`, by rising id."""
    ids, order = torch.cat([part.ids for part in parts]).sort()
    return Candidates(ids, torch.cat([part.log_q for part in parts])[order])


def shard_quota(keep: int, num_shards: int, shard: int) -> int:
    """How many of `keep` are for `shard` to keep."""
    return keep // num_shards + (shard < keep % num_shards)


def select_here(
    table: "LocalTable", part: Candidates, rows: Tensor, second_pass: SecondPass
) -> Candidates:
    """What `second_pass` keeps of `part` (P classes), whose rows in `table` are `rows` (P,)."""
    quota = second_pass.keep
    if len(part) <= quota:
        return part
    if not quota:
        return Candidates(part.ids[:0], part.log_q[:0])
    rule, query, weight = second_pass.rule, second_pass.query, table.weight
    native_rows = None
    if native.readable(weight, query):
        bias = table.bias_or_none()
        bias = query.new_zeros(len(rows)) if bias is None else bias[rows].float()
        native_rows = NativeRows(weight, rows, bias)
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
