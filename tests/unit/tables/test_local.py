"""`LocalTable`: options, errors, copies and casts."""

import copy

import pytest
import torch
from contracts.tables import select
from oracle.tables import SlowRows

from tapas import DataError, LocalTable, Top, UsageError
from tapas.candidates import Candidates
from tapas.optim import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from tapas.rng import stream
from tapas.tables.ranks import GlobalBatch

B, C, D = 5, 31, 3


def draw(*shape, name="draw"):
    return torch.randn(*shape, generator=stream(0, name))


def step(table, ids=(4, 9, 4)):
    table.update(torch.tensor(ids), draw(len(ids), D), draw(len(ids), name="bias"))


def equal(one, other):
    """Whether rows, biases, optimizer state and numbers of two tables are equal."""
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0."),
        ({"dim": 2.5}, "dim must be an integer, got 2.5."),
        ({"dtype": torch.float16}, "dtype must be float32 or bfloat16, got torch.float16."),
        ({"bias": torch.zeros(30)}, "bias has shape (30,); expected (C=31)."),
        (
            {"bias": torch.arange(31).log()},  # the log of 0 is -inf
            "the bias of class 0 is NaN or inf. For the log of frequencies, give unseen classes a "
            "count: counts.clamp(min=1).",
        ),
        ({"num_shards": 0}, "num_shards must be at least 1, got 0."),
        ({"num_shards": 32}, "cannot spread 31 classes over 32 shards. Use at most 31."),
        ({"placement": "x"}, "placement must be random or contiguous, got 'x'."),
    ],
)
def test_a_bad_option_is_refused(options, words):
    with pytest.raises(UsageError) as error:
        LocalTable(**({"num_classes": C, "dim": D} | options))
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("query", "error", "words"),
    [
        (torch.zeros(B, 4), UsageError, "query has shape (5, 4); expected (..., D=3)"),
        (torch.zeros(B, D).long(), UsageError, "query has dtype torch.int64; expected floating"),
        (torch.tensor([[0.0] * D, [torch.nan] * D]), DataError, "query row 1 holds NaN or inf."),
    ],
)
def test_a_bad_query_is_refused_by_topk_and_log_partition(query, error, words):
    table = LocalTable(C, D)
    for verb in (lambda q: table.topk(q, 2), table.log_partition):
        with pytest.raises(error) as caught:
            verb(query)
        assert str(caught.value).startswith(words)


def test_topk_log_prob_is_topk_under_the_softmax_over_all_classes_excluded_or_not(kernels):
    table, query = LocalTable(C, D, bias=draw(C, name="bias")), 9 * draw(B, D)
    for exclude in (None, torch.arange(C - 4).repeat(B, 1)):
        log_prob, ids = table.topk_log_prob(query, 6, exclude=exclude)
        score, want = table.topk(query, 6, exclude=exclude)
        assert torch.equal(ids, want)
        logits = query.double() @ table.weight.double().t() + table.bias.double()
        partition = logits.logsumexp(dim=1, keepdim=True).float()
        torch.testing.assert_close(log_prob, score - partition)


@pytest.mark.parametrize("row_optimizer", [None, LazyAdam.fused()], ids=["step", "fused"])
def test_rows_are_parameters_without_gradient_and_fused_state_are_buffers(row_optimizer):
    """Only the anchor requires a gradient; it stands for all rows."""
    table = LocalTable(C, D, row_optimizer=row_optimizer)
    parameters = dict(table.named_parameters())
    assert {name: tuple(p.shape) for name, p in parameters.items()} == {
        "weight": (C, D),
        "bias": (C,),
        "gradients.anchor": (1,),
    }
    assert [n for n, p in parameters.items() if p.requires_grad] == ["gradients.anchor"]
    moments = {f"{part}_{key}" for part in ("weight", "bias") for key in ("mean", "square")}
    assert {n for n, _ in table.named_buffers()} == (moments if row_optimizer else set())
    tensors = table.row_tensors()
    assert tensors.keys() == {"weight", "bias"} | (moments if row_optimizer else set())
    assert not any(part.requires_grad for part in tensors.values())
    for name in ("weight", "bias"):  # the rows themselves, not copies of them
        assert type(getattr(table, name)) is torch.Tensor
        assert tensors[name].data_ptr() == parameters[name].data_ptr()


def test_rows_start_like_a_linear_layer_and_depend_on_the_seed_alone():
    weight = LocalTable(999, D, seed=3).weight
    bound = 1 / D**0.5
    assert bool((weight.abs() <= bound).all())
    # uniform on (-b, b) has variance b^2 / 3 and, of that estimate, 2 b^2 / sqrt(45 n) as error:
    # a correct initialization fails for 1 seed in 16,000
    error = weight.detach().double().square().mean() - bound**2 / 3
    assert abs(float(error)) < 4 * 2 * bound**2 / (45 * weight.numel()) ** 0.5
    assert torch.equal(weight, LocalTable(999, D, seed=3, num_shards=3, bias=False).weight)
    assert not torch.equal(weight, LocalTable(999, D, seed=4).weight)


@pytest.mark.parametrize("row_optimizer", [None, Adagrad.fused()], ids=["step", "fused"])
def test_biases_start_at_zero_or_at_given_values_or_are_absent(row_optimizer):
    everyone = torch.arange(C)
    start = draw(C, name="bias")
    assert not LocalTable(C, D, row_optimizer=row_optimizer).rows(everyone)[1].any()
    table = LocalTable(C, D, row_optimizer=row_optimizer, bias=start.double())
    assert torch.equal(table.rows(everyone)[1], start)
    start.zero_()  # the table has its own copy
    assert bool(table.rows(everyone)[1].all())
    without = LocalTable(C, D, row_optimizer=row_optimizer, bias=False)
    assert torch.equal(without.rows(everyone)[1], torch.zeros(C))
    query = draw(B, D)
    torch.testing.assert_close(without.topk(query, 1)[0][:, 0], (query @ without.weight.T).amax(1))
    torch.testing.assert_close(
        without.log_partition(query), (query @ without.weight.T).logsumexp(1)
    )


def test_without_biases_their_gradients_are_ignored():
    table = LocalTable(C, D, row_optimizer=Adagrad.fused(), bias=False)
    reference = SlowRows(table.weight, Adagrad.fused())
    step(table)
    reference.update([4, 9, 4], draw(3, D).tolist())
    torch.testing.assert_close(table.weight, torch.tensor(reference.rows).float())
    assert table.bias.shape == (0,)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "step"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [RowwiseAdagrad, LazyAdam])
def test_a_copy_of_rows_and_optimizer_trains_independently_and_equally(kind, dtype, fused):
    def go_on(table, stepper):
        if fused:
            step(table)
            return
        stepper.zero_grad()
        weight, bias = table.lookup(torch.tensor([4, 9, 4]), return_bias=True)
        ((weight * draw(3, D)).sum() + (bias * draw(3, name="bias")).sum()).backward()
        stepper.step()

    update = kind.fused() if fused else None
    table = LocalTable(C, D, dtype=dtype, num_shards=3, row_optimizer=update)
    pair = table, None if fused else kind(table)
    go_on(*pair)
    (twin, stepper), (kept, _) = copy.deepcopy(pair), copy.deepcopy(pair)
    assert twin.gradients.optimizer is stepper
    go_on(*pair)
    assert equal(twin, kept)
    go_on(twin, stepper)
    assert equal(twin, table)
    assert twin.num_updates == 2
    assert not torch.equal(twin.weight, kept.weight)
    if not fused:
        assert stepper is not pair[1]
        states = pair[1].state[table.gradients.anchor], stepper.state[twin.gradients.anchor]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("optimizer", [SGD, RowwiseAdagrad, LazyAdam])
def test_the_state_of_updates_by_hand_is_in_the_optimizer(optimizer):
    """Otherwise it would not be saved or copied."""
    table, other = LocalTable(C, D), LocalTable(C, D)
    first, second = optimizer(table), optimizer(other)
    step(table)
    other.load_state_dict(table.state_dict())
    second.load_state_dict(first.state_dict())
    for one in (table, other):
        step(one)
    assert table.num_updates == other.num_updates == 2
    assert equal(table, other)


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad.fused(), LazyAdam.fused()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_casting_a_model_casts_the_rows_and_leaves_the_state_float32(optimizer, dtype):
    """`model.bfloat16()` casts tables, too; in bfloat16 a sum of squares soon stops growing."""
    table = LocalTable(C, D, row_optimizer=optimizer)
    step(table)
    state = {k: v for k, v in table.row_tensors().items() if "_" in k}
    torch.nn.Sequential(table).to(dtype)
    assert table.weight.dtype == table.bias.dtype == dtype
    for _ in range(2):
        assert all(v.dtype == torch.float32 for k, v in table.row_tensors().items() if "_" in k)
        assert all(torch.equal(v, table.row_tensors()[k]) for k, v in state.items())
        step(table, ids=(4, 9, 4))
        state = {}
    assert [part.dtype for part in table.rows(torch.arange(2))] == [torch.float32] * 2


def test_casting_a_model_leaves_queued_gradients_and_optimizer_state_float32():
    table = LocalTable(C, D)
    optimizer = LazyAdam(table)
    step(table)
    table.lookup(torch.tensor([4, 9])).sum().backward()
    waiting, state = table.gradients.summed(), dict(table.gradients.state)
    torch.nn.Sequential(table).bfloat16()
    assert table.weight.dtype == table.bias.dtype == torch.bfloat16
    assert table.gradients.anchor.dtype == table.gradients.anchor.grad.dtype == torch.float32
    assert all(map(torch.equal, table.gradients.summed(), waiting))
    assert all(torch.equal(part, state[name]) for name, part in table.gradients.state.items())
    before = table.weight.clone()
    optimizer.step()
    assert torch.equal((table.weight != before).any(dim=1).nonzero()[:, 0], torch.tensor([4, 9]))
    assert {part.dtype for n, part in state.items() if n != "step"} == {torch.float32}


def test_the_repr_of_a_table():
    assert repr(LocalTable(C, D, row_optimizer=SGD.fused(lr=0.5), num_shards=3)) == (
        "LocalTable(\n  31 classes, dim=3, torch.float32, 3 shards, "
        "row_optimizer=SGD(lr=0.5, weight_decay=0.0)\n  (gradients): GradientQueue()\n)"
    )


def test_bfloat16_rows_are_read_and_ranked_in_float32():
    table = LocalTable(C, 257, dtype=torch.bfloat16)
    query = draw(B, 257)
    scores = query @ table.weight.detach().float().t()
    torch.testing.assert_close(table.topk(query, 1)[0][:, 0], scores.amax(dim=1))
    torch.testing.assert_close(table.log_partition(query), scores.logsumexp(dim=1))
    assert [part.dtype for part in table.rows(torch.arange(2))] == [torch.float32] * 2
    kept = Candidates(torch.arange(C), torch.zeros(C))
    _, log_sum = table.sampled_logits(GlobalBatch.local(query, torch.full((B, 1), -1)), kept)
    torch.testing.assert_close(log_sum, scores.logsumexp(dim=1))


def test_ranking_in_blocks_of_queries_equals_ranking_at_once(monkeypatch):
    table = LocalTable(C, D)
    query = torch.randn(5, D, generator=stream(0, "query"))
    exclude = torch.randint(-1, C, (5, 4), generator=stream(0, "exclude"))
    whole = table.topk(query, 6, exclude=exclude)
    monkeypatch.setattr("tapas.tables.exhaustive.QUERIES_PER_BLOCK", 2)
    parts = table.topk(query, 6, exclude=exclude)
    assert torch.equal(parts[1], whole[1])
    torch.testing.assert_close(parts[0], whole[0])
    assert table.topk(query[:0], 6)[1].shape == (0, 6)


def test_contiguous_shards_each_keep_their_quota_of_their_range_of_ids():
    table = LocalTable(C, D, num_shards=3, placement="contiguous")
    table.weight.data.copy_(torch.linspace(1, 2, C)[:, None].expand(C, D))  # ascending scores
    kept = select(
        table, torch.ones(B, D), Candidates(torch.arange(C), torch.zeros(C)), 7, rule=Top()
    )
    assert kept.ids.tolist() == [8, 9, 10, 19, 20, 29, 30]


def test_a_state_dict_holds_only_tensors_and_rounds_no_number():
    table = LocalTable(C, D, row_optimizer=SGD.fused(lr=1 / 3), seed=2**62 + 1)
    step(table)
    state = table.state_dict()
    assert state.keys() == {"weight", "bias", "_extra_state"}
    assert (state["_extra_state"].shape, state["_extra_state"].dtype) == ((3,), torch.int64)
    other = LocalTable(C, D, row_optimizer=SGD.fused())
    other.load_state_dict(state)
    assert (other.seed, other.num_updates, other.row_optimizer.lr) == (2**62 + 1, 1, 1 / 3)
    waiting = LocalTable(C, D, seed=4).state_dict()
    assert waiting["_extra_state"].tolist() == [4]


def test_loading_a_state_keeps_the_number_of_shards_and_the_kind_of_placement():
    """The seed, which also decides the shard of a class, is loaded."""
    table = LocalTable(C, D, num_shards=3, placement="contiguous", seed=4)
    other = LocalTable(C, D, num_shards=2, placement="random", seed=1)
    other.load_state_dict(table.state_dict())
    assert (other.num_shards, other.placement.kind, other.seed) == (2, "random", 4)
    ids, built = torch.arange(C), LocalTable(C, D, num_shards=2, seed=4)
    assert torch.equal(other.placement.shard(ids), built.placement.shard(ids))
    table.load_state_dict(other.state_dict())
    assert (table.num_shards, table.placement.kind) == (3, "contiguous")
    assert table.placement.shard(ids).tolist() == sorted(table.placement.shard(ids).tolist())


@pytest.mark.parametrize(
    ("spoil", "found"),
    [(lambda n: n[:2], "torch.int64, (2,)"), (lambda n: n.float(), "torch.float32, (3,)")],
)
def test_truncated_or_cast_numbers_are_refused(spoil, found):
    table = LocalTable(C, D, row_optimizer=SGD.fused(lr=0.5), seed=3)
    step(table)
    state = table.state_dict()
    state["_extra_state"] = spoil(state["_extra_state"])
    other = LocalTable(C, D, row_optimizer=SGD.fused())
    with pytest.raises(UsageError) as error:
        other.load_state_dict(state)
    assert str(error.value) == (
        f"the _extra_state of this LocalTable is {found}; expected int64, (3,) for seed, "
        "num_updates, lr. It was cast, or saved from another kind of head, table or optimizer: "
        "build the same kind as was saved."
    )
    assert (other.seed, other.num_updates, other.row_optimizer.lr) == (0, 0, 0.1)
