"""The mixture: shares of the softmax and of the counting parts, and exact lists of all three.

    g = softmax over the parts of  gate . features(history),  0 for the softmax itself

A part that has nothing to offer for a history gets no share. Ranking is exact: the best k classes
are among the best k of the softmax and the classes that a counting part offers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from tapas.mixture.copy_part import CopyPart, OwnItems
from tapas.mixture.follow_part import Followers, FollowPart
from tapas.mixture.past import Groups, Past, places_of
from tapas.mixture.softmax_part import best_classes
from tapas.tables import ClassTable
from tapas.tables.exhaustive import merge_topk

FEATURES = ("one", "count of the last item", "largest count", "events", "repeats")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the counting parts know of B histories."""

    own: OwnItems | None
    found: Followers | None
    features: Tensor  # (B, 5) float64
    offers: Tensor  # (B, parts) False where a part has nothing to offer


class Mixture(nn.Module):
    """The counting parts of a model and the numbers that mix them with its softmax.

    Its numbers are buffers, fitted by `fit_parts` and `fit_shares`, not trained: they are saved
    with the model. `scale` is what all logits of the softmax are multiplied by.
    """

    gate: Tensor
    scale: Tensor

    def __init__(self, *, copy: CopyPart | None = None, follow: FollowPart | None = None):
        super().__init__()
        self.copy, self.follow = copy, follow
        gate = torch.zeros(len(self.names), len(FEATURES))
        gate[:, 0] = -1  # the share of a part is 1/e of that of the softmax
        self.starts = {"gate": gate, "scale": torch.ones(())}  # before they are fitted
        for name, value in self.starts.items():
            self.register_buffer(name, value.clone())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Numbers and counts stay on the CPU, wherever the rows of the model are moved to."""
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The counting parts, in the order of `gate`."""
        parts = {"copy": self.copy, "follow": self.follow}
        return tuple(name for name, part in parts.items() if part is not None)

    def read(self, past: Past, exclude: Tensor | None = None) -> Evidence:
        """What the parts know of `past`; classes in `exclude` (B, E) are not offered."""
        own = found = None
        offers = []
        features = torch.zeros(len(past.items), len(FEATURES), dtype=torch.float64)
        events = past.lengths.clamp(min=1).double()
        features[:, 0], features[:, 3] = 1.0, events.log() - 2
        if self.copy is not None:
            own = self.copy.read(past, exclude)
            offers.append(own.real.any(dim=1))
            features[:, 4] = 1 - (Groups.of(past.items).items >= 0).sum(dim=1) / events
        if self.follow is not None:
            found = self.follow.read(past, exclude)
            offers.append((found.total > 0).any(dim=1))
            features[:, 1] = torch.log1p(found.total[:, 0])
            features[:, 2] = torch.log1p(found.total.amax(dim=1))
        return Evidence(own, found, features, torch.stack(offers, dim=1))

    def log_shares(self, features: Tensor, offers: Tensor) -> Tensor:
        """(B, 1 + parts) log shares of the softmax and of the counting parts; see `Evidence`."""
        score = features @ self.gate.to(features).t()
        score = score.masked_fill(~offers, -torch.inf)
        return torch.cat([torch.zeros_like(score[:, :1]), score], dim=1).log_softmax(dim=1)

    def topk(
        self, table: ClassTable, query: Tensor, past: Past, k: int, exclude: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids of the k best classes, (B, k) each, with a softmax of `table`.

        `query` (B, D) are those of the histories `past`; `exclude` (B, E) as for `Head.topk`.
        """
        best, log_prob = best_classes(table, query, k, exclude, float(self.scale))
        mixed: Mixed = self(past, exclude)
        return mixed.to(query.device).topk(best, log_prob)

    @torch.no_grad()
    def contributions(
        self, past: Past, ids: Tensor, softmax: Tensor, exclude: Tensor | None = None
    ) -> Tensor:
        """What each part adds to the probabilities of `ids` (B, L): (B, L, 1 + parts).

        `softmax` (B, L) are their log-probabilities by the softmax, the first part.
        """
        evidence = self.read(past, exclude)
        share = self.log_shares(evidence.features, evidence.offers).exp()
        found = [share[:, :1] * softmax.double().cpu().exp()]
        offered = []
        if self.copy is not None and evidence.own is not None:
            offered.append((evidence.own.items, self.copy.prob(evidence.own)))
        if self.follow is not None and evidence.found is not None:
            items, prob = evidence.found.items.flatten(1), self.follow.prob(evidence.found)
            groups = Groups.of(items)
            offered.append((groups.items, groups.sum(prob.flatten(1))))
        for number, (items, prob) in enumerate(offered, start=1):
            place = places_of(items, ids.cpu())
            mass = prob.gather(1, place.clamp(min=0)).masked_fill(place < 0, 0.0)
            found.append(share[:, number, None] * mass)
        return torch.stack(found, dim=2)

    @torch.no_grad()
    def forward(self, past: Past, exclude: Tensor | None = None) -> "Mixed":
        """The mixture for B histories, of which the softmax is still missing."""
        evidence = self.read(past, exclude)
        log_share = self.log_shares(evidence.features, evidence.offers)
        share = dict(zip(self.names, log_share[:, 1:].exp().unbind(dim=1), strict=True))
        items, mass = [], []
        if self.copy is not None and evidence.own is not None:
            items.append(evidence.own.items)
            mass.append(share["copy"][:, None] * self.copy.prob(evidence.own))
        if self.follow is not None and evidence.found is not None:
            items.append(evidence.found.items.flatten(1))
            prob = self.follow.prob(evidence.found)
            mass.append(share["follow"][:, None] * prob.flatten(1))
        groups = Groups.of(torch.cat(items, dim=1))
        sums = groups.sum(torch.cat(mass, dim=1)).masked_fill(groups.items < 0, 0.0)
        width = max(1, int((groups.items >= 0).sum(dim=1).max())) if len(sums) else 1
        return Mixed(
            groups.items[:, :width], sums[:, :width].float(), log_share[:, 0].float(), log_share
        )


@dataclass(frozen=True, slots=True)
class Mixed:
    """Probability that counting parts give to some classes, beside a share of the softmax."""

    items: Tensor  # (B, M) distinct, ascending, -1 after the last
    mass: Tensor  # (B, M) share times probability, summed over the parts
    log_rest: Tensor  # (B,) log share of the softmax
    log_shares: Tensor  # (B, 1 + parts)

    def to(self, device: torch.device) -> "Mixed":
        return Mixed(
            *(x.to(device) for x in (self.items, self.mass, self.log_rest, self.log_shares))
        )

    def log_prob(self, softmax: Tensor, ids: Tensor) -> Tensor:
        """Log-probability (B, L) of `ids` (B, L) whose softmax log-probability is `softmax`."""
        return self._add(softmax, self._mass_at(places_of(self.items, ids.to(self.items.device))))

    def topk(self, best: Tensor, log_prob: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids of the k best classes, (B, k) each; see `Head.topk`.

        Args:
            best: (B, k) the k best classes of the softmax, without those that counting parts were
                not to offer; -1 is padding.
            log_prob: log-probabilities of the softmax, (B, L) for ids (B, L).
        """
        k, width = best.shape[1], self.items.shape[1]
        place = places_of(self.items, best)
        among_best = self.items.new_zeros(len(best), width + 1, dtype=torch.bool)
        among_best.scatter_(1, place.masked_fill(place < 0, width), True)
        others = self.items.masked_fill(among_best[:, :width], -1)
        softmax = log_prob(best.clamp(min=0)).masked_fill(best < 0, -torch.inf)
        score = self._add(softmax, self._mass_at(place))
        # A class that is not among the best of the softmax has no more of it than the last of
        # these: few classes that are offered can be among the k best.
        mass = self.mass.masked_fill(others < 0, -1.0)
        least = torch.cat([score.exp(), mass], dim=1).topk(k, dim=1).values[:, -1]
        most = (softmax[:, -1] + self.log_rest).exp()
        hopeful = (others >= 0) & (mass + most[:, None] >= least[:, None] * (1 - 1e-4))
        width = int(hopeful.sum(dim=1).max()) if len(hopeful) else 0
        width = max(1, width)  # with ranks, all must ask for log-probabilities
        column = hopeful.byte().topk(width, dim=1).indices
        others = others.gather(1, column).masked_fill(~hopeful.gather(1, column), -1)
        more = self._add(log_prob(others.clamp(min=0)), self.mass.gather(1, column))
        ids = torch.cat([best, others], dim=1)
        score = torch.cat([score, more], dim=1).masked_fill(ids < 0, -torch.inf)
        score, ids = merge_topk(score, ids, k)
        return score, ids.masked_fill(score == -torch.inf, -1)

    def _mass_at(self, place: Tensor) -> Tensor:
        """(B, L) the mass of the classes at `place` (B, L), 0 for -1."""
        return self.mass.gather(1, place.clamp(min=0)).masked_fill(place < 0, 0.0)

    def _add(self, softmax: Tensor, mass: Tensor) -> Tensor:
        return torch.logaddexp(softmax + self.log_rest[:, None], mass.log())
