"""The tasks of the paper have the properties that it states."""

import numpy as np
import pytest
import torch

from experiments.synthetic.tasks import (
    Sizes,
    linear_task,
    long_tail_task,
    network_task,
)

SMALL = Sizes(num_classes=7, num_train=900, num_validation=50, num_test=400)


def test_train_validation_and_test_share_no_point():
    task = linear_task(SMALL)
    points = torch.cat([task.train.x, task.validation.x, task.test.x])
    assert len(torch.unique(points, dim=0)) == 900 + 50 + 400


def test_points_of_the_mixture_scatter_by_one_around_their_centroid():
    task = linear_task(Sizes(num_classes=3, num_train=30_000), dim=5)
    for label in range(3):
        mine = task.train.x[task.train.y == label]
        scatter = mine.var(dim=0)
        # a variance of m normal numbers has standard error sqrt(2 / m); 15 of them at 4.5
        assert bool(((scatter - 1).abs() < 4.5 * (2 / len(mine)) ** 0.5).all())


@pytest.mark.slow
def test_centroids_have_the_spread_the_paper_gives():
    sizes = Sizes(num_classes=1_000, num_train=4, num_validation=4, num_test=20_000)
    task = linear_task(sizes, dim=10)
    squares = task.test.x.square().sum(dim=1)  # |mu|² is 9 on average, |noise|² is 10
    error = float(squares.double().mean()) - 19
    # classes repeat 20 times: the spread of centroids dominates, var |mu|² = 2 * 81 / 10
    assert abs(error) < 4 * (16.2 / 1_000 + float(squares.var()) / 20_000) ** 0.5


def test_the_bayes_accuracy_is_that_of_the_nearest_centroid():
    task = linear_task(SMALL, dim=4)
    means = [task.train.x[task.train.y == c].double().mean(dim=0) for c in range(7)]
    centroid = torch.stack(means).numpy()
    x = task.test.x.double().numpy()
    distance = ((x[:, None, :] - centroid[None]) ** 2).sum(axis=2)
    nearest = float((distance.argmin(axis=1) == task.test.y.numpy()).mean())
    # centroids here are means of about 130 points: a few test points near a border differ
    assert abs(nearest - task.bayes_accuracy) < 4 * np.sqrt(0.25 / 400)


def test_without_noise_the_network_gives_every_class_one_point():
    task = network_task(SMALL, noise=0.0)
    assert len(torch.unique(task.train.x, dim=0)) == 7


def test_the_long_tail_has_counts_of_training_points_and_a_bayes_accuracy():
    task = long_tail_task(SMALL)
    assert torch.equal(task.counts, torch.bincount(task.train.y, minlength=7))
    share = 1 / sum(1 / k for k in range(1, 8))  # Zipf: class 0 has 1 / (1 + 1/2 + .. + 1/7)
    error = float(task.counts[0]) / 900 - share
    assert abs(error) < 4 * (share * (1 - share) / 900) ** 0.5  # fails 1 seed in 16,000
    often = float((task.test.y == 0).double().mean())
    assert often < task.bayes_accuracy <= 1
    assert not torch.equal(task.test.y[:50], task.validation.y)
