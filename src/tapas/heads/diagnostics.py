"""Compares the sample of a `TapasSoftmax` with the exact softmax on one batch."""

import warnings
from dataclasses import InitVar, dataclass, fields
from math import isnan, nan
from textwrap import fill

import torch
from torch import Tensor

from tapas.candidates import Candidates, index_of
from tapas.heads.batch import Batch
from tapas.proposals import Proposal, Squashed, Uniform
from tapas.selection import Selection, Top
from tapas.tables import ClassTable

CLASSES_PER_CHUNK = 4096
LOW, HIGH = 0.9, 0.97  # gradient cosines; docs/choosing.md says what they mean
QUERIES, COST = 8, 0.1  # of the check of a uniform start, and its share of the scores until then
EARLY = 100  # training steps before which a good cosine says nothing: rows are nearly random
MEANINGS = {
    "gradient_cosine": "sampled vs exact gradient of the queries; 1 is exact",
    "kept_mass": "share of the pool's probability on the kept classes",
    "top_coverage": "share of the kept classes that are in the exact top n",
    "pool_effective_size": "effective number of classes in the pool, per example",
    "other_targets": "share of the kept classes that are targets in this batch",
}


@dataclass(frozen=True)
class Diagnosis:
    """Five numbers about one batch; `print` shows them with their meaning and a verdict.

    All are NaN on a rank that has no examples; `gradient_cosine` is NaN as well if one of the two
    gradients is 0 or not finite. `verdict` is a sentence about `gradient_cosine`
    for the settings of the head; it is not a field, so that `asdict` returns numbers only.
    """

    top_coverage: float  # share of the kept classes among the n that the batch scores highest
    pool_effective_size: float  # (sum w)^2 / sum w^2, w = exp(logit - log_q); mean over examples
    gradient_cosine: float  # between sampled and exact gradient of the loss in the queries
    other_targets: float  # share of the kept classes that are targets of the batch
    kept_mass: float  # share of the pool's softmax probability that is on the kept classes
    with_verdict: InitVar[str] = ""
    verdict = ""

    def __post_init__(self, with_verdict: str) -> None:
        object.__setattr__(self, "verdict", with_verdict)

    def __str__(self) -> str:
        value = {name: f"{getattr(self, name):.3f}" for name in MEANINGS}
        value["gradient_cosine"] = f"{self.gradient_cosine:.2f} "  # as in the verdict
        if not isnan(self.pool_effective_size):
            value["pool_effective_size"] = f"{self.pool_effective_size:,.0f}"
        lines = [f"{name:<19} {value[name]:>9}  {text}" for name, text in MEANINGS.items()]
        return "\n".join([*lines, fill(self.verdict, 80)] if self.verdict else lines)

    def __repr__(self) -> str:
        numbers = (f"{one.name}={getattr(self, one.name):.3g}" for one in fields(self))
        return f"Diagnosis({', '.join(numbers)})"


def verdict(
    cosine: float,
    *,
    num_classes: int,
    num_samples: int,
    presample_factor: int,
    selection: Selection,
    proposal: Proposal,
    step: int,
) -> str:
    """What a gradient cosine means for a head with these settings, and what to change.

    >>> verdict(
    ...     0.98, num_classes=9000, num_samples=100, presample_factor=1, selection=Top(),
    ...     proposal=Uniform(9000), step=500
    ... )
    'gradient cosine 0.98: high. Plain sampled softmax (presample_factor=1) is enough.'
    """
    if num_samples >= num_classes:
        return "The loss is exact: num_samples is the number of classes. cross_entropy is faster."
    if isnan(cosine):
        return (
            "gradient cosine: none, because this rank has no examples, or a gradient is 0 (nothing "
            "left to learn) or not finite (check the class vectors for NaN)."
        )
    cosine = round(cosine, 2)  # as it is printed
    found = f"gradient cosine {cosine:.2f}"
    if cosine >= LOW and step < EARLY:
        return (
            f"{found} after {step} training steps: too early to tell. Ask again after some hundred."
        )
    second_pass = presample_factor > 1
    if cosine >= HIGH and second_pass:
        return (
            f"{found}: high. Try presample_factor=1: if the cosine stays at {HIGH} or above, "
            "plain sampled softmax is enough."
        )
    if cosine >= HIGH:
        return f"{found}: high. Plain sampled softmax (presample_factor=1) is enough."
    more = "num_samples"
    if presample_factor * num_samples < num_classes:
        more += " or presample_factor"
    if cosine >= LOW:
        return f"{found}: fair. Raising {more} may bring it to {HIGH}."
    remedies = [f"raise {more}"]
    if second_pass and isinstance(selection, Top):
        remedies.insert(0, 'use selection="priority"')
    if isinstance(proposal, Uniform):
        remedies.append("pass counts=, how often training has each class")
    elif isinstance(proposal, Squashed) and proposal.alpha < 0.5:
        remedies.append(f"raise alpha of the proposal from {proposal.alpha:g} to 0.75")
    advice = ", or ".join(remedies)
    return f"{found}: low. {advice[0].upper()}{advice[1:]}."


def is_time_to_check(num_classes: int, step: int, num_scores: float) -> bool:
    """Whether the steps so far, with `num_scores` scores, are long enough for one exact check.

    The check scores all classes three times with `QUERIES` queries.
    """
    return step >= EARLY and 3 * QUERIES * num_classes <= COST * num_scores


def warn_of_uniform(cosine: float, step: int, num_classes: int) -> None:
    """Warn that a uniform proposal, which nobody chose, gives a low gradient cosine."""
    if round(cosine, 2) < LOW:  # not for NaN
        warnings.warn(
            f"classes are drawn uniformly, and after {step} steps the sampled gradient has a "
            f"cosine of {cosine:.2f} with the exact one, below {LOW}. Pass counts=, how often "
            f"training has each class; or proposal=tapas.Uniform({num_classes}) to keep it so.",
            stacklevel=2,
        )


@torch.no_grad()
def diagnose(
    table: ClassTable, batch: Batch, pool: Candidates, kept: Candidates, temperature: float
) -> dict[str, float]:
    """The fields of a `Diagnosis`. Reads the rows of all classes: not for every step."""
    query, target = batch.query, batch.target
    partition = table.log_partition(query)
    score, expected = [], torch.zeros_like(query)
    for start in range(0, table.num_classes, CLASSES_PER_CHUNK):
        stop = min(start + CLASSES_PER_CHUNK, table.num_classes)
        weight, bias = table.rows(torch.arange(start, stop))
        logit = torch.addmm(bias, query, weight.t())
        score.append((logit / temperature).logsumexp(dim=0))
        expected += (logit - partition[:, None]).exp() @ weight
    best = torch.cat(score).topk(len(kept)).indices
    weight, bias = table.rows(pool.ids)
    logit = torch.addmm(bias, query, weight.t())
    importance = torch.softmax(logit - pool.log_q, dim=1)
    position, _ = index_of(pool.ids, kept.ids)
    sampled = _sampled_gradient(table, batch, kept)
    exact = _exact_gradient(table, batch, expected)
    if not len(query):  # only now: on several ranks each call of the table is a collective
        return dict.fromkeys(MEANINGS, nan)
    return {
        "top_coverage": float(torch.isin(kept.ids, best).float().mean()),
        "pool_effective_size": float((1 / importance.square().sum(dim=1)).mean()),
        "gradient_cosine": _cosine(sampled, exact),
        "other_targets": float(torch.isin(kept.ids, target[target >= 0]).float().mean()),
        "kept_mass": float(torch.softmax(logit, dim=1)[:, position].sum(dim=1).mean()),
    }


def _target_pull(table: ClassTable, batch: Batch) -> tuple[Tensor, Tensor]:
    """Weighted sum of each example's target rows, (B, D), and the sum of the weights, (B, 1)."""
    share = batch.weight if batch.weight is not None else torch.ones_like(batch.target).float()
    weight, _ = table.rows(batch.target.clamp(min=0).reshape(-1))
    rows = weight.view(*batch.target.shape, table.dim)
    return torch.einsum("bl,bld->bd", share, rows), share.sum(dim=1, keepdim=True)


def _exact_gradient(table: ClassTable, batch: Batch, expected: Tensor) -> Tensor:
    """Gradient (B, D) of the full softmax loss; `expected` (B, D) is the model's mean row."""
    pull, total = _target_pull(table, batch)
    return total * expected - pull


def _sampled_gradient(table: ClassTable, batch: Batch, kept: Candidates) -> Tensor:
    """Gradient (B, D) of the sampled loss in the queries, by its formula: no row may move."""
    pull, total = _target_pull(table, batch)
    rows, target_bias = table.rows(batch.target.clamp(min=0).reshape(-1))
    rows = rows.view(*batch.target.shape, table.dim)
    positive = torch.einsum("bld,bd->bl", rows, batch.query) + target_bias.view_as(batch.target)
    counted = batch.counted if batch.counted is not None else batch.target >= 0
    weight, bias = table.rows(kept.ids)
    negative = torch.addmm(bias - kept.log_q, batch.query, weight.t())
    hit = (kept.ids[None, None, :] == batch.target[:, :, None]).any(dim=1)
    logit = torch.cat(
        [positive.masked_fill(~counted, -torch.inf), negative.masked_fill(hit, -torch.inf)], dim=1
    )
    share = torch.softmax(logit, dim=1)
    width = positive.shape[1]
    mean = torch.einsum("bl,bld->bd", share[:, :width], rows) + share[:, width:] @ weight
    return total * mean - pull


def _cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two gradients; NaN if one of them is 0 or not finite."""
    a, b = a.reshape(-1).double(), b.reshape(-1).double()
    return float((a / a.norm()) @ (b / b.norm()))
