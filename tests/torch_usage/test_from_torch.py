"""From `nn.Linear` and `nn.Embedding` to a head, and from a trained head to a server."""

import re

import pytest
import safetensors.torch
import torch
from contracts.heads import FLAT
from torch import nn
from torch.nn import functional

import tapas
from tapas import DataError, TapasSoftmax, UsageError
from tapas.heads import METHODS, FullSoftmax, NegativeSampling
from tapas.optim import Combined, LazyAdam, RowwiseAdagrad
from tapas.rng import stream

C, D, B = 31, 5, 7


def draw(*shape):
    return torch.randn(*shape, generator=stream(0, "numbers"))


def layer_of(**options):
    layer = nn.utils.skip_init(nn.Linear, D, C, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(draw(*parameter.shape))
    return layer


def test_a_linear_layer_becomes_a_head_with_its_logits():
    layer, query, target = layer_of(), draw(B, D), torch.arange(B)
    head = FullSoftmax.from_linear(layer)
    torch.testing.assert_close(head(query, target), functional.cross_entropy(layer(query), target))
    head.table.weight.zero_()  # a copy
    assert layer.weight.abs().sum() > 0
    head = TapasSoftmax.from_linear(
        layer_of(bias=False), num_samples=4, counts=torch.ones(C), seed=3
    )
    assert (head.num_samples, head.seed, head.table.has_bias) == (4, 3, False)
    assert (head.num_classes, head.dim, head.proposal.alpha) == (C, D, 0.75)


@pytest.mark.parametrize("method", sorted({name.split(",")[0] for name in FLAT}))
def test_every_flat_head_starts_from_rows(method):
    embedding = nn.Embedding.from_pretrained(draw(C, D))
    needs = {"num_samples": 4} if "num_samples" in METHODS[method].options else {}
    if "upcoming" in METHODS[method].reads:
        needs["upcoming"] = lambda step: torch.arange(B)
    head = METHODS[method].from_rows(embedding.weight, bias=torch.arange(C) / C, **needs)
    assert torch.equal(head.table.weight, embedding.weight)
    assert torch.equal(head.table.bias, torch.arange(C) / C)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("bfloat16", "bfloat16"), ("float16", "float32"), ("float64", "float32")],
)
def test_rows_keep_their_dtype_if_a_table_has_it(given, kept):
    head = FullSoftmax.from_rows(draw(C, D).to(getattr(torch, given)))
    assert head.table.weight.dtype == getattr(torch, kept)
    torch.testing.assert_close(head.table.weight.float(), draw(C, D), atol=0.01, rtol=0.01)


BROKEN = draw(C, D)
BROKEN[17, 2] = torch.nan
WRONG = [
    (
        lambda: TapasSoftmax.from_linear(nn.Embedding.from_pretrained(draw(C, D)), num_samples=4),
        "from_linear takes a torch.nn.Linear, got Embedding. For rows from elsewhere use "
        "TapasSoftmax.from_rows(weight), weight (num_classes, dim).",
    ),
    (
        lambda: FullSoftmax.from_rows(BROKEN),
        "row 17 of weight holds NaN or inf. Replace it, for example by 0.",
    ),
    (
        lambda: FullSoftmax.from_rows(torch.ones(C, D).long()),
        "weight has shape (31, 5) and torch.int64; expected dense floating point rows, "
        "(num_classes, dim).",
    ),
    (
        lambda: FullSoftmax.from_rows(torch.ones(C)),
        "weight has shape (31,) and torch.float32; expected dense floating point rows, "
        "(num_classes, dim).",
    ),
    (
        lambda: FullSoftmax.from_rows(draw(C, D).to_sparse()),
        "weight has shape (31, 5) and torch.sparse_coo; expected dense floating point rows, "
        "(num_classes, dim).",
    ),
    (
        lambda: FullSoftmax.from_linear(nn.Linear(D, C, device="meta")),
        "weight has no values yet: initialise or load it first.",
    ),
    (
        lambda: FullSoftmax.from_linear(nn.LazyLinear(C)),
        "weight has no values yet: initialise or load it first.",
    ),
    (
        lambda: FullSoftmax.from_rows([[1.0]]),
        "weight must be a torch.Tensor, got list. torch.as_tensor makes one.",
    ),
    (
        lambda: FullSoftmax.from_rows(draw(C, D), num_classes=3),
        "num_classes cannot be passed: the head makes a table as large as weight.",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words[:30] for _, words in WRONG])
def test_what_cannot_be_rows_is_refused(call, words):
    with pytest.raises((UsageError, DataError), match="^" + re.escape(words) + "$"):
        call()


class Model(nn.Module):
    def __init__(self, row_optimizer=None):
        super().__init__()
        self.encoder = layer_of()
        self.head = TapasSoftmax(C, C, num_samples=4, row_optimizer=row_optimizer, seed=5)


@pytest.mark.parametrize("way", ["fused", "an optimizer"])
def test_a_trained_model_is_served_without_optimizer_state(way, tmp_path):
    model = Model(LazyAdam.fused(lr=0.1) if way == "fused" else None)
    optimizer = torch.optim.SGD(model.encoder.parameters(), lr=0.1)
    if way != "fused":
        optimizer = Combined(optimizer, RowwiseAdagrad(model, lr=0.1))
    for _ in range(3):
        model.head(model.encoder(draw(B, D)), torch.arange(B)).backward()
        optimizer.step()
        optimizer.zero_grad()
    safetensors.torch.save_file(tapas.serving_state_dict(model), tmp_path / "served.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "served.safetensors")
    numbers = sum(value.numel() for value in loaded.values())
    assert numbers == (D + 1) * C + (C + 1) * C + 3  # and seed, step, seed
    served = Model()
    served.load_state_dict(loaded, strict=True)
    query = model.encoder(draw(B, D))
    assert torch.equal(served.head.topk(query, 3)[0], model.head.topk(query, 3)[0])
    assert served.head.step == 3
    assert list(model.state_dict()) != list(loaded) or way != "fused"


def test_rows_on_many_ranks_are_saved_by_checkpoints(monkeypatch):
    model = Model()
    monkeypatch.setattr("tapas.tables.serving.LocalTable", tapas.ShardedTable)
    words = "^the rows of a LocalTable are not all in this process. Save them with tapas.save_check"
    with pytest.raises(UsageError, match=words):
        tapas.serving_state_dict(model)


CLASS_WEIGHTS = (
    "weight is not supported: there are no weights of classes. Pass one weight for each target to "
    "the head, target_weight=class_weight[target]; the mean is still over examples."
)
SMOOTHING = (
    "label_smoothing is not supported: it needs the scores of all classes, and the loss has those "
    "of a sample. Leave it out, or use cross_entropy if the classes are few."
)
ABSENT = [
    (lambda: NegativeSampling(C, D, num_samples=4, label_smoothing=0.1), SMOOTHING),
    (lambda: TapasSoftmax(C, D, num_samples=4, weight=torch.ones(C)), CLASS_WEIGHTS),
    (
        lambda: TapasSoftmax(C, D, num_samples=4, reduce=False),
        'reduce is not supported. Use reduction="none".',
    ),
    (
        lambda: TapasSoftmax(C, D, num_samples=4, lr=0.1),
        "lr belongs to the optimizer of the rows: tapas.optim.RowwiseAdagrad(head, lr=0.1), or "
        "row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1) for the constructor of the head.",
    ),
    (lambda: call(weight=torch.ones(C)), CLASS_WEIGHTS),
    (lambda: call(label_smoothing=0.1), SMOOTHING),
    (
        lambda: call(reduction="sum"),
        "reduction belongs to the constructor of the head: TapasSoftmax(..., reduction=...).",
    ),
    (
        lambda: call(contxt=1),
        "unknown argument of FullSoftmax 'contxt'. Did you mean 'context'? Known: context, query, "
        "target, target_weight.",
    ),
    (
        lambda: tapas.TapasSoftmax(C, D, num_samples=4, device="cuda:99"),
        "device is 'cuda:99', which torch cannot use here: ",
    ),
]


def call(**arguments):
    FullSoftmax(C, D)(draw(B, D), torch.arange(B), **arguments)


@pytest.mark.parametrize(("ask", "words"), ABSENT)
def test_what_cross_entropy_has_is_named_with_its_cure(ask, words):
    with pytest.raises(UsageError, match="^" + re.escape(words)):
        ask()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("predict", "head.topk(query, k) has the best classes, head.log_prob(query, ids) their "
                    "log-probabilities."),
        ("weight", "the rows are head.table.weight."),
        ("out_features", "it is head.num_classes."),
    ],
)  # fmt: skip
def test_attributes_of_a_linear_layer_name_what_a_head_has(name, words):
    with pytest.raises(AttributeError) as missing:
        getattr(FullSoftmax(C, D), name)
    assert str(missing.value) == f"'FullSoftmax' object has no attribute '{name}': {words}"
    assert not hasattr(FullSoftmax(C, D), "spam")
