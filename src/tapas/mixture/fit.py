"""Fitting the numbers of a mixture on held-out events, by likelihood.

The parts are fitted apart from the softmax: first the numbers of the counting parts, beside the
popularity of items in place of the softmax; then, whenever a model is evaluated, only the shares
and the scale of its logits. Held-out events are in none of the counts and have trained no row.

    cost = mean over targets of -log p(target)  +  PRIOR / targets * sum of (number - start)^2

so that a log with few held-out events stays near the numbers that it started with.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tapas.mixture.copy_part import CopyPart
from tapas.mixture.follow_part import FollowPart
from tapas.mixture.mixture import Evidence, Mixture
from tapas.mixture.past import Past, places_of

PRIOR = 3.0
SCALES = (0.25, 0.5, 0.75, 1.0, 1.5)  # at which the log partition of the softmax is computed
MOST_ROUNDS = 60
SCALE_ROUNDS = 6  # each leaves two thirds of the range
FLOOR = -100.0  # of the log-probability of a target
Number = tuple[Mixture | CopyPart | FollowPart, str]


@dataclass(frozen=True, slots=True)
class Watched:
    """P histories as the counting parts see them, with their targets."""

    evidence: Evidence
    target: Tensor  # (P, L) -1 is padding
    own_slot: Tensor | None  # (P, L) where the target is among the own items, -1 if it is not
    hits: Tensor | None  # (P, L, R) counts of the target as a follower of each latest item

    @classmethod
    @torch.no_grad()
    def of(
        cls, mixture: Mixture, past: Past, target: Tensor, exclude: Tensor | None = None
    ) -> Self:
        """Look up `target` (P, L) in what the parts know of `past`."""
        evidence = mixture.read(past, exclude)
        own_slot = hits = None
        if evidence.own is not None:
            own_slot = places_of(evidence.own.items, target)
        if evidence.found is not None:
            items, count = evidence.found.items, evidence.found.count
            columns = [
                (count * (items == one[:, None, None])).sum(dim=2) for one in target.unbind(1)
            ]
            hits = torch.stack(columns, dim=1).masked_fill(target[:, :, None] < 0, 0.0)
        return cls(evidence, target, own_slot, hits)

    def log_probs(self, mixture: Mixture) -> Tensor:
        """(P, L, parts) log-probabilities of the targets by each counting part."""
        found = []
        if mixture.copy is not None and self.evidence.own is not None and self.own_slot is not None:
            prob = mixture.copy.prob(self.evidence.own).gather(1, self.own_slot.clamp(min=0))
            found.append(prob.masked_fill(self.own_slot < 0, 0.0))
        if mixture.follow is not None and self.evidence.found is not None and self.hits is not None:
            weight = mixture.follow.weight(self.evidence.found)
            found.append((weight[:, None] * self.hits).sum(dim=2))
        prob = torch.stack(found, dim=2)
        tiny = torch.finfo(prob.dtype).tiny  # log(0) would make gradients NaN
        return prob.clamp(min=tiny).log().masked_fill(prob <= 0, -torch.inf)

    def targets(self, mixture: Mixture) -> "Targets":
        """What is left to fit once the numbers of the parts are known."""
        with torch.no_grad():
            log_probs = self.log_probs(mixture)
        return Targets(self.evidence.features, self.evidence.offers, self.target, log_probs)


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of P histories, as shares of a mixture are fitted to them."""

    features: Tensor  # (P, F)
    offers: Tensor  # (P, parts)
    target: Tensor  # (P, L) -1 is padding
    log_probs: Tensor  # (P, L, parts) by the counting parts

    @classmethod
    def join(cls, parts: Sequence["Targets"]) -> Self:
        fields = [[getattr(part, name) for part in parts] for name in cls.__slots__]
        return cls(*(torch.cat(tensors) for tensors in fields))

    def weight(self) -> Tensor:
        """(P, L) the weight of each target in the mean: equal for all histories."""
        real = (self.target >= 0).double()
        weight = real / real.sum(dim=1, keepdim=True).clamp(min=1)
        return weight / weight.sum().clamp(min=1)


def fit_parts(mixture: Mixture, watched: Watched, popularity: Tensor) -> None:
    """Fit all numbers but the scale, with log `popularity` (C,) in place of the softmax."""
    softmax = popularity.double()[watched.target.clamp(min=0)]
    numbers: list[Number] = [(mixture, "gate")]
    for part in (mixture.copy, mixture.follow):
        if part is not None:
            numbers += [(part, name) for name in part.starts]
    known = watched.targets(mixture)

    def cost() -> Tensor:
        return _cost(mixture, known, softmax, watched.log_probs(mixture))

    _minimise(cost, numbers, known)


def fit_shares(
    mixture: Mixture, known: Targets, logit: Tensor, log_partition: Tensor | None
) -> float:
    """Fit the shares, and the scale of the softmax; returns the mean of -log p of the targets.

    Args:
        logit: (P, L) logits of the targets, or their log-probabilities.
        log_partition: (P, len(SCALES)) log sum of exp(scale * logit) over all classes, for each
            of `SCALES`; None if `logit` are log-probabilities, whose scale stays 1.
    """
    logit = logit.double()
    if log_partition is None:
        return _fit_gate(mixture, known, logit)
    polynomials = _through(SCALES, log_partition.double())

    def softmax(scale: float) -> Tensor:
        return scale * logit - _value_at(polynomials, scale)[:, None]

    # The cost has one valley along the scale, but a search for all numbers at once can leave it:
    # the scale is searched alone, by thirds, with the best shares for each.
    low, high = math.log(SCALES[0]), math.log(SCALES[-1])
    found: dict[float, float] = {}

    def cost_at(log_scale: float) -> float:
        if log_scale not in found:
            found[log_scale] = _fit_gate(mixture, known, softmax(math.exp(log_scale)))
            found[log_scale] += _prior(known) * (math.exp(log_scale) - 1) ** 2
        return found[log_scale]

    for _ in range(SCALE_ROUNDS):
        third = (high - low) / 3
        if cost_at(low + third) <= cost_at(high - third):
            high -= third
        else:
            low += third
    best = math.exp(min(found, key=lambda log_scale: found[log_scale]))
    mixture.scale.fill_(best)
    return _fit_gate(mixture, known, softmax(float(mixture.scale)))


def _fit_gate(mixture: Mixture, known: Targets, softmax: Tensor) -> float:
    """Fit the shares to targets with log-probabilities `softmax` (P, L); returns their cost."""
    _minimise(lambda: _cost(mixture, known, softmax, known.log_probs), [(mixture, "gate")], known)
    with torch.no_grad():
        return float(_cost(mixture, known, softmax, known.log_probs))


def _cost(mixture: Mixture, known: Targets, softmax: Tensor, parts: Tensor) -> Tensor:
    shares = mixture.log_shares(known.features, known.offers)
    log_prob = torch.cat([softmax[:, :, None], parts], dim=2) + shares[:, None]
    each = log_prob.logsumexp(dim=2)
    return -(torch.logaddexp(each, torch.full_like(each, FLOOR)) * known.weight()).sum()


def _through(nodes: Sequence[float], values: Tensor) -> Tensor:
    """(P, N) coefficients of the polynomials in log x through `values` (P, N) at `nodes`."""
    x = torch.tensor(nodes, dtype=torch.float64).log()
    powers = x[:, None] ** torch.arange(len(nodes))
    found: Tensor = torch.linalg.solve(powers, values.t()).t()
    return found


def _value_at(polynomials: Tensor, x: float) -> Tensor:
    """(P,) values at `x`."""
    powers = math.log(x) ** torch.arange(polynomials.shape[1], dtype=torch.float64)
    return torch.mv(polynomials, powers)


def _prior(known: Targets) -> float:
    return PRIOR / max(1, int((known.target >= 0).sum()))


def _minimise(cost: Callable[[], Tensor], numbers: Sequence[Number], known: Targets) -> None:
    """Change the buffers `numbers` so that `cost` plus the prior is least, by L-BFGS.

    It begins at their starts, not at what they are: a resumed run must find the same numbers.
    """
    starts = [torch.as_tensor(module.starts[name]).double() for module, name in numbers]
    free = [torch.nn.Parameter(start.clone()) for start in starts]
    prior = _prior(known)
    search = torch.optim.LBFGS(
        free, max_iter=MOST_ROUNDS, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def evaluate() -> Tensor:
        search.zero_grad()
        for (module, name), value in zip(numbers, free, strict=True):
            module._buffers[name] = value
        found = cost()
        for value, start in zip(free, starts, strict=True):
            found = found + prior * ((value - start) ** 2).sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    saved = [getattr(module, name) for module, name in numbers]
    try:
        with torch.enable_grad():
            search.step(evaluate)  # type: ignore[no-untyped-call]
    finally:
        for (module, name), value, before in zip(numbers, free, saved, strict=True):
            fitted = value.detach().to(before.dtype)
            module._buffers[name] = torch.where(fitted.isfinite(), fitted, before)
