"""Every wrong use is told what is wrong, what was found, and what to do. The words are pinned."""

import re

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tapas
from tapas.optim import SGD, RowwiseAdagrad

C, D = 31, 4


def head(**options):
    return tapas.TapasSoftmax(C, D, **({"num_samples": 5, "presample_factor": 2} | options))


def says(kind, words):
    return pytest.raises(kind, match="^" + re.escape(words) + "$")


CONSTRUCTION = [
    ({"num_samples": 0}, "num_samples must be at least 1, got 0."),
    ({"num_samples": 2.5}, "num_samples must be a whole number, got 2.5."),
    (
        {"num_samples": 32},
        "num_samples is 32, but there are only 31 classes. With so few, plain cross_entropy is "
        "exact and faster.",
    ),
    ({"presample_factor": 0}, "presample_factor must be at least 1, got 0."),
    ({"presample_factor": 0.5}, "presample_factor must be a whole number, got 0.5."),
    ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0."),
    ({"temperature": -1.0}, "temperature must be a finite number above 0, got -1.0."),
    ({"temperature": float("nan")}, "temperature must be a finite number above 0, got nan."),
    ({"temperature": "warm"}, "temperature must be a finite number above 0, got 'warm'."),
    (
        {"selection": "prioritty"},
        "unknown selection 'prioritty'. Did you mean 'priority'? Known: priority, top.",
    ),
    (
        {"selection": 3},
        "selection must be a name or a Selection object such as tapas.Top(), got 3.",
    ),
    (
        {"num_shards": 6},
        "num_shards is 6, but only num_samples=5 classes are kept: some shards would keep none. "
        "Keep at least one for each shard.",
    ),
    ({"reduction": "max"}, "reduction must be one of mean, sum, none, got 'max'."),
    (
        {"proposal": tapas.Uniform(30)},
        "the proposal is over 30 classes, the table has 31. Build both from one number.",
    ),
    ({"bias": torch.zeros(30)}, "bias has shape (30,); expected (C=31)."),
    ({"dtype": torch.float16}, "dtype must be float32 or bfloat16, got torch.float16."),
    (
        {"num_shards": 32, "num_samples": 31},
        "cannot spread 31 classes over 32 shards. Use at most 31.",
    ),
    (
        {"table": tapas.LocalTable(31, 3)},
        "dim is 4, but the table has 3. Leave it out.",
    ),
    (
        {"ignore_indx": 0},
        "unknown option of TapasSoftmax 'ignore_indx'. Did you mean 'ignore_index'? Known: bias, "
        "device, dtype, ignore_index, num_shards, reduction, row_optimizer, seed, table.",
    ),
]


@pytest.mark.parametrize(("options", "words"), CONSTRUCTION, ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_named_with_its_cure(options, words):
    with says(tapas.UsageError, words):
        head(**options)


def test_a_head_needs_a_size_or_a_table():
    with says(tapas.UsageError, "pass num_classes and dim, or a table."):
        tapas.TapasSoftmax(num_samples=3)
    assert tapas.TapasSoftmax(table=tapas.LocalTable(9, 2), num_samples=3).num_classes == 9


def test_a_table_is_passed_by_its_name():
    with says(tapas.UsageError, "pass a table by its name: table=..."):
        tapas.TapasSoftmax(tapas.LocalTable(9, 2), num_samples=3)


GOOD = torch.zeros(6, D)
CALLS = [
    (
        (torch.zeros(6, 3), torch.zeros(6).long()),
        "query has shape (6, 3); expected (..., D=4), the dim of the table.",
    ),
    ((GOOD.long(), torch.zeros(6).long()), "query has dtype torch.int64; expected floating point."),
    (
        (GOOD, torch.zeros(5).long()),
        "target has shape (5,); expected (6) or (6, L) for a query of shape (6, 4).",
    ),
    (
        (GOOD, torch.zeros(6)),
        "target has dtype torch.float32; expected int64 class ids. "
        "Convert before the ids ever pass through a float.",
    ),
    (
        (GOOD, torch.full((6,), 31)),
        "target holds class 31; expected ids from 0 to 30 (num_classes=31). Padding is "
        "ignore_index=-100.",
    ),
    (
        (GOOD, torch.full((6,), -1)),
        "target holds class -1; expected ids from 0 to 30 (num_classes=31). Padding is "
        "ignore_index=-100.",
    ),
    (
        (GOOD, torch.full((6,), -100)),
        "every target is ignore_index (-100): the batch has nothing to learn from. "
        "Skip such a batch, or check the padding value.",
    ),
    (
        (GOOD[:0], torch.zeros(0).long()),
        "the batch is empty: query has shape (0, 4). Skip such a batch.",
    ),
    (
        (GOOD, torch.zeros(6, 0).long()),
        "target has shape (6, 0): no example has a target. Skip such a batch.",
    ),
    (
        (GOOD, torch.zeros(6, 2).long(), torch.ones(6)),
        "target_weight has shape (6,); expected (6, 2), as target.",
    ),
    (
        (GOOD, torch.zeros(6).long(), torch.full((6,), -0.5)),
        "target_weight holds -0.5; expected finite numbers of at least 0.",
    ),
    (
        (GOOD, torch.zeros(6).long(), torch.full((6,), float("nan"))),
        "target_weight holds nan; expected finite numbers of at least 0.",
    ),
]


@pytest.mark.parametrize(("arguments", "words"), CALLS, ids=lambda value: str(value)[:50])
def test_a_wrong_call_is_named_with_its_cure(arguments, words):
    with says(tapas.UsageError, words):
        head()(*arguments)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float32], ids=str)
def test_one_flag_for_each_class_is_no_list_of_classes(dtype):
    """As ids, flags would be a list of classes 0 and 1."""
    flags = torch.zeros(6, C, dtype=dtype)
    flags[:, 3] = 1
    words = (
        "target has shape (6, 31) and holds only 0 and 1: it looks multi-hot. Pass class ids, "
        "(..., L), padded with -100: tapas.heads.ids_of_multi_hot(target) makes them."
    )
    subject = head()
    for call in (subject, subject.full_loss, subject.sampled_log_prob, subject.sample):
        with says(tapas.UsageError, words):
            call(GOOD, flags)
    ids = tapas.heads.ids_of_multi_hot(flags)
    assert torch.equal(subject.full_loss(GOOD, ids), subject.full_loss(GOOD, ids[:, 0]))
    assert ids[:, 0].tolist() == [3] * 6


def test_as_many_targets_as_classes_are_welcome():
    every = torch.arange(C).expand(6, C)
    assert bool(head()(GOOD, every).isfinite())
    padded = torch.tensor([0, 1] + [-100] * (C - 2)).expand(6, C)
    assert bool(head()(GOOD, padded).isfinite())
    both = torch.tensor([[0, 1], [1, 1]])  # with two classes it cannot be told from a list
    assert bool(tapas.TapasSoftmax(2, D, num_samples=1)(GOOD[:2], both).isfinite())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_query_that_is_not_finite_names_its_row_and_moves_nothing(bad):
    query = torch.zeros(6, D)
    query[4, 1] = bad
    subject = head(row_optimizer=RowwiseAdagrad.fused(lr=0.1))
    before = subject.table.weight.clone()
    words = (
        "query row 4 holds NaN or inf. The encoder has diverged or its input is bad: look at that "
        "row's input, lower the learning rate or clip gradients."
    )
    with says(tapas.DataError, words):
        subject(query, torch.zeros(6).long())
    with says(tapas.DataError, words):
        subject.topk(query, 2)
    assert torch.equal(subject.table.weight, before)


def test_infinities_that_cancel_are_found_too():
    query = torch.zeros(2, D)
    query[1, 0], query[1, 1] = float("inf"), -float("inf")
    with pytest.raises(tapas.DataError, match="query row 1 holds"):
        head().sample(query)


def test_huge_but_finite_queries_are_welcome():
    query = torch.full((6, D), 3e38)  # their sum overflows, they do not
    assert head().sample(query).ids.shape == (5,)


def test_wrong_questions_to_a_trained_head():
    subject = head()
    with says(tapas.UsageError, "k is 32, but there are only 31 classes."):
        subject.topk(GOOD, 32)
    with says(tapas.UsageError, "k must be at least 1, got 0."):
        subject.topk(GOOD, 0)
    with says(tapas.UsageError, "the batch is empty: there is no query to sample for."):
        subject.sample(GOOD[:0])
    with says(
        tapas.UsageError,
        "ids has shape (6,); expected one row of ids for each query of (6, 4).",
    ):
        subject.log_prob(GOOD, torch.zeros(6).long())
    with says(tapas.UsageError, "ids holds class 31; expected ids from 0 to 30 (num_classes=31)."):
        subject.log_prob(GOOD, torch.full((6, 1), 31))


NOT_FINITE = (
    "the gradient of the class rows holds NaN or inf; no row was changed. Lower the learning rate, "
    "clip gradients, or use a torch.amp.GradScaler, which leaves out such a step."
)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_moves_no_row(bad):
    subject = head()
    optimizer = RowwiseAdagrad(subject, lr=0.1)
    before = subject.table.weight.clone()
    (subject(GOOD, torch.zeros(6).long()) * bad).backward()
    with says(tapas.UsageError, NOT_FINITE):
        optimizer.step()
    assert torch.equal(subject.table.weight, before)
    assert not subject.table.bias.any()


def test_a_loss_that_is_not_finite_moves_no_row_in_backward():
    subject = head(row_optimizer=RowwiseAdagrad.fused(lr=0.1))
    before = subject.table.weight.clone()
    loss = subject(GOOD, torch.zeros(6).long())
    with says(tapas.UsageError, NOT_FINITE):
        (loss * float("nan")).backward()
    assert torch.equal(subject.table.weight, before)
    assert not subject.table.bias.any()
    assert subject.table.num_updates == 0


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("scale", "found"), [(4096, "4096"), (-65536, "65536")])
def test_a_loss_that_was_scaled_moves_no_row_in_backward(scale, found, reduction):
    subject = head(row_optimizer=RowwiseAdagrad.fused(lr=0.1), reduction=reduction)
    before = subject.table.weight.clone()
    loss = subject(GOOD, torch.zeros(6).long())
    words = (
        f"the gradient that arrives at the loss is {found}: it was scaled, as by a "
        "torch.amp.GradScaler, and a fused row_optimizer would move rows by that. Use "
        "tapas.optim.RowwiseAdagrad(head), whose step unscales, or do not scale: the head computes "
        "in float32."
    )
    with says(tapas.UsageError, words):
        (loss * scale).sum().backward()
    with says(tapas.UsageError, words):
        (subject.sampled_log_prob(GOOD, torch.zeros(6).long()) * scale).sum().backward()
    assert torch.equal(subject.table.weight, before)
    assert not subject.table.bias.any()
    assert subject.table.num_updates == 0


def test_a_loss_that_is_merely_weighed_moves_rows_as_it_should():
    """Biases of two classes, of which one is the target: gradients of p - 1 and p."""
    subject = tapas.TapasSoftmax(2, D, num_samples=2, row_optimizer=SGD.fused(lr=1.0))
    (subject(GOOD, torch.zeros(6).long()) * 4095).backward()
    torch.testing.assert_close(subject.table.bias, torch.tensor([2047.5, -2047.5]))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_head_is_not_called_again_by_backward(use_reentrant, fused):
    subject = head(row_optimizer=RowwiseAdagrad.fused(lr=0.1) if fused else None)
    before = subject.table.weight.clone()
    query, target = torch.ones(6, D, requires_grad=True), torch.zeros(6).long()
    words = (
        "the head was called inside of a backward pass, as torch.utils.checkpoint does: it would "
        "draw other classes than the first time. Checkpoint the encoder, not the head, which keeps "
        "no (B, C) scores."
    )
    for call in (subject, subject.sampled_log_prob):
        loss = checkpoint(call, query, target, use_reentrant=use_reentrant).sum()
        with says(tapas.UsageError, words):
            loss.backward()
    assert torch.equal(subject.table.weight, before)
    assert not subject.table.gradients.waits
    subject(query, target).backward()  # and is none the worse for it
    assert fused != subject.table.gradients.waits
    assert fused != torch.equal(subject.table.weight, before)


def test_gradients_that_nobody_takes_are_told_of_by_the_next_training_call():
    subject, target = head(), torch.zeros(6).long()
    subject(GOOD, target).backward()
    words = (
        "the class rows have gradients from an earlier backward pass, and no optimizer to take "
        "them: the rows would never move. Make one beside that of the encoder, "
        "tapas.optim.RowwiseAdagrad(head, lr=0.1), and step both; or both as one, "
        "tapas.optim.Combined(...). To train no rows, head.requires_grad_(False)."
    )
    with says(tapas.UsageError, words):
        subject(GOOD, target)
    assert subject.step == 1
    with torch.no_grad():
        subject(GOOD, target)
    subject.requires_grad_(False)
    subject(GOOD, target)
    subject.requires_grad_(True)
    optimizer = RowwiseAdagrad(subject, lr=0.1)
    subject(GOOD, target).backward()
    del optimizer
    with says(tapas.UsageError, words):
        subject(GOOD, target)
    subject.zero_grad()
    subject(GOOD, target).backward()
    assert subject.table.gradients.waits


def test_rows_are_not_cast_to_float16():
    subject = head()
    with says(
        tapas.UsageError,
        "class rows cannot be float16: small updates would be lost. Use bfloat16, whose updates "
        "are rounded stochastically, or leave the head out of `.half()`.",
    ):
        subject.half()
    assert subject.table.weight.dtype == torch.float32


def test_a_transposed_target_is_welcome():
    target = torch.randint(C, (2, 6), generator=tapas.rng.stream(0, "target"))
    assert bool(head()(GOOD, target.t()).isfinite())
