"""A run that is stopped and resumed, copied or moved is the same run."""

import copy
import io
import pickle

import pytest
import torch

import tapas
from tapas.exact_state import pack

B, C, D = 6, 41, 5
OPTIMIZERS = {
    "sgd": tapas.optim.SGD.fused(lr=0.1),
    "adagrad": tapas.optim.Adagrad.fused(lr=0.1),
    "rowwise": tapas.optim.RowwiseAdagrad.fused(lr=0.1),
    "adam": tapas.optim.LazyAdam.fused(lr=0.1),
}


def make(optimizer="rowwise", **options):
    defaults = {
        "num_samples": 5,
        "presample_factor": 3,
        "temperature": tapas.Anneal(start=1.0, end=0.1, steps=9),
        "row_optimizer": OPTIMIZERS[optimizer],
        "proposal": tapas.Squashed(torch.arange(C)),
        "seed": 7,
    }
    return tapas.TapasSoftmax(C, D, **(defaults | options))


def run(head, first, last):
    losses = []
    for step in range(first, last):
        query = torch.randn(B, D, generator=tapas.rng.stream(0, "query", step), requires_grad=True)
        target = torch.randint(C, (B,), generator=tapas.rng.stream(0, "target", step))
        loss = head(query, target)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_is_bit_identical(optimizer, dtype):
    whole = make(optimizer, dtype=dtype)
    want = run(whole, 0, 8)
    first = make(optimizer, dtype=dtype)
    run(first, 0, 3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make(optimizer, dtype=dtype)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.temperature == first.temperature
    assert torch.equal(run(second, 3, 8), want[3:])
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


KINDS = (
    tapas.optim.SGD, tapas.optim.Adagrad, tapas.optim.RowwiseAdagrad, tapas.optim.LazyAdam
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_with_an_optimizer_is_bit_identical(kind, dtype):
    def build(lr):
        head = make(row_optimizer=None, dtype=dtype)
        return head, kind(head, lr=lr)

    def go_on(head, optimizer, first, last):
        losses = []
        for step in range(first, last):
            losses.append(run(head, step, step + 1))
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat(losses)

    whole, first, second = build(0.1), build(0.1), build(0.7)
    want = go_on(*whole, 0, 8)
    go_on(*first, 0, 3)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert torch.equal(go_on(*second, 3, 8), want[3:])
    for name, value in whole[0].state_dict().items():
        assert torch.equal(value, second[0].state_dict()[name]), name


def test_numbers_are_saved_as_one_tensor_to_the_bit():
    head = make()
    run(head, 0, 3)
    state = head.state_dict()
    assert state["_extra_state"].tolist() == [3, 7]
    assert torch.equal(state["table._extra_state"], pack({"seed": 7, "updates": 3, "lr": 0.1}))
    assert state.keys() - {"_extra_state", "table._extra_state"} == {
        "table.weight", "table.bias", "table.weight_sum", "table.bias_sum"
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_state_of_another_seed_brings_it_along(dtype):
    """Draws and the rounding of bfloat16 rows go on as where the state was saved."""
    saved, head = make(seed=8, dtype=dtype), make(dtype=dtype)
    run(saved, 0, 3)
    head.load_state_dict(saved.state_dict())
    assert head.seed == head.table.seed == 8
    assert torch.equal(run(head, 3, 6), run(saved, 3, 6))
    assert torch.equal(head.table.weight, saved.table.weight)


def test_a_deep_copy_goes_its_own_way():
    head = make()
    run(head, 0, 2)
    before = head.table.weight.clone()
    twin = copy.deepcopy(head)
    twin_losses = run(twin, 2, 5)
    assert torch.equal(head.table.weight, before)
    assert torch.equal(run(head, 2, 5), twin_losses)


def test_configuration_and_parts_can_be_pickled():
    head = make(selection=tapas.Priority(score_queries=3))
    for part in (head.selection, head.table.row_optimizer, head.schedule):
        assert pickle.loads(pickle.dumps(part)) == part
    proposal = pickle.loads(pickle.dumps(head.proposal))
    ids = torch.arange(C)
    assert torch.equal(proposal.log_prob(ids), head.proposal.log_prob(ids))


def test_the_whole_head_can_be_pickled():
    head = make()
    run(head, 0, 2)
    twin = pickle.loads(pickle.dumps(head))
    assert torch.equal(run(twin, 2, 4), run(head, 2, 4))


def test_a_device_move_takes_rows_and_optimizer_state_along():
    head = make("adam").to("meta")
    assert {t.device.type for t in (*head.buffers(), *head.parameters())} == {"meta"}
    assert head.table.device.type == "meta"
    assert len(head.table.row_tensors()) == 6  # rows, biases and two moments of each
    assert len(list(head.buffers())) == 4
    assert len(list(head.parameters())) == 3  # rows, biases and what stands for their gradients


def test_a_move_to_bfloat16_keeps_training():
    head = make().to(torch.bfloat16)
    assert head.table.weight.dtype == torch.bfloat16
    assert bool(run(head, 0, 3).isfinite().all())


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    assert torch.equal(run(make(), 0, 3), run(make(), 0, 3))
    assert not torch.equal(run(make(), 0, 3), run(make(seed=8), 0, 3))
