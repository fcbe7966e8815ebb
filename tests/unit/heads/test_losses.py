"""Every head with a row for each class against plain loops: its loss and all its gradients."""

import math

import pytest
import torch
from oracle import binary, ranking_heads
from oracle.flat_heads import (
    CONTEXT,
    TARGET,
    WEIGHT,
    B,
    C,
    check_against,
    queries,
    random_table,
    sample_of,
    scores_of,
)
from oracle.sampling_heads import loss_of

import tapas
from tapas import native
from tapas.heads import METHODS, FlatHead, dynamic_negatives, self_normalised, warp
from tapas.losses import sampled_softmax
from tapas.rng import stream

N = 13
SKEWED = tapas.Squashed(torch.arange(C) % 7, alpha=0.75)
BIGRAM = tapas.proposals.Bigram(
    torch.tensor([2, 3]), torch.tensor([5, 6]), torch.tensor([9, 9]), unigram=SKEWED
)
PAIRS = torch.tensor([2, 2, 3]), torch.tensor([17, 5, 30]), torch.tensor([3.0, 1.0, 2.0])


@pytest.fixture(params=["kernels", "torch, in pieces"])
def _way(request, monkeypatch):
    """All at once with native kernels, and a few scores at a time without them."""
    if request.param == "kernels":
        if native.state() != "in use on CPUs":
            pytest.skip(f"native kernels are {native.state()}")
        yield
        return
    monkeypatch.setattr(sampled_softmax, "HELD_AT_ONCE", 7 * B)
    monkeypatch.setattr(self_normalised, "SCORES_PER_CHUNK", 7)
    monkeypatch.setattr(warp, "SCORES_AT_ONCE", 2 * N)
    monkeypatch.setattr(dynamic_negatives, "SCORES_AT_ONCE", 2 * N)
    with native.switched_off():
        yield


def build(method, *, num_shards=1, **options):
    table = random_table(num_shards=num_shards)
    return METHODS[method](table=table, reduction="none", seed=3, **options)


def every_class(head):
    return lambda *given: loss_of(*given, range(C), [0.0] * C)


def sample(head):
    kept = sample_of(head, queries(), context=CONTEXT)
    assert set(kept.ids.tolist()) & set(TARGET.flatten().tolist())
    return lambda *given: loss_of(*given, kept.ids, kept.log_q)


def later_sample(head):
    """After a few steps, so that heads with learned state have some."""
    for step in range(6):
        seen = torch.where(TARGET < 0, TARGET, (TARGET + step) % C)
        head(queries(), seen, context=CONTEXT)
    return sample(head)


def shown_sample(head):
    """The classes that `sample` returns for the next call; step 0 kept others."""
    first = head.sample(queries(), TARGET)
    head(queries(), TARGET, WEIGHT)
    kept = head.sample(queries(), TARGET)
    assert not torch.equal(first.ids, kept.ids)
    return lambda *given: loss_of(*given, kept.ids, kept.log_q)


def draws_of(head):
    """With repeats, some of them targets."""
    noise = head.proposal.conditioned_on(CONTEXT)
    drawn = noise.draw(head.num_samples, generator=stream(3, "draws", 0)).tolist()
    assert len(set(drawn)) < len(drawn)
    assert set(drawn) & set(TARGET.flatten().tolist())
    return drawn, noise


def noise_contrast(head):
    drawn, noise = draws_of(head)
    log_q = noise.log_prob(torch.arange(C)).tolist()
    return lambda *given: binary.nce(*given, drawn, log_q)


def word2vec(head):
    drawn, _ = draws_of(head)
    return lambda *given: binary.negative_sampling(*given, drawn, head.negatives)


def calibrated(head):
    kept = head.proposal.sample(N, generator=stream(3, "draws", 0)).ids.tolist()
    return lambda *given: binary.gbce(*given, kept, head.calibration)


def normalised(head):
    chosen = head.chosen(B).tolist()
    assert len(chosen) == max(1, math.ceil(head.share * B - 1e-9))
    return lambda *given: binary.self_normalised(*given, chosen, head.penalty)


def in_walks(head):
    """The circle of draws and the start of each target, drawn in the order of the head."""
    generator = stream(3, "draws", 0)
    drawn = torch.randint(C, (head.tries,), generator=generator)
    places = math.ceil(head.tries / warp.BLOCK) * warp.BLOCK
    real = TARGET >= 0
    begin = torch.randint(places, (int(real.sum()),), generator=generator)
    start = torch.zeros_like(TARGET).masked_scatter(real, begin)
    tries = [[ranking_heads.walk(drawn, int(s), warp.BLOCK) for s in row] for row in start]
    return lambda *given: ranking_heads.warp(*given, tries)


def hardest(head):
    size = min(head.presample_factor * head.num_samples, C)
    pool = head.proposal.sample(size, generator=stream(3, "draws", 0)).ids
    kept = ranking_heads.hardest(scores_of(head, queries()), TARGET, pool, head.num_samples)
    return lambda *given: ranking_heads.softmax_beside(*given, kept)


def in_buckets(head):
    mixture = torch.randn(head.num_buckets, B, generator=stream(3, "draws", 0))
    arrays = (queries(), head.table.weight, head.table.bias, mixture)
    found = ranking_heads.buckets(
        *(part.detach().double().numpy() for part in arrays),
        head.bucket_queries,
        head.bucket_classes,
    )
    return lambda *given: ranking_heads.softmax_in_buckets(*given, found)


CASES = {  # method, options, and what gives the loss by loops for a head
    "full": ("full", {}, every_class),
    "full, on shards": ("full", {"num_shards": 3}, every_class),
    "sampled": ("sampled", {"num_samples": N, "proposal": SKEWED}, sample),
    "sampled, all": ("sampled", {"num_samples": C}, every_class),
    "sampled, bigram": ("sampled", {"num_samples": N, "proposal": BIGRAM}, sample),
    "in-batch": ("in-batch", {"rate": 0.3}, later_sample),
    "mixed": ("mixed", {"num_samples": N, "proposal": BIGRAM, "rate": 0.3}, later_sample),
    "mixed, all": ("mixed", {"num_samples": C}, every_class),
    "adaptive-importance": (
        "adaptive-importance",
        {"num_samples": N, "pairs": PAIRS, "refresh_every": 2, "rate": 0.3, "min_ess": 6},
        later_sample,
    ),
    "adaptive-importance, all": (
        "adaptive-importance",
        {"num_samples": C, "min_ess": C},
        every_class,
    ),
    "partitioned": (
        "partitioned",
        {"num_samples": N, "upcoming": lambda step: torch.arange(2 * step, 2 * step + 7) % C},
        sample,
    ),
    "tapas": ("tapas", {"num_samples": N, "presample_factor": 2}, shown_sample),
    "tapas, top": (
        "tapas",
        {"num_samples": 9, "presample_factor": 2, "selection": "top", "proposal": SKEWED},
        shown_sample,
    ),
    "tapas, on shards": (
        "tapas",
        {"num_samples": 9, "presample_factor": 2, "num_shards": 3},
        shown_sample,
    ),
    "tapas, all": ("tapas", {"num_samples": C}, every_class),
    "one-vs-all": ("one-vs-all", {}, lambda head: binary.one_vs_all),
    "one-vs-all, on shards": ("one-vs-all", {"num_shards": 3}, lambda head: binary.one_vs_all),
    "nce": ("nce", {"num_samples": 40, "proposal": SKEWED}, noise_contrast),
    "nce, bigram": ("nce", {"num_samples": 40, "proposal": BIGRAM}, noise_contrast),
    "negative-sampling": (
        "negative-sampling",
        {"num_samples": 40, "proposal": SKEWED, "negatives": 0.5},
        word2vec,
    ),
    "gbce": ("gbce", {"num_samples": N, "proposal": SKEWED, "calibration": 0.0}, calibrated),
    "gbce, calibrated": ("gbce", {"num_samples": N, "calibration": 1.0}, calibrated),
    "gbce, all": ("gbce", {"num_samples": C}, lambda head: binary.one_vs_all),
    "self-normalised": ("self-normalised", {"share": 0.4, "penalty": 0.3}, normalised),
    "self-normalised, one": ("self-normalised", {"share": 0.01, "penalty": 0.3}, normalised),
    "self-normalised, all": ("self-normalised", {"share": 1.0, "penalty": 0.0}, every_class),
    "self-normalised, on shards": ("self-normalised", {"share": 0.4, "num_shards": 3}, normalised),
    "warp, one try": ("warp", {"tries": 1}, in_walks),
    "warp": ("warp", {"tries": 45}, in_walks),
    "warp, many tries": ("warp", {"tries": 200}, in_walks),
    "dynamic-negatives": (
        "dynamic-negatives",
        {"num_samples": 4, "presample_factor": 3, "proposal": SKEWED},
        hardest,
    ),
    "dynamic-negatives, all": (
        "dynamic-negatives",
        {"num_samples": C, "presample_factor": 1},
        every_class,
    ),
    "sce": ("sce", {"num_buckets": 5, "bucket_queries": 3, "bucket_classes": 9}, in_buckets),
    "sce, few": ("sce", {"num_buckets": 2, "bucket_queries": 2, "bucket_classes": 7}, in_buckets),
    "sce, all": ("sce", {"num_buckets": 1, "bucket_queries": B, "bucket_classes": C}, every_class),
}


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_the_loops(case):
    method, options, by_loops = CASES[case]
    head = build(method, **options)
    losses = by_loops(head)
    check_against(head, losses, CONTEXT if head.wants_context else None)


def test_every_method_with_a_row_for_each_class_is_among_the_cases():
    flat = {name for name, kind in METHODS.items() if issubclass(kind, FlatHead)}
    assert {method for method, _, _ in CASES.values()} == flat


SCORED = {  # how many scores a step computes for an example, beside its targets
    "full": C,
    "one-vs-all": C,
    "sampled": N,
    "gbce": N,
    "warp": 45,
    "dynamic-negatives": 12,
    "dynamic-negatives, all": C,
    "self-normalised": C * 2 / B,
    "tapas": 2 * N + N,  # every example scores the pool
    "sce": (5 * C + 5 * 3 * 9) / B,  # with the search for the classes of buckets
}


@pytest.mark.parametrize("case", SCORED)
def test_scores_are_counted(case):
    method, options, _ = CASES[case]
    head = build(method, **options)
    for _ in range(2):
        head(queries(), TARGET)
    head.eval()(queries(1), TARGET[:1])
    assert head.scores_per_example == pytest.approx(SCORED[case])


def test_scores_of_noise_are_counted_without_repeats():
    head = build("nce", num_samples=40, proposal=SKEWED)
    want = []
    for step in range(3):
        want.append(len(set(SKEWED.draw(40, generator=stream(3, "draws", step)).tolist())))
        head(queries(), TARGET)
    assert head.scores_per_example == pytest.approx(sum(want) / 3)
