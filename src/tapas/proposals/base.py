"""What every first-pass distribution promises, and how distinct classes are drawn from it."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.rng import check_generator
from tapas.shapes import check_positive

TRIES_PER_CLASS = 200  # give up when a distinct class costs more draws than this on average
RACE_BELOW = 2048  # classes; to look at so few is faster than to sort draws


class Proposal(ABC):
    """A fixed distribution Q over classes 0 .. num_classes-1.

    Subclass it with two methods, `draw` and `log_prob`; every class must have
    positive probability, or the sampled loss has no correction for it. Ids are
    int64 and live on the CPU, as the generator does.
    """

    num_classes: int
    wants_context: bool = False  # whether `conditioned_on` looks at the previous classes of a batch

    @abstractmethod
    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        """`k` independent draws, repeats allowed: (k,) int64."""

    @abstractmethod
    def log_prob(self, ids: Tensor) -> Tensor:
        """Normalised log Q(id): float64, the shape of `ids`."""

    def log_not_drawn(self, ids: Tensor) -> Tensor:
        """log(1 - Q(id)): float64, the shape of `ids`."""
        # a log_prob of 0 can round to 1e-16
        return torch.log1p(-self.log_prob(ids).exp().clamp_(max=1.0))

    def conditioned_on(self, context: Tensor | None) -> "Proposal":
        """The proposal for one batch. Only context-dependent ones look at `context`."""
        return self

    def sample(self, k: int, *, generator: torch.Generator) -> Candidates:
        """`k` distinct classes, ids rising, with the log of their expected counts.

        Classes are drawn one after another until `k` distinct ones are in hand. Where `k`
        is at least a quarter of all classes, or classes are few, the same order of first
        appearances is drawn by exponential arrival times, which ends however skewed Q is.
        Either way a sum over
        the sample, weighted by the inverse expected counts, is an unbiased estimate of the
        sum over all classes. `k` equal to num_classes is every class, each with log
        expected count 0.
        """
        check_positive("number of samples", k)
        check_generator(generator)
        if k > self.num_classes:
            raise UsageError(
                f"cannot draw {k} distinct classes from {self.num_classes}. Ask for fewer."
            )
        if k == self.num_classes:
            return Candidates.every(k)
        if self.num_classes <= max(4 * k, RACE_BELOW):
            return self._race(k, generator)
        return self._draw_until_distinct(k, generator)

    def enough_draws(self, k: int) -> int:
        """How many draws to begin with for more than `k` distinct ones; more follow if need be.

        A function of the distribution alone, or what is drawn would hang on what was before.
        """
        return k + k // 4 + 8

    def _draw_until_distinct(self, k: int, generator: torch.Generator) -> Candidates:
        """The first k distinct draws; draw T brought the next class after them.

        Given all draws of the other classes, class c is among the k unless it stays away
        from the T - N_c of them that were made, where N_c is how often c itself was drawn
        before T. The chance 1 - (1 - q)^(T - N_c) is therefore exact, not an approximation.
        """
        draws = self.draw(self.enough_draws(k), generator=generator)
        while (found := first_distinct(draws, k, self)) is None:
            tries = draws.shape[0]
            if tries > TRIES_PER_CLASS * k + 100_000:
                found = self._all_there_is(draws, k)
                break
            draws = torch.cat([draws, self.draw(tries, generator=generator)])
        end, ids, again = found
        log_q = torch.log(-torch.expm1((end - again) * self.log_not_drawn(ids)))
        return Candidates(ids, log_q.float())

    def _all_there_is(self, draws: Tensor, k: int) -> tuple[int, Tensor, Tensor]:
        """Of so many draws: good enough if k classes are there and the next is too rare."""
        ids, count = torch.unique(draws, return_counts=True)
        if len(ids) == k:
            return len(draws), ids, count - 1
        raise UsageError(
            f"{self!r} gave only {len(ids)} distinct classes of {k} in {len(draws)} draws: its "
            "mass sits on too few of them. Raise beta, lower alpha, mix in a Uniform, or ask for "
            "fewer samples."
        )

    def _race(self, k: int, generator: torch.Generator) -> Candidates:
        """Class c arrives at Exp(1) / q_c; the first k to arrive are kept.

        Given the arrival t of the one after them, a kept class had the chance
        1 - exp(-q t), which makes the inverse-weighted sum exactly unbiased.
        """
        log_p = self.log_prob(torch.arange(self.num_classes, device="cpu"))
        arrival = torch.empty_like(log_p).exponential_(generator=generator).log_() - log_p
        earliest = arrival.topk(k + 1, largest=False)
        if bool(earliest.values[k - 1].isinf()):
            raise UsageError(
                f"{self!r} gives fewer than {k} classes a positive probability. "
                "Mix in a Uniform, or ask for fewer samples."
            )
        ids = earliest.indices[:k].sort().values
        log_q = torch.log(-torch.expm1(-torch.exp(log_p[ids] + earliest.values[k])))
        return Candidates(ids, log_q.float())


def first_distinct(
    draws: Tensor, k: int, proposal: Proposal
) -> tuple[int | Tensor, Tensor, Tensor] | None:
    """The first k distinct of `draws` (T,), or None where there are no more than k.

    Returns: the number of the draw that brought the next class, the ids (k,), rising, and how
    often each came again before it, (k,).
    """
    low, high = draws.aminmax()
    if int(low) < 0 or int(high) >= proposal.num_classes:
        worst = int(low if low < 0 else high)
        raise UsageError(
            f"{proposal!r} drew class {worst}; expected ids from 0 to {proposal.num_classes - 1}."
        )
    if native.reaches(draws):
        return native.distinct(draws.long().contiguous(), k, proposal.num_classes)
    # a stable sort keeps the earlier draw of equal ids in front
    ordered, place = torch.sort(draws, stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    start = new.nonzero()[:, 0]
    if start.shape[0] <= k:
        return None
    # cut by order of appearance, never by id: a cut of the sorted ids would lose rare classes
    appeared = place[start]
    end = appeared.kthvalue(k + 1).values
    kept = appeared < end
    in_time = (place < end).cumsum(0)
    stop = torch.cat([start[1:], start.new_tensor([draws.shape[0]])])
    return end, ordered[start[kept]], (in_time[stop - 1] - in_time[start])[kept]
