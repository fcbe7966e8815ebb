"""The second pass as a head asks for it: who scores, how many stay, what is corrected."""

from collections.abc import Callable

import torch

from tapas.candidates import Candidates
from tapas.heads.config import TapasConfig
from tapas.tables.meeting import Meeting


def second_pass(
    meeting: Meeting,
    pool: Candidates,
    config: TapasConfig,
    temperature: float,
    *,
    generator: torch.Generator,
    select: Callable[..., Candidates],
) -> Candidates:
    """S: the n of `pool` that the rule picks, by `select` of a table, where the rows live."""
    rule = config.selection
    query, own, complete = meeting.query.detach(), meeting.target, True
    if rule.score_queries is not None and rule.score_queries < len(query):
        complete = False
        if len(pool) > config.num_samples:  # else nobody scores, and nothing is drawn
            chosen = torch.randperm(len(query), generator=generator, device="cpu")
            chosen = chosen[: rule.score_queries].to(query.device)
            query, own = query[chosen], own[chosen]
    kept = select(
        query,
        pool,
        config.num_samples,
        temperature,
        rule=rule,
        own=own,
        complete=complete,
        generator=generator,
    )
    if config.correction == "none":
        return Candidates(kept.ids, torch.zeros_like(kept.log_q))
    return kept
