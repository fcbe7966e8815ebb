"""The loops people have: optimizers, autocast, compile, accumulation, evaluation."""

import pytest
import torch
from oracle.tables import dense_gradients
from torch import nn
from torch.nn import functional

import tapas

B, C, D = 6, 37, 5


def make(**options):
    defaults = {"num_samples": C, "row_optimizer": None, "seed": 1}
    return tapas.TapasSoftmax(C, D, **(defaults | options))


def batch(step=0):
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query", step))
    target = torch.randint(C, (B,), generator=tapas.rng.stream(0, "target", step))
    return query, target


def each_step(head, optimizer=None):
    """The losses of four steps; rows move by `optimizer`, or in `backward`."""
    losses = []
    for step in range(4):
        loss = head(*batch(step))
        loss.backward()
        losses.append(loss.detach())
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    return torch.stack(losses)


PAIRS = {
    "sgd": (
        lambda head: tapas.optim.SGD(head, lr=0.3),
        lambda rows: torch.optim.SGD(rows, lr=0.3),
    ),
    "adagrad": (
        lambda head: tapas.optim.Adagrad(head, lr=0.3, initial_sum=0.01),
        lambda rows: torch.optim.Adagrad(rows, lr=0.3, initial_accumulator_value=0.01),
    ),
    "adam": (
        lambda head: tapas.optim.LazyAdam(head, lr=0.3),
        lambda rows: torch.optim.SparseAdam(rows, lr=0.3),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_row_optimizers_and_torch_optim_take_the_same_steps(name):
    """All classes are sampled: the rows of a plain cross-entropy have the same gradients."""
    ours, theirs = PAIRS[name]
    head = make()
    rows = [head.table.weight.clone().requires_grad_(), head.table.bias.clone().requires_grad_()]
    want, optimizer = [], theirs(rows)
    for step in range(4):
        query, target = batch(step)
        loss = functional.cross_entropy(query @ rows[0].T + rows[1], target)
        loss.backward()
        want.append(loss.detach())
        if name == "adam":  # SparseAdam takes no others
            for part in rows:
                part.grad = part.grad.to_sparse(1)
        optimizer.step()
        optimizer.zero_grad()
    before = head.table.weight.clone()
    torch.testing.assert_close(each_step(head, ours(head)), torch.stack(want))
    torch.testing.assert_close(head.table.weight, rows[0].detach())
    torch.testing.assert_close(head.table.bias, rows[1].detach())
    assert bool((head.table.weight != before).all())


@pytest.mark.parametrize("name", PAIRS)
def test_rows_left_out_of_a_step_wait_as_in_torch_optim_with_sparse_gradients(name):
    ours, theirs = PAIRS[name]
    head = make(num_samples=4)
    rows = [head.table.weight.clone().requires_grad_(), head.table.bias.clone().requires_grad_()]
    optimizer, reference = ours(head), theirs(rows)
    for step in range(4):
        head(*batch(step)).backward()
        ids, *grads = head.table.gradients.summed()
        assert len(ids) < C
        for part, grad in zip(rows, grads, strict=True):
            part.grad = torch.sparse_coo_tensor(ids[None], grad, part.shape, check_invariants=True)
        for one in (optimizer, reference):
            one.step()
            one.zero_grad()
    torch.testing.assert_close(head.table.weight, rows[0].detach())
    torch.testing.assert_close(head.table.bias, rows[1].detach())


KINDS = [
    (tapas.optim.SGD, {"lr": 0.3, "weight_decay": 0.1}),
    (tapas.optim.Adagrad, {"lr": 0.3, "initial_sum": 0.01}),
    (tapas.optim.RowwiseAdagrad, {"lr": 0.3}),
    (tapas.optim.LazyAdam, {"lr": 0.3, "betas": (0.8, 0.9)}),
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "numbers"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
@pytest.mark.parametrize("num_samples", [C, 4])
def test_rows_move_in_backward_just_as_by_an_optimizer(num_samples, kind, numbers, dtype):
    fused = make(row_optimizer=kind.fused(**numbers), num_samples=num_samples, dtype=dtype)
    waiting = make(num_samples=num_samples, dtype=dtype)
    optimizer = kind(waiting, **numbers)
    assert torch.equal(each_step(fused), each_step(waiting, optimizer))
    state = optimizer.state[waiting.table.gradients.anchor]
    assert int(state["step"]) == fused.table.num_updates == waiting.table.num_updates == 4
    for name, value in fused.table.row_tensors().items():
        other = state[name] if name in state else waiting.table.row_tensors()[name]
        assert torch.equal(value, other), name


def test_only_touched_rows_move():
    head = make(num_samples=4, row_optimizer=tapas.optim.LazyAdam.fused(weight_decay=0.1))
    before = head.table.weight.clone()
    for step in range(2):
        query, target = batch(step)
        target[0] = -100
        touched = torch.cat([head.sample(query, target).ids, target[1:]])
        head(query, target).backward()
        still = torch.ones(C, dtype=torch.bool).index_fill_(0, touched, False)
        assert torch.equal(head.table.weight[still], before[still])
        assert bool((head.table.weight[touched] != before[touched]).any(dim=1).all())
        before = head.table.weight.clone()


def test_ids_beyond_the_integers_of_float32_are_kept_apart():
    num_classes, target = 2**24 + 50, 2**24 + 1  # 2^24 + 1 is no float32
    head = tapas.TapasSoftmax(
        num_classes, 1, num_samples=2, bias=False, row_optimizer=tapas.optim.SGD.fused(lr=1.0)
    )
    before = head.table.weight[2**24 - 2 :].clone()
    head(torch.ones(1, 1), torch.tensor([target])).backward()
    moved = (head.table.weight[2**24 - 2 :] != before).nonzero()[:, 0] + 2**24 - 2
    assert moved.tolist() == [target]


def test_gradient_accumulation_is_one_step_on_the_whole_batch():
    ours = tapas.optim.Adagrad.fused(lr=0.3)
    whole = make(row_optimizer=ours, reduction="sum")
    parts = make(row_optimizer=ours, reduction="sum")
    query, target = batch()
    whole(query, target).backward()
    with parts.accumulate():
        for part in (slice(0, 2), slice(2, B)):
            parts(query[part], target[part]).backward()
        assert parts.table.num_updates == 0
    assert parts.table.num_updates == 1
    torch.testing.assert_close(parts.table.weight, whole.table.weight)


def test_two_calls_in_one_backward_pass_are_one_update_of_the_rows():
    """Adagrad is not linear: two updates would end elsewhere."""
    ours = tapas.optim.Adagrad.fused(lr=0.3)
    whole, parts = (make(row_optimizer=ours, reduction="sum") for _ in range(2))
    query, target = batch()
    whole(query, target).backward()
    (parts(query[:2], target[:2]) + parts(query[2:], target[2:])).backward()
    assert parts.table.num_updates == 1
    torch.testing.assert_close(parts.table.weight, whole.table.weight)
    torch.testing.assert_close(parts.table.bias, whole.table.bias)


def test_gradients_of_rows_accumulate_as_torch_does():
    whole, parts = make(reduction="sum"), make(reduction="sum")
    optimizers = [tapas.optim.Adagrad(head, lr=0.3) for head in (whole, parts)]
    query, target = batch()
    for _ in range(2):  # what was there before zero_grad is gone
        optimizers[1].zero_grad()
        parts(query[:2], target[:2]).backward()
        parts(query[2:], target[2:]).backward()
    whole(query, target).backward()
    torch.testing.assert_close(dense_gradients(parts.table), dense_gradients(whole.table))
    weight_grad, bias_grad = dense_gradients(whole.table)
    norm = (weight_grad.double().square().sum() + bias_grad.double().square().sum()).sqrt()
    torch.testing.assert_close(parts.table.gradients.anchor.grad, norm.float()[None])
    for optimizer in optimizers:
        optimizer.step()
    assert parts.table.num_updates == 1
    torch.testing.assert_close(parts.table.weight, whole.table.weight)
    torch.testing.assert_close(parts.table.bias, whole.table.bias)


def test_evaluation_without_gradients_moves_nothing():
    head = make(row_optimizer=tapas.optim.SGD.fused())
    before = head.table.weight.clone()
    query, target = batch()
    with torch.no_grad():
        loss = head(query, target)
    assert not loss.requires_grad
    assert torch.equal(head.table.weight, before)
    assert head.step == 0


def test_a_frozen_encoder_still_trains_the_rows():
    head = make(row_optimizer=tapas.optim.SGD.fused())
    before = head.table.weight.clone()
    head(*batch()).backward()
    assert not torch.equal(head.table.weight, before)


def test_autocast_leaves_the_head_in_float32():
    query, target = batch()
    plain, cast = make(), make()
    want = plain(query, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = cast(query, target)
    assert torch.equal(got, want)


def test_a_bfloat16_query_gets_a_bfloat16_gradient_of_a_float32_loss():
    query, target = batch()
    low = query.bfloat16().requires_grad_()
    same = low.detach().float().requires_grad_()
    a, b = make(), make()
    loss = a(low, target)
    loss.backward()
    assert loss.dtype == torch.float32
    assert low.grad.dtype == torch.bfloat16
    b(same, target).backward()
    torch.testing.assert_close(low.grad, same.grad.bfloat16())


# dynamo looks at every argument's .grad; outside of tests it keeps the warning to itself
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("what", ["encoder", "whole model"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by an optimizer"])
def test_compiled_it_trains_like_an_eager_one(what, fused):
    """The whole model is one graph, the encoder's, and a call of the head after it."""
    from torch._dynamo.backends.debugging import aot_eager

    graphs = []
    torch.compiler.reset()

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    class Model(nn.Module):
        def __init__(self, encoder, head):
            super().__init__()
            self.encoder, self.head = encoder, head

        def forward(self, query, target):
            return self.head(self.encoder(query), target)

    def run(compiled):
        formula = tapas.optim.RowwiseAdagrad
        head = make(num_samples=5, row_optimizer=formula.fused() if fused else None)
        layer = torch.nn.utils.skip_init(nn.Linear, D, D)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-0.5, 0.5, generator=tapas.rng.stream(0, "encoder"))
        model = Model(layer, head)
        if compiled and what == "encoder":
            model.encoder = torch.compile(layer, backend=backend)
        elif compiled:
            model = torch.compile(model, backend=backend)
        optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.1)
        if not fused:
            optimizer = tapas.optim.Combined(optimizer, formula(head))
        losses = []
        for step in range(3):
            query, target = batch(step)
            optimizer.zero_grad()
            loss = model(query, target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    torch.testing.assert_close(run(compiled=True), run(compiled=False))
    assert len(graphs) == 1


def test_inputs_are_not_changed_and_the_batch_size_is_free():
    head = make(num_samples=4)
    query, target = batch()
    target[2] = -100
    kept_query, kept_target = query.clone(), target.clone()
    head(query, target)
    head(query[:1], target[:1])
    assert torch.equal(query, kept_query)
    assert torch.equal(target, kept_target)


@pytest.mark.parametrize("selection", ["priority", "top"])
@pytest.mark.parametrize(
    "row_optimizer", [tapas.optim.Adagrad.fused(lr=0.5), tapas.optim.SGD.fused(lr=4.0)], ids=repr
)
def test_it_learns_twelve_classes_that_can_be_told_apart_exactly(selection, row_optimizer):
    """Orthogonal queries, one for each class: the right answer is provable, so it must be got."""
    head = tapas.TapasSoftmax(
        12, 12, num_samples=3, presample_factor=2, selection=selection, row_optimizer=row_optimizer
    )
    query, target = torch.eye(12), torch.arange(12)
    for _ in range(150):
        head(query, target).backward()
    _, best = head.topk(query, k=1)
    assert torch.equal(best[:, 0], target)
