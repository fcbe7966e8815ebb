"""Fake jobs of servers and workers, whose measurements are computed from n, r and rule."""

from experiments.system.config import System
from experiments.system.measure import Segment

SMALL = System().quick()
SECONDS = {  # per step, by n / 16, rule and r; for the paper's rule those of the paper
    (1, "top", 1): 1 / 181,
    (1, "top", 8): 1 / 173,
    (1, "priority", 8): 1.5 / 181,
    (8, "top", 1): 1 / 92,
    (8, "top", 8): 1 / 81,
    (8, "priority", 8): 2 / 92,
}


def fake_segment(config, steps, *, slow=1.0, collided=0.25):
    """A segment of n + 10 pushed rows per step, a quarter of them collided, staleness 1 or 3."""
    options = config.head.options
    times = options["num_samples"] // SMALL.samples
    seconds = SECONDS[times, options["selection"], options["presample_factor"]]
    rows = steps * (options["num_samples"] + 10)
    return Segment(
        steps=steps,
        seconds=slow * steps * seconds,
        bytes_sent=steps * 2_000_000.0,
        rows_pushed=rows,
        rows_collided=round(collided * rows),
        staleness={1: steps // 4, 3: steps - steps // 4},
        loss=5.0,
    )


class Engine:
    """Opens fake jobs in place of `RayJob`, and records the calls.

    `answer(config, steps)` is the segment that a run returns.
    """

    def __init__(self, answer=fake_segment):
        self.answer, self.opened, self.ran, self.closed = answer, [], [], 0

    def __call__(self, config, cache):
        assert len(self.opened) == self.closed, "two jobs at once would share the cores"
        self.opened.append(config)
        return FakeJob(self, config)


class FakeJob:
    """A job whose runs return at once."""

    def __init__(self, engine, config):
        self.engine, self.config = engine, config

    def run(self, steps):
        self.engine.ran.append(steps)
        return self.engine.answer(self.config, steps)

    def close(self):
        self.engine.closed += 1
