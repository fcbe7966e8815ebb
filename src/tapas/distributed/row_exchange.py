"""Ids to the ranks that keep their rows, and rows or gradients back."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.distributed.collectives import GroupRanks
from tapas.distributed.global_batch import check_equal
from tapas.errors import UsageError
from tapas.optim.gradient_queue import NOT_FINITE
from tapas.optim.row_store import RowGradients
from tapas.shapes import all_finite
from tapas.tables.base import SendGradients
from tapas.tables.local import LocalTable
from tapas.tables.placement import Placement


@dataclass(frozen=True, slots=True)
class Route:
    """N distinct ids, each of which has its row on one of the ranks."""

    ranks: GroupRanks
    order: Tensor  # (N,) the ids, sorted by shard
    send: list[int]  # how many of them go to each shard
    receive: list[int]  # how many each rank asks this shard for
    positions: Tensor  # (R,) the rows of this shard that are asked for
    total: int  # ids of all ranks

    @staticmethod
    def find(
        operation: str,
        ids: Tensor,
        placement: Placement,
        ranks: GroupRanks,
        *,
        trains: bool = False,
    ) -> "Route":
        """All ranks call it together, each with its own distinct `ids` (N,).

        Whether it `trains` rows, so that gradients will come back, must be the same on all.
        """
        place, order = placement.permute(ids).sort()
        send = torch.bincount(placement.shard_at(place), minlength=ranks.size).tolist()
        gathered = ranks.gather_numbers(operation, len(ids), int(trains), each=send)
        check_equal(f"`{operation}` of rows that are not frozen (1)", [row[1] for row in gathered])
        receive = [row[2] for row in gathered]
        asked = ranks.exchange_rows(place, send, receive)
        positions = asked - placement.start(ranks.rank)
        return Route(ranks, order, send, receive, positions, sum(row[0] for row in gathered))

    def to_owners(self, rows: Tensor) -> Tensor:
        """(R, W) what is brought for `positions`, of `rows` (N, W) for the ids here."""
        return self.ranks.exchange_rows(rows[self.order], self.send, self.receive)

    def from_owners(self, rows: Tensor) -> Tensor:
        """(N, W) the answers for the ids here, of `rows` (R, W) for `positions`."""
        rows = self.ranks.exchange_rows(rows, self.receive, self.send)
        return torch.empty_like(rows).index_copy_(0, self.order, rows)


def send_gradients(
    gradients: RowGradients, placement: Placement, ranks: GroupRanks
) -> RowGradients | None:
    """What all ranks have for the rows kept here, by their positions, of `gradients` by id.

    None where no rank has any.
    """
    distinct, where = torch.unique(gradients.ids, return_inverse=True)
    route = Route.find("update", distinct, placement, ranks)
    grad = torch.cat([gradients.weight, gradients.bias[:, None]], dim=1)
    grad = grad.new_zeros(len(distinct), grad.shape[1]).index_add_(0, where, grad)
    grad = route.to_owners(grad)
    if not route.total:
        return None
    return RowGradients(route.positions, grad[:, :-1].contiguous(), grad[:, -1].contiguous())


def fetch_rows(
    shard: LocalTable,
    add: Callable[[Tensor, Tensor, Tensor], None],
    ids: Tensor,
    placement: Placement,
    ranks: GroupRanks,
    *,
    biases: bool,
    trains: bool,
    moves_at_once: bool,
) -> tuple[Tensor, Tensor, SendGradients]:
    """Rows of `ids`, and what sends their gradients the same way, without ids again.

    Where the rows are kept, `add` takes what all ranks have sent. If they move at once, what is
    not finite is refused before it is sent.
    """
    distinct, where = torch.unique(ids, return_inverse=True)
    route = Route.find("lookup", distinct, placement, ranks, trains=trains)
    weight, bias = shard._read(route.positions)
    packed = torch.cat([weight, bias[:, None]], dim=1) if biases else weight
    rows = route.from_owners(packed).index_select(0, where)

    def send(weight_grad: Tensor, bias_grad: Tensor) -> None:
        grad = torch.cat([weight_grad, bias_grad[:, None]], dim=1) if biases else weight_grad
        with ranks.share_errors():  # else an optimizer's step refuses it, on all ranks alike
            if moves_at_once and not all_finite(grad):
                raise UsageError(NOT_FINITE)
            ranks.gather_numbers("gradients of lookup")
        summed = grad.new_zeros(len(distinct), grad.shape[1]).index_add_(0, where, grad)
        summed = route.to_owners(summed.div_(ranks.size))  # the losses of ranks are averaged
        if route.total:
            split = summed[:, : shard.dim].contiguous()
            last = summed[:, -1].contiguous() if biases else summed.new_zeros(len(summed))
            add(route.positions, split, last)

    if biases:
        return rows[:, :-1].contiguous(), rows[:, -1].contiguous(), send
    return rows, rows.new_zeros(len(rows)), send
