"""Heads in models of many kinds train like dense models."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_usage.reference import B, C, D, Dense, Model, batch, draw, head_of, layer, same, train

import tapas
from tapas.heads import AdaptiveSoftmax, FullSoftmax, InBatchSoftmax
from tapas.optim import SGD, Adagrad, Combined, LazyAdam, RowwiseAdagrad

WAYS = ["optimizer", "fused"]


def with_rows(way):
    """A head, fused or not, and a function that builds the optimizer of its model."""
    head = head_of(Adagrad.fused(lr=0.3) if way == "fused" else None)

    def optimizer_of(model):
        dense = torch.optim.SGD(model.parameters(), lr=0.3)
        return dense if way == "fused" else Combined(dense, Adagrad(model, lr=0.3))

    return head, optimizer_of


def dense_optimizer(dense):
    """Adagrad for rows, with the initial sum of ours, and SGD for the rest."""
    rows = [p for name, p in dense.named_parameters() if "encoder" not in name]
    rest = [p for name, p in dense.named_parameters() if "encoder" in name]
    return Combined(
        torch.optim.SGD(rest, lr=0.3),
        torch.optim.Adagrad(rows, lr=0.3, initial_accumulator_value=1e-6),
    )


class Tied(nn.Module):
    """A bag of items whose inputs are the rows that are predicted; -1 is padding."""

    def __init__(self, head=None):
        super().__init__()
        self.encoder, self.head = layer(), head
        if head is None:
            table = head_of().table
            self.weight = nn.Parameter(table.weight.clone())
            self.bias = nn.Parameter(table.bias.clone())

    def forward(self, items, target):
        if self.head is not None:
            x = self.head.table.lookup(items, padding_idx=-1)
            return self.head(torch.tanh(self.encoder(x.sum(dim=1))), target)
        x = self.weight[items.clamp(min=0)] * (items >= 0)[:, :, None]
        logits = torch.tanh(self.encoder(x.sum(dim=1))) @ self.weight.t() + self.bias
        return nn.functional.cross_entropy(logits, target)

    def rows(self):
        found = self if self.head is None else self.head.table
        return found.weight.detach().clone(), found.bias.detach().clone()


@pytest.mark.parametrize("way", WAYS)
def test_tied_weights_train_like_those_of_dense_cross_entropy(way):
    """Every row moves once in a step, by its gradients as input and as output."""
    head, optimizer_of = with_rows(way)
    ours, dense = Tied(head), Tied()
    pairs = [(ours, optimizer_of(ours)), (dense, dense_optimizer(dense))]
    for number in range(3):
        items = torch.randint(C, (B, 3), generator=tapas.rng.stream(0, "items", number))
        items[0, 2] = -1
        for model, optimizer in pairs:
            optimizer.zero_grad()
            model(items, batch(number)[1]).backward()
            optimizer.step()
    # Adagrad divides by the root of the sum, so that tiny gradients differ by rounding
    same(ours, dense, rtol=1e-4, atol=1e-5)
    assert ours.head.table.num_updates == 3


def test_padding_in_a_lookup_is_zero_and_may_be_a_class():
    table = tapas.LocalTable(C, D, row_optimizer=SGD.fused(lr=1.0))
    before = table.weight.clone()
    x = table.lookup(torch.tensor([[0, 4], [4, 7]]), padding_idx=0)
    assert torch.equal(x[0, 0], torch.zeros(D))
    assert torch.equal(x[1].detach(), before[[4, 7]])
    x.sum().backward()
    assert torch.equal(table.weight[[0, 1]], before[[0, 1]])
    torch.testing.assert_close(table.weight[4], before[4] - 2)
    assert table.lookup(torch.tensor([-1, -1]), padding_idx=-1).abs().sum() == 0
    with pytest.raises(tapas.UsageError, match="ids holds class -1; expected ids from 0 to 22"):
        table.lookup(torch.tensor([-1, 3]))


@pytest.mark.parametrize("way", WAYS)
def test_a_head_called_at_every_step_of_a_sequence_is_one_update(way):
    head, optimizer_of = with_rows(way)
    ours, dense = Model(head), Dense()
    for model, optimizer in ((ours, optimizer_of(ours)), (dense, dense_optimizer(dense))):
        optimizer.zero_grad()
        sum(model(*batch(number)) for number in range(10)).backward()
        optimizer.step()
    same(ours, dense, rtol=1e-4, atol=1e-5)
    assert ours.head.table.num_updates == 1


def test_two_heads_may_share_a_table():
    table = tapas.LocalTable(C, D)
    one, two = FullSoftmax(table=table), tapas.TapasSoftmax(table=table, num_samples=C)
    optimizer = SGD([one, two], lr=1.0)
    before, (x, target) = table.weight.clone(), batch()
    (one(x, target) + two(x, target)).backward()
    optimizer.step()
    weight = before.clone().requires_grad_()
    (2 * nn.functional.cross_entropy(x @ weight.t(), target)).backward()
    torch.testing.assert_close(table.weight, before - weight.grad)


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_without_backward_leaves_no_gradients(way):
    head, optimizer_of = with_rows(way)
    ours, dense = Model(head), Dense()
    optimizer = optimizer_of(ours)
    ours(*batch(7))
    for model, steps in ((ours, optimizer), (dense, dense_optimizer(dense))):
        train(model, steps)
    same(ours, dense, rtol=1e-4, atol=1e-5)


class Interrupted(torch.autograd.Function):
    """Raises in `backward`, between head and encoder."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise KeyboardInterrupt


def test_a_failed_backward_pass_leaves_no_gradients():
    head, optimizer_of = with_rows("optimizer")
    ours, dense = Model(head), Dense()
    optimizer = optimizer_of(ours)
    x, target = batch(7)
    loss = ours.head(Interrupted.apply(ours.encoder(x)), target)
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    before = ours.rows()
    optimizer.zero_grad()
    optimizer.step()
    assert all(map(torch.equal, ours.rows(), before))
    for model, steps in ((ours, optimizer), (dense, dense_optimizer(dense))):
        train(model, steps)
    same(ours, dense, rtol=1e-4, atol=1e-5)


def test_two_models_in_two_threads_train_independently():
    def run(results, key):
        head = tapas.TapasSoftmax(C, D, num_samples=5, presample_factor=2, seed=key)
        model = Model(head)
        optimizer = Combined(
            torch.optim.AdamW(model.parameters(), lr=0.1), RowwiseAdagrad(model, lr=0.1)
        )
        train(model, optimizer, range(20))
        results[key] = model.rows()

    alone, together = {}, {}
    for key in range(2):
        run(alone, key)
    threads = [threading.Thread(target=run, args=(together, key)) for key in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in range(2):
        assert all(map(torch.equal, together[key], alone[key]))


@pytest.mark.parametrize("way", WAYS)
def test_averaging_a_model_averages_its_rows(way):
    """`AveragedModel` averages parameters, and rows are parameters."""
    head, optimizer_of = with_rows(way)
    ours, dense = Model(head), Dense()
    averages = []
    for model, optimizer in ((ours, optimizer_of(ours)), (dense, dense_optimizer(dense))):
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for number in range(4):
            train(model, optimizer, [number])
            average.update_parameters(model)
        averages.append(average.module)
    same(*averages, rtol=1e-4, atol=1e-5)
    assert not torch.equal(averages[0].rows()[0], ours.rows()[0])
    scores, _ = averages[0].head.topk(draw(2, D), 3)
    assert scores.shape == (2, 3)


def test_averaging_buffers_leaves_the_state_of_an_optimizer_alone():
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    average = AveragedModel(model, use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    train(model, optimizer)
    before = model.head.table.gradients.state["weight_sum"].clone()
    average.update_parameters(model)
    assert torch.equal(model.head.table.gradients.state["weight_sum"], before)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_is_freed_with_its_last_reference(way):
    """Rows may be most of the memory and must not wait for the garbage collector."""
    head, optimizer_of = with_rows(way)
    model = Model(head)
    optimizer = optimizer_of(model)
    train(model, optimizer)
    rows = weakref.ref(model.head.table)
    gc.disable()
    try:
        del model, head, optimizer, optimizer_of
        assert rows() is None
    finally:
        gc.enable()


def test_an_optimizer_keeps_its_rows_alive_as_torch_keeps_parameters():
    model = Model()
    optimizer = SGD(model, lr=0.1)
    model(*batch()).backward()
    rows = weakref.ref(model.head.table)
    before = rows().weight.clone()
    del model
    optimizer.step()
    assert not torch.equal(rows().weight, before)


def test_rows_count_as_parameters():
    model = Model()
    assert sum(p.numel() for p in model.head.parameters()) == C * D + C + 1
    assert [p.shape for p in model.head.parameters() if p.requires_grad] == [(1,)]


def test_a_cast_to_bfloat16_rounds_rows_and_nothing_else():
    head = InBatchSoftmax(C, D)
    optimizer = Adagrad(head, lr=0.1)
    x, target = batch()
    head(x, target).backward()
    optimizer.step()
    nn.Sequential(head).bfloat16()
    assert head.table.weight.dtype == torch.bfloat16
    assert head.gap.dtype == torch.float32
    assert head.table.gradients.anchor.dtype == torch.float32
    assert head.table.gradients.state["weight_sum"].dtype == torch.float32
    optimizer.zero_grad()
    head(x, target).backward()
    optimizer.step()


def test_moving_a_model_between_backward_and_step_moves_its_gradients():
    model = Model()
    optimizer = Adagrad(model, lr=0.1)
    train(model, optimizer, [0])
    model(*batch(1)).backward()
    model.to("meta")
    queue = model.head.table.gradients
    assert {part.device.type for part in queue._summed} == {"meta"}
    assert queue.state["weight_sum"].device.type == "meta"
    assert queue.state["step"].device.type == "cpu"


@pytest.mark.parametrize("how", ["assign", "to_empty"])
def test_a_model_built_on_meta_trains_after_loading_a_state(how):
    state = Model().state_dict()
    with torch.device("meta"):
        head = tapas.TapasSoftmax(C, D, num_samples=C)
    model = Model(head)
    if how == "to_empty":
        model.to_empty(device="cpu")
    model.load_state_dict(state, assign=how == "assign")
    optimizer = Combined(torch.optim.SGD(model.parameters(), lr=0.3), SGD(model, lr=0.3))
    dense = Dense()
    train(model, optimizer)
    train(dense, torch.optim.SGD(dense.parameters(), lr=0.3))
    same(model, dense)


def test_dropping_a_shallow_copy_leaves_the_table_alone():
    model = Model()
    optimizer = SGD(model, lr=0.1)
    copy.copy(model.head.table)
    train(model, optimizer)


def test_a_head_may_be_deleted_before_backward():
    head = head_of()
    table = weakref.ref(head.table)
    x = draw(B, D).requires_grad_()
    loss = head(x, batch()[1])
    del head
    loss.backward()
    assert bool(x.grad.abs().sum() > 0)
    del loss
    assert table() is None


def test_nested_torch_checkpoints_lose_no_gradient():
    """Reentrant: one backward pass inside another, and both reach the table."""
    head, dense = head_of(), Dense()
    optimizer = SGD(head, lr=1.0)
    items = torch.arange(B)

    def block(x):
        return x + head.table.lookup(items)

    x = draw(B, D).requires_grad_()
    inner = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
    head(inner + head.table.lookup(items + 1), batch()[1]).backward()
    optimizer.step()
    read = x.detach() + dense.weight[items] + dense.weight[items + 1]
    logits = read @ dense.weight.t() + dense.bias
    nn.functional.cross_entropy(logits, batch()[1]).backward()
    torch.testing.assert_close(head.table.weight, dense.weight.detach() - dense.weight.grad)


def test_backward_passes_in_several_threads_are_all_counted():
    head = head_of()
    optimizer = SGD(head, lr=1.0)
    before = head.table.weight.clone()
    losses = [head(*batch(number)) for number in range(4)]
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    optimizer.step()
    weight = before.clone().requires_grad_()
    bias = draw(C, name="bias")
    for number in range(4):
        x, target = batch(number)
        nn.functional.cross_entropy(x @ weight.t() + bias, target).backward()
    torch.testing.assert_close(head.table.weight, before - weight.grad)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kind", [RowwiseAdagrad, LazyAdam])
def test_a_compiled_optimizer_step_equals_an_eager_one(kind):
    torch.compiler.reset()
    rows = []
    for compiled in (False, True):
        model = Model()
        optimizer = kind(model, lr=0.1)
        step = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for number in range(2):
            optimizer.zero_grad()
            model(*batch(number)).backward()
            step()
        rows.append(model.rows())
    assert all(map(torch.equal, *rows))


def test_rows_are_created_on_the_default_device():
    with torch.device("meta"):
        head = tapas.TapasSoftmax(10**7, 64, num_samples=5)
    assert head.table.weight.is_meta
    assert head.table.gradients.anchor.is_meta


def test_every_head_trains_with_one_combined_optimizer():
    """Adaptive softmax has projections in addition to rows."""
    head = AdaptiveSoftmax(torch.arange(C), 8, cutoffs=[5])
    optimizer = Combined(
        torch.optim.AdamW(head.parameters(), lr=0.01), RowwiseAdagrad(head, lr=0.1)
    )
    before = [p.detach().clone() for p in head.parameters() if p.dim() == 2]
    for number in range(2):
        optimizer.zero_grad()
        head(draw(B, 8), batch(number)[1]).backward()
        optimizer.step()
    after = [p.detach() for p in head.parameters() if p.dim() == 2]
    assert not any(map(torch.equal, before, after))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("what", ["model", "model and backward", "with compiled autograd"])
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_trains_like_an_eager_one(way, what):
    """The encoder is compiled to one graph; the head is called after it."""
    from torch._dynamo import config
    from torch._dynamo.backends.debugging import aot_eager

    torch.compiler.reset()
    rows, graphs = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    for compiled in (False, True):
        head, optimizer_of = with_rows(way)
        model = Model(head)
        optimizer = optimizer_of(model)

        def whole(x, target, model=model):
            loss = model(x, target)
            loss.backward()

        if compiled and what == "model":
            model = torch.compile(model, backend=backend)
        called = torch.compile(whole, backend=backend) if compiled and what != "model" else None
        with config.patch(compiled_autograd=what == "with compiled autograd"):
            for number in range(2):
                optimizer.zero_grad()
                called(*batch(number)) if called else model(*batch(number)).backward()
                optimizer.step()
        rows.append(model.rows())
    torch.testing.assert_close(*rows)
    assert not torch.equal(rows[0][0], head_of().table.weight)
    assert what != "model" or len(graphs) == 1
