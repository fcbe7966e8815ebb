"""Named random streams."""

import numpy as np
import pytest
import torch
from error_text import raises_text
from oracle.proposals import p_value

from tapas.rng import check_generator, stream


def numbers(generator: torch.Generator) -> list[int]:
    return torch.randint(2**40, (5,), generator=generator).tolist()


def test_the_numbers_of_a_stream_never_change_between_versions():
    """A run must resume identically under another version of this library."""
    for name in ((0, "pool", 3), (np.int64(0), "pool", np.int32(3))):
        got = torch.randint(1000, (6,), generator=stream(*name)).tolist()
        assert got == [862, 858, 897, 548, 926, 318]


@pytest.mark.parametrize(
    "other",
    [(8, "pool", 3), (7, "keep", 3), (7, "pool", 4), (7, "pool"), (7, 3, "pool"), (7, "pool", "3")],
    ids=str,
)
def test_another_seed_purpose_step_order_or_type_is_another_stream(other):
    assert numbers(stream(*other)) != numbers(stream(7, "pool", 3))


def test_similar_names_give_different_streams():
    assert numbers(stream(0, "ab", "c")) != numbers(stream(0, "a", "bc"))
    assert numbers(stream(1, 23)) != numbers(stream(12, 3))


def test_streams_of_neighbouring_steps_are_unrelated():
    """First numbers of 5,003 consecutive steps, and of each with its successor."""
    first = torch.stack([torch.rand((), generator=stream(0, "pool", i)) for i in range(5_003)])
    cell = (first * 7).long().numpy()
    # each fails one seed in a million
    assert p_value(np.bincount(cell, minlength=7), np.full(7, 1 / 7)) > 1e-6
    pair = np.bincount(cell[:-1] * 7 + cell[1:], minlength=49)
    assert p_value(pair, np.full(49, 1 / 49)) > 1e-6


class FarGenerator(torch.Generator):
    """Pretends to be on a GPU."""

    device = torch.device("cuda", 1)


def test_anything_but_a_cpu_generator_is_refused():
    check_generator(stream(-5, "negative seeds are fine"))
    with raises_text(
        "generator is on cuda:1; expected cpu. Ids are drawn on the CPU, so that one seed gives "
        "the same ids on every device, and then moved to the table's."
    ):
        check_generator(FarGenerator())
    for wrong, kind in ((0, "int"), (None, "NoneType"), ("seed", "str")):
        with raises_text(
            f"generator must be a torch.Generator, got {kind}. tapas.rng.stream(seed, 'name') "
            "makes one."
        ):
            check_generator(wrong)
