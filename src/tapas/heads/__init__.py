"""Heads: modules that turn queries into a loss. One published method in each file.

`METHODS` has every class of this folder that sets `method`; all other facts about a method are
attributes of its class, too. `import_method` adds methods from elsewhere.
"""

from importlib import import_module
from pkgutil import iter_modules

from tapas.errors import choice
from tapas.heads.adaptive import AdaptiveSoftmax
from tapas.heads.adaptive_importance import AdaptiveImportance
from tapas.heads.base import Head
from tapas.heads.citations import citation
from tapas.heads.diagnostics import Diagnosis
from tapas.heads.dynamic_negatives import DynamicNegatives
from tapas.heads.flat import FlatHead, LookupHead, SharedSample
from tapas.heads.full import FullSoftmax
from tapas.heads.gbce import GBCE
from tapas.heads.huffman import HuffmanSoftmax
from tapas.heads.in_batch import InBatchSoftmax, MixedSoftmax
from tapas.heads.multi_hot import ids_of
from tapas.heads.nce import NCE
from tapas.heads.negative_sampling import NegativeSampling
from tapas.heads.one_vs_all import OneVsAll
from tapas.heads.own_method import OWN_METHODS, import_method, imported_method, is_own
from tapas.heads.partitioned import PartitionedSoftmax
from tapas.heads.sampled import SampledSoftmax
from tapas.heads.scalable_cross_entropy import ScalableCrossEntropy
from tapas.heads.self_normalised import SelfNormalised
from tapas.heads.tapas import TapasSoftmax
from tapas.heads.two_level import TwoLevelSoftmax
from tapas.heads.warp import WARP


def _find_methods() -> dict[str, type[Head]]:
    """The methods of this folder by name, sorted."""
    modules = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    named = {k.method: k for k in kinds if issubclass(k, Head) and "method" in vars(k)}
    return {name: named[name] for name in sorted(named)}


METHODS = _find_methods()


def method_class(name: str) -> type[Head]:
    """The class of the method `name`, which may be an imported one of the user's own."""
    return imported_method(name) if is_own(name) else choice("head.method", name, METHODS)


def known_methods() -> dict[str, type[Head]]:
    """`METHODS` and the methods of the user's own that were imported."""
    return {**METHODS, **OWN_METHODS}


__all__ = [
    "GBCE",
    "METHODS",
    "NCE",
    "WARP",
    "AdaptiveImportance",
    "AdaptiveSoftmax",
    "Diagnosis",
    "DynamicNegatives",
    "FlatHead",
    "FullSoftmax",
    "Head",
    "HuffmanSoftmax",
    "InBatchSoftmax",
    "LookupHead",
    "MixedSoftmax",
    "NegativeSampling",
    "OneVsAll",
    "PartitionedSoftmax",
    "SampledSoftmax",
    "ScalableCrossEntropy",
    "SelfNormalised",
    "SharedSample",
    "TapasSoftmax",
    "TwoLevelSoftmax",
    "citation",
    "ids_of",
    "import_method",
]
