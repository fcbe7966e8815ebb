"""Checkpoints with row optimizers, resumed by any other number of ranks."""

import pytest
import torch
from oracle.stored_rows import refused
from ranks import run_ranks

from tapas import LocalTable, PeerError, ShardedTable, TapasSoftmax, UsageError
from tapas.checkpoints.model import load_checkpoint, save_checkpoint
from tapas.optim import Adagrad, Combined, LazyAdam, RowwiseAdagrad
from tapas.rng import stream

pytestmark = pytest.mark.slow
C, D, BATCH, MIDDLE, STEPS = 41, 4, 12, 3, 6
KINDS = {"rowwise": RowwiseAdagrad, "adagrad": Adagrad, "adam": LazyAdam}
SETTINGS = [
    ("rowwise", True),
    ("adagrad", False),
    ("adam", True),
]  # optimizer, and whether there are biases


def build(table, kind):
    encoder = torch.nn.utils.skip_init(torch.nn.Linear, D, D)  # without torch's global random state
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream(0, "encoder")))
    head = TapasSoftmax(
        table=table, num_samples=C, seed=1
    )  # all classes, so that shards keep the same
    model = torch.nn.ModuleDict({"encoder": encoder, "head": head})
    dense = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer = Combined(dense, KINDS[kind](head, lr=0.2))
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def batch(step):
    generator = stream(0, "batch", step)
    x = torch.randn(BATCH, D, generator=generator)
    return x, torch.randint(0, C, (BATCH,), generator=generator)


def train(model, optimizer, scheduler, first, last, *, rank=0, size=1):
    part = slice(BATCH * rank // size, BATCH * (rank + 1) // size)
    for step in range(first, last):
        x, target = batch(step)
        optimizer.zero_grad()
        model["head"](model["encoder"](x[part]), target[part]).backward()
        for parameter in model["encoder"].parameters():  # as DDP does
            if size > 1:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= size
        optimizer.step()
        scheduler.step()


def whole_run(kind, bias):
    table = LocalTable(C, D, seed=1, bias=bias)
    parts = build(table, kind)
    train(*parts, 0, STEPS)
    return table.rows(torch.arange(C)), parts


def on_ranks(ranks, folder, first, last):
    answers = {}
    for kind, bias in SETTINGS:
        table = ShardedTable(C, D, seed=1, bias=bias)
        model, optimizer, scheduler = build(table, kind)
        here = f"{folder}/{kind}"
        if first:
            step, state = load_checkpoint(here, model, optimizer)
            assert step == first
            scheduler.load_state_dict(state["scheduler"])
        train(model, optimizer, scheduler, first, last, rank=ranks.rank, size=ranks.size)
        save_checkpoint(here, last, model, optimizer, state={"scheduler": scheduler.state_dict()})
        every = torch.arange(C) if ranks.rank == 0 else torch.arange(0)
        answers[kind] = table.rows(every), [g["lr"] for g in optimizer.param_groups]
    return answers


@pytest.mark.parametrize(("first", "then"), [(2, 3), (3, 1), (1, 2)])
def test_a_run_that_changes_its_number_of_ranks_ends_like_one_process(tmp_path, first, then):
    run_ranks(first, on_ranks, str(tmp_path), 0, MIDDLE)
    answers = run_ranks(then, on_ranks, str(tmp_path), MIDDLE, STEPS)
    for kind, bias in SETTINGS:
        want, (_, optimizer, _) = whole_run(kind, bias)
        rows, rates = answers[0][kind]
        torch.testing.assert_close(rows, want, rtol=1e-4, atol=1e-5)
        assert rates == [group["lr"] for group in optimizer.param_groups]


def both_kinds(make):
    """A fused table and one with an optimizer, both built by `make`."""
    fused = make(C, D, seed=1, row_optimizer=LazyAdam.fused(lr=0.1), dtype=torch.bfloat16)
    waits = make(C, D, seed=2, bias=False)
    return torch.nn.ModuleDict({"fused": fused, "waits": waits}), RowwiseAdagrad(waits, lr=0.3)


def saved_again(ranks, source, folder, placement):
    """Load the checkpoint in `source`, if any, and save to `folder`."""
    model, optimizer = both_kinds(lambda *a, **k: ShardedTable(*a, placement=placement, **k))
    if source is not None:
        assert load_checkpoint(source, model, optimizer) == (STEPS, {"mine": [1, None]})
    else:
        for step in range(2):
            mine = torch.arange(ranks.rank + step, C, 2)
            optimizer.zero_grad()
            for number, table in enumerate(model.values()):
                factor = torch.randn(len(mine), D, generator=stream(0, "grad", number))
                (table.lookup(mine) * factor).sum().backward()
            optimizer.step()
    save_checkpoint(folder, STEPS, model, optimizer, state={"mine": [1, None]})


def whole_state(folder):
    model, optimizer = both_kinds(LocalTable)
    load_checkpoint(folder, model, optimizer)
    state = optimizer.state[model["waits"].gradients.anchor]
    return {**model.state_dict(), **state, "updates": torch.tensor(model["fused"].num_updates)}


def test_rows_and_state_are_unchanged_by_any_number_of_ranks_and_any_placement(tmp_path):
    """Saved by three ranks, by two with another placement, by one process, by three again."""
    first, second, third, last = (str(tmp_path / name) for name in "abcd")
    run_ranks(3, saved_again, None, first, "random")
    run_ranks(2, saved_again, first, second, "contiguous")
    model, optimizer = both_kinds(LocalTable)
    _, state = load_checkpoint(second, model, optimizer)
    save_checkpoint(third, STEPS, model, optimizer, state=state)
    run_ranks(3, saved_again, third, last, "random")
    want = whole_state(first)
    assert (int(want["step"]), int(want["updates"])) == (2, 2)
    assert want["fused.weight_mean"].abs().sum() > 0
    assert want["weight_sum"].std() > 0
    for folder in (second, third, last):
        found = whole_state(folder)
        assert found.keys() == want.keys()
        assert all(torch.equal(found[name], value) for name, value in want.items())


@pytest.mark.parametrize("middle", [0, MIDDLE])
@pytest.mark.parametrize(("kind", "bias"), SETTINGS)
def test_one_process_resumes_bit_by_bit_also_from_before_the_first_step(
    tmp_path, kind, bias, middle
):
    want, _ = whole_run(kind, bias)
    parts = build(LocalTable(C, D, seed=1, bias=bias), kind)
    train(*parts, 0, middle)
    state = {"scheduler": parts[2].state_dict()}
    save_checkpoint(tmp_path, middle, *parts[:2], state=state)
    again = build(table := LocalTable(C, D, seed=1, bias=bias), kind)
    step, state = load_checkpoint(tmp_path, *again[:2])
    again[2].load_state_dict(state["scheduler"])
    assert step == table.num_updates == middle
    train(*again, middle, STEPS)
    assert all(map(torch.equal, table.rows(torch.arange(C)), want))


def shared_on_ranks(ranks, folder):
    """Two heads with one table: saved once, loaded under both names."""
    found = []
    for _ in range(2):
        table = ShardedTable(C, D, seed=1)
        heads = [TapasSoftmax(table=table, num_samples=C, seed=seed) for seed in (1, 2)]
        model = torch.nn.ModuleList(heads)
        optimizer = RowwiseAdagrad(model, lr=0.2)
        if found:
            load_checkpoint(folder, model, optimizer)
        x, target = batch(0)
        part = slice(BATCH * ranks.rank // ranks.size, BATCH * (ranks.rank + 1) // ranks.size)
        for head in heads:
            optimizer.zero_grad()
            head(x[part], target[part]).backward()
            optimizer.step()
        if not found:
            save_checkpoint(folder, 1, model, optimizer)
        found.append(heads[1].step)
    return int(optimizer.state[table.gradients.anchor]["step"]), found[1]


def test_heads_that_share_a_table_are_saved_and_loaded(tmp_path):
    assert run_ranks(2, shared_on_ranks, str(tmp_path)) == [(4, 2), (4, 2)]


def test_optimizers_of_another_kind_or_order_are_refused_before_anything_is_loaded(tmp_path):
    parts = build(LocalTable(C, D, seed=1), "adagrad")
    train(*parts, 0, 2)
    save_checkpoint(tmp_path, 2, *parts[:2])
    for kind, swapped in (("adam", False), ("adagrad", True)):
        model, optimizer, _ = build(table := LocalTable(C, D, seed=1), kind)
        if swapped:
            optimizer = Combined(*reversed(optimizer.optimizers))
        before = table.weight.clone()
        with pytest.raises(
            UsageError, match=r"the checkpoint of step 2 has the optimizers .* Nothing was loaded"
        ):
            load_checkpoint(tmp_path, model, optimizer)
        assert torch.equal(table.weight, before)


def test_a_row_optimizer_that_was_not_passed_is_an_error(tmp_path):
    model, optimizer, _ = build(LocalTable(C, D, seed=1), "adam")
    dense, rows = optimizer.optimizers
    assert refused(lambda: save_checkpoint(tmp_path, 0, model, dense)) == (
        "the rows of head.table are updated by a LazyAdam, which was not passed: its learning rate "
        "and state would be lost. Pass all optimizers: [dense, rows]."
    )
    save_checkpoint(tmp_path, 0, model, [dense, rows])
    assert load_checkpoint(tmp_path, model, [dense, rows]) == (0, {})


def disagreeing(ranks):
    """Rows frozen on one rank only, different learning rates, and the state of another rank."""
    frozen = ShardedTable(C, D, seed=1)
    frozen.gradients.anchor.requires_grad_(ranks.rank == 0)
    errors = [refused(lambda: frozen.lookup(torch.arange(3)), PeerError)]
    table = ShardedTable(C, D, seed=1)
    optimizer = Adagrad(table, lr=0.1 * (1 + ranks.rank))

    def step(table, optimizer):
        table.lookup(torch.arange(3)).sum().backward()
        optimizer.step()

    errors.append(refused(lambda: step(table, optimizer), PeerError))
    table = ShardedTable(2 * C, D, seed=1)  # shards of equal size
    optimizer = Adagrad(table, lr=0.1)
    step(table, optimizer)
    states = [optimizer.state_dict()]
    torch.distributed.broadcast_object_list(states, src=0)
    if ranks.rank == 0:
        optimizer.load_state_dict(states[0])
    else:
        errors.append(refused(lambda: optimizer.load_state_dict(states[0]), UsageError))
    return errors


def test_ranks_with_different_row_optimizers_are_an_error():
    zero, one = run_ranks(2, disagreeing)
    of_another = one.pop()
    assert of_another.startswith("this optimizer state belongs to another rank or layout")
    for frozen, rates in (zero, one):
        assert frozen == (
            "the ranks differ in `lookup` of trained (1) or frozen (0) rows (rank 0: 1, rank 1: "
            "0). Start all ranks with the same settings."
        )
        assert "the ranks differ in the optimizer of the rows, compared by checksum" in rates
