"""Partitioned vocabulary: which steps share which classes, and the softmax over these."""

import io

import pytest
import torch
from oracle.sampling_heads import loss_of, parts
from oracle.tables import dense_gradients

import tapas
from tapas.heads import partitioned
from tapas.heads.partitioned import PartitionedSoftmax
from tapas.tables.ranks import GlobalBatch

B, L, C, D, N, STEPS = 5, 3, 61, 4, 23, 17


def targets(step):
    """Some classes often, with padding and repeats."""
    target = (
        tapas.LogUniform(C).draw(B * L, generator=tapas.rng.stream(1, "target", step)).view(B, L)
    )
    target[step % B, 1:] = -100
    target[(step + 1) % B, 1] = target[(step + 1) % B, 0]
    return target


BATCHES = [targets(step) for step in range(STEPS)]
PARTS = parts([batch.flatten().tolist() for batch in BATCHES], N)


def upcoming(step):
    return BATCHES[step] if step < STEPS else None


def make(*, num_samples=N, row_optimizer=None, **options):
    table = tapas.LocalTable(C, D, row_optimizer=row_optimizer)
    with torch.no_grad():
        table.weight.copy_(torch.randn(C, D, generator=tapas.rng.stream(0, "rows")))
        table.bias.copy_(torch.randn(C, generator=tapas.rng.stream(0, "biases")))
    return PartitionedSoftmax(
        table=table, num_samples=num_samples, **({"upcoming": upcoming} | options)
    )


def queries(step=0):
    return torch.randn(B, D, generator=tapas.rng.stream(0, "query", step))


def kept_by(head):
    return head.candidates(GlobalBatch(queries(), BATCHES[0], None, (B,), L))


def test_losses_are_those_of_the_loops_over_the_classes_of_each_part():
    head = make(reduction="none")
    assert len(PARTS) >= 4
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    rows = head.table.weight.detach(), head.table.bias.detach()
    for start, end, classes in PARTS:
        for step in range(start, end):
            share = (weight, None, 2 * weight)[step % 3]
            loss = head(queries(step), BATCHES[step], share)
            log_q = [0.0] * len(classes)
            want = loss_of(queries(step), *rows, BATCHES[step], classes, log_q, share)
            torch.testing.assert_close(loss, torch.tensor(want))
            assert head.part_start == start
            assert head.part[0] == end
            assert head.part[1].tolist() == classes
    mean = sum((end - start) * len(classes) for start, end, classes in PARTS) / STEPS
    assert head.scores_per_example == pytest.approx(mean)


def test_gradients_are_those_of_a_softmax_over_the_part_alone():
    head, query = make(), queries().requires_grad_()
    target = BATCHES[0][:, 0]
    ids = torch.tensor(PARTS[0][2])
    head(query, target).backward()
    again, weight, bias = (
        x.detach().clone().requires_grad_() for x in (query, head.table.weight, head.table.bias)
    )
    place = torch.searchsorted(ids, target.contiguous())
    torch.nn.functional.cross_entropy(again @ weight[ids].T + bias[ids], place).backward()
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table), (weight.grad, bias.grad))
    touched = head.table.gradients.summed().ids
    assert torch.equal(touched, ids)


def test_each_step_is_looked_at_once():
    asked = []
    head = make(upcoming=lambda step: asked.append(step) or upcoming(step))
    for step in range(STEPS):
        head(queries(step), BATCHES[step])
    assert asked in (list(range(STEPS)), list(range(STEPS + 1)))


def test_evaluation_stays_with_the_part_at_hand():
    head = make()
    start, end, classes = PARTS[0]
    for step in range(start, end):
        head(queries(step), BATCHES[step])
    assert head.step == end
    with torch.no_grad():
        head(queries(), BATCHES[0])
    head.eval()
    head(queries(), BATCHES[0])
    assert kept_by(head).ids.tolist() == classes
    head.train()
    head(queries(end), BATCHES[end])
    assert kept_by(head).ids.tolist() == PARTS[1][2]


def test_evaluation_before_training_shows_the_first_part_and_counts_nothing():
    head = make().eval()
    loss = head(queries(), BATCHES[0])
    assert torch.equal(make()(queries(), BATCHES[0]), loss)
    assert head.scores_per_example != head.scores_per_example
    assert kept_by(head).ids.tolist() == PARTS[0][2]


@pytest.mark.parametrize("stop", range(1, STEPS, 3))
def test_a_resumed_run_finds_the_same_parts(stop):
    def run(head, first, last):
        losses = []
        for step in range(first, last):
            loss = head(queries(step), BATCHES[step])
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses)

    whole, first, second = (make(row_optimizer=tapas.optim.SGD.fused(lr=0.1)) for _ in range(3))
    want = run(whole, 0, STEPS)
    run(first, 0, stop)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(second, stop, STEPS), want[stop:])


def test_a_target_that_was_not_told_of_counts_in_its_own_example():
    head = make(upcoming=lambda step: torch.tensor([0, 1, 2]), num_samples=3, reduction="none")
    target = torch.tensor([1, 50, 2, 0, 51])
    got = head(queries(), target)
    logit = (queries() @ head.table.weight.T + head.table.bias).detach()
    for b, mine in enumerate(target.tolist()):
        sum_of = sorted({0, 1, 2, mine})
        want = logit[b, sum_of].logsumexp(dim=0) - logit[b, mine]
        torch.testing.assert_close(got[b].detach(), want)


def test_any_shape_and_any_padding_may_be_upcoming():
    told = torch.tensor([[[7, -1], [60, 9]], [[9, -100], [7, 3]]], dtype=torch.int32)
    head = make(upcoming=lambda step: told, num_samples=4)
    assert head.part[1].tolist() == [3, 7, 9, 60]
    head = make(upcoming=lambda step: told, num_samples=3, ignore_index=3)
    assert head.part[1].tolist() == [7, 9, 60]


def test_data_that_never_fills_a_part_is_cut(monkeypatch):
    monkeypatch.setattr(partitioned, "LONGEST_PART", 40)
    head = make(upcoming=lambda step: torch.tensor([1, 2]))
    assert head.part[0] == 40
    assert head.part[1].tolist() == [1, 2]
    head.step = 40
    head(queries(), torch.tensor([1, 2, 1, 2, 1]))
    assert head.part_start == 40


def test_logits_of_ten_thousand_stay_finite():
    head, query = make(), queries().requires_grad_()
    with torch.no_grad():
        head.table.bias.copy_(torch.linspace(-1e4, 1e4, C))
    loss = head(query, BATCHES[0])
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(query.grad.isfinite().all())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"upcoming": [1, 2]},
            r"upcoming must be a function from a step to the targets of that step, got \[1, 2\]\. "
            r"For a list of batches: lambda step: targets\[step % len\(targets\)\]\.",
        ),
        ({"num_samples": C + 1}, "num_samples is 62, but there are only 61 classes"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
    ],
)
def test_bad_options_are_told(options, words):
    with pytest.raises(tapas.UsageError, match=words):
        make(**options)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (torch.tensor([3, 61]), r"upcoming\(0\) holds class 61; expected ids from 0 to 60"),
        (torch.tensor([3.0]), r"upcoming\(0\) has dtype torch.float32; expected int64 class ids"),
        ([3, 4], r"upcoming\(0\) must be a torch.Tensor, got list"),
        (
            None,
            r"upcoming\(0\) is None, the end of training, but step 0 is to be trained\. "
            "Let it answer for every step, or stop there",
        ),
    ],
)
def test_bad_answers_are_told(told, words):
    head = make(upcoming=lambda step: told)
    with pytest.raises(tapas.UsageError, match=words):
        head(queries(), BATCHES[0])


def test_it_shows_its_options():
    assert repr(make()).startswith("PartitionedSoftmax(\n  num_samples=23\n")
