"""Heads on other devices than the encoder train as on one device."""

import re

import pytest
import torch
from contracts.heads import HEADS, build
from contracts.heads import C as CLASSES
from contracts.heads import D as DIM
from forked import Forked
from second_device import NAME, use_second_device
from torch import nn
from torch_usage.reference import C, Dense, batch, head_of, layer
from unit.training import test_model as sequences

import tapas
from tapas.optim import Adagrad, Combined, LazyAdam, RowwiseAdagrad

ON = ("cpu", NAME)


def alone(work, *args):
    """Run `work(*args)` in a process with a second device; fails if it fails."""
    done = Forked(work, *args, work=_with_second_device).end()
    assert done.returncode == 0, done.stderr


def _with_second_device(work, *args):
    kept = use_second_device()
    work(*args)
    del kept


class Spread(nn.Module):
    """An encoder and a head on the CPU, another head on `device`."""

    def __init__(self, device, row_optimizer=None):
        super().__init__()
        self.encoder = layer()
        self.one, self.two = head_of(row_optimizer), head_of(row_optimizer)
        self.two.to(device)

    def forward(self, x, target):
        hidden, there = torch.tanh(self.encoder(x)), self.two.table.device
        other = ((target + 1) % C).to(there)
        return self.one(hidden, target) + 0.5 * self.two(hidden.to(there), other).cpu()

    def rows(self):
        return [part.cpu() for head in (self.one, self.two) for part in _stored(head.table)]


def _stored(table):
    return table.weight, table.bias


def _two_heads_end_as_dense_ones(way, device):
    ours = Spread(device, Adagrad.fused(lr=0.3) if way == "fused" else None)
    assert (ours.one.table.device.type, ours.two.table.device.type) == ("cpu", device)
    rest = torch.optim.SGD(ours.encoder.parameters(), lr=0.3)
    optimizer = rest if way == "fused" else Combined(rest, Adagrad(ours, lr=0.3))
    encoder, first, second = layer(), Dense(), Dense()
    rows = [p for dense in (first, second) for p in (dense.weight, dense.bias)]
    reference = Combined(
        torch.optim.SGD(encoder.parameters(), lr=0.3),
        torch.optim.Adagrad(rows, lr=0.3, initial_accumulator_value=1e-6),
    )
    for number in range(3):
        x, target = batch(number)
        hidden = torch.tanh(encoder(x))
        one, two = (
            nn.functional.cross_entropy(hidden @ dense.weight.t() + dense.bias, own)
            for dense, own in ((first, target), (second, (target + 1) % C))
        )
        for loss, steps in ((ours(x, target), optimizer), (one + 0.5 * two, reference)):
            steps.zero_grad()
            loss.backward()
            steps.step()
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(ours.rows(), [row.detach() for row in rows], **close)
    torch.testing.assert_close(ours.encoder.weight, encoder.weight, **close)


@pytest.mark.parametrize("way", ["optimizer", "fused"])
def test_several_heads_in_one_model_train_like_dense_ones(way):
    _two_heads_end_as_dense_ones(way, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["optimizer", "fused"])
def test_heads_on_two_devices_train_like_dense_ones(way):
    alone(_two_heads_end_as_dense_ones, way, NAME)


def _clipped_and_scaled(device):
    model = Spread(device)
    optimizer = Combined(
        torch.optim.SGD(model.encoder.parameters(), lr=0.3), RowwiseAdagrad(model, lr=0.3)
    )
    for number in range(3):
        optimizer.zero_grad()
        (1024 * model(*batch(number))).backward()
        with torch.no_grad():  # as a GradScaler does, one kernel for each device
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(1 / 1024)
        norms = [p.grad.norm().cpu() for g in optimizer.param_groups for p in g["params"]]
        total = torch.stack(norms).norm()
        for group in optimizer.param_groups:
            torch.nn.utils.clip_grads_with_norm_(group["params"], 0.5, total)
        optimizer.step()
    return [*model.rows(), model.encoder.weight.detach()]


def _two_devices_are_one():
    torch.testing.assert_close(*map(_clipped_and_scaled, ON), rtol=1e-4, atol=1e-5)


def test_unscaling_and_clipping_reach_rows_on_every_device():
    alone(_two_devices_are_one)


def _moved_between_backward_and_step():
    model = Spread("cpu")
    optimizer = LazyAdam(model, lr=0.1)
    model(*batch()).backward()
    before = model.rows()
    model.two.to(NAME)
    words = (
        "the table's anchor was replaced after this optimizer was created, as by to_empty. Create "
        "the optimizer after the table is on its final device."
    )
    with pytest.raises(tapas.UsageError, match="^" + re.escape(words) + "$"):
        optimizer.step()
    torch.testing.assert_close(model.rows(), before, rtol=0, atol=0)
    optimizer = LazyAdam(model, lr=0.1)
    optimizer.zero_grad()
    model(*batch()).backward()
    optimizer.step()
    assert not torch.equal(model.rows()[2], before[2])


def test_a_table_that_moves_between_backward_and_step_moves_no_row():
    """For some devices, such as XLA, torch replaces parameters when a module moves."""
    alone(_moved_between_backward_and_step)


def _every_head():
    wrong = []
    for method in HEADS:
        found = []
        for device in ON:
            head = build(method, row_optimizer=None).to(device)
            optimizer = RowwiseAdagrad(head, lr=0.5)
            for step in range(2):
                generator = tapas.rng.stream(0, "queries", step)
                query = torch.randn(7, DIM, generator=generator).to(device).requires_grad_()
                target = torch.randint(CLASSES, (7,), generator=generator).to(device)
                target[step] = -100
                optimizer.zero_grad()
                context = torch.arange(7)  # may stay on the CPU, as targets may
                head(query, target, context=context).backward()
                optimizer.step()
            scores, ids = head.topk(query, k=4)
            answers = (query.grad, scores, head.log_prob(query, ids))
            rows = [part for table in head.tables() for part in _stored(table)]
            found.append([part.detach().cpu() for part in (*answers, ids, *rows)])
        try:
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            wrong.append(f"{method}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_head_gives_the_same_results_on_another_device():
    alone(_every_head)


def _other_device_is_named():
    head = head_of(None)
    query = torch.zeros(2, head.dim, device=NAME)
    for ask in (
        lambda: head(query, torch.zeros(2).long()),
        lambda: head.topk(query, 3),
        lambda: head.log_prob(query, torch.zeros(2, 1).long()),
    ):
        with pytest.raises(tapas.UsageError) as refused:
            ask()
        assert str(refused.value) == (
            f"query is on {query.device}, the rows of the head are on cpu. Move one of them: "
            f'query.to("cpu"), or head.to("{query.device}").'
        )


def test_a_query_on_another_device_than_the_rows_is_refused():
    alone(_other_device_is_named)


def _counting_parts_stay_where_they_are():
    found, every = [], torch.arange(sequences.C).expand(3, -1)
    for device in ON:
        model = sequences.build("mean").to(device)
        after = model.predict(sequences.ITEMS, sequences.LENGTHS, sequences.AGES)
        best = after.topk(4, torch.tensor([[3], [-1], [7]]).to(device))
        found.append([part.cpu() for part in (*best, after.log_prob(every.to(device)))])
    torch.testing.assert_close(*found)


def test_a_model_with_counting_parts_predicts_the_same_on_another_device():
    alone(_counting_parts_stay_where_they_are)
