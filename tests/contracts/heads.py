"""A small head of each method for the contract tests, over any table."""

import torch

from tapas import LocalTable, Squashed, TapasSoftmax
from tapas.heads.adaptive import AdaptiveSoftmax
from tapas.heads.adaptive_importance import AdaptiveImportance
from tapas.heads.dynamic_negatives import DynamicNegatives
from tapas.heads.full import FullSoftmax
from tapas.heads.gbce import GBCE
from tapas.heads.huffman import HuffmanSoftmax
from tapas.heads.in_batch import InBatchSoftmax, MixedSoftmax
from tapas.heads.nce import NCE
from tapas.heads.negative_sampling import NegativeSampling
from tapas.heads.one_vs_all import OneVsAll
from tapas.heads.partitioned import PartitionedSoftmax
from tapas.heads.sampled import SampledSoftmax
from tapas.heads.scalable_cross_entropy import ScalableCrossEntropy
from tapas.heads.self_normalised import SelfNormalised
from tapas.heads.two_level import TwoLevelSoftmax
from tapas.heads.warp import WARP
from tapas.optim import SGD, RowwiseAdagrad, anchors

C, D = 31, 6
N = 5  # classes that a method samples


def upcoming(num_classes):
    """Targets of training step `step`, of a corpus with few classes at a time."""
    return lambda step: torch.arange(3 * step, 3 * step + 4) % num_classes


def counts(num_classes):
    """From rare to frequent and back; class 3 was never seen."""
    many = 1 + torch.arange(num_classes).sub(num_classes // 2).abs()
    return many.masked_fill(torch.arange(num_classes) == 3, 0)


FLAT = {  # by method; the table goes first
    "full": lambda table, **o: FullSoftmax(table=table, **o),
    "one-vs-all": lambda table, **o: OneVsAll(table=table, **o),
    "sampled": lambda table, **o: SampledSoftmax(
        table=table, num_samples=N, **proposal(table), **o
    ),
    "in-batch": lambda table, **o: InBatchSoftmax(table=table, **o),
    "mixed": lambda table, **o: MixedSoftmax(table=table, num_samples=N, **proposal(table), **o),
    "mixed, two passes": lambda table, **o: MixedSoftmax(
        table=table, num_samples=N, presample_factor=2, **proposal(table), **o
    ),
    "adaptive-importance": lambda table, **o: AdaptiveImportance(
        table=table, counts=counts(table.num_classes), num_samples=N, min_ess=2.0, **o
    ),
    "partitioned": lambda table, **o: PartitionedSoftmax(
        table=table, num_samples=N, upcoming=upcoming(table.num_classes), **o
    ),
    "nce": lambda table, **o: NCE(table=table, num_samples=N, **proposal(table), **o),
    "negative-sampling": lambda table, **o: NegativeSampling(
        table=table, num_samples=N, **proposal(table), **o
    ),
    "self-normalised": lambda table, **o: SelfNormalised(table=table, share=0.5, **o),
    "warp": lambda table, **o: WARP(table=table, tries=40, **o),
    "dynamic-negatives": lambda table, **o: DynamicNegatives(
        table=table, num_samples=2, presample_factor=3, **proposal(table), **o
    ),
    "sce": lambda table, **o: ScalableCrossEntropy(
        table=table, num_buckets=3, bucket_queries=4, bucket_classes=N, **o
    ),
    "gbce": lambda table, **o: GBCE(table=table, num_samples=N, **proposal(table), **o),
    "tapas": lambda table, **o: TapasSoftmax(
        table=table, num_samples=N, presample_factor=2, **proposal(table), **o
    ),
    "tapas, top": lambda table, **o: TapasSoftmax(
        table=table, num_samples=N, presample_factor=2, selection="top", **proposal(table), **o
    ),
}
TREES = {"huffman": HuffmanSoftmax, "two-level": TwoLevelSoftmax, "adaptive": AdaptiveSoftmax}
HEADS = (*FLAT, *TREES)
# the loss of a step hangs on what is drawn, and not on the batch alone
DRAWING = FLAT.keys() - {"full", "one-vs-all", "in-batch", "partitioned"}


def proposal(table):
    return {"proposal": Squashed(counts(table.num_classes))}


def build(method, row_optimizer=SGD.fused(lr=0.5), *, num_classes=C, dim=D, start=0.3, **options):  # noqa: B008
    """A head of `method` over a new table with random rows."""
    if method in FLAT:
        table = LocalTable(num_classes, dim, row_optimizer=row_optimizer, seed=4)
        head = FLAT[method](table, **options)
    else:
        head = TREES[method](counts(num_classes), dim, row_optimizer=row_optimizer, **options)
    generator = torch.Generator().manual_seed(3)
    for table in tables_of(head):
        with torch.no_grad():
            rows = torch.randn(table.weight.shape, generator=generator, dtype=torch.float32)
            table.weight.copy_(start * rows)
    return head


def dense_of(head):
    """Parameters of a head that the optimizer of the encoder moves."""
    return [p for p in head.parameters() if p.requires_grad and p not in anchors(head)]


def tables_of(head):
    return [module for module in head.modules() if isinstance(module, LocalTable)]


def everything(head):
    """All tensors of a head by name, copied."""
    state = head.state_dict()
    return {k: v.clone() for k, v in state.items() if isinstance(v, torch.Tensor)}


ADAGRAD = RowwiseAdagrad.fused(lr=0.5)
