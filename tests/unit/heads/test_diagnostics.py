"""The five numbers of `head.diagnose` against dense arithmetic, and how they are printed."""

import pickle
from dataclasses import asdict
from math import isnan, nan

import pytest
import torch
from torch.nn import functional

import tapas
from tapas.heads.diagnostics import Diagnosis, is_time_to_check, verdict

B, C, D = 5, 31, 4


def make(**options):
    defaults = {"num_samples": 6, "presample_factor": 3, "row_optimizer": tapas.optim.SGD.fused()}
    return tapas.TapasSoftmax(C, D, **(defaults | options))


def batch():
    query = torch.randn(B, D, generator=tapas.rng.stream(0, "query"))
    return query, torch.tensor([[1, 2], [3, 3], [4, -100], [30, 0], [9, 8]])


@pytest.mark.parametrize("selection", ["priority", "top"])
def test_a_head_that_keeps_everything_is_perfect(selection):
    found = make(num_samples=C, selection=selection).diagnose(*batch())
    assert found.top_coverage == 1
    assert found.gradient_cosine == pytest.approx(1)
    assert found.kept_mass == pytest.approx(1)
    assert found.other_targets == pytest.approx(8 / C)  # 0 1 2 3 4 8 9 30


@pytest.mark.parametrize("selection", ["priority", "top"])
def test_every_number_is_what_its_definition_says(selection):
    head = make(
        selection=selection, temperature=0.5, proposal=tapas.Squashed(torch.arange(C), alpha=0.5)
    )
    query, target = batch()
    kept = head.sample(query, target)
    pool = head.proposal.sample(18, generator=tapas.rng.stream(0, "draws", 0))
    logits = query @ head.table.weight.T + head.table.bias
    found = head.diagnose(query, target)

    best = (logits / 0.5).logsumexp(dim=0).topk(6).indices.tolist()
    assert found.top_coverage == pytest.approx(len(set(best) & set(kept.ids.tolist())) / 6)
    weight = (logits[:, pool.ids] - pool.log_q).exp()
    ess = weight.sum(dim=1) ** 2 / (weight**2).sum(dim=1)
    assert found.pool_effective_size == pytest.approx(float(ess.mean()), rel=1e-5)
    mass = logits.exp()
    share = mass[:, kept.ids].sum(dim=1) / mass[:, pool.ids].sum(dim=1)
    assert found.kept_mass == pytest.approx(float(share.mean()), rel=1e-5)
    targets = {0, 1, 2, 3, 4, 8, 9, 30}
    assert found.other_targets == pytest.approx(len(targets & set(kept.ids.tolist())) / 6)

    exact = query.clone().requires_grad_()
    soft = torch.zeros(B, C)
    for row, ids in enumerate([[1, 2], [3, 3], [4], [30, 0], [9, 8]]):
        for one in ids:
            soft[row, one] += 1 / len(ids)
    functional.cross_entropy(exact @ head.table.weight.T + head.table.bias, soft).backward()
    sampled = query.clone().requires_grad_()
    head(sampled, target).backward()  # last: it moves rows
    cosine = functional.cosine_similarity(exact.grad.reshape(-1), sampled.grad.reshape(-1), dim=0)
    assert found.gradient_cosine == pytest.approx(float(cosine), rel=1e-5)


def test_a_diagnosis_changes_nothing():
    head = make()
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head.diagnose(*batch())
    assert head.step == 0
    for name, value in before.items():
        assert torch.equal(head.state_dict()[name], value)


def advice(cosine, **options):
    settings = {
        "num_classes": 200_000,
        "num_samples": 1000,
        "presample_factor": 8,
        "selection": tapas.Priority(),
        "proposal": tapas.Uniform(200_000),
    }
    return verdict(cosine, **(settings | {"step": 100} | options))


def squashed(alpha):
    return tapas.Squashed(torch.tensor([3, 2, 1]), alpha=alpha)


def test_a_printed_diagnosis_is_a_table_with_a_verdict():
    found = Diagnosis(0.016, 1212.4, 0.4012, 0.0, 0.314159, advice(0.4012))
    assert str(found).splitlines() == [
        "gradient_cosine         0.40   sampled vs exact gradient of the queries; 1 is exact",
        "kept_mass               0.314  share of the pool's probability on the kept classes",
        "top_coverage            0.016  share of the kept classes that are in the exact top n",
        "pool_effective_size     1,212  effective number of classes in the pool, per example",
        "other_targets           0.000  share of the kept classes that are targets in this batch",
        "gradient cosine 0.40: low. Raise num_samples or presample_factor, or pass",
        "counts=, how often training has each class.",
    ]
    assert repr(found) == (
        "Diagnosis(top_coverage=0.016, pool_effective_size=1.21e+03, gradient_cosine=0.401, "
        "other_targets=0, kept_mass=0.314)"
    )


def test_the_verdict_of_a_head_is_printed_pickled_and_not_a_field():
    found = make(proposal=tapas.Squashed(torch.arange(C), alpha=0.75)).diagnose(*batch())
    assert " ".join(str(found).splitlines()[5:]) == found.verdict
    assert found.verdict.startswith(f"gradient cosine {found.gradient_cosine:.2f}")
    assert str(pickle.loads(pickle.dumps(found))) == str(found)
    assert list(asdict(found)) == [
        "top_coverage",
        "pool_effective_size",
        "gradient_cosine",
        "other_targets",
        "kept_mass",
    ]


@pytest.mark.parametrize(
    ("cosine", "level"),
    [(-0.2, "low"), (0.8949, "low"), (0.8951, "fair"), (0.9649, "fair"), (0.9651, "high")],
)
def test_the_level_is_that_of_the_printed_digits(cosine, level):
    assert advice(cosine).startswith(f"gradient cosine {cosine:.2f}: {level}. ")


def test_the_advice_fits_the_settings_of_the_head():
    raise_both = "gradient cosine 0.50: low. Raise num_samples or presample_factor"
    assert advice(0.5, proposal=squashed(0.5)) == f"{raise_both}."
    assert advice(0.5, proposal=squashed(0.25)) == (
        f"{raise_both}, or raise alpha of the proposal from 0.25 to 0.75."
    )
    assert advice(0.5, selection=tapas.Top(), proposal=squashed(1)) == (
        'gradient cosine 0.50: low. Use selection="priority", or raise num_samples or '
        "presample_factor."
    )
    assert advice(0.5, presample_factor=1, selection=tapas.Top(), proposal=squashed(1)) == (
        f"{raise_both}."
    )
    assert advice(0.95, presample_factor=200) == (  # the pool has all classes
        "gradient cosine 0.95: fair. Raising num_samples may bring it to 0.97."
    )
    assert advice(0.98) == (
        "gradient cosine 0.98: high. Try presample_factor=1: if the cosine stays at 0.97 or "
        "above, plain sampled softmax is enough."
    )
    assert advice(0.98, presample_factor=1) == (
        "gradient cosine 0.98: high. Plain sampled softmax (presample_factor=1) is enough."
    )


def test_a_good_cosine_of_an_untrained_head_says_nothing():
    assert advice(0.98, step=99) == (
        "gradient cosine 0.98 after 99 training steps: too early to tell. Ask again after some "
        "hundred."
    )
    assert "low. Raise" in advice(0.5, step=0)


def test_without_examples_there_is_no_verdict():
    found = Diagnosis(nan, nan, nan, nan, nan, advice(nan))
    assert str(found).splitlines()[3].split()[:2] == ["pool_effective_size", "nan"]
    assert found.verdict == NO_COSINE


NO_COSINE = (
    "gradient cosine: none, because this rank has no examples, or a gradient is 0 (nothing left to "
    "learn) or not finite (check the class vectors for NaN)."
)


@pytest.mark.parametrize("bad", [nan, float("inf")])
def test_a_row_that_is_not_finite_gets_no_verdict_on_the_cosine(bad):
    head = tapas.TapasSoftmax(50, 4, num_samples=5)
    with torch.no_grad():
        head.table.weight[7] = bad
    assert head.diagnose(torch.ones(3, 4), torch.arange(3)).verdict == NO_COSINE


def test_a_gradient_of_zero_is_not_called_a_low_cosine():
    bias = torch.full((50,), -200.0)
    bias[0] = 0
    head = tapas.TapasSoftmax(50, 4, num_samples=5, bias=bias)
    found = head.diagnose(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    assert isnan(found.gradient_cosine)
    assert found.verdict == NO_COSINE


def test_a_tiny_gradient_has_the_same_cosine_as_a_large_one():
    head = tapas.TapasSoftmax(50, 4, num_samples=5, presample_factor=1)
    query, target = torch.zeros(1, 4), torch.tensor([3])
    large = head.diagnose(query, target).gradient_cosine
    with torch.no_grad():
        head.table.weight.mul_(2.0**-60)
    assert head.diagnose(query, target).gradient_cosine == pytest.approx(large, abs=1e-6)


@pytest.mark.parametrize("num_classes", [1, 4])
def test_with_all_classes_in_the_sample_the_verdict_is_that_the_loss_is_exact(num_classes):
    head = tapas.TapasSoftmax(num_classes, 4, num_samples=num_classes)
    found = head.diagnose(torch.ones(3, 4), torch.zeros(3, dtype=torch.int64))
    assert found.verdict == (
        "The loss is exact: num_samples is the number of classes. cross_entropy is faster."
    )


SKEWED = {
    "bias": torch.tensor([9.0] * 4 + [0.0] * 296),
    "num_samples": 12,
    "presample_factor": 3,
    "seed": 1,
}


def train(head, steps, num_classes=300, size=16):
    """Steps on examples of rare classes; rows hardly move."""
    optimizer = tapas.optim.SGD(head, lr=1e-6)
    query = torch.randn(size, D, generator=tapas.rng.stream(0, "query"))
    losses = []
    for _ in range(steps):
        losses.append(head(query, torch.arange(size) + 100))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses)


def test_a_uniform_start_is_checked_once_and_nothing_else_changes():
    head = tapas.TapasSoftmax(300, D, **SKEWED)
    cheap = train(head, 100)
    with pytest.warns(
        UserWarning,
        match=r"^classes are drawn uniformly, and after 100 steps the sampled gradient has a "
        r"cosine of 0\.[0-8]\d with the exact one, below 0\.9\. Pass counts=, how often training "
        r"has each class; or proposal=tapas\.Uniform\(300\) to keep it so\.$",
    ):
        checked = train(head, 1)
    rest = train(head, 30)  # a warning is an error here
    chosen = tapas.TapasSoftmax(300, D, proposal=tapas.Uniform(300), **SKEWED)
    assert torch.equal(train(chosen, 131), torch.cat([cheap, checked, rest]))


def test_a_uniform_start_that_is_good_enough_is_silent():
    train(tapas.TapasSoftmax(300, D, **SKEWED | {"bias": True, "num_samples": 150}), 110)
    train(tapas.TapasSoftmax(300, D, counts=torch.ones(300), **SKEWED), 110)


def test_the_check_waits_until_it_is_cheap():
    """All classes, three times, for 8 queries: at most a tenth of the scores before."""
    assert is_time_to_check(300, 100, 10 * 3 * 8 * 300)
    assert not is_time_to_check(300, 100, 10 * 3 * 8 * 300 - 1)
    assert not is_time_to_check(300, 99, 1e9)
