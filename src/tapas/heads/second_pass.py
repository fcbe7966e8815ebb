"""What a head asks of the second pass: who scores, by which rule, at which temperature."""

import torch

from tapas.selection import Selection
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import Question


def question_of(
    meeting: GlobalBatch,
    pool_size: int,
    num_samples: int,
    rule: Selection,
    temperature: float,
    *,
    generator: torch.Generator,
) -> Question:
    """By which queries of the batch a pool is scored: all, or as many as the rule wants."""
    query, own, complete = meeting.query.detach(), meeting.target, True
    if rule.score_queries is not None and rule.score_queries < len(query):
        complete = False
        if pool_size > num_samples:  # else nobody scores, and nothing is drawn
            chosen = torch.randperm(len(query), generator=generator, device="cpu")
            chosen = chosen[: rule.score_queries].to(query.device)
            query, own = query[chosen], own[chosen]
    return Question(query, own, complete, temperature, rule)
