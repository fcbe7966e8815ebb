"""How ids find the shards of their rows, and rows the way back."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.tables.placement import Placement
from tapas.tables.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Route:
    """N distinct ids, each of which has its row on one of the ranks."""

    ranks: Ranks
    order: Tensor  # (N,) the ids, sorted by shard
    send: list[int]  # how many of them go to each shard
    receive: list[int]  # how many each rank asks this shard for
    slots: Tensor  # (R,) the rows of this shard that are asked for

    @staticmethod
    def find(verb: str, ids: Tensor, placement: Placement, ranks: Ranks) -> "Route":
        """All ranks call it together, each with its own distinct `ids` (N,)."""
        place, order = placement.permute(ids).sort()
        send = torch.bincount(placement.shard_at(place), minlength=ranks.size).tolist()
        heard = ranks.announce(verb, *send)
        receive = [row[ranks.rank] for row in heard]
        asked = ranks.exchange_rows(place, send, receive)
        return Route(ranks, order, send, receive, asked - placement.start(ranks.rank))

    def there(self, rows: Tensor) -> Tensor:
        """(R, W) what is brought for `slots`, of `rows` (N, W) for the ids here."""
        return self.ranks.exchange_rows(rows[self.order], self.send, self.receive)

    def back(self, rows: Tensor) -> Tensor:
        """(N, W) the answers for the ids here, of `rows` (R, W) for `slots`."""
        rows = self.ranks.exchange_rows(rows, self.receive, self.send)
        return torch.empty_like(rows).index_copy_(0, self.order, rows)
