"""The two passes: the identities that define them, rules written by users, and saved state."""

import copy
import io

import numpy as np
import pytest
import torch
from oracle.flat_heads import B, C, D, L, queries, random_table
from oracle.tables import dense_gradients

import tapas
from tapas.exact_state import pack
from tapas.losses import kept_log_sum, sampled_softmax_loss

N = 7
TARGET = torch.tensor([4, 30, 0, 4, 17])


def make(**options):
    of_table = {
        name: options.pop(name) for name in ("row_optimizer", "num_shards") if name in options
    }
    defaults = {"num_samples": N, "presample_factor": 2, "seed": 3}
    return tapas.TapasSoftmax(table=random_table(**of_table), **(defaults | options))


@pytest.fixture(params=["priority", "top"])
def selection(request):
    return request.param


def test_presample_factor_one_is_sampled_softmax_bit_for_bit(selection):
    proposal = tapas.Squashed(torch.arange(C), alpha=0.75)
    head = make(
        presample_factor=1,
        proposal=proposal,
        selection=selection,
        temperature=0.3,
        reduction="none",
    )
    query = queries()
    kept = proposal.sample(N, generator=tapas.rng.stream(3, "draws", 0))
    kept_rows, kept_bias = head.table.rows(kept.ids)
    rows, bias = head.table.rows(TARGET)
    log_sum, _ = kept_log_sum(query, kept_rows, kept_bias - kept.log_q, kept.ids, TARGET[:, None])
    positive = (rows * query).sum(dim=1, keepdim=True) + bias[:, None]
    assert torch.equal(head(query, TARGET), sampled_softmax_loss(positive, log_sum))


def test_ignored_positions_cost_nothing(selection):
    query, target = queries(6).view(2, 3, D), torch.tensor([[4, -100, 30], [0, 4, -100]])
    real = target >= 0
    nested, flat = make(selection=selection), make(selection=selection)
    loss = nested(query, target)
    torch.testing.assert_close(loss, flat(query[real], target[real]))
    loss.backward()
    kept = make(selection=selection).sample(query, target)
    touched = nested.table.gradients.summed().ids.sort().values
    assert torch.equal(touched, torch.cat([kept.ids, target[real]]).unique())


def test_the_temperature_falls_step_by_step_and_never_touches_the_loss():
    cold, hot = (make(presample_factor=1, temperature=tau) for tau in (0.01, 100.0))
    assert torch.equal(cold(queries(), TARGET), hot(queries(), TARGET))
    head = make(temperature=tapas.Anneal(start=2.0, end=1.0, steps=4))
    assert head.temperature == 2.0
    head(queries(), TARGET)
    head.eval()(queries(), TARGET)
    assert head.temperature == 1.75


def rule_of(answer):
    """A rule written by a user: one method is enough."""

    class Rule(tapas.Selection):
        def select(self, given, keep):
            return answer(given, keep)

        def __repr__(self):
            return "Rule()"

    return Rule()


def lowest(given, keep):
    """Keeps the classes with the lowest scores."""
    weight, bias = given.rows(0, len(given))
    score = (given.query @ weight.T + bias).sum(dim=0)
    return score.topk(keep, largest=False).indices.sort().values, torch.zeros(keep)


def test_a_rule_written_by_a_user_can_be_the_second_pass():
    head = make(num_samples=4, presample_factor=C, selection=rule_of(lowest))
    logits = queries() @ head.table.weight.T + head.table.bias
    want = logits.sum(dim=0).topk(4, largest=False).indices.sort().values
    assert torch.equal(head.sample(queries()).ids, want)
    assert bool(head(queries(), TARGET).isfinite())


@pytest.mark.parametrize(
    "answer",
    [
        lambda given, keep: (torch.arange(keep).flip(0), torch.zeros(keep)),
        lambda given, keep: (torch.zeros(keep, dtype=torch.int64), torch.zeros(keep)),
        lambda given, keep: (torch.arange(keep), torch.zeros(())),
        lambda given, keep: (torch.arange(keep).float(), torch.zeros(keep)),
        lambda given, keep: (torch.arange(keep) + 10, torch.zeros(keep)),
        lambda given, keep: (torch.arange(keep - 1), torch.zeros(keep - 1)),
    ],
)
def test_a_rule_that_returns_wrong_positions_is_refused(answer):
    words = (
        r"Rule\(\) must select 7 distinct positions below 14, ascending, as int64, and as many log"
    )
    with pytest.raises(tapas.UsageError, match=words):
        make(selection=rule_of(answer))(queries(), TARGET)


def test_several_virtual_shards_keep_the_union_of_each_ones_share(selection):
    head = make(num_samples=8, presample_factor=C, num_shards=3, selection=selection)
    shard = head.table.placement.shard(head.sample(queries()).ids)
    assert torch.bincount(shard).tolist() == [3, 3, 2]


@pytest.mark.parametrize("num_targets", [None, 1, L])
def test_sampled_log_probabilities_are_what_the_loss_is_made_of(selection, num_targets):
    shape = (B,) if num_targets is None else (B, num_targets)
    target = torch.randint(C, shape, generator=tapas.rng.stream(4, "target"))
    target[1] = -100
    if num_targets == L:
        target[3, 1:] = -100
    one, two = (make(selection=selection, reduction="sum") for _ in range(2))
    query, again = queries().requires_grad_(), queries().requires_grad_()
    loss = one(query, target)
    log_prob = two.sampled_log_prob(again, target)
    assert log_prob.shape == target.shape
    assert bool((log_prob[target < 0] == 0).all())
    real = (target >= 0).view(B, -1)
    weight = real / real.sum(dim=1, keepdim=True).clamp(min=1)
    same = -(log_prob.view(B, -1) * weight).sum()
    torch.testing.assert_close(same, loss)
    loss.backward()
    same.backward()
    torch.testing.assert_close(again.grad, query.grad)
    torch.testing.assert_close(dense_gradients(two.table), dense_gradients(one.table))
    assert one.step == two.step == 1
    with torch.no_grad():
        two.sampled_log_prob(query, target)
    assert two.step == 1


def test_sampled_log_probabilities_over_every_class_are_exact():
    head, target = make(num_samples=C), torch.arange(B * L).view(B, L)
    torch.testing.assert_close(
        head.sampled_log_prob(queries(), target).detach(), head.log_prob(queries(), target)
    )


@pytest.mark.parametrize("least_work", [0, 1 << 60], ids=["terms kept", "computed again"])
def test_samples_and_diagnoses_are_the_same_inside_autocast(selection, least_work, monkeypatch):
    """So is a backward pass inside autocast, which torch advises against."""
    monkeypatch.setattr("tapas.tables.gradients.LEAST_WORK", least_work)

    def answers():
        head, query = make(selection=selection), queries().requires_grad_()
        kept, diagnosis = head.sample(query, TARGET), head.diagnose(query, TARGET)
        head(query, TARGET).backward()
        return [kept.ids, kept.log_q, query.grad, *dense_gradients(head.table)], diagnosis

    want, want_diagnosis = answers()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, diagnosis = answers()
    assert all(map(torch.equal, found, want))
    assert diagnosis == want_diagnosis


def test_ids_beyond_the_integers_of_float32_are_kept_apart():
    num_classes, target = 2**24 + 50, 2**24 + 1  # 2^24 + 1 is no float32
    head = tapas.TapasSoftmax(
        num_classes, 1, num_samples=2, bias=False, row_optimizer=tapas.optim.SGD.fused(lr=1.0)
    )
    before = head.table.weight[2**24 - 2 :].clone()
    head(torch.ones(1, 1), torch.tensor([target])).backward()
    moved = (head.table.weight[2**24 - 2 :] != before).nonzero()[:, 0] + 2**24 - 2
    assert moved.tolist() == [target]


FUSED = [
    tapas.optim.SGD.fused(lr=0.1),
    tapas.optim.Adagrad.fused(lr=0.1),
    tapas.optim.RowwiseAdagrad.fused(lr=0.1),
    tapas.optim.LazyAdam.fused(lr=0.1),
]


def annealed(**options):
    defaults = {
        "num_samples": 5,
        "presample_factor": 3,
        "temperature": tapas.Anneal(start=1.0, end=0.1, steps=9),
        "row_optimizer": tapas.optim.RowwiseAdagrad.fused(lr=0.1),
        "proposal": tapas.Squashed(torch.arange(C)),
        "seed": 7,
    }
    return tapas.TapasSoftmax(C, D, **(defaults | options))


def run(head, first, last):
    losses = []
    for step in range(first, last):
        target = torch.randint(C, (B,), generator=tapas.rng.stream(0, "target", step))
        loss = head(queries(seed=step).requires_grad_(), target)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("row_optimizer", FUSED, ids=lambda fused: fused.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_is_bit_identical(row_optimizer, dtype):
    """The seed comes from the state, not from the constructor of the resumed head."""
    options = {"row_optimizer": row_optimizer, "dtype": dtype}
    uninterrupted, first = annealed(**options), annealed(**options)
    want = run(uninterrupted, 0, 8)
    run(first, 0, 3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = annealed(seed=8, **options)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.temperature == first.temperature
    assert torch.equal(run(second, 3, 8), want[3:])
    for name, value in uninterrupted.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_numbers_are_saved_as_one_tensor_to_the_bit():
    head = annealed()
    run(head, 0, 3)
    state = head.state_dict()
    assert state["_extra_state"].tolist() == [3, 7]
    assert torch.equal(state["table._extra_state"], pack({"seed": 7, "updates": 3, "lr": 0.1}))
    rest = {"table.weight", "table.bias", "table.weight_sum", "table.bias_sum"}
    assert state.keys() - {"_extra_state", "table._extra_state"} == rest


def test_a_copy_made_inside_accumulate_learns_like_any_other():
    head = annealed()
    with head.accumulate():
        run(head, 0, 1)
        copies = copy.deepcopy(head).table, copy.copy(head.table)
    for table in copies:
        before = table.weight.clone()
        table.update(torch.tensor([3]), torch.ones(1, D), torch.zeros(1))
        assert not torch.equal(table.weight, before)


def test_numpy_numbers_and_arrays_are_accepted_and_their_checkpoint_loads():
    head = annealed(
        seed=np.int64(3),
        temperature=np.float32(0.5),
        num_samples=np.int32(10),
        bias=np.arange(C) / C,
    )
    torch.testing.assert_close(head.table.bias, torch.arange(C) / C)
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other = annealed(seed=4, bias=[0.0] * C)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.seed == 3
    assert tapas.Squashed([1, 2], alpha=np.float32(0.75)).alpha == 0.75


def test_the_context_of_a_sample_has_the_shape_of_the_queries():
    head, query = make(), queries()
    words = (
        rf"context has shape \({B - 1},\); expected \({B},\), the previous class of every example"
    )
    with pytest.raises(tapas.UsageError, match=words):
        head.sample(query, context=torch.zeros(B - 1, dtype=torch.int64))
    grid = head.sample(query[None], context=torch.zeros(1, B, dtype=torch.int64))
    assert torch.equal(grid.ids, head.sample(query).ids)
