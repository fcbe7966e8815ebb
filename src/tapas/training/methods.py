"""Every way to train a softmax that this library knows: its name, its paper, what it reads.

Citations are of the head's class; see `tapas.heads.citations`.
"""

from dataclasses import dataclass

DRAWN = ("samples", "proposal", "alpha", "beta")  # n classes from a proposal
TWO_PASSES = ("presample", "selection", "temperature", "anneal_to", "score_queries")


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """One head, as a configuration names it."""

    name: str
    title: str
    paper: str
    options: tuple[str, ...] = ()  # of `HeadConfig`, beside those of all methods
    has_rows: bool = True  # one for each class: what an encoder can share, ranks keep, FAISS index
    keeps_state: bool = False  # beside its rows, in the process that trains
    looks_at_all: bool = False  # a step reads and moves every row
    estimates_softmax: bool = False  # whose loss can be mixed with copies, `model.repeats`


_ALL = (
    Method(
        name="tapas",
        title="TAPAS",
        paper="Bai, Goldman, Zhang 2017",
        options=(*DRAWN, *TWO_PASSES),
        estimates_softmax=True,
    ),
    Method(
        name="full",
        title="Full softmax",
        paper="",
        looks_at_all=True,
        estimates_softmax=True,
    ),
    Method(name="one-vs-all", title="One-vs-all", paper="Rifkin, Klautau 2004", looks_at_all=True),
    Method(
        name="sampled",
        title="Sampled softmax",
        paper="Bengio, Senécal 2003",
        options=DRAWN,
        estimates_softmax=True,
    ),
    Method(
        name="in-batch",
        title="In-batch softmax with logQ",
        paper="Yi et al. 2019",
        options=("rate",),
        keeps_state=True,
    ),
    Method(
        name="mixed",
        title="In-batch and sampled",
        paper="Yang et al. 2020",
        options=(*DRAWN, "rate"),
        keeps_state=True,
    ),
    Method(
        name="adaptive-importance",
        title="Adaptive importance sampling",
        paper="Bengio, Senécal 2008",
        options=("samples", "min_ess"),
        keeps_state=True,
    ),
    Method(
        name="partitioned",
        title="Partitioned vocabulary",
        paper="Jean et al. 2015",
        options=("samples",),
        keeps_state=True,
    ),
    Method(
        name="huffman",
        title="Hierarchical softmax, Huffman tree",
        paper="Morin, Bengio 2005",
        has_rows=False,
    ),
    Method(
        name="two-level",
        title="Hierarchical softmax, two levels",
        paper="Goodman 2001",
        options=("clusters",),
        has_rows=False,
    ),
    Method(
        name="adaptive",
        title="Adaptive softmax",
        paper="Grave et al. 2017",
        has_rows=False,
    ),
    Method(name="nce", title="NCE", paper="Gutmann, Hyvärinen 2012", options=DRAWN),
    Method(
        name="negative-sampling",
        title="Negative sampling",
        paper="Mikolov et al. 2013",
        options=(*DRAWN, "negatives"),
    ),
    Method(
        name="self-normalised",
        title="Self-normalisation",
        paper="Andreas, Klein 2015",
        options=("penalty", "share"),
        looks_at_all=True,
    ),
    Method(
        name="warp",
        title="WARP",
        paper="Weston, Bengio, Usunier 2011",
        options=("tries",),
    ),
    Method(
        name="dynamic-negatives",
        title="Dynamic negative sampling",
        paper="Zhang et al. 2013",
        options=(*DRAWN, "hardest"),
    ),
    Method(
        name="sce",
        title="Scalable cross-entropy",
        paper="Mezentsev et al. 2024",
        options=("bucket_classes",),
    ),
    Method(
        name="gbce",
        title="gBCE",
        paper="Petrov, Macdonald 2023",
        options=(*DRAWN, "calibration"),
    ),
)
METHODS = {method.name: method for method in _ALL}
