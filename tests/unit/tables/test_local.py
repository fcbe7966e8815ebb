"""The table of one process: its options, its errors, and what copies and casts do to it."""

import copy
import io

import pytest
import torch
from oracle.tables import SlowRows

from tapas import (
    SGD,
    Adagrad,
    Candidates,
    DataError,
    LazyAdam,
    LocalTable,
    RowwiseAdagrad,
    Top,
    UsageError,
    stream,
)

B, C, D = 5, 31, 3
OPTIMIZERS = [SGD(), Adagrad(), RowwiseAdagrad(), LazyAdam()]


def draw(*shape, name="draw"):
    return torch.randn(*shape, generator=stream(0, name))


def step(table, ids=(4, 9, 4)):
    table.update(torch.tensor(ids), draw(len(ids), D), draw(len(ids), name="bias"))


def tensors(table):
    return {k: v for k, v in table.state_dict().items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0."),
        ({"dim": 2.5}, "dim must be a whole number, got 2.5."),
        ({"dtype": torch.float16}, "dtype must be float32 or bfloat16, got torch.float16."),
        ({"dtype": torch.float64}, "dtype must be float32 or bfloat16, got torch.float64."),
        ({"bias": torch.zeros(30)}, "bias has shape (30,); expected (C=31)."),
        ({"bias": torch.zeros(31, 1)}, "bias has shape (31, 1); expected (C=31)."),
        (
            {"bias": torch.arange(31).log()},  # 0 is a class never seen
            "bias starts class 0 at NaN or inf. For the log of frequencies, give classes never "
            "seen a count: counts.clamp(min=1).",
        ),
        ({"num_shards": 0}, "num_shards must be at least 1, got 0."),
        ({"num_shards": 32}, "cannot spread 31 classes over 32 shards. Use at most 31."),
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
def test_a_bad_query_is_refused_by_every_verb_that_takes_all_classes(query, error, words):
    table = LocalTable(C, D)
    for verb in (lambda q: table.top(q, 2), table.log_partition):
        with pytest.raises(error) as caught:
            verb(query)
        assert str(caught.value).startswith(words)


@pytest.mark.parametrize("verb", ["update", "write"])
def test_rows_that_are_parameters_are_not_moved_by_hand(verb):
    table = LocalTable(C, D)
    with pytest.raises(UsageError) as error:
        getattr(table, verb)(torch.tensor([3]), torch.ones(1, D), torch.ones(1))
    assert str(error.value) == (
        "this table has no row optimizer: its rows are parameters, moved by torch.optim. "
        "Pass row_optimizer=tapas.RowwiseAdagrad() for rows that `update` moves."
    )


def test_rows_are_parameters_without_a_row_optimizer_and_buffers_with_one():
    assert {name for name, _ in LocalTable(C, D).named_parameters()} == {"weight", "bias"}
    assert not list(LocalTable(C, D).named_buffers())
    table = LocalTable(C, D, row_optimizer=LazyAdam())
    assert not list(table.parameters())
    assert {n for n, _ in table.named_buffers()} == {
        f"{part}{state}" for part in ("weight", "bias") for state in ("", "_mean", "_square")
    }


def test_rows_start_as_those_of_a_linear_layer_and_hang_on_the_seed_alone():
    weight = LocalTable(999, D, seed=3).weight
    bound = 1 / D**0.5
    assert bool((weight.abs() <= bound).all())
    # uniform on (-b, b) has variance b^2 / 3 and, of that estimate, 2 b^2 / sqrt(45 n) as error:
    # a right start fails 1 seed in 16,000
    error = weight.detach().double().square().mean() - bound**2 / 3
    assert abs(float(error)) < 4 * 2 * bound**2 / (45 * weight.numel()) ** 0.5
    assert torch.equal(weight, LocalTable(999, D, seed=3, num_shards=3, bias=False).weight)
    assert not torch.equal(weight, LocalTable(999, D, seed=4).weight)


@pytest.mark.parametrize("row_optimizer", [None, Adagrad()], ids=["parameters", "buffers"])
def test_a_bias_starts_at_zero_or_at_what_was_given_or_is_not_there(row_optimizer):
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
    torch.testing.assert_close(without.top(query, 1)[0][:, 0], (query @ without.weight.T).amax(1))
    torch.testing.assert_close(
        without.log_partition(query), (query @ without.weight.T).logsumexp(1)
    )


def test_without_a_bias_its_gradients_go_nowhere():
    table = LocalTable(C, D, row_optimizer=Adagrad(), bias=False)
    reference = SlowRows(table.weight, Adagrad())
    step(table)
    reference.update([4, 9, 4], draw(3, D).tolist())
    torch.testing.assert_close(table.weight, torch.tensor(reference.rows).float())
    assert table.bias.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_copy_goes_its_own_way_and_the_same_way(dtype, optimizer):
    table = LocalTable(C, D, row_optimizer=optimizer, dtype=dtype, num_shards=3)
    step(table)
    twin, kept = copy.deepcopy(table), copy.deepcopy(table)
    step(table)
    assert all(torch.equal(v, tensors(kept)[k]) for k, v in tensors(twin).items())
    step(twin)
    assert all(torch.equal(v, tensors(table)[k]) for k, v in tensors(twin).items())
    assert not torch.equal(twin.weight, kept.weight)


def test_a_state_brings_its_seed_and_with_it_the_shard_of_every_class():
    """What a rule keeps on shards hangs on where the classes live."""
    saved, other = (LocalTable(C, D, row_optimizer=SGD(), num_shards=3, seed=s) for s in (1, 2))
    everyone = torch.arange(C)
    assert not torch.equal(saved.placement.shard(everyone), other.placement.shard(everyone))
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(saved.placement.shard(everyone), other.placement.shard(everyone))
    assert other.placement.num_shards == 3


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_cast_of_the_model_casts_the_rows_and_leaves_the_state_float32(optimizer, dtype):
    """`model.bfloat16()` reaches the table too; a sum of squares in bfloat16 soon stands still."""
    table = LocalTable(C, D, row_optimizer=optimizer)
    step(table)
    state = {k: v for k, v in tensors(table).items() if "_" in k}
    torch.nn.Sequential(table).to(dtype)
    assert table.weight.dtype == table.bias.dtype == dtype
    for _ in range(2):
        assert all(v.dtype == torch.float32 for k, v in tensors(table).items() if "_" in k)
        assert all(torch.equal(v, tensors(table)[k]) for k, v in state.items())
        step(table, ids=(4, 9, 4))
        state = {}
    assert [part.dtype for part in table.rows(torch.arange(2))] == [torch.float32] * 2


def test_a_table_says_what_it_is():
    assert repr(LocalTable(C, D, row_optimizer=SGD(lr=0.5), num_shards=3)) == (
        "LocalTable(31 classes, dim=3, torch.float32, 3 shards, "
        "row_optimizer=SGD(lr=0.5, weight_decay=0.0))"
    )
    assert repr(LocalTable(C, D)) == (
        "LocalTable(31 classes, dim=3, torch.float32, row_optimizer=None)"
    )


def test_bfloat16_rows_are_read_and_ranked_in_float32():
    table = LocalTable(C, 257, dtype=torch.bfloat16)
    query = draw(B, 257)
    scores = query @ table.weight.detach().float().t()
    torch.testing.assert_close(table.top(query, 1)[0][:, 0], scores.amax(dim=1))
    torch.testing.assert_close(table.log_partition(query), scores.logsumexp(dim=1))
    assert [part.dtype for part in table.rows(torch.arange(2))] == [torch.float32] * 2
    kept = Candidates(torch.arange(C), torch.zeros(C))
    _, log_sum = table.sampled_logits(query, torch.full((B, 1), -1), kept)
    torch.testing.assert_close(log_sum, scores.logsumexp(dim=1))


def test_ranking_in_blocks_of_queries_is_ranking_at_once(monkeypatch):
    table = LocalTable(C, D)
    query = torch.randn(5, D, generator=stream(0, "query"))
    exclude = torch.randint(-1, C, (5, 4), generator=stream(0, "exclude"))
    whole = table.top(query, 6, exclude=exclude)
    monkeypatch.setattr("tapas.tables.exhaustive.QUERIES_PER_BLOCK", 2)
    parts = table.top(query, 6, exclude=exclude)
    assert torch.equal(parts[1], whole[1])
    torch.testing.assert_close(parts[0], whole[0])
    assert table.top(query[:0], 6)[1].shape == (0, 6)


def test_contiguous_shards_each_keep_their_share_of_their_stretch_of_ids():
    table = LocalTable(C, D, num_shards=3, placement="contiguous")
    table.weight.data.copy_(torch.linspace(1, 2, C)[:, None].expand(C, D))  # rising scores
    kept = table.select(
        torch.ones(B, D),
        Candidates(torch.arange(C), torch.zeros(C)),
        7,
        1.0,
        rule=Top(),
        own=torch.full((B, 1), -1),
        complete=True,
        generator=stream(0, "keep"),
    )
    assert kept.ids.tolist() == [8, 9, 10, 19, 20, 29, 30]


def test_a_state_brings_its_placement_and_one_of_version_0_1_is_random():
    table = LocalTable(C, D, num_shards=3, placement="contiguous", seed=4)
    state = table.get_extra_state()
    assert state == {"num_updates": 0, "seed": 4, "num_shards": 3, "placement": "contiguous"}
    other = LocalTable(C, D)
    other.load_state_dict(table.state_dict())
    ids = torch.arange(C)
    assert other.get_extra_state() == state
    assert torch.equal(other.placement.shard(ids), table.placement.shard(ids))
    del state["placement"]
    table.set_extra_state(state)
    old = LocalTable(C, D, num_shards=3, seed=4)
    assert table.get_extra_state() == old.get_extra_state()
    assert torch.equal(table.placement.shard(ids), old.placement.shard(ids))
    with pytest.raises(UsageError) as error:
        LocalTable(C, D, placement="x")
    assert str(error.value) == "placement must be random or contiguous, got 'x'."
