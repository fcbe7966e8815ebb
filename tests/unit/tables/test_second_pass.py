"""One shard's part of a pool: its share, its noise, and nothing where it keeps nothing."""

import pytest
import torch

from tapas import LocalTable, Priority, Top
from tapas.candidates import Candidates
from tapas.rng import stream
from tapas.tables.second_pass import Question, keep_of, second_pass_of, share_of


@pytest.mark.parametrize(("keep", "num_shards"), [(7, 3), (2, 5), (6, 3), (1, 1), (0, 4)])
def test_shares_are_as_equal_as_they_can_be_and_sum_up(keep, num_shards):
    shares = [share_of(keep, num_shards, shard) for shard in range(num_shards)]
    assert sum(shares) == keep
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1


class Unasked(Top):
    def pick(self, view, keep):
        raise AssertionError("there is nothing to pick")


def ask(part, share, rule):
    table = LocalTable(31, 3)
    query = torch.randn(5, 3, generator=stream(0, "query"))
    question = Question(query, torch.full((5, 1), -1), True, 1.0, rule)
    noise = second_pass_of(part, 0, question, stream(0, "keep")).noise
    return keep_of(
        part,
        part.ids,
        noise,
        share,
        question,
        weight=table.weight,
        bias=table.bias,
        read=table.read,
    )


def noise_for(rule, generator):
    question = Question(torch.zeros(1, 3), torch.full((1, 1), -1), True, 1.0, rule)
    return second_pass_of(PART, 2, question, generator).noise


PART = Candidates(torch.tensor([3, 8, 30]), torch.tensor([-1.0, -2.0, 0.0]))


def test_a_shard_without_a_share_keeps_nothing_and_scores_nothing():
    kept = ask(PART, 0, Unasked())
    assert len(kept) == 0
    assert (kept.ids.dtype, kept.log_q.dtype) == (torch.int64, torch.float32)


@pytest.mark.parametrize("share", [3, 4])
def test_a_part_no_larger_than_the_share_is_kept_as_it_is(share):
    kept = ask(PART, share, Unasked())
    assert torch.equal(kept.ids, PART.ids)
    assert torch.equal(kept.log_q, PART.log_q)


def test_a_part_of_nothing_is_nothing():
    nothing = Candidates(PART.ids[:0], PART.log_q[:0])
    for share in (0, 2):
        assert len(ask(nothing, share, Unasked())) == 0


@pytest.mark.parametrize("rule", [Top(), Priority()], ids=repr)
def test_a_share_of_the_part_is_kept(rule):
    kept = ask(PART, 2, rule)
    assert len(kept) == 2
    assert set(kept.ids.tolist()) < set(PART.ids.tolist())


def test_only_a_rule_of_chance_draws():
    generator = stream(0, "keep")
    before = generator.get_state()
    assert noise_for(Top(), generator).shape == (0,)
    assert torch.equal(generator.get_state(), before)
    noise = noise_for(Priority(), generator)
    assert noise.shape == (3,)
    assert bool(((noise > 0) & (noise <= 1)).all())
