"""Adaptive importance sampling: a right loss at every Q, and a Q that comes to suit the model."""

import io
import math

import pytest
import torch
from oracle.sampling_heads import effective_sizes, loss_of
from oracle.selection import shares
from oracle.tables import dense_gradients

import tapas
from tapas.heads import adaptive_importance
from tapas.heads.adaptive_importance import AdaptiveImportance
from tapas.tables.ranks import GlobalBatch

B, L, C, D, N = 7, 3, 43, 4, 11
TARGET = torch.tensor(
    [[1, 5, 30], [7, 7, 2], [0, -100, -100], [4, 3, -100], [9, 9, 9], [42, 1, 8], [6, 5, 4]]
)
CONTEXT = torch.tensor([3, 8, 3, -1, 21, 8, 40])
PAIRS = (
    torch.tensor([3, 3, 8, 21, 21]),
    torch.tensor([17, 5, 42, 0, 9]),
    torch.tensor([3.0, 1.0, 2.0, 1.0, 4.0]),
)


def make(*, num_samples=N, row_optimizer=None, peaked=1.0, **options):
    table = tapas.LocalTable(C, D, row_optimizer=row_optimizer)
    with torch.no_grad():
        table.weight.copy_(torch.randn(C, D, generator=tapas.rng.stream(0, "rows")))
        table.bias.copy_(peaked * torch.randn(C, generator=tapas.rng.stream(0, "biases")))
    options = {"seed": 3, "rate": 0.1, "refresh_every": 4, **options}
    return AdaptiveImportance(table=table, num_samples=num_samples, **options)


def queries(seed=0):
    return torch.randn(B, D, generator=tapas.rng.stream(seed, "query"))


def meeting_of(query, target=TARGET, context=None):
    target = target.masked_fill(target < 0, -1)
    return GlobalBatch(query, target, context, (len(query),), target.shape[1])


def logits_of(head, query):
    return (query @ head.table.weight.T + head.table.bias).detach().double()


def test_losses_are_those_of_the_loops_for_what_it_draws():
    head, query = make(reduction="none", pairs=PAIRS), queries()
    weight = torch.rand(B, L, generator=tapas.rng.stream(0, "weight"))
    rows = head.table.weight.detach(), head.table.bias.detach()
    for step in range(10):
        share = (weight, None, 2 * weight)[step % 3]
        kept = head.candidates(meeting_of(query, context=CONTEXT))
        want = loss_of(query, *rows, TARGET, kept.ids, kept.log_q, share)
        loss = head(query, TARGET, share, context=CONTEXT)
        torch.testing.assert_close(loss, torch.tensor(want))


def test_gradients_are_those_of_the_dense_formula():
    head, query = make(), queries().requires_grad_()
    target = TARGET[:, 0]
    kept = head.candidates(meeting_of(query, target[:, None]))
    head(query, target).backward()
    again, weight, bias = (
        x.detach().clone().requires_grad_() for x in (query, head.table.weight, head.table.bias)
    )
    logit = again @ weight.T + bias
    mine = target[:, None] == kept.ids
    negative = (logit[:, kept.ids] - kept.log_q).masked_fill(mine, -torch.inf)
    own = logit.gather(1, target[:, None])
    (torch.cat([own, negative], dim=1).logsumexp(dim=1) - own[:, 0]).mean().backward()
    torch.testing.assert_close(query.grad, again.grad)
    torch.testing.assert_close(dense_gradients(head.table), (weight.grad, bias.grad))


def test_one_step_tells_the_mean_share_and_the_mean_effective_size():
    head, query = make(counts=torch.arange(C) ** 2), queries()
    meeting = meeting_of(query)
    kept = head.candidates(meeting)
    logits = logits_of(head, query)[:, kept.ids]
    head(query, TARGET)
    want = torch.zeros(C)
    want[kept.ids] = torch.tensor(shares(logits, kept.ids, kept.log_q, meeting.target, 1.0)).float()
    torch.testing.assert_close(head.ngrams.unigram_heard, want)
    sizes = effective_sizes(logits, kept.ids, kept.log_q, meeting.target)
    assert head.ess_heard.tolist() == pytest.approx([sum(sizes) / B, 1])
    assert min(sizes) < N / 2
    assert head.scores_per_example == 2 * N  # every example scores, and all move Q


def test_a_few_examples_of_the_whole_batch_move_it(monkeypatch):
    monkeypatch.setattr(adaptive_importance, "SCORING", 3)
    head, query = make(counts=torch.arange(C) ** 2), queries()
    kept = head.candidates(meeting_of(query))
    head(query, TARGET)
    want, chosen = torch.zeros(C), [0, 2, 4]
    logits = logits_of(head, query)[chosen][:, kept.ids]
    own = meeting_of(query).target[chosen]
    want[kept.ids] = torch.tensor(shares(logits, kept.ids, kept.log_q, own, 1.0)).float()
    torch.testing.assert_close(head.ngrams.unigram_heard, want)
    assert head.scores_per_example == pytest.approx(N * (1 + 3 / B))


@pytest.mark.slow
def test_at_every_stage_of_q_the_kept_sum_is_unbiased():
    head, query, draws = make(pairs=PAIRS), queries(), 1_500
    for _ in range(40):
        head(query, TARGET, context=CONTEXT)
    head.eval()
    uniform = torch.full((C,), 1 / C).double()
    moved = head.ngrams.given(CONTEXT).log_prob(torch.arange(C)).exp()
    assert float((moved / uniform).max()) > 3
    logits = logits_of(head, query)
    estimate = torch.empty(draws, B, dtype=torch.float64)
    for step in range(draws):
        head.step = step
        kept = head.candidates(meeting_of(query, context=CONTEXT))
        estimate[step] = (logits[:, kept.ids] - kept.log_q.double()).exp().sum(dim=1)
    error = (estimate.mean(dim=0) - logits.exp().sum(dim=1)).abs()
    # 7 comparisons at 4.5 standard errors: a correct estimate fails 1 seed in 20,000
    assert bool((error < 4.5 * estimate.std(dim=0) / math.sqrt(draws)).all())


@pytest.mark.slow
def test_while_it_adapts_the_kept_sum_is_unbiased_too():
    """Q and the number of draws hang on earlier steps: each step is right given these."""
    query, steps, runs = queries(), 8, 80
    errors = torch.empty(runs, B, dtype=torch.float64)
    for run in range(runs):
        head = make(seed=run, rate=0.5, min_ess=4, refresh_every=2)
        logits = logits_of(head, query)
        exact, total = logits.exp().sum(dim=1), torch.zeros(B).double()
        for _ in range(steps):
            kept = head.candidates(meeting_of(query))
            total += (logits[:, kept.ids] - kept.log_q.double()).exp().sum(dim=1) - exact
            head(query, TARGET)
        errors[run] = total / steps / exact
    spread = errors.std(dim=0) / math.sqrt(runs)
    # 7 comparisons at 4.5 standard errors: a correct estimate fails 1 seed in 20,000
    assert bool((errors.mean(dim=0).abs() < 4.5 * spread).all())
    assert float(spread.max()) < 0.05


def apart(head, query, context):
    """KL of what the model thinks of others' classes, on average, from Q."""
    logits = logits_of(head, query)
    own = meeting_of(query).target
    mine = (own[:, :, None] == torch.arange(C)).any(dim=1)
    model = logits.masked_fill(mine, -torch.inf).softmax(dim=1).mean(dim=0)
    log_q = head.ngrams.given(context).log_prob(torch.arange(C))
    return float((model * (model.log() - log_q)).nansum())


@pytest.mark.parametrize("context", [None, CONTEXT], ids=["without context", "with context"])
@pytest.mark.parametrize("seed", range(4))
def test_q_moves_towards_the_model(seed, context):
    """All draws that are allowed: a ratio of few is a biased estimate of a probability."""
    head = make(peaked=2.0, seed=seed, pairs=PAIRS, rate=0.05, min_ess=N)
    query = queries(seed)
    left = [apart(head, query, context)]
    for _ in range(3):
        for _ in range(40):
            head(query, TARGET, context=context)
        left.append(apart(head, query, context))
    assert left[1] < 0.7 * left[0]
    assert left[3] < left[1]
    assert left[3] < 0.3 * left[0]


def run(head, steps, query):
    for _ in range(steps):
        head(query, TARGET)
    return int(head.num_drawn)


def test_a_flat_model_draws_as_few_as_allowed_and_a_peaked_one_as_many():
    # a rate so small that Q stays uniform
    flat, peaked = (make(num_samples=24, min_ess=5.5, rate=1e-9, peaked=4.0) for _ in range(2))
    with torch.no_grad():
        flat.table.weight.zero_()
        flat.table.bias.zero_()
    assert int(flat.num_drawn) == 24
    assert run(flat, 4, queries()) == 12  # at most half as many after one refresh
    assert run(flat, 8, queries()) == 6
    assert run(peaked, 40, queries()) > 3 * 6
    follows = make(num_samples=24, min_ess=5.5, rate=0.1, peaked=4.0)
    assert run(follows, 80, queries()) < 16  # the same model, once Q knows it


def test_the_number_stands_still_between_refreshes_and_grows_again():
    head = make(num_samples=24, min_ess=5.5, rate=1e-9, peaked=4.0)
    head.num_drawn.fill_(6)
    assert [run(head, 1, queries()) for _ in range(4)][:3] == [6, 6, 6]
    assert 6 < int(head.num_drawn) <= 12


def test_evaluation_moves_nothing():
    head, query = make(pairs=PAIRS), queries()
    head(query, TARGET, context=CONTEXT)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    scores = head.scores_per_example
    with torch.no_grad():
        one = head(query, TARGET, context=CONTEXT)
    head.eval()
    two = head(query, TARGET, context=CONTEXT)
    for name, value in before.items():
        assert torch.equal(head.state_dict()[name], value), name
    assert head.scores_per_example == scores
    head.train()
    assert torch.equal(one, two)
    assert torch.equal(one, head(query, TARGET, context=CONTEXT))
    assert not torch.equal(head.ngrams.unigram_heard, before["ngrams.unigram_heard"])


@pytest.mark.parametrize("stop", [3, 4, 9])
def test_a_resumed_run_is_bit_identical(stop):
    def steps(head, first, last):
        losses = []
        for step in range(first, last):
            loss = head(queries(step), TARGET, context=CONTEXT)
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses)

    options = {"row_optimizer": tapas.optim.SGD.fused(lr=0.1), "pairs": PAIRS, "min_ess": 4}
    whole, first, second = (make(**options) for _ in range(3))
    want = steps(whole, 0, 14)
    assert torch.equal(steps(first, 0, stop), want[:stop])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(steps(second, stop, 14), want[stop:])
    assert second.ngrams.checksum() == whole.ngrams.checksum()
    assert int(second.num_drawn) == int(whole.num_drawn) < N


def test_draws_are_named_by_seed_and_step():
    one, two, other = make(), make(), make(seed=4)
    first = one(queries(), TARGET)
    assert torch.equal(two(queries(), TARGET), first)
    assert other(queries(), TARGET) != first


def test_every_class_drawn_is_the_full_softmax():
    head = make(num_samples=C, min_ess=C)
    for _ in range(6):
        loss = head(queries(), TARGET)
        torch.testing.assert_close(loss.detach(), head.full_loss(queries(), TARGET))


def test_logits_of_ten_thousand_stay_finite():
    head = make()
    with torch.no_grad():
        head.table.bias.copy_(torch.linspace(-1e4, 1e4, C))
    for _ in range(9):
        head.zero_grad()
        query = queries().requires_grad_()
        loss = head(query, TARGET)
        loss.backward()
        assert bool(loss.isfinite())
        assert bool(query.grad.isfinite().all())
    assert bool(head.ngrams.given(None).log_prob(torch.arange(C)).isfinite().all())


def test_an_example_that_owns_the_whole_sample_moves_nothing():
    head = make(num_samples=1)
    for _ in range(4):
        drawn = head.candidates(meeting_of(queries()))
        head(queries()[:1], drawn.ids)
    assert bool(head.ngrams.unigram.isfinite().all())
    torch.testing.assert_close(head.ngrams.unigram, torch.full((C,), 1 / C))


def test_counts_are_the_unigram_to_begin_with():
    head = make(counts=torch.arange(1, C + 1))
    torch.testing.assert_close(head.ngrams.unigram, torch.arange(1, C + 1) / (C * (C + 1) / 2))
    assert repr(head).startswith("AdaptiveImportance(\n  num_samples=11, min_ess=2.75\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"min_ess": 12},
            r"min_ess must be between 1 and num_samples \(11\), got 12: so many draws are worth no "
            r"more\. Raise num_samples or lower min_ess\.",
        ),
        ({"min_ess": 0.5}, r"min_ess must be between 1 and num_samples \(11\), got 0\.5"),
        ({"min_ess": "all"}, r"min_ess must be between 1 and num_samples \(11\), got 'all'"),
        ({"rate": 0}, r"rate must be above 0 and at most 1, got 0\. Try 0\.01\."),
        ({"refresh_every": 0}, "refresh_every must be at least 1, got 0"),
        ({"num_samples": 44}, "num_samples is 44, but there are only 43 classes"),
        ({"pairs": PAIRS[:2]}, r"pairs must be a tuple \(previous, following, counts\)"),
    ],
)
def test_bad_options_are_told(options, words):
    with pytest.raises(tapas.UsageError, match=words):
        make(**options)
