"""`Proposal`, the interface of first-pass distributions, and how distinct classes are drawn."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

import tapas.native as native
from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.rng import check_generator, new_key, philox, uniform_numbers
from tapas.shapes import check_positive

TRIES_PER_CLASS = 200  # give up if a distinct class takes more draws than this on average
RACE_BELOW = 2048  # with so few classes arrival times are faster than sorting draws


class Proposal(ABC):
    """A distribution Q over the classes 0 .. num_classes-1.

    A subclass needs `num_classes` and two methods, `draw` and `log_prob`. Every class must have
    a positive probability, because the loss cannot correct for classes that are never drawn. Ids
    are int64 and, like the generator, on the CPU.
    """

    num_classes: int
    wants_context: bool = False  # whether Q depends on the previous classes of the batch

    @abstractmethod
    def draw(self, k: int, *, generator: torch.Generator) -> Tensor:
        """`k` independent draws with replacement: (k,) int64."""

    @abstractmethod
    def log_prob(self, ids: Tensor) -> Tensor:
        """Normalised log Q(id), float64, in the shape of `ids`."""

    def log_not_drawn(self, ids: Tensor) -> Tensor:
        """log(1 - Q(id)), float64, in the shape of `ids`."""
        # a log_prob of 0 may have been rounded to 1e-16
        return torch.log1p(-self.log_prob(ids).exp().clamp_(max=1.0))

    def conditioned_on(self, context: Tensor | None) -> "Proposal":
        """The proposal for a batch with these previous classes (B,); itself if it ignores them."""
        return self

    def sample(self, k: int, *, generator: torch.Generator) -> Candidates:
        """`k` distinct classes, ids ascending, and the log expected count of each.

        Classes are drawn until there are `k` distinct ones. If `k` is at least a quarter of all
        classes, or there are few classes, exponential arrival times are drawn instead: they
        give the same distribution and finish for any Q, however skewed. Either way a sum over the
        sample, weighted by the inverse expected counts, is an unbiased estimate of the sum over
        all classes. If `k` is num_classes, the sample is every class, with log expected count 0.

        Raises UsageError if `k` is too large, or if Q has too little mass beyond a few classes.
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

    def _draw_until_distinct(self, k: int, generator: torch.Generator) -> Candidates:
        """The first k distinct classes of a sequence of draws."""
        draws = self.draw(first_draws(k), generator=generator)
        return self._first_of(
            draws,
            k,
            lambda draws: torch.cat([draws, self.draw(len(draws), generator=generator)]),
        )

    def _first_of(self, draws: Tensor, k: int, lengthen: Callable[[Tensor], Tensor]) -> Candidates:
        """The first k distinct classes of `draws` (T,), which `lengthen` makes longer if too short.

        Let T be the number of the draw that brings the (k + 1)-th class, and N_c how often class
        c was drawn before it. Given all draws of the other classes, of which there are T - N_c, c
        is among the k unless it is never drawn beside them: the probability to be kept,
        1 - (1 - q)^(T - N_c), is exact.
        """
        while (found := first_distinct(draws, k, self)) is None:
            if draws.shape[0] >= most_draws(k):
                found = self._accept_or_give_up(draws, k)
                break
            draws = lengthen(draws)
        end, ids, again = found
        log_q = torch.log(-torch.expm1((end - again) * self.log_not_drawn(ids)))
        return Candidates(ids, log_q.float())

    def _accept_or_give_up(self, draws: Tensor, k: int) -> tuple[int, Tensor, Tensor]:
        """After too many draws: accept k classes if the next one is too rare to appear."""
        ids, count = torch.unique(draws, return_counts=True)
        if len(ids) == k:
            return len(draws), ids, count - 1
        raise UsageError(
            f"{self!r} gave only {len(ids)} of {k} distinct classes in {len(draws)} draws: its "
            "mass is on too few classes. Raise beta, lower alpha, mix in a Uniform, or ask for "
            "fewer samples."
        )

    def _race(self, k: int, generator: torch.Generator) -> Candidates:
        """Class c arrives at time Exp(1) / q_c; the first k to arrive are kept.

        Given the time t of the next arrival, a class is kept with probability 1 - exp(-q t);
        with the inverse of these as weights the sum is exactly unbiased.
        """
        probability, key = self._probabilities(), new_key(generator)
        found = (
            native.race(probability, key, k)
            if native.supports(probability)
            else first_to_arrive(probability, key, k)
        )
        if found is None:
            raise UsageError(
                f"{self!r} gives fewer than {k} classes a positive probability. "
                "Mix in a Uniform, or ask for fewer samples."
            )
        return Candidates(*found, below=self.num_classes)

    def _probabilities(self) -> Tensor:
        """Q of all classes, (C,) float64."""
        return self.log_prob(torch.arange(self.num_classes, device="cpu")).double().exp()


def first_to_arrive(probability: Tensor, key: int, k: int) -> tuple[Tensor, Tensor] | None:
    """As `native.race`."""
    u = torch.from_numpy(uniform_numbers(philox(key, len(probability))))
    speed = torch.where(probability > 0, probability / -torch.log1p(-u), 0.0)
    order = speed.argsort(descending=True, stable=True)
    if not speed[order[k - 1]]:
        return None
    ids = order[:k].sort().values
    log_q = torch.log(-torch.expm1(-probability[ids] / speed[order[k]]))
    return ids, log_q.float()


def first_draws(k: int) -> int:
    """How many draws to make at first to get more than `k` distinct ones; then they are doubled."""
    return k + k // 4 + 8


def most_draws(k: int) -> int:
    """After how many draws to give up."""
    return TRIES_PER_CLASS * k + 100_000


def first_distinct(
    draws: Tensor, k: int, proposal: Proposal
) -> tuple[int | Tensor, Tensor, Tensor] | None:
    """The first k distinct ids of `draws` (T,); None if there are at most k distinct ids.

    Returns: the position of the draw that brings the next distinct id, the ids (k,), ascending,
    and how often each was drawn again before it, (k,).
    """
    low, high = draws.aminmax()
    if int(low) < 0 or int(high) >= proposal.num_classes:
        worst = int(low if low < 0 else high)
        raise UsageError(
            f"{proposal!r} drew class {worst}; expected ids from 0 to {proposal.num_classes - 1}."
        )
    if native.supports(draws):
        return native.distinct(draws.long().contiguous(), k, proposal.num_classes)
    # stable: of equal ids the earlier draw comes first
    ordered, position = torch.sort(draws, stable=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    start = new.nonzero()[:, 0]
    if start.shape[0] <= k:
        return None
    # cut by order of appearance, not by id: cutting the sorted ids would lose classes with high ids
    appeared = position[start]
    end = appeared.kthvalue(k + 1).values
    kept = appeared < end
    in_time = (position < end).cumsum(0)
    stop = torch.cat([start[1:], start.new_tensor([draws.shape[0]])])
    return end, ordered[start[kept]], (in_time[stop - 1] - in_time[start])[kept]
