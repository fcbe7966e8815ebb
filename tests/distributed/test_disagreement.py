"""Ranks that differ in calls or arguments: all raise errors that name the rank, and can go on.

Bad input on one rank raises its own error there, and a PeerError on the others.
"""

import copy
import pickle
import re

import pytest
import torch
from ranks import run_ranks

from tapas import (
    LocalTable,
    Priority,
    ShardedTable,
    TapasError,
    TapasSoftmax,
    UsageError,
    join_ranks,
)
from tapas.heads import LookupHead
from tapas.optim import SGD, RowwiseAdagrad
from tapas.rng import stream

C, D, M = 31, 3, 3
FUSED = RowwiseAdagrad.fused(lr=0.1)


def draw(*shape, name="query"):
    return torch.randn(*shape, generator=stream(0, name))


GOOD, TARGET, GRAD = draw(2, D), torch.tensor([4, 30]), torch.ones(2, D)


def a_head(**options):
    table = ShardedTable(C, D, row_optimizer=FUSED, **options)
    return TapasSoftmax(table=table, num_samples=7, presample_factor=2)


def outcome_of(call, head):
    """Kind and text of the error of `call`, the ranks it names, and whether rows are unchanged."""
    before = {k: v.clone() for k, v in head.table.row_tensors().items()}
    step = head.step
    try:
        call()
    except TapasError as error:
        answer = f"{type(error).__name__}: {error}", getattr(error, "ranks", None)
    else:
        answer = "no error", None
    head.step = step
    after = head.table.row_tensors()
    answer += (all(torch.equal(before[name], after[name]) for name in before),)
    weight, _ = head.table.rows(
        torch.arange(C)
    )  # the group works, and no rank is ahead of the others
    return (*answer, weight.shape == (C, D))


def with_nan(rows, odd):
    """`rows` (2, D); on the rank at fault the last one is NaN."""
    return rows * torch.tensor([[1.0], [torch.nan if odd else 1.0]])


NO_CLASS = "holds class 31; expected ids from 0 to 30 (num_classes=31)."
NO_TARGET = f"UsageError: target {NO_CLASS} Padding is ignore_index=-100."
BAD_GRADIENT = (
    "UsageError: the gradient of the class rows holds NaN or inf; no row was changed. Lower the "
    "learning rate, clip gradients, or use a torch.amp.GradScaler, which skips such a step."
)
BAD_ROW = (
    "DataError: query row 1 holds NaN or inf. The encoder has diverged or its input is bad: check "
    "that row's input, lower the learning rate or clip gradients."
)

NO_ID = f"UsageError: ids {NO_CLASS}"
WIDTH = "UsageError: query has shape (2, 4); expected (..., D=3), the dim of the table."
TOO_MANY = "UsageError: k is 32, but there are only 31 classes."
NO_PLACEMENT = "UsageError: placement must be random or contiguous, got 'x'."


def send_back(head, odd):
    (head.table.lookup(TARGET) * with_nan(GRAD, odd)).sum().backward()


class FailingRule(Priority):
    """A user's selection rule that fails."""

    def select(self, given, keep):
        raise UsageError("not today.")


class FailingHead(LookupHead):
    """A user's loss that may fail before it looks up rows."""

    fails = False

    def losses(self, batch, context):
        if self.fails:
            raise UsageError("not today.")
        weight, _ = self.table.lookup(batch.target[:, 0], return_bias=True)
        return (weight * batch.query).sum(dim=1)


def with_a_rule_that_fails(head, odd):
    rule, head.selection = head.selection, FailingRule() if odd else head.selection
    try:
        head(GOOD, TARGET)
    finally:
        head.selection = rule


def with_a_loss_that_fails(head, odd):
    other = FailingHead(table=head.table)
    other.fails = bool(odd)
    other(GOOD, TARGET)


# the call the others are at; what all ranks do, where `odd` is 1 for the one at fault; its error
REFUSALS = [
    ("batch", lambda head, odd: head(draw(2, D + odd), TARGET), WIDTH),
    ("batch", lambda head, odd: head(with_nan(GOOD, odd), TARGET), BAD_ROW),
    ("batch", lambda head, odd: head(GOOD, TARGET + odd), NO_TARGET),
    ("batch", lambda head, odd: head.sample(with_nan(GOOD, odd)), BAD_ROW),
    ("answers", with_a_rule_that_fails, "UsageError: not today."),
    ("lookup", with_a_loss_that_fails, "UsageError: not today."),
    ("mean", lambda head, odd: head.full_loss(GOOD, TARGET + odd), NO_TARGET),
    ("rows", lambda head, odd: head.log_prob(GOOD, TARGET[:, None] + odd), NO_ID),
    ("topk", lambda head, odd: head.topk(GOOD, 3 + 29 * odd), TOO_MANY),
    ("log_partition", lambda head, odd: head.table.log_partition(with_nan(GOOD, odd)), BAD_ROW),
    ("rows", lambda head, odd: head.table.rows(TARGET + odd), NO_ID),
    ("lookup", lambda head, odd: head.table.lookup(TARGET + odd), NO_ID),
    ("update", lambda head, odd: head.table.update(TARGET + odd, GRAD, GRAD[:, 0]), NO_ID),
    ("gradients of lookup", send_back, BAD_GRADIENT),
    (
        "compare the table",
        lambda head, odd: ShardedTable(C, D, placement="x" if odd else "random"),
        NO_PLACEMENT,
    ),
]


def at_another_step(head, odd):
    head.step += 5 * odd
    head(GOOD, TARGET)


def without_gradients(head, odd):
    with torch.set_grad_enabled(not odd):
        head(GOOD, TARGET)


def with_context(head, odd):
    head(GOOD, TARGET, context=TARGET if odd else None)


def with_frozen_rows(head, odd):
    head.requires_grad_(not odd)
    try:
        head(GOOD, TARGET)
    finally:
        head.requires_grad_(True)


def skip_backward(head, odd):
    """Like a training loop that skips a batch by its loss."""
    for step in range(2):
        loss = head(GOOD, TARGET)
        if not (odd and step == 0):
            loss.backward()


FLAGS = r"the sum of gradients enabled \(1\), context given \(2\) and rows trained \(4\)"

# what all ranks do, one of them oddly; what they disagree on; the number of the others, and of it
DISAGREEMENTS = {
    "another step": (at_another_step, "`batch`", 0, 5),
    "another k": (lambda head, odd: head.topk(GOOD, 3 + odd), "`topk`", 3, 4),
    "no gradients": (without_gradients, FLAGS, 5, 0),
    "context": (with_context, FLAGS, 5, 7),
    "frozen rows": (with_frozen_rows, FLAGS, 5, 1),
    "another head": (
        lambda head, odd: TapasSoftmax(table=head.table, num_samples=8, seed=odd),
        "the head, compared by checksum",
        r"(\d+)",
        r"(?!\1,)\d+",
    ),
    **{
        f"a table with another {name}": (
            lambda head, odd, name=name, value=value: ShardedTable(
                **{"num_classes": C, "dim": D, "row_optimizer": FUSED}
                | ({name: value} if odd else {})
            ),
            "the table, compared by checksum",
            r"(\d+)",
            r"(?!\1,)\d+",
        )
        for name, value in {
            "num_classes": C + 1,
            "dim": D + 1,
            "seed": 1,
            "row_optimizer": SGD.fused(lr=0.3),
            "placement": "contiguous",
            "dtype": torch.bfloat16,
            "bias": False,
        }.items()
    },
}

# what all ranks do, one of them oddly; the call where it is; the call where the others are
OUT_OF_STEP = {
    "another verb": (
        lambda head, odd: head.table.log_partition(GOOD) if odd else head.table.rows(TARGET),
        "log_partition",
        "rows",
    ),
    "no backward pass": (skip_backward, "batch", "backward"),
    "another message of the same size": (
        lambda head, odd: head.table.ranks.exchange("b" if odd else "a", torch.zeros(M, 2)),
        "b",
        "a",
    ),
}

NO_EXAMPLE = "no rank has an example in this batch. Skip it on all of them."
ALL_ALIKE = {
    "no example": (lambda head: head(GOOD[:0], TARGET[:0]), NO_EXAMPLE),
    "nothing but padding": (lambda head: head(GOOD, TARGET * 0 - 100), NO_EXAMPLE),
    "no example for the full loss": (lambda head: head.full_loss(GOOD[:0], TARGET[:0]), NO_EXAMPLE),
    "no query": (
        lambda head: head.sample(GOOD[:0]),
        "the batch is empty: there is no query to sample for. Skip such a batch.",
    ),
    "fewer classes than ranks": (
        lambda head: ShardedTable(2, D, row_optimizer=FUSED),
        "cannot spread 2 classes over 3 shards. Use at most 2.",
    ),
}


def on_ranks(ranks):
    head, answers = a_head(), {}
    for number, (_, call, _) in enumerate(REFUSALS):
        odd = int(ranks.rank == number % M)
        answers[number] = outcome_of(lambda call=call, odd=odd: call(head, odd), head)
    answers["two"] = outcome_of(lambda: head.table.rows(TARGET + int(ranks.rank != 1)), head)
    for name, (call, *_) in (DISAGREEMENTS | OUT_OF_STEP).items():
        answers[name] = outcome_of(lambda call=call: call(head, int(ranks.rank == 1)), head)
    for name, (call, _) in ALL_ALIKE.items():
        answers[name] = outcome_of(lambda call=call: call(head), head)
    return answers | of_states(ranks, a_head())


def of_states(ranks, head):
    """Errors for states that were saved on this rank, on rank 0, or with another layout."""
    mine, other = [copy.deepcopy(head.state_dict())], a_head(seed=9)
    answers = {"its own": outcome_of(lambda: head.load_state_dict(mine[0]), head)[0]}
    torch.distributed.broadcast_object_list(mine, src=0)
    answers["of rank 0"] = outcome_of(lambda: head.load_state_dict(mine[0]), head)[0]
    answers["of another seed"] = outcome_of(lambda: other.load_state_dict(head.state_dict()), head)[
        0
    ]
    answers["pickled"] = pickle.loads(pickle.dumps(head)).table.ranks is head.table.ranks
    part = torch.distributed.new_group([0, 1])
    if ranks.rank < 2:
        tables = [ShardedTable(C, D, group=part) for _ in range(2)]
        answers["one group"] = tables[0].ranks is tables[1].ranks is not head.table.ranks
        with pytest.raises(UsageError) as error:
            pickle.dumps(ShardedTable(C, D, group=part))
        answers["of some ranks"] = str(error.value)
    return answers


@pytest.fixture(scope="module")
def answers():
    return run_ranks(M, on_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(REFUSALS)), ids=[verb for verb, *_ in REFUSALS])
def test_bad_input_on_one_rank_raises_a_peer_error_on_the_others(answers, number):
    odd = number % M
    verb, _, words = REFUSALS[number]
    heard = (
        f"PeerError: rank {odd} raised an error in `{verb}`; see the message there. Nothing was "
        "changed here."
    )
    for rank in range(M):
        want = (words, None) if rank == odd else (heard, (odd,))
        assert answers[rank][number] == (*want, True, True)


@pytest.mark.slow
def test_all_ranks_with_errors_are_named(answers):
    words, blamed, *_ = answers[1]["two"]
    assert words.startswith("PeerError: ranks 0, 2 raised an error in `rows`; ")
    assert blamed == (0, 2)
    assert answers[0]["two"][0] == NO_ID


@pytest.mark.slow
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_different_arguments_on_ranks_are_an_error_at_once(answers, name):
    _, what, theirs, its = DISAGREEMENTS[name]
    again = r"\1" if what.endswith("checksum") else theirs
    pattern = (
        rf"PeerError: the ranks differ in {what} \(rank 0: {theirs}, rank 1: {its}, "
        rf"rank 2: {again}\)\. Start all ranks with the same settings\."
    )
    for words, *others in (answer[name] for answer in answers):
        assert re.fullmatch(pattern, words), words
        assert others == [(), True, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", OUT_OF_STEP)
def test_different_calls_on_ranks_are_an_error_at_once(answers, name):
    _, its_verb, their_verb = OUT_OF_STEP[name]
    for rank in range(M):
        who, verb, blamed = ("rank 1", their_verb, (1,))
        if rank == 1:
            who, verb, blamed = ("ranks 0, 2", its_verb, (0, 2))
        words = (
            f"PeerError: {who} made another call while rank {rank} is in `{verb}`. All ranks must "
            "make the same calls in the same order."
        )
        assert answers[rank][name] == (words, blamed, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_ALIKE)
def test_the_same_bad_input_is_the_same_error_on_all_ranks(answers, name):
    want = f"UsageError: {ALL_ALIKE[name][1]}", None, True, True
    assert [answer[name] for answer in answers] == [want] * M


@pytest.mark.slow
def test_the_state_of_another_rank_and_pickling_a_subgroup_are_refused(answers):
    for rank, heard in enumerate(answers):
        assert heard["its own"] == "no error"
        assert "another rank or layout" in heard["of another seed"]
        assert heard["pickled"]
        if rank == 0:
            assert heard["of rank 0"] == "no error"
        else:
            assert "these rows belong to another rank or layout" in heard["of rank 0"]
        if rank < 2:
            assert (
                "a table shared by a subgroup of the ranks cannot be pickled"
                in heard["of some ranks"]
            )
            assert heard["one group"]


def test_one_process_needs_no_ranks(monkeypatch):
    ranks = LocalTable(C, D).ranks
    ranks.check_equal("anything", 1)
    assert ranks.mean(3) == 3
    monkeypatch.delenv("RANK", raising=False)
    for call, words in (
        (
            lambda: ShardedTable(C, D),
            "sharing a table needs ranks, but torch.distributed is not initialized. Start the "
            "program with torchrun, and call tapas.join_ranks() first.",
        ),
        (
            lambda: join_ranks(timeout_seconds=0).__enter__(),
            "timeout_seconds must be above 0, got 0.",
        ),
        (
            lambda: join_ranks().__enter__(),
            "RANK and WORLD_SIZE are not set: this process was not started as one of several. "
            "Start it with `torchrun --nproc-per-node 2 ...`.",
        ),
    ):
        with pytest.raises(UsageError) as error:
            call()
        assert str(error.value) == words
