"""How well two passes stand in for all classes, measured on one batch against the truth."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapas.candidates import Candidates, index_of
from tapas.heads.batch import Batch
from tapas.tables import ClassTable

CLASSES_PER_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Five numbers: shares from 0 to 1, a cosine, and an effective number of classes."""

    top_coverage: float  # share of the n classes the batch scores highest of all that are kept
    pool_effective_size: float  # (sum w)^2 / sum w^2, w = exp(logit - log_q); mean over examples
    gradient_cosine: float  # sampled against exact gradient of the loss in the queries
    other_targets: float  # share of the kept classes that are targets of the batch
    kept_mass: float  # share of the pool's softmax mass that the kept classes hold


@torch.no_grad()
def diagnose(
    table: ClassTable, batch: Batch, pool: Candidates, kept: Candidates, temperature: float
) -> Diagnosis:
    """Exact, hence O(num_classes): for a look now and then, not for every step."""
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
    place, _ = index_of(pool.ids, kept.ids)
    own = target[target >= 0]
    return Diagnosis(
        top_coverage=float(torch.isin(kept.ids, best).float().mean()),
        pool_effective_size=float((1 / importance.square().sum(dim=1)).mean()),
        gradient_cosine=_cosine(
            _sampled_gradient(table, batch, kept), _exact_gradient(table, batch, expected)
        ),
        other_targets=float(torch.isin(kept.ids, own).float().mean()),
        kept_mass=float(torch.softmax(logit, dim=1)[:, place].sum(dim=1).mean()),
    )


def _target_pull(table: ClassTable, batch: Batch) -> tuple[Tensor, Tensor]:
    """Weighted sum of each example's target rows, (B, D), and the sum of the weights, (B, 1)."""
    share = batch.weight if batch.weight is not None else torch.ones_like(batch.target).float()
    weight, _ = table.rows(batch.target.clamp(min=0).reshape(-1))
    rows = weight.view(*batch.target.shape, table.dim)
    return torch.einsum("bl,bld->bd", share, rows), share.sum(dim=1, keepdim=True)


def _exact_gradient(table: ClassTable, batch: Batch, expected: Tensor) -> Tensor:
    pull, total = _target_pull(table, batch)
    return total * expected - pull


def _sampled_gradient(table: ClassTable, batch: Batch, kept: Candidates) -> Tensor:
    """Of the sampled loss in the queries, from its definition: no row must move here."""
    pull, total = _target_pull(table, batch)
    own, own_bias = table.rows(batch.target.clamp(min=0).reshape(-1))
    own = own.view(*batch.target.shape, table.dim)
    positive = torch.einsum("bld,bd->bl", own, batch.query) + own_bias.view_as(batch.target)
    counted = batch.counted if batch.counted is not None else batch.target >= 0
    weight, bias = table.rows(kept.ids)
    negative = torch.addmm(bias - kept.log_q, batch.query, weight.t())
    hit = (kept.ids[None, None, :] == batch.target[:, :, None]).any(dim=1)
    logit = torch.cat(
        [positive.masked_fill(~counted, -torch.inf), negative.masked_fill(hit, -torch.inf)], dim=1
    )
    share = torch.softmax(logit, dim=1)
    width = positive.shape[1]
    mean = torch.einsum("bl,bld->bd", share[:, :width], own) + share[:, width:] @ weight
    return total * mean - pull


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.reshape(-1), b.reshape(-1), dim=0))
