"""What a stranger tries: other precisions, other types, copies at odd moments, own rules."""

import contextlib
import copy
import io
import re

import numpy as np
import pytest
import torch

import tapas

B, C, D = 6, 50, 4


def make(**options):
    defaults = {
        "num_samples": 10,
        "presample_factor": 2,
        "row_optimizer": tapas.optim.SGD.fused(lr=1.0),
    }
    return tapas.TapasSoftmax(C, D, **(defaults | options))


def batch():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    return query, torch.randint(C, (B,), generator=tapas.rng.stream(0, "target"))


def says(words, kind=tapas.UsageError):
    return pytest.raises(kind, match=re.escape(words))


@pytest.mark.parametrize("selection", ["priority", "top"])
def test_every_answer_is_the_same_inside_autocast(selection):
    query, target = batch()

    def answers(head):
        kept = head.sample(query, target)
        score, ids = head.topk(query, 5)
        numbers = [kept.log_q, score, head.log_prob(query, ids), head.full_loss(query, target)]
        asking = query.clone().requires_grad_()
        diagnosis = head.diagnose(query, target)
        head(asking, target).backward()
        return [*numbers, asking.grad, head.table.weight.clone()], kept.ids, diagnosis

    want, want_ids, want_diagnosis = answers(make(selection=selection))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, got_ids, got_diagnosis = answers(make(selection=selection))
    assert torch.equal(got_ids, want_ids)
    assert got_diagnosis == want_diagnosis
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("selection", ["priority", "top"])
@pytest.mark.parametrize("proposal", [tapas.Uniform(C), tapas.Squashed([1.0] * (C - 1) + [5.0])])
def test_torchs_default_dtype_changes_nothing(dtype, selection, proposal):
    query, target = batch()
    options = {"selection": selection, "proposal": proposal}
    want = make(**options, row_optimizer=tapas.optim.Adagrad.fused())
    loss = want(query, target)
    loss.backward()
    with default_dtype(dtype):
        head = make(**options, row_optimizer=tapas.optim.Adagrad.fused())
        assert head.table.weight_sum.dtype == torch.float32
        got = head(query, target)
        got.backward()
        assert torch.equal(got, loss)
        assert torch.equal(head.topk(query, 3)[1], want.topk(query, 3)[1])
    assert torch.equal(head.table.weight, want.table.weight)


def test_a_rule_needs_one_method_only():
    class First(tapas.Selection):
        def select(self, given, keep):
            return torch.arange(keep), torch.zeros(keep, dtype=torch.float64)

    head = make(selection=First())
    query, target = batch()
    assert bool(head(query, target).isfinite())


@pytest.mark.parametrize(
    "answer",
    [
        lambda keep: (torch.arange(keep).flip(0), torch.zeros(keep)),
        lambda keep: (torch.zeros(keep, dtype=torch.int64), torch.zeros(keep)),
        lambda keep: (torch.arange(keep), torch.zeros(())),
        lambda keep: (torch.arange(keep).float(), torch.zeros(keep)),
        lambda keep: (torch.arange(keep) + 15, torch.zeros(keep)),
        lambda keep: (torch.arange(keep - 1), torch.zeros(keep - 1)),
    ],
)
def test_a_rule_that_answers_wrongly_is_told_so(answer):
    class Wrong(tapas.Selection):
        def select(self, given, keep):
            return answer(keep)

        def __repr__(self):
            return "Wrong()"

    with says(
        "Wrong() must select 10 distinct positions below 20, rising, as int64, and as many log"
    ):
        make(selection=Wrong())(*batch())


def test_a_proposal_that_draws_beyond_the_classes_is_told_so():
    class Beyond(tapas.Uniform):
        def draw(self, k, *, generator):
            return super().draw(k, generator=generator) + 4_900

    with says("; expected ids from 0 to 4999."):
        Beyond(5_000).sample(150, generator=tapas.rng.stream(0))


def test_classes_to_exclude_come_one_row_for_each_query():
    query, _ = batch()
    head = make()
    with says("exclude has shape (12,); expected one row of ids for each query of (6, 4)."):
        head.topk(query, 3, exclude=torch.arange(12))
    with says("exclude has shape (3, 2, 1); expected one row of ids for each query of (2, 3, 4)."):
        head.topk(query.view(2, 3, D), 3, exclude=torch.zeros(3, 2, 1).long())
    assert head.topk(query[:0], 3, exclude=torch.zeros(0, 4).long())[0].shape == (0, 3)


@pytest.mark.parametrize("bias", [np.arange(C) / C, [i / C for i in range(C)]])
def test_biases_may_start_from_arrays_and_lists(bias):
    torch.testing.assert_close(make(bias=bias).table.bias, torch.arange(C) / C)


def test_options_of_the_table_are_not_dropped_beside_a_table():
    words = (
        "row_optimizer, bias, dtype cannot be passed beside a table, which has its own. Pass "
        "them to the table."
    )
    with says(words):
        tapas.TapasSoftmax(
            table=tapas.LocalTable(C, D),
            num_samples=10,
            row_optimizer=tapas.optim.SGD.fused(),
            dtype=torch.bfloat16,
            bias=False,
        )
    with says("num_shards is 20, but only num_samples=4 classes are kept"):
        tapas.TapasSoftmax(table=tapas.LocalTable(C, D, num_shards=20), num_samples=4)


@pytest.mark.parametrize("travel", [copy.deepcopy, copy.copy])
def test_a_copy_made_inside_accumulate_learns_like_any_other(travel):
    head = make()
    query, target = batch()
    with head.accumulate():
        head(query, target).backward()
        twin = copy.deepcopy(head) if travel is copy.deepcopy else travel(head.table)
    table = twin.table if travel is copy.deepcopy else twin
    before = table.weight.clone()
    table.update(torch.tensor([3]), torch.ones(1, D), torch.zeros(1))
    assert not torch.equal(table.weight, before)


def test_a_frozen_head_moves_no_row_and_thaws_again():
    head = make()
    before = head.table.weight.clone()
    query, target = batch()
    asking = query.clone().requires_grad_()
    head.requires_grad_(False)
    head(asking, target).backward()
    assert torch.equal(head.table.weight, before)
    assert asking.grad is not None
    assert not head(query, target).requires_grad
    head.requires_grad_(True)
    head(query, target).backward()
    assert not torch.equal(head.table.weight, before)


def test_weights_that_want_a_gradient_are_refused():
    query, target = batch()
    with says("target_weight requires a gradient, which the head does not give. Detach it, or use"):
        make()(query, target, target_weight=torch.ones(B, requires_grad=True))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), None])
def test_a_schedule_of_ones_own_is_held_to_positive_numbers(value):
    head = make(temperature=lambda step: value)
    with says(f"temperature must be a finite number above 0, got {value!r}."):
        head(*batch())


TYPES = [
    (lambda q, y: make()(q, y.tolist()), "target must be a torch.Tensor, got list."),
    (lambda q, y: make()(q.numpy(), y), "query must be a torch.Tensor, got ndarray."),
    (lambda q, y: make().sample(q.tolist()), "query must be a torch.Tensor, got list."),
    (lambda q, y: make().table.rows([1, 2]), "ids must be a torch.Tensor, got list."),
    (lambda q, y: make(proposal="uniform"), "proposal must be one such as tapas.Squashed(counts)"),
    (
        lambda q, y: make(row_optimizer="sgd"),
        "row_optimizer must be a fused one, such as tapas.optim.RowwiseAdagrad.fused(lr=0.1), or "
        "None for rows that an optimizer of tapas.optim moves, got 'sgd'.",
    ),
    (
        lambda q, y: make(row_optimizer=tapas.optim.SGD),
        "row_optimizer must be a fused one, such as tapas.optim.RowwiseAdagrad.fused(lr=0.1), or "
        "None for rows that an optimizer of tapas.optim moves, got <class",
    ),
    (
        lambda q, y: make(row_optimizer=tapas.optim.SGD(make(row_optimizer=None), lr=0.1)),
        "row_optimizer must be a fused one, such as tapas.optim.RowwiseAdagrad.fused(lr=0.1), or "
        "None for rows that an optimizer of tapas.optim moves, got SGD (",
    ),
    (lambda q, y: make(temperature=tapas.Anneal), "temperature must be a finite number above 0"),
    (lambda q, y: make(seed=1.5), "seed must be a whole number, got 1.5."),
    (lambda q, y: make(bias=None), "bias must be True, False or the (C,) values to start at"),
    (lambda q, y: tapas.Mixture("ab"), "the parts of a mixture must be proposals, got 'a'."),
    (
        lambda q, y: make()(q, y, context=torch.zeros(1).long()),
        "context has shape (1,); expected (6,), the previous class of every example.",
    ),
    (
        lambda q, y: tapas.losses.sampled_softmax_loss(
            torch.zeros(3, 3), torch.zeros(3), torch.ones(3)
        ),
        "weight has shape (3,); expected (B=3, L=3).",
    ),
]


@pytest.mark.parametrize(("call", "words"), TYPES, ids=[words for _, words in TYPES])
def test_the_wrong_kind_of_thing_is_told_what_would_do(call, words):
    with says(words):
        call(*batch())


def test_numpys_numbers_are_numbers_and_their_checkpoint_loads():
    head = make(seed=np.int64(3), temperature=np.float32(0.5), num_samples=np.int32(10))
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other = make(seed=4)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.seed == 3
    assert tapas.Squashed([1, 2], alpha=np.float32(0.75)).alpha == 0.75


def test_counts_beyond_float64_are_told_so():
    with says("are beyond what float64 can normalise", tapas.DataError):
        tapas.Squashed([1e308, 1e308, 1, 2])
    exact = tapas.Squashed([1.0, 16777217.0, 16777216.0]).log_prob(torch.tensor([1, 2]))
    assert exact[0] > exact[1]
