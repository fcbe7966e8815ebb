"""A run that is stopped and resumed, copied or moved is the same run."""

import copy
import io
import pickle

import pytest
import torch

import tapas

B, C, D = 6, 41, 5
OPTIMIZERS = {
    "sgd": tapas.SGD(lr=0.1),
    "adagrad": tapas.Adagrad(lr=0.1),
    "rowwise": tapas.RowwiseAdagrad(lr=0.1),
    "adam": tapas.LazyAdam(lr=0.1),
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
        query = torch.randn(B, D, generator=tapas.stream(0, "query", step), requires_grad=True)
        target = torch.randint(C, (B,), generator=tapas.stream(0, "target", step))
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
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, second.state_dict()[name]), name
        else:
            assert value == second.state_dict()[name], name


def test_a_state_of_another_seed_is_refused():
    with pytest.raises(
        tapas.UsageError,
        match=r"this state was drawn with seed 8, the head has seed 7\. "
        r"Build the head with seed=8 to resume\.",
    ):
        make().load_state_dict(make(seed=8).state_dict())


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
    for part in (head.config, head.table.row_optimizer, head.config.temperature):
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
    assert {t.device.type for t in head.buffers()} == {"meta"}
    assert head.table.device.type == "meta"
    assert len(list(head.buffers())) == 6  # rows, biases and two moments of each


def test_a_move_to_bfloat16_keeps_training():
    head = make().to(torch.bfloat16)
    assert head.table.weight.dtype == torch.bfloat16
    assert bool(run(head, 0, 3).isfinite().all())


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    assert torch.equal(run(make(), 0, 3), run(make(), 0, 3))
    assert not torch.equal(run(make(), 0, 3), run(make(seed=8), 0, 3))
