"""Error messages for bad input of particular heads, proposals and tables, word for word.

Bad input that every head refuses is in the contract of heads, bad options of one method are in
test_options.py, mistakes with optimizers in tests/torch_usage.
"""

import re

import numpy as np
import pytest
import torch

import tapas
from tapas.optim import SGD

B, C, D = 6, 31, 4
QUERY, TARGET = torch.zeros(B, D), torch.arange(B)


def head(**options):
    return tapas.TapasSoftmax(C, D, **({"num_samples": 5, "presample_factor": 2} | options))


def beside_a_table(**options):
    return tapas.TapasSoftmax(table=tapas.LocalTable(C, D, num_shards=6), **options)


class Beyond(tapas.Uniform):
    """Draws ids beyond the last class."""

    def draw(self, k, *, generator):
        return super().draw(k, generator=generator) + 4_900


SHARDS = (
    "num_shards is 6, but only num_samples=5 classes are kept: some shards would keep none. Raise "
    "num_samples to at least one for each shard."
)
FUSED = (
    "row_optimizer must be a fused one, such as tapas.optim.RowwiseAdagrad.fused(lr=0.1), or None "
    "to use an optimizer of tapas.optim, got "
)
WRONG = [  # a call, and the start of its error; the full text if it ends in a full stop
    (
        lambda: head(selection="prioritty"),
        "unknown selection 'prioritty'. Did you mean 'priority'? Known: priority, top.",
    ),
    (
        lambda: head(selection=3),
        "selection must be a name or a Selection object such as tapas.Top(), got 3.",
    ),
    (lambda: head(num_shards=6), SHARDS),
    (lambda: beside_a_table(num_samples=5), SHARDS),
    (
        lambda: head(num_shards=32, num_samples=31),
        "cannot spread 31 classes over 32 shards. Use at most 31.",
    ),
    (lambda: head(bias=torch.zeros(30)), "bias has shape (30,); expected (C=31)."),
    (lambda: head(bias=None), "bias must be True, False or the (C,) initial values"),
    (
        lambda: head(dtype=torch.float16),
        "dtype must be float32 or bfloat16, got torch.float16.",
    ),
    (
        lambda: head(table=tapas.LocalTable(C, 3)),
        "dim is 4, but the table has 3. Leave it out.",
    ),
    (
        lambda: head(temperatur=0.5),
        "unknown option of TapasSoftmax 'temperatur'. Did you mean 'temperature'? Known: bias, "
        "counts, device, dim, dtype, ignore_index, num_classes, num_samples, num_shards, "
        "presample_factor, proposal, reduction, row_optimizer, seed, selection, table, "
        "temperature.",
    ),
    (
        lambda: beside_a_table(num_samples=9, row_optimizer=SGD.fused(), dtype=1, bias=False),
        "row_optimizer, bias, dtype cannot be passed together with a table. Pass them to the "
        "constructor of the table.",
    ),
    (lambda: tapas.TapasSoftmax(num_samples=3), "pass num_classes and dim, or a table."),
    (
        lambda: tapas.TapasSoftmax(tapas.LocalTable(9, 2), num_samples=3),
        "pass a table as a keyword argument: table=...",
    ),
    (lambda: head(row_optimizer="sgd"), FUSED + "'sgd'."),
    (lambda: head(row_optimizer=SGD), FUSED + "<class"),
    (lambda: head(row_optimizer=SGD(head(), lr=0.1)), FUSED + "SGD ("),
    (lambda: tapas.LocalTable(C, D, row_optimizer=0.1), FUSED + "0.1."),
    (lambda: head().sample(QUERY.tolist()), "query must be a torch.Tensor, got list"),
    (
        lambda: head().sample(QUERY[:0]),
        "the batch is empty: there is no query to sample for. Skip such a batch.",
    ),
    (
        lambda: head().half(),
        "class rows cannot be float16: small updates would be lost. Use bfloat16, which is rounded "
        "stochastically, or exclude the head from `.half()`.",
    ),
    *(
        (
            lambda value=value: head(temperature=lambda step: value)(QUERY, TARGET),
            f"temperature must be between 1e-06 and 1e+06, got {value!r}.",
        )
        for value in (0.0, -1.0, float("nan"), None, 1e-39, 1e39)
    ),
    (lambda: tapas.Uniform(2**63), f"num_classes must be at most 2^62, got {2**63}."),
    (lambda: head(ignore_index=1.5), "ignore_index must be an integer, got 1.5."),
    (
        lambda: head().table.lookup(TARGET, padding_idx="x"),
        "padding_idx must be an integer, got 'x'.",
    ),
    (lambda: head().table.rows([1, 2]), "ids must be a torch.Tensor, got list"),
    (lambda: tapas.Mixture("ab"), "the parts of a mixture must be proposals, got 'a'."),
    (
        lambda: tapas.losses.sampled_softmax_loss(torch.zeros(3, 3), torch.zeros(3), torch.ones(3)),
        "weight has shape (3,); expected (B=3, L=3).",
    ),
    (
        lambda: Beyond(5_000).sample(150, generator=tapas.rng.stream(0)),
        "Uniform(5000) drew class 9876; expected ids from 0 to 4999.",
    ),
    (
        lambda: tapas.Squashed([1e308, 1e308, 1, 2]),
        "counts from 1 to 1e+308 with beta 0 cannot be normalised in float64. Scale them, or clip "
        "them.",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_what_is_wrong_is_named_with_its_cure(call, words):
    whole = "$" if words.endswith(".") else ""
    with pytest.raises((tapas.UsageError, tapas.DataError), match="^" + re.escape(words) + whole):
        call()


@pytest.mark.parametrize("selection", ["priority", "top"])
def test_rows_that_were_cut_off_are_not_read(selection):
    """A table that a user has pruned, with 9 rows of 31."""
    subject = head(selection=selection)
    for name in ("weight", "bias"):
        rows = subject.table._parameters[name]
        rows.data = rows.data[:9].clone()
    words = "a pool has classes beyond the 9 rows of its table. Keep as many rows as the head has"
    with pytest.raises(tapas.UsageError, match=words):
        subject(QUERY, TARGET)


def test_rows_whose_memory_was_freed_are_not_read():
    subject = head()
    subject.table.weight.untyped_storage().resize_(0)
    for call in (lambda: subject(QUERY, TARGET), lambda: subject.topk(QUERY, 2)):
        with pytest.raises(tapas.UsageError, match=r"the memory of rows \(31, 4\) was freed"):
            call()


def test_numpy_integers_are_sizes():
    three = np.int64(C)
    assert tapas.Uniform(three).sample(3, generator=tapas.rng.stream(0)).ids.shape == (3,)
    counts = (np.array([1, 2]), np.array([3, 4]))
    assert tapas.Squashed(counts, num_classes=three).num_classes == C
    subject = tapas.TapasSoftmax(three, np.int32(D), num_samples=np.int64(5), seed=np.int64(1))
    assert subject(QUERY, TARGET).isfinite()
    found = subject.table.lookup(torch.tensor([-1, 3]), padding_idx=np.int64(-1))
    assert found[0].tolist() == [0] * D


def test_rows_that_could_not_be_cast_are_as_they_were():
    subject = head()
    with pytest.raises(tapas.UsageError, match="class rows cannot be float16"):
        subject.half()
    assert subject.table.weight.dtype == torch.float32


def test_counts_that_are_equal_in_float32_are_distinguished():
    exact = tapas.Squashed([1.0, 16777217.0, 16777216.0]).log_prob(torch.tensor([1, 2]))
    assert exact[0] > exact[1]
