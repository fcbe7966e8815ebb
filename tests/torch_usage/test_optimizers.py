"""Row optimizers in PyTorch training loops give the rows of a dense model."""

import copy
import io
import itertools
import pickle

import pytest
import safetensors.torch
import torch
from torch.nn.utils import clip_grad_norm_
from torch_usage.reference import C, D, Dense, Model, batch, head_of, same, train

import tapas
from tapas.optim import SGD, Adagrad, Combined, LazyAdam, RowwiseAdagrad

KINDS = {
    "sgd": (lambda rows: SGD(rows, lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "adagrad": (
        lambda rows: Adagrad(rows, lr=0.3, initial_sum=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.01),
    ),
    "adam": (
        lambda rows: LazyAdam(rows, lr=0.03, betas=(0.8, 0.9)),
        lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.9)),
    ),
}


def pair(kind="sgd"):
    """Our model and the dense one, each with one optimizer."""
    ours, dense = Model(), Dense()
    rows, whole = KINDS[kind]
    combined = Combined(whole(list(ours.parameters())), rows(ours.head))
    return ours, combined, dense, whole(list(dense.parameters()))


LOOPS = [
    *itertools.product(("sgd", "adagrad"), (None, 0.05), (False, True), (1, 3)),
    ("adam", None, False, 1),  # torch adds eps to another term, which matters for small gradients
]


@pytest.mark.parametrize(("kind", "clip", "scaled", "parts"), LOOPS)
def test_accumulation_clipping_and_loss_scaling_work_as_for_a_dense_model(
    kind, clip, scaled, parts
):
    ours, mine, dense, theirs = pair(kind)
    for model, optimizer in ((ours, mine), (dense, theirs)):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for number in range(3):
            for part in range(parts):
                loss = model(*batch(10 * number + part)) / parts
                scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                norm = clip_grad_norm_(model.parameters(), clip)
                assert float(norm) > clip
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    same(ours, dense, **({"rtol": 1e-4, "atol": 1e-5} if kind == "adam" else {}))


FORMULAS = [
    (SGD, {"lr": 0.3, "weight_decay": 0.1}),
    (Adagrad, {"lr": 0.3, "initial_sum": 0.01}),
    (RowwiseAdagrad, {"lr": 0.3}),
    (LazyAdam, {"lr": 0.3, "betas": (0.8, 0.9)}),
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "numbers"), FORMULAS, ids=[kind.__name__ for kind, _ in FORMULAS])
def test_a_fused_update_equals_an_optimizer_step(kind, numbers, dtype):
    """Bit by bit, also for rows that a step does not touch."""

    def build(row_optimizer):
        options = {"num_samples": 4, "dtype": dtype, "row_optimizer": row_optimizer}
        return Model(tapas.TapasSoftmax(C, D, **options))

    fused, waiting = build(kind.fused(**numbers)), build(None)
    optimizer = kind(waiting, **numbers)
    frozen = torch.optim.SGD(fused.encoder.parameters(), lr=0.0)
    assert torch.equal(train(fused, frozen, range(4)), train(waiting, optimizer, range(4)))
    table = waiting.head.table
    state = optimizer.state[table.gradients.anchor]
    assert int(state["step"]) == fused.head.table.num_updates == table.num_updates == 4
    for name, value in fused.head.table.row_tensors().items():
        assert torch.equal(value, state.get(name, table.row_tensors().get(name))), name


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("who", ["optimizer", "model", "encoder's optimizer"])
def test_every_zero_grad_drops_the_gradients_of_rows(set_to_none, who):
    ours, mine, dense, theirs = pair()
    apart = torch.optim.SGD(ours.parameters(), lr=0.3)  # also has the anchor
    zero = {"optimizer": mine, "model": ours, "encoder's optimizer": apart}[who]
    ours(*batch(1)).backward()
    zero.zero_grad(set_to_none=set_to_none)
    for model, optimizer in ((ours, mine), (dense, theirs)):
        model(*batch(2)).backward()
        optimizer.step()
    same(ours, dense)


def test_a_second_step_without_zero_grad_applies_the_gradient_again():
    ours, mine, dense, theirs = pair("adagrad")
    for model, optimizer in ((ours, mine), (dense, theirs)):
        model(*batch()).backward()
        optimizer.step()
        optimizer.step()
        model(*batch(1)).backward()  # added to the first
        optimizer.step()
    same(ours, dense)


def test_a_step_without_gradients_does_nothing():
    ours = Model()
    before = ours.rows()
    optimizer = LazyAdam(ours, lr=0.1)
    optimizer.step()
    ours(*batch()).backward()
    ours.zero_grad()
    optimizer.step()
    assert all(map(torch.equal, ours.rows(), before))
    assert not optimizer.state


@pytest.mark.parametrize("way", ["retain_graph", "two calls in one loss", "a list of losses"])
def test_several_backward_passes_and_calls_are_one_step(way):
    """With Adagrad several steps would give other rows."""
    ours, mine, dense, theirs = pair("adagrad")
    for model, optimizer in ((ours, mine), (dense, theirs)):
        first, second = model(*batch(1)), model(*batch(2))
        if way == "retain_graph":
            first.backward(retain_graph=True)
            first.backward()
        elif way == "two calls in one loss":
            (first + 0.5 * second).backward()
        else:
            torch.autograd.backward([first, second])
        optimizer.step()
    same(ours, dense)
    assert ours.head.table.num_updates == 1


def test_autograd_grad_and_backward_on_inputs_queue_no_gradients():
    ours = Model()
    optimizer = SGD(ours, lr=1.0)
    x, target = batch()
    x.requires_grad_()
    torch.autograd.grad(ours(x, target), x)
    ours(x, target).backward(inputs=[x])
    anchor = ours.head.table.gradients.anchor
    (grad,) = torch.autograd.grad(ours(x, target), anchor)  # of the anchor itself
    assert grad.shape == (1,)
    assert ours.head.table.gradients.summed() is None
    before = ours.rows()
    optimizer.step()
    assert all(map(torch.equal, ours.rows(), before))
    ours(x, target).backward()  # does not contain the gradients above
    optimizer.step()
    dense = Dense()
    dense(*batch()).backward()
    torch.testing.assert_close(ours.rows()[0], dense.weight.detach() - dense.weight.grad)


FREEZE = {
    "model.requires_grad_": lambda model: model.requires_grad_(False),
    "head.requires_grad_": lambda model: model.head.requires_grad_(False),
    "every parameter": lambda model: [
        setattr(p, "requires_grad", False) for p in model.parameters()
    ],
    "the table": lambda model: model.head.table.requires_grad_(False),
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("way", FREEZE)
def test_every_usual_way_of_freezing_applies_to_rows(way, fused):
    model = Model(head_of(SGD.fused(lr=1.0) if fused else None))
    FREEZE[way](model)
    optimizer = None if fused else SGD(model, lr=1.0)
    before = model.rows()
    x, target = batch()
    loss = model(x.requires_grad_(), target)
    loss.backward()
    if optimizer:
        optimizer.step()
    assert all(map(torch.equal, model.rows(), before))
    assert bool(x.grad.abs().sum() > 0)
    model.requires_grad_(True)
    model(x, target).backward()
    if optimizer:
        optimizer.step()
    assert not torch.equal(model.rows()[0], before[0])


def test_a_table_without_biases_can_be_frozen_and_unfrozen():
    head = tapas.TapasSoftmax(C, D, num_samples=5, bias=False)
    optimizer = LazyAdam(head, lr=0.1)
    head.requires_grad_(False).requires_grad_(True)
    x, target = batch()
    before = head.table.weight.clone()
    head(x, target).backward()
    optimizer.step()
    assert not torch.equal(head.table.weight, before)


def test_schedulers_apply_to_rows_and_encoder():
    ours, mine, dense, theirs = pair()
    for model, optimizer in ((ours, mine), (dense, theirs)):
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        for number in range(3):
            optimizer.zero_grad()
            model(*batch(number)).backward()
            optimizer.step()
            scheduler.step()
    assert [group["lr"] for group in mine.param_groups] == [0.3 / 8] * 2
    same(ours, dense)


def test_parameter_groups_have_their_own_hyperparameters():
    one, two = Model(), Model()
    optimizer = SGD([{"params": one.head, "lr": 0.1}, {"params": [two]}], lr=0.2)
    optimizer.add_param_group({"params": (three := Model()).head.table, "lr": 0.4})
    moved = []
    for model in (one, two, three):
        before = model.rows()[0]
        model(*batch()).backward()
        moved.append(before)
    optimizer.step()
    steps = [
        before - model.rows()[0] for before, model in zip(moved, (one, two, three), strict=True)
    ]
    torch.testing.assert_close(steps[1], 2 * steps[0])
    torch.testing.assert_close(steps[2], 4 * steps[0])


def test_a_closure_is_called_once_with_gradients_enabled():
    ours, mine, dense, theirs = pair()
    for model, optimizer in ((ours, mine), (dense, theirs)):
        calls = []

        def closure(model=model, optimizer=optimizer, calls=calls):
            calls.append(torch.is_grad_enabled())
            optimizer.zero_grad()
            loss = model(*batch())
            loss.backward()
            return loss

        assert float(optimizer.step(closure).detach()) > 0
        assert calls == [True]
    same(ours, dense)


def saved(thing):
    file = io.BytesIO()
    torch.save(thing.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowwiseAdagrad, LazyAdam])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_is_bit_identical(kind, dtype):
    def make():
        head = tapas.TapasSoftmax(C, D, num_samples=4, presample_factor=3, dtype=dtype, seed=2)
        model = Model(head)
        parts = torch.optim.AdamW(model.parameters(), lr=0.01), kind(model, lr=0.05)
        optimizer = Combined(*parts)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    whole, optimizer, scheduler = make()
    train(whole, optimizer, range(2))
    scheduler.step()
    want = train(whole, optimizer, range(2, 5))

    first, optimizer, scheduler = make()
    train(first, optimizer, range(2))
    scheduler.step()
    second, other, again = make()
    second.load_state_dict(saved(first))
    other.load_state_dict(saved(optimizer))
    again.load_state_dict(scheduler.state_dict())
    assert [group["lr"] for group in other.param_groups] == pytest.approx([0.009, 0.045])
    assert torch.equal(train(second, other, range(2, 5)), want)
    assert all(map(torch.equal, second.rows(), whole.rows()))
    assert second.head.step == 5


def test_the_learning_rate_of_a_fused_update_is_part_of_the_state():
    one, two = head_of(RowwiseAdagrad.fused(lr=0.1)), head_of(RowwiseAdagrad.fused(lr=0.1))
    one.table.row_optimizer.lr = 0.001
    two.load_state_dict(one.state_dict())
    assert two.table.row_optimizer.lr == 0.001


def test_the_state_dict_of_a_model_does_not_contain_optimizer_state():
    model = Model()
    optimizer = LazyAdam(model, lr=0.1)
    train(model, optimizer, range(1))
    state = safetensors.torch.load(safetensors.torch.save(model.state_dict()))
    assert {name for name in state if name.startswith("head.")} == {
        "head._extra_state", "head.table.weight", "head.table.bias", "head.table._extra_state"
    }  # fmt: skip
    fresh = Model()
    fresh.load_state_dict(state)
    assert all(map(torch.equal, fresh.rows(), model.rows()))


def test_loading_copies_the_state_so_that_two_optimizers_do_not_share_it():
    one, two = Model(), Model()
    mine, other = Adagrad(one, lr=0.1), Adagrad(two, lr=0.1)
    train(one, mine, range(1))
    other.load_state_dict(mine.state_dict())
    before = one.head.table.gradients.state["weight_sum"].clone()
    train(two, other, range(1, 2))
    assert torch.equal(one.head.table.gradients.state["weight_sum"], before)
    assert int(one.head.table.gradients.state["step"]) == 1


def test_a_copy_of_a_model_has_no_optimizer_and_no_gradients():
    model = Model()
    optimizer = SGD(model, lr=0.1)
    model(*batch()).backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.head.table.gradients.summed() is None
        assert twin.head.table.gradients.optimizer is None
        own = SGD(twin, lr=0.1)
        train(twin, own, range(2))
    optimizer.zero_grad()
    train(model, optimizer, range(2))
    assert all(map(torch.equal, model.rows(), twin.rows()))


def test_a_model_and_its_optimizer_can_be_pickled_together():
    model = Model()
    optimizer = RowwiseAdagrad(model, lr=0.1)
    train(model, optimizer, range(2))
    twin, other = pickle.loads(pickle.dumps((model, optimizer)))
    assert torch.equal(train(twin, other, range(2, 4)), train(model, optimizer, range(2, 4)))
    assert all(map(torch.equal, model.rows(), twin.rows()))


def test_combined_has_the_groups_and_the_state_of_both():
    model = Model()
    dense = torch.optim.Adagrad(model.named_parameters(), lr=0.01)  # creates state for rows at once
    rows = RowwiseAdagrad(model.head, lr=0.1)
    optimizer = Combined(dense, rows)
    assert optimizer.param_groups[0] is dense.param_groups[0]
    assert optimizer.param_groups[1] is rows.param_groups[0]
    assert dense.param_groups[0]["param_names"] == ["encoder.weight", "encoder.bias"]
    assert len(dense.param_groups[0]["params"]) == 2  # neither rows nor the anchor
    assert isinstance(optimizer, torch.optim.Optimizer)
    train(model, optimizer, range(1))
    assert model.head.table.gradients.anchor in optimizer.state
    assert max(part.numel() for state in dense.state.values() for part in state.values()) == D * D
    state = optimizer.state_dict()
    assert len(state["param_groups"]) == 2
    (number,) = state["param_groups"][1]["params"]
    assert state["state"][number]["weight_sum"].shape == (C, 1)
    assert repr(optimizer).startswith("Combined(Adagrad (")


class Counting(torch.optim.SGD):
    """An optimizer with its own `state_dict`."""

    count = 3

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]
        super().load_state_dict(state_dict)


def test_combined_uses_the_state_dict_methods_of_its_parts():
    def build():
        model = Model()
        rows = RowwiseAdagrad(model, lr=0.1)
        return model, Combined(rows, Counting(model.parameters(), lr=0.1, momentum=0.9))

    model, saved = build()
    model(*batch()).backward()
    saved.step()
    saved.optimizers[1].count = 7
    calls = []
    saved.register_state_dict_pre_hook(lambda optimizer: calls.append("saving"))
    saved.register_state_dict_post_hook(lambda optimizer, state: calls.append("saved"))
    state = saved.state_dict()
    _, loaded = build()
    loaded.register_load_state_dict_pre_hook(lambda optimizer, state: calls.append("loading"))
    loaded.register_load_state_dict_post_hook(lambda optimizer: calls.append("loaded"))
    loaded.load_state_dict(state)
    assert calls == ["saving", "saved", "loading", "loaded"]
    assert loaded.optimizers[1].count == 7
    again = loaded.state_dict()
    assert again["param_groups"] == state["param_groups"]
    assert again["state"].keys() == state["state"].keys()
    for number, parts in state["state"].items():
        torch.testing.assert_close(again["state"][number], parts, rtol=0, atol=0)
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize(
    "change", [lambda t: t.bfloat16(), lambda t: t.double().t().contiguous().t()]
)
def test_a_state_that_was_cast_is_loaded_as_float32(change):
    model, other = Model(), Model()
    saved, loaded = Adagrad(model, lr=0.1), Adagrad(other, lr=0.1)
    model(*batch()).backward()
    saved.step()
    state = saved.state_dict()
    state["state"][0] = {
        name: part if name == "step" else change(part) for name, part in state["state"][0].items()
    }
    loaded.load_state_dict(state)
    for name, part in loaded.state[other.head.table.gradients.anchor].items():
        if name != "step":
            assert (part.dtype, part.is_contiguous()) == (torch.float32, True)
            torch.testing.assert_close(part, state["state"][0][name].float())
