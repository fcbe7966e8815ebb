"""Which papers a run stands on."""

import tapas.heads as heads
from tapas.heads.citations import bibtex_of
from tapas.training.config import OptimizerConfig, TrainConfig
from tapas.training.head_config import HeadConfig

ROW_OPTIMIZERS = {
    "rowwise-adagrad": ("duchi2011adaptive",),
    "adagrad": ("duchi2011adaptive",),
    "lazy-adam": ("kingma2015adam",),
    "sgd": (),
}
CLASSES = {
    kind.method: kind
    for kind in vars(heads).values()
    if isinstance(kind, type) and issubclass(kind, heads.Head) and hasattr(kind, "method")
}


def cite(config: TrainConfig) -> str:
    """BibTeX for the method of a run and for the optimizer of its rows."""
    return bibtex_of((*papers_of(config.head), *optimizer_papers(config.optimizer)))


def papers_of(head: HeadConfig) -> tuple[str, ...]:
    """Keys of what a head with this configuration is made of."""
    kind = CLASSES[head.method]
    if issubclass(kind, heads.TapasSoftmax):
        return kind.papers_of(head.presample, is_priority=head.selection == "priority")
    return kind.bibtex


def optimizer_papers(optimizer: OptimizerConfig) -> tuple[str, ...]:
    return ROW_OPTIMIZERS[optimizer.rows]
