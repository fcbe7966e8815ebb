"""`ServedTable`: a class table whose rows are on servers (the paper's Algorithm 2).

A step is two round trips. The worker sends queries and each server its part of the pool; each
server scores its part and returns the n/m classes that it keeps with their rows, and the rows of
its targets. The worker computes loss and gradients, and pushes the gradients.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.exact_state import unpack
from tapas.optim.row_store import RowGradients
from tapas.optim.row_updates import RowUpdate
from tapas.servers.channel import Gradients, ServerChannel
from tapas.servers.messages import ScoredRows, Scoring, to_array, to_tensor
from tapas.servers.peers import call_all
from tapas.shapes import check_positive, check_query
from tapas.tables.base import ClassTable
from tapas.tables.exhaustive import merge_topk
from tapas.tables.gradients import StoredRows
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass, classes_at, merge_candidates, shard_quota
from tapas.tables.shard import TableSpec


class ServedTable(ClassTable):
    """The table `name`, whose shards are on the servers of `channel`.

    Args:
        spec: the settings that the shards were built from.
        fused: push gradients at the end of `backward`, to be applied by the update of `spec`.
            False leaves that to an optimizer of the same kind in `tapas.optim`. In both cases
            hyperparameters are sent with every push, and the state of rows is on the servers.

    Reads may miss pushes of other workers, and unacknowledged pushes of this one; `flush` waits
    for the latter.
    """

    def __init__(
        self,
        channel: ServerChannel,
        name: str,
        spec: TableSpec,
        *,
        fused: bool = True,
        device: torch.device | str = "cpu",
    ):
        super().__init__(
            check_positive("num_classes", spec.num_classes), check_positive("dim", spec.dim)
        )
        if spec.num_shards != channel.servers.size:
            raise UsageError(
                f"the rows of '{name}' are in {spec.num_shards} shards, but there are "
                f"{channel.servers.size} servers. One shard goes to each server."
            )
        self.channel = channel  # shared by all tables of a model
        self.name, self.spec, self.placement = name, spec, spec.layout()
        self.rows_in_state = True  # whether `state_dict` contains the rows
        self.fused, self._device = fused, torch.device(device)
        self.gradients.to(self._device)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def row_optimizer(self) -> RowUpdate | None:
        return self.spec.row_optimizer if self.fused else None

    @property
    def has_bias(self) -> bool:
        return self.spec.has_bias

    @property
    def num_shards(self) -> int:
        return self.placement.num_shards

    def _select_here(self, pool: Candidates, second_pass: SecondPass) -> Candidates:
        nothing = [pool.ids[:0].cpu()] * self.num_shards
        return self._kept(self._score(pool, second_pass, nothing))

    def _kept_rows(
        self, batch: GlobalBatch, pool: Candidates, second_pass: SecondPass | None
    ) -> tuple[Candidates, StoredRows]:
        """As in `ClassTable`, in one round trip, which also fetches the rows of targets."""
        with torch.no_grad():
            pool = self._check_candidates(pool, second_pass)
            wanted = torch.unique(batch.target[batch.target >= 0]).cpu()
            parts = self._split(wanted)
            found = self._score(pool, second_pass, [wanted[part] for part in parts])
            rows = fetched_rows(batch.target, wanted, parts, found, self.dim)
            return self._kept(found), rows

    def _score(
        self, pool: Candidates, second_pass: SecondPass | None, wanted: list[Tensor]
    ) -> list[ScoredRows]:
        """One round trip: the kept classes of each server, and the rows of targets `wanted`.

        Without a second pass servers keep all of the pool and score nothing.
        """
        pool = Candidates(pool.ids.cpu(), pool.log_q.cpu())
        nothing = to_array(torch.empty(0, 0))
        query, target, how = nothing, nothing, None
        if second_pass is not None:
            query = self.channel.share(to_array(second_pass.query))
            target = self.channel.share(to_array(second_pass.target))
            second_pass = dataclasses.replace(second_pass, noise=second_pass.noise.cpu())
            how = Scoring(second_pass.rule, second_pass.temperature, second_pass.complete)
        requests = {}
        for number, positions in enumerate(self._split(pool.ids)):
            part, noise, quota = classes_at(pool, positions), pool.log_q[:0], len(positions)
            if second_pass is not None:
                quota = shard_quota(second_pass.keep, self.num_shards, number)
                noise = second_pass.for_part(positions, quota).noise
            requests[number] = (
                self.name,
                query,
                target,
                how,
                *map(to_array, (part.ids, part.log_q, noise)),
                quota,
                to_array(wanted[number]),
            )
        return list(self.channel.request("score", requests).values())

    def _kept(self, found: list[ScoredRows]) -> Candidates:
        parts = [Candidates(to_tensor(each.ids), to_tensor(each.log_q)) for each in found]
        return merge_candidates(parts).to(self.device)

    def _split(self, ids: Tensor) -> list[Tensor]:
        """For each server, the positions in `ids` (N,) of its classes."""
        owner = self.placement.shard(ids)
        return [(owner == number).nonzero()[:, 0] for number in range(self.num_shards)]

    def _read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        distinct, where = torch.unique(ids.cpu(), return_inverse=True)
        parts = self._split(distinct)
        answers = self.channel.request(
            "rows",
            {j: (self.name, to_array(distinct[part])) for j, part in enumerate(parts) if len(part)},
        )
        weight, bias = torch.empty(len(distinct), self.dim), torch.empty(len(distinct))
        for number, (rows, biases, _) in answers.items():
            weight[parts[number]], bias[parts[number]] = to_tensor(rows), to_tensor(biases)
        return weight[where].to(self.device), bias[where].to(self.device)

    def check_update(self, update: RowUpdate) -> None:
        if type(update) is not type(self.spec.row_optimizer):
            raise UsageError(
                f"the servers update '{self.name}' with {self.spec.row_optimizer.name}, not with "
                f"{update.name}, and keep its state. Use the same optimizer on both."
            )

    def move_rows(
        self, update: RowUpdate, gradients: RowGradients, state: dict[str, Tensor] | None
    ) -> None:
        ids, weight_grad, bias_grad = gradients
        sent = dataclasses.replace(update)  # a copy: it may change before the push is sent
        # summed here: fewer rows are sent, and Adagrad and Adam need the sum
        distinct, where = torch.unique(ids.cpu(), return_inverse=True)
        weight = torch.zeros(len(distinct), self.dim).index_add_(0, where, weight_grad.cpu())
        bias = torch.zeros(len(distinct) if self.has_bias else 0)
        if self.has_bias:
            bias.index_add_(0, where, bias_grad.cpu())
        self.channel.push(
            self.name,
            [
                Gradients(
                    to_array(distinct[part]),
                    to_array(weight[part]),
                    to_array(bias[part] if self.has_bias else bias),
                    sent,
                )
                for part in self._split(distinct)
            ],
        )

    @torch.no_grad()
    def topk(
        self, query: Tensor, k: int, *, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        query, exclude = self._check_topk(query, k, exclude)
        share = self.channel.share
        request = (
            self.name,
            share(to_array(query)),
            k,
            None if exclude is None else share(to_array(exclude)),
        )
        answers = self.channel.request(
            "topk", dict.fromkeys(range(self.num_shards), request)
        ).values()
        value = torch.cat([to_tensor(found[0]) for found in answers], dim=1)
        ids = torch.cat([to_tensor(found[1]) for found in answers], dim=1)
        last = torch.iinfo(torch.int64).max  # -1 stands for no class and is sorted last
        value, ids = merge_topk(value, ids.masked_fill(ids < 0, last), k)
        return value.to(self.device), ids.masked_fill(value == -torch.inf, -1).to(self.device)

    @torch.no_grad()
    def log_partition(self, query: Tensor, *, scale: float = 1.0) -> Tensor:
        query = check_query(query, self.dim)
        request = (self.name, self.channel.share(to_array(query)), scale)
        answers = self.channel.request(
            "log_partition", dict.fromkeys(range(self.num_shards), request)
        )
        parts = torch.stack([to_tensor(found) for found, _ in answers.values()])
        return parts.logsumexp(dim=0).to(self.device)

    def flush(self) -> None:
        self.channel.flush()

    def close(self) -> None:
        self.channel.servers.close()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """All rows by id, as in a `LocalTable`; they must fit into this process."""
        self.flush()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.rows_in_state:
            return
        parts = [
            {k: to_tensor(v) for k, v in found.items()}
            for found, _ in call_all(self.channel.servers, "state", (self.name,))
        ]
        order = torch.cat([self.placement.ids_of(number) for number in range(self.num_shards)])
        for name in parts[0]:
            rows = torch.cat([part[name] for part in parts])
            if len(rows):  # empty without biases
                rows[order] = rows.clone()
            stored = self.spec.dtype if name in ("weight", "bias") else torch.float32
            destination[prefix + name] = rows.to(stored)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, *lists: Any
    ) -> None:
        self.flush()
        states = call_all(self.channel.servers, "state", (self.name,))
        row_names = {prefix + name for name in states[0][0]}
        numbers = state_dict.get(f"{prefix}_extra_state")
        count = states[0][1]
        if numbers is not None:
            count = unpack(numbers, self.state_numbers(), type(self).__name__)["num_updates"]
        if missing := sorted(row_names - state_dict.keys()):
            lists[0].extend(missing)
        else:
            for number in range(self.num_shards):
                ids = self.placement.ids_of(number)
                part = {}
                for name in states[0][0]:
                    rows = state_dict[prefix + name]
                    part[name] = to_array((rows[ids] if len(rows) else rows).float())
                self.channel.servers.call(number, "load", self.name, part, int(count)).answer()
        rest = {k: v for k, v in state_dict.items() if k not in row_names}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, *lists)

    def state_numbers(self) -> dict[str, int | float]:
        """The same as of a fused `LocalTable`; servers get their numbers in `load`."""
        return {
            "seed": self.spec.seed,
            "num_updates": max(call_all(self.channel.servers, "num_updates", (self.name,))),
            "lr": self.spec.row_optimizer.lr,
        }

    def load_state_numbers(self, numbers: dict[str, Any]) -> None:
        update = dataclasses.replace(self.spec.row_optimizer, lr=numbers["lr"])
        self.spec = self.spec._replace(row_optimizer=update)

    def extra_repr(self) -> str:
        return (
            f"{self.num_classes} classes, dim={self.dim}, '{self.name}' on {self.num_shards} "
            f"servers, row_optimizer={self.spec.row_optimizer}"
        )


def fetched_rows(
    target: Tensor, wanted: Tensor, parts: list[Tensor], found: list[ScoredRows], dim: int
) -> StoredRows:
    """The rows of targets and kept classes that one round trip has fetched.

    `wanted` (T,) are the distinct classes of `target` (B, L), ascending; `parts` are the positions
    in it of each server's targets.
    """
    kept, device = [len(each.ids) for each in found], target.device
    num_targets = max(1, len(wanted))  # padding must read some row
    weight = torch.zeros(num_targets + sum(kept), dim)
    bias = torch.zeros(len(weight))
    # kept classes in the order of their ids, as in the candidates
    order = torch.cat([to_tensor(each.ids) for each in found]).argsort()
    position = torch.empty_like(order)
    position[order] = torch.arange(num_targets, num_targets + len(order))
    for part, each, at in zip(parts, found, torch.split(position, kept), strict=True):
        where = torch.cat([at, part])
        weight[where], bias[where] = to_tensor(each.rows), to_tensor(each.biases)
    target_at = torch.searchsorted(wanted.to(device), target.contiguous())
    target_at.masked_fill_(target < 0, -1)
    kept_at = torch.arange(num_targets, len(weight), device=device)
    return StoredRows(weight.to(device), bias.to(device), target_at, kept_at)
