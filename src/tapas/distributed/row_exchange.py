"""Sending ids to the ranks that own their rows, and rows or gradients between them."""

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
    """The exchange of N distinct ids of this rank with the ranks that own their rows."""

    ranks: GroupRanks
    order: Tensor  # (N,) order of the ids by owner
    send: list[int]  # number of ids for each owner
    receive: list[int]  # number of ids that each rank asks of this one
    positions: Tensor  # (R,) positions of these in the shard of this rank
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
        """Send the distinct `ids` (N,) of each rank to their owners; a collective call.

        `trains`, whether gradients will follow, must be equal on all ranks.
        """
        place, order = placement.permute(ids).sort()
        send = torch.bincount(placement.shard_at(place), minlength=ranks.size).tolist()
        gathered = ranks.gather_numbers(operation, len(ids), int(trains), each=send)
        check_equal(
            f"`{operation}` of trained (1) or frozen (0) rows", [row[1] for row in gathered]
        )
        receive = [row[2] for row in gathered]
        asked = ranks.exchange_rows(place, send, receive)
        positions = asked - placement.start(ranks.rank)
        return Route(ranks, order, send, receive, positions, sum(row[0] for row in gathered))

    def to_owners(self, rows: Tensor) -> Tensor:
        """Send `rows` (N, W) of the ids to their owners; returns (R, W) for `positions`."""
        return self.ranks.exchange_rows(rows[self.order], self.send, self.receive)

    def from_owners(self, rows: Tensor) -> Tensor:
        """Send `rows` (R, W) of `positions` back; returns (N, W) for the ids."""
        rows = self.ranks.exchange_rows(rows, self.receive, self.send)
        return torch.empty_like(rows).index_copy_(0, self.order, rows)


def send_gradients(
    gradients: RowGradients, placement: Placement, ranks: GroupRanks
) -> RowGradients | None:
    """Send `gradients`, by id, to the owners of the rows.

    Returns what all ranks have sent for the rows of this rank, by position; None if no rank has
    any gradient.
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
    """Weights and biases of `ids`, and a function that sends their gradients to the owners.

    There `add` gets the gradients of all ranks. If rows move at once, gradients that are not
    finite raise an error before they are sent.
    """
    distinct, where = torch.unique(ids, return_inverse=True)
    route = Route.find("lookup", distinct, placement, ranks, trains=trains)
    weight, bias = shard._read(route.positions)
    packed = torch.cat([weight, bias[:, None]], dim=1) if biases else weight
    rows = route.from_owners(packed).index_select(0, where)

    def send(weight_grad: Tensor, bias_grad: Tensor) -> None:
        grad = torch.cat([weight_grad, bias_grad[:, None]], dim=1) if biases else weight_grad
        with ranks.share_errors():  # without a fused update the optimizer's step checks it
            if moves_at_once and not all_finite(grad):
                raise UsageError(NOT_FINITE)
            ranks.gather_numbers("gradients of lookup")
        summed = grad.new_zeros(len(distinct), grad.shape[1]).index_add_(0, where, grad)
        summed = route.to_owners(summed.div_(ranks.size))  # losses are averaged over ranks
        if route.total:
            split = summed[:, : shard.dim].contiguous()
            last = summed[:, -1].contiguous() if biases else summed.new_zeros(len(summed))
            add(route.positions, split, last)

    if biases:
        return rows[:, :-1].contiguous(), rows[:, -1].contiguous(), send
    return rows, rows.new_zeros(len(rows)), send
