"""The contract of `ClassTable` for all implementations: selection, top k, sums and saved state."""

import io

import numpy as np
import pytest
import torch
from contracts.tables import BACKENDS, B, C, D, P, builder, draw, everything, same, select, set_rows
from oracle.selection import log_sum_exp, logit, noise
from oracle.tables import top

import tapas
from tapas.candidates import Candidates, first_occurrences
from tapas.losses import target_costs
from tapas.optim import SGD, LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture(params=BACKENDS)
def make(request, kernels):
    if (request.param, kernels) == ("3 ranks", "torch"):
        pytest.skip("only this rank would change its kernels")
    yield from builder(request.param)


def test_a_target_that_cannot_be_costs_inf_and_padding_nothing(make):
    """A score that overflows to -inf is not padding, and must not look learned."""
    table, weight = make(SGD.fused(lr=1.0)), draw(C, D)
    weight[7] = -3e38
    set_rows(table, weight, draw(C))
    kept = Candidates(torch.tensor([2, 3, 29]), draw(3))
    for target in (torch.tensor([[7], [8]]), torch.tensor([[7, 8], [9, -1]])):
        batch = GlobalBatch.local(torch.full((2, D), 10.0), target)
        cost = table.sampled_costs(batch, kept, counted=None)
        assert cost[0, 0] == torch.inf
        assert torch.equal(cost == 0, target < 0)
        assert cost.reshape(-1)[1:].isfinite().all()


def test_a_small_pool_is_returned_unchanged(make):
    pool = Candidates(torch.tensor([2, 3, 29]), draw(3))
    for keep in (3, 4, 31):
        kept = select(make(), draw(B, D), pool, keep)
        assert torch.equal(kept.ids, pool.ids)
        assert torch.equal(kept.log_q, pool.log_q)


class Spy(tapas.Selection):
    """Records the noise of each class of the pool, and keeps the first classes."""

    score_queries = None

    def __init__(self):
        self.noise = {}

    def select(self, given, keep):
        self.noise |= dict(zip(given.ids.tolist(), given.noise.tolist(), strict=True))
        return torch.arange(keep), torch.zeros(keep)


def test_select_draws_one_number_for_each_class_of_the_pool_from_the_generator_alone(make):
    pool = Candidates(torch.arange(P) + 9, torch.zeros(P))
    spy, generator, reference = Spy(), stream(0, "keep"), stream(0, "keep")
    table = make()
    select(table, draw(B, D), pool, 4, rule=spy, generator=generator)
    want = noise(reference, P)
    assert torch.equal(generator.get_state(), reference.get_state())
    want = dict(zip(pool.ids.tolist(), want.tolist(), strict=True))
    assert spy.noise.items() <= want.items()
    # the other ranks have their own spies
    one_process = getattr(table, "num_ranks", 1) == 1
    assert len(spy.noise) == P if one_process else 0 < len(spy.noise) < P


def test_rows_topk_and_log_partition_are_not_differentiable(make):
    table, query = make(), draw(B, D).requires_grad_()
    pool = Candidates(torch.arange(P), torch.zeros(P))
    answers = [*table.rows(torch.arange(3)), *table.topk(query, 3), table.log_partition(query)]
    for rule in (tapas.Top(), tapas.Priority()):
        answers += [select(table, query, pool, 7, rule=rule).log_q]
    assert not any(answer.requires_grad for answer in answers)


def integers(*shape, name):
    return torch.randint(-1, 2, shape, generator=stream(0, name)).float()


def test_topk_is_exact_with_ties_by_ascending_id_and_without_excluded_classes(make):
    """Rows of -1, 0 and 1 in three dimensions: many classes tie."""
    weight, bias = integers(C, D, name="rows"), integers(C, name="bias")
    table = set_rows(make(SGD.fused(lr=1.0)), weight, bias)
    query = integers(B, D, name="query")
    some = torch.randint(0, C, (B, 11), generator=stream(0, "exclude"))
    some[:, 4] = some[:, 3]
    padded = some.index_fill(1, torch.tensor([7, 8]), -100)
    for exclude in (None, padded, padded.to(torch.int16), some.to(torch.uint8)):
        for k in (1, 7, C):
            want = top((query @ weight.t() + bias).numpy(), k, exclude)
            score, ids = table.topk(query, k, exclude=exclude)
            assert (score.dtype, ids.dtype) == (torch.float32, torch.int64)
            np.testing.assert_array_equal(ids.numpy(), want[1])
            np.testing.assert_array_equal(score.numpy(), want[0])


def test_where_fewer_than_k_remain_ids_end_in_minus_one_and_scores_in_minus_infinity(make):
    exclude = torch.arange(C).repeat(2, 1)
    exclude[1, [5, 30]] = -1
    score, ids = make().topk(draw(2, D), 3, exclude=exclude)
    assert ids[0].tolist() == [-1, -1, -1]
    assert sorted(ids[1].tolist()) == [-1, 5, 30]
    assert torch.equal(score.isneginf(), ids == -1)


def test_log_partition_is_exact(make):
    table = make(SGD.fused(lr=1.0))
    set_rows(table, draw(C, D, name="rows"), draw(C, name="bias"))
    for scale in (1.0, 1e4):
        query = scale * draw(B, D)
        logits = logit(query.tolist(), *(part.tolist() for part in table.rows(torch.arange(C))))
        want = torch.tensor([log_sum_exp(row) for row in logits], dtype=torch.float32)
        assert table.log_partition(query).shape == (B,)
        torch.testing.assert_close(table.log_partition(query), want)


@pytest.mark.parametrize("scale", [0.25, 1.0, 1.5])
def test_log_probabilities_are_those_of_the_softmax_of_scaled_logits(make, scale):
    """Over all classes, excluded or not; the best classes are the same at any scale."""
    table = make(SGD.fused(lr=1.0))
    set_rows(table, draw(C, D, name="rows"), draw(C, name="bias"))
    query = draw(B, D)
    rows = [part.tolist() for part in table.rows(torch.arange(C))]
    logits = np.array(logit(query.tolist(), *rows))
    log_sum = np.array([log_sum_exp(scale * row) for row in logits])
    np.testing.assert_allclose(table.log_partition(query, scale=scale), log_sum, rtol=1e-5)
    exclude = torch.tensor([[3, 4], [-1, 30], [-1, -1], [0, 0], [9, -1]])
    for barred in (None, exclude):
        want, ids = top(logits, 5, barred)
        score, found = table.topk_log_prob(query, 5, exclude=barred, scale=scale)
        assert torch.equal(found, table.topk(query, 5, exclude=barred)[1])
        np.testing.assert_array_equal(found.numpy(), ids)
        np.testing.assert_allclose(score, scale * want - log_sum[:, None], rtol=1e-4, atol=1e-5)


def test_topk_and_log_partition_of_no_query_are_empty(make):
    table = make()
    assert [part.shape for part in table.topk(draw(0, D), 3)] == [(0, 3), (0, 3)]
    assert [part.shape for part in table.topk_log_prob(draw(0, D), 3, scale=2.0)] == [(0, 3)] * 2
    assert table.log_partition(draw(0, D)).shape == (0,)


def test_backward_through_sampled_logits_moves_the_rows(make):
    table, query = make(SGD.fused(lr=1.0)), draw(B, D).requires_grad_()
    target = torch.tensor([[4, 30], [4, -1], [6, 7], [8, 8], [-1, 2]])
    kept = Candidates(torch.tensor([4, 5, 20]), draw(3))
    before = everything(table)
    positive, log_sum = table.sampled_logits(GlobalBatch.local(query, target), kept)
    assert (positive.shape, log_sum.shape) == ((B, 2), (B,))
    assert torch.equal(positive.isneginf(), target < 0)
    assert same(before, everything(table))
    positive = positive.masked_fill(target < 0, 0.0)
    (positive.sum() + log_sum.sum()).backward()
    after = everything(table)
    moved = {4, 5, 20, 30, 6, 7, 8, 2}
    assert same(before, after, but=moved)
    assert all((before["rows"][c] != after["rows"][c]).all() for c in moved)
    # class 30 is the target of example 0 alone: its gradient is that query
    torch.testing.assert_close(before["rows"][30] - after["rows"][30], query[0].detach())


@pytest.mark.parametrize("num_targets", [1, 2])
def test_sampled_costs_are_those_of_the_sampled_logits(make, num_targets):
    target = torch.tensor([[4, 30], [4, -1], [6, 7], [8, 8], [9, 2]])[:, :num_targets]
    counted = None if num_targets == 1 else first_occurrences(target) & (target >= 0)
    kept, found = Candidates(torch.tensor([4, 5, 20]), draw(3)), []
    for verb in ("sampled_logits", "sampled_costs"):
        table, query = make(SGD.fused(lr=1.0)), draw(B, D).requires_grad_()
        batch = GlobalBatch.local(query, target)
        if verb == "sampled_costs":
            cost = table.sampled_costs(batch, kept, counted=counted)
        else:
            cost = target_costs(*table.sampled_logits(batch, kept), counted)
        assert cost.shape == target.shape
        (cost * torch.linspace(1, 2, cost.numel()).view_as(cost)).sum().backward()
        found.append([cost.detach(), query.grad, *everything(table).values()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("num_targets", [1, 2])
@pytest.mark.parametrize("factor", [0.3, 0.0])
def test_with_a_factor_sampled_costs_are_summed(make, num_targets, factor):
    target = torch.tensor([[4, 30], [4, -1], [6, 7], [8, 8], [9, 2]])[:, :num_targets]
    kept, found = Candidates(torch.tensor([4, 5, 20]), draw(3)), []
    for inside in (True, False):
        table, query = make(SGD.fused(lr=1.0)), draw(B, D).requires_grad_()
        batch = GlobalBatch.local(query, target)
        cost = table.sampled_costs(batch, kept, counted=None, factor=factor if inside else None)
        loss = cost if inside else cost.sum() * factor
        assert loss.shape == ()
        (2 * loss).backward()
        found.append([loss.detach(), query.grad, *everything(table).values()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("optimizer", [LazyAdam.fused(), RowwiseAdagrad.fused()], ids=repr)
def test_a_loaded_table_continues_as_if_it_had_never_stopped(make, optimizer):
    table, other = make(optimizer), make(optimizer)
    ids, grads = torch.tensor([4, 9, 4]), (draw(3, D), draw(3))
    for _ in range(3):
        table.update(ids, *grads)
    table.flush()
    file = io.BytesIO()
    torch.save(table.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same(everything(table), everything(other))
    for one in (table, other):
        one.update(ids + 1, *grads)
    assert same(everything(table), everything(other))


def test_a_second_pass_of_another_pool_is_refused(make):
    """On shards it would silently use the noise of other classes."""
    table, target = make(), torch.full((B, 1), -1)
    drawn, pool = (Candidates(torch.arange(size), torch.zeros(size)) for size in (P, P - 1))
    batch = GlobalBatch.local(draw(B, D), target)
    how = SecondPass.draw(batch, drawn, 4, tapas.Priority(), 1.0, generator=stream(0, "keep"))
    with pytest.raises(tapas.UsageError) as error:
        table.select(pool, how)
    assert str(error.value) == (
        "the second pass was drawn for a pool of 17 classes, got one of 16. Draw both again for "
        "every batch."
    )
