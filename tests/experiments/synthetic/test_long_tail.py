"""The long-tailed task: its distribution, and its best possible answers."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from experiments.synthetic import long_tail
from experiments.synthetic.long_tail import LongTail, LongTailConfig
from tapas import UsageError
from tapas.rng import stream

C, D, B = 31, 3, 7
CONFIG = LongTailConfig(num_classes=C, dim=D, noise=0.4)


def build(config: LongTailConfig = CONFIG, seed: int = 0) -> LongTail:
    return LongTail(config, seed=seed)


def brute_force_posterior(task: LongTail, x: torch.Tensor) -> np.ndarray:
    """P(y | x) from its definition, one number at a time."""
    posterior = np.empty((len(x), C))
    for b, point in enumerate(x.double().numpy()):
        for y, centroid in enumerate(task.centroid.double().numpy()):
            frequency = 1 / (y + 1) ** task.config.exponent
            distance = sum((p - c) ** 2 for p, c in zip(point, centroid, strict=True))
            posterior[b, y] = frequency * math.exp(-distance / (2 * task.config.noise**2))
    return posterior / posterior.sum(axis=1, keepdims=True)


def test_frequencies_fall_like_zipf():
    frequency = build().frequency
    assert frequency.dtype == torch.float64
    torch.testing.assert_close(frequency.sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(frequency[0] / frequency, torch.arange(1, C + 1).double())
    flat = build(dataclasses.replace(CONFIG, exponent=0)).frequency
    torch.testing.assert_close(flat, torch.full((C,), 1 / C, dtype=torch.float64))


def test_classes_are_drawn_by_their_frequency():
    draws = 40_000
    task = build()
    seen = torch.bincount(task.sample(draws, generator=stream(0, "draws")).y, minlength=C)
    expected = task.frequency * draws
    # chi-square with 30 degrees of freedom is above 70 once in 20,000 seeds
    assert float(((seen - expected) ** 2 / expected).sum()) < 70


def test_inputs_scatter_around_their_centroid():
    draws = 5_000
    task = build()
    examples = task.sample(draws, generator=stream(0, "draws"))
    z = (examples.x - task.centroid[examples.y]).double() / CONFIG.noise
    error = 1 / (draws * D) ** 0.5
    assert abs(float(z.mean())) < 4 * error  # fails 1 seed in 16,000, each
    assert abs(float(z.square().mean()) - 1) < 4 * math.sqrt(2) * error


def test_bayes_scores_are_the_log_posterior_up_to_a_constant_for_each_row():
    task = build()
    x = task.sample(B, generator=stream(0, "x")).x
    got = task.bayes_scores(x).softmax(dim=1).double().numpy()
    np.testing.assert_allclose(got, brute_force_posterior(task, x), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("scores_per_chunk", [1, 2 * C, 1 << 24])
def test_bayes_top_is_the_sorted_posterior_for_any_chunk_size(monkeypatch, scores_per_chunk):
    monkeypatch.setattr(long_tail, "SCORES_PER_CHUNK", scores_per_chunk)
    task = build()
    x = task.sample(B, generator=stream(0, "x")).x
    want = (-brute_force_posterior(task, x)).argsort(axis=1)[:, :5]
    assert task.bayes_top(x, 5).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, got 0."),
        ({"dim": 2.5}, "dim must be an integer, got 2.5."),
        ({"exponent": -1.0}, "exponent must be a finite number of at least 0, got -1.0."),
        ({"noise": 0.0}, "noise must be a finite number above 0, got 0.0."),
        ({"spread": math.inf}, "spread must be a finite number above 0, got inf."),
    ],
)
def test_a_bad_config_is_an_error_with_the_cure(bad, words):
    with pytest.raises(UsageError) as error:
        LongTailConfig(**bad)
    assert str(error.value) == words


def test_bad_arguments_are_an_error_with_the_cure():
    task = build()
    x = task.centroid[:B]
    for ask, words in (
        (lambda: task.bayes_top(x, C + 1), f"k is {C + 1}, but there are only {C} classes."),
        (lambda: task.bayes_top(x, 0), "k must be at least 1, got 0."),
        (lambda: task.bayes_scores(x[:, :2]), "x has shape (7, 2); expected (B=7, d=3)."),
        (lambda: task.sample(0, generator=stream(0)), "count must be at least 1, got 0."),
    ):
        with pytest.raises(UsageError) as error:
            ask()
        assert str(error.value) == words
