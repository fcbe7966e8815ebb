"""Partitioned vocabulary: which steps share which classes, and the softmax over these."""

import io

import pytest
import torch
from oracle.flat_heads import B, D, L, queries, random_table, sample_of
from oracle.sampling_heads import partitions

import tapas
from tapas.heads import partitioned
from tapas.heads.partitioned import PartitionedSoftmax

C, N, STEPS = 61, 23, 17


def targets(step):
    """Some classes often, with padding and repeats."""
    target = tapas.LogUniform(C).draw(B * L, generator=tapas.rng.stream(1, "target", step))
    target = target.view(B, L)
    target[step % B, 1:] = -100
    target[(step + 1) % B, 1] = target[(step + 1) % B, 0]
    return target


BATCHES = [targets(step) for step in range(STEPS)]
PARTITIONS = partitions([batch.flatten().tolist() for batch in BATCHES], N)


def upcoming(step):
    return BATCHES[step] if step < STEPS else None


def make(*, num_samples=N, row_optimizer=None, **options):
    table = random_table(num_classes=C, row_optimizer=row_optimizer)
    options = {"upcoming": upcoming, **options}
    return PartitionedSoftmax(table=table, num_samples=num_samples, **options)


def kept_by(head):
    return sample_of(head, queries(), BATCHES[0]).ids.tolist()


def test_partitions_are_those_of_the_loops_and_each_step_is_read_once():
    asked = []
    head = make(upcoming=lambda step: asked.append(step) or upcoming(step))
    assert len(PARTITIONS) >= 4
    for start, end, classes in PARTITIONS:
        for step in range(start, end):
            head(queries(), BATCHES[step])
            assert (head.part_start, head.partition[0]) == (start, end)
            assert kept_by(head) == head.partition[1].tolist() == classes
    mean = sum((end - start) * len(classes) for start, end, classes in PARTITIONS) / STEPS
    assert head.scores_per_example == pytest.approx(mean)
    assert asked in (list(range(STEPS)), list(range(STEPS + 1)))


def test_the_gradient_is_that_of_a_softmax_over_the_partition_alone():
    head, query = make(), queries().requires_grad_()
    target, ids = BATCHES[0][:, 0], torch.tensor(PARTITIONS[0][2])
    head(query, target).backward()
    again = query.detach().clone().requires_grad_()
    weight, bias = head.table.rows(ids)
    place = torch.searchsorted(ids, target.contiguous())
    torch.nn.functional.cross_entropy(again @ weight.T + bias, place).backward()
    torch.testing.assert_close(query.grad, again.grad)
    assert torch.equal(head.table.gradients.summed().ids, ids)


def test_evaluation_uses_the_present_partition():
    head = make()
    start, end, classes = PARTITIONS[0]
    assert torch.equal(head.eval()(queries(), BATCHES[0]), make()(queries(), BATCHES[0]))
    assert head.scores_per_example != head.scores_per_example  # nothing was trained
    head.train()
    for step in range(start, end):
        head(queries(), BATCHES[step])
    assert head.step == end
    head.eval()(queries(), BATCHES[0])
    assert kept_by(head) == classes
    head.train()(queries(), BATCHES[end])
    assert kept_by(head) == PARTITIONS[1][2]


def test_a_resumed_run_has_the_same_partitions_wherever_it_stopped():
    def run(head, first, last):
        losses = []
        for step in range(first, last):
            loss = head(queries(seed=step), BATCHES[step])
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses)

    fused = tapas.optim.SGD.fused(lr=0.1)
    want = run(make(row_optimizer=fused), 0, STEPS)
    for stop in range(1, STEPS, 3):
        first, second = make(row_optimizer=fused), make(row_optimizer=fused)
        run(first, 0, stop)
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(run(second, stop, STEPS), want[stop:]), stop


def test_a_target_that_upcoming_did_not_return_counts_in_its_example():
    head = make(upcoming=lambda step: torch.tensor([0, 1, 2]), num_samples=3, reduction="none")
    target = torch.tensor([1, 50, 2, 0, 51])
    got = head(queries(), target)
    logit = (queries() @ head.table.weight.T + head.table.bias).detach()
    for b, mine in enumerate(target.tolist()):
        sum_of = sorted({0, 1, 2, mine})
        want = logit[b, sum_of].logsumexp(dim=0) - logit[b, mine]
        torch.testing.assert_close(got[b].detach(), want)


def test_any_shape_and_any_padding_may_be_upcoming():
    padded = torch.tensor([[[7, -1], [60, 9]], [[9, -100], [7, 3]]], dtype=torch.int32)
    head = make(upcoming=lambda step: padded, num_samples=4)
    assert head.partition[1].tolist() == [3, 7, 9, 60]
    head = make(upcoming=lambda step: padded, num_samples=3, ignore_index=3)
    assert head.partition[1].tolist() == [7, 9, 60]


def test_a_partition_that_never_fills_is_cut(monkeypatch):
    monkeypatch.setattr(partitioned, "LONGEST_PARTITION", 40)
    head = make(upcoming=lambda step: torch.tensor([1, 2]))
    assert head.partition[0] == 40
    assert head.partition[1].tolist() == [1, 2]
    head.step = 40
    head(queries(), torch.tensor([1, 2, 1, 2, 1]))
    assert head.part_start == 40


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (torch.tensor([3, 61]), r"upcoming\(0\) holds class 61; expected ids from 0 to 60"),
        (torch.tensor([3.0]), r"upcoming\(0\) has dtype torch.float32; expected int64 class ids"),
        ([3, 4], r"upcoming\(0\) must be a torch.Tensor, got list"),
        (
            None,
            r"upcoming\(0\) is None, the end of training, but step 0 was called\. "
            "Return targets for every step, or stop there",
        ),
    ],
)
def test_bad_upcoming_targets_are_refused(targets, words):
    head = make(upcoming=lambda step: targets)
    with pytest.raises(tapas.UsageError, match=words):
        head(queries(), torch.zeros(B, D).long()[:, 0])
