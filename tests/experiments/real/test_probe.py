"""A look into a model against plain numpy over all classes."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.real import runs as probe
from experiments.real.runs import BUCKETS, look
from tapas import Squashed, TapasSoftmax
from tapas.rng import stream

B, C, D = 5, 31, 3
TARGET = torch.tensor([[1, 2], [3, -1], [4, 30], [0, 0], [9, 8]])
BUCKET = torch.tensor([0, 0, 1, 1, 1] + 20 * [2] + 6 * [3])[
    torch.randperm(C, generator=stream(0, "order"))
]


def a_model(scale=1.0):
    bias = torch.randn(C, generator=stream(0, "bias"))
    proposal = Squashed(torch.arange(C), alpha=0.5)
    head = TapasSoftmax(C, D, num_samples=6, presample_factor=2, bias=bias, proposal=proposal)
    head.table.weight.data.copy_(scale * torch.randn(C, D, generator=stream(0, "rows")))
    return SimpleNamespace(head=head, two_passes=head, class_rows=head.table)


def a_query():
    return torch.randn(B, D, generator=stream(0, "query"))


def slow_log_prob(model):
    weight = model.head.table.weight.detach().double().numpy()
    bias = model.head.table.bias.detach().double().numpy()
    logit = a_query().double().numpy() @ weight.T + bias
    return logit - np.log(np.exp(logit).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("chunk", [1, 7, C, 1 << 16])
def test_masses_and_log_probabilities_are_those_of_numpy(scale, chunk, monkeypatch):
    monkeypatch.setattr(probe, "CLASSES_PER_CHUNK", chunk)
    model = a_model(scale)
    found = look(model, a_query(), TARGET, BUCKET)
    log_prob = slow_log_prob(model)
    for place, name in enumerate(BUCKETS):
        mine = log_prob[:, BUCKET.numpy() == place]
        mass = np.exp(mine).sum(axis=1).mean()
        assert found[f"mass of {name}"] == pytest.approx(mass, rel=1e-5, abs=1e-6)
        height = pytest.approx(mine.mean(), rel=1e-5, abs=1e-6)
        assert found[f"log-probability of {name}"] == height
    assert sum(found[f"mass of {name}"] for name in BUCKETS) == pytest.approx(1, abs=3e-6)


def test_an_empty_bucket_has_no_mass():
    found = look(a_model(), a_query(), TARGET, BUCKET.clamp(max=1))
    assert (found["mass of tail"], found["mass of unseen"]) == (0, 0)
    assert found["mass of head"] + found["mass of middle"] == pytest.approx(1, abs=2e-6)


def test_the_diagnoses_are_those_of_the_head_and_the_head_is_left_alone():
    model = a_model()
    before = model.head.table.weight.clone()
    found = look(model, a_query(), TARGET, BUCKET)
    want = asdict(model.head.diagnose(a_query(), TARGET.masked_fill(TARGET < 0, -100)))
    assert {name: found[name] for name in want} == {n: round(v, 6) for n, v in want.items()}
    assert len(found) == len(want) + 2 * len(BUCKETS)
    assert model.head.step == 0
    assert torch.equal(model.head.table.weight, before)
    assert TARGET[1, 1] == -1  # the caller's stays as it was
