"""The draws of a second pass, and the quota of one shard."""

import pytest
import torch
from oracle.selection import noise as noise_of

from tapas import LocalTable, Priority, Top, UsageError
from tapas.candidates import Candidates
from tapas.rng import stream
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass, select_here, shard_quota

PART = Candidates(torch.tensor([3, 8, 30]), torch.tensor([-1.0, -2.0, 0.0]))


@pytest.mark.parametrize(("keep", "num_shards"), [(7, 3), (2, 5), (6, 3), (1, 1), (0, 4)])
def test_quotas_differ_by_at_most_one_and_sum_to_keep(keep, num_shards):
    quotas = [shard_quota(keep, num_shards, shard) for shard in range(num_shards)]
    assert sum(quotas) == keep
    assert quotas == sorted(quotas, reverse=True)
    assert quotas[0] - quotas[-1] <= 1


class Unasked(Top):
    def select(self, given, keep):
        raise AssertionError("there is nothing to select")


def draw(rule, *, pool=PART, keep=2, generator=None, num_queries=5):
    query = torch.randn(num_queries, 3, generator=stream(0, "query"))
    batch = GlobalBatch.local(query, torch.arange(num_queries)[:, None])
    generator = stream(0, "keep") if generator is None else generator
    return SecondPass.draw(batch, pool, keep, rule, 1.0, generator=generator)


def keep_here(part, quota, rule):
    mine = draw(rule).for_part(torch.arange(len(part)), quota)
    return select_here(LocalTable(31, 3), part, part.ids, mine)


def test_a_shard_keeps_its_quota_and_scores_only_if_it_must_choose():
    nothing = Candidates(PART.ids[:0], PART.log_q[:0])
    for part, quota in ((PART, 0), (nothing, 0), (nothing, 2)):
        kept = keep_here(part, quota, Unasked())
        assert len(kept) == 0
        assert (kept.ids.dtype, kept.log_q.dtype) == (torch.int64, torch.float32)
    for quota in (3, 4):
        assert keep_here(PART, quota, Unasked()) is PART
    for rule in (Top(), Priority()):
        kept = keep_here(PART, 2, rule)
        assert len(kept) == 2
        assert set(kept.ids.tolist()) < set(PART.ids.tolist())


def test_only_random_rules_draw_noise():
    generator, reference = stream(0, "keep"), stream(0, "keep")
    assert draw(Top(), generator=generator).noise.shape == (0,)
    assert torch.equal(generator.get_state(), reference.get_state())
    noise = draw(Priority(), generator=generator).noise
    assert torch.equal(noise, noise_of(reference, 3))


@pytest.mark.parametrize(("score_queries", "complete"), [(None, True), (5, True), (3, False)])
def test_the_rule_decides_how_many_queries_score_each_with_its_target(score_queries, complete):
    how = draw(Top(score_queries=score_queries))
    assert how.complete == complete
    assert len(how.query) == (score_queries or 5)
    everyone = torch.randn(5, 3, generator=stream(0, "query"))
    assert torch.equal(how.query, everyone[how.target[:, 0]])


def test_nothing_is_drawn_if_the_complete_pool_is_kept():
    generator, before = stream(0, "keep"), stream(0, "keep").get_state()
    assert draw(Priority(score_queries=2), keep=3, generator=generator) is None
    assert torch.equal(generator.get_state(), before)


def test_a_missing_generator_is_an_error():
    with pytest.raises(UsageError) as error:
        draw(Priority(), generator=7)
    assert str(error.value) == (
        "generator must be a torch.Generator, got int. tapas.rng.stream(seed, 'name') makes one."
    )
