"""What `cross_entropy` and `nn.Linear` have and heads have not: an error with the cure for each."""

from collections.abc import Iterable, Mapping

from tapas.errors import UsageError

_IN_CONSTRUCTOR = "{name} belongs to the constructor of the head: TapasSoftmax(..., {name}=...)."
OPTIONS = {  # of the constructor
    "label_smoothing": "label_smoothing is not supported: it needs the scores of all classes, and "
    "the loss has those of a sample. Leave it out, or use cross_entropy if the classes are few.",
    "weight": "weight is not supported: there are no weights of classes. Pass one weight for each "
    "target to the head, target_weight=class_weight[target]; the mean is still over examples.",
    "lr": "lr belongs to the optimizer of the rows: tapas.optim.RowwiseAdagrad(head, lr=0.1), or "
    "row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1) for the constructor of the head.",
    "size_average": 'size_average is not supported. Use reduction="mean" or "sum".',
    "reduce": 'reduce is not supported. Use reduction="none".',
}
ARGUMENTS = {  # of the call
    **OPTIONS,
    "reduction": _IN_CONSTRUCTOR.format(name="reduction"),
    "ignore_index": _IN_CONSTRUCTOR.format(name="ignore_index"),
    "counts": _IN_CONSTRUCTOR.format(name="counts"),
}
NO_TARGET = (
    "a head returns the loss and needs a target: head(query, target). To predict, call "
    "head.topk(query, k) for the best classes, or head.log_prob(query, ids)."
)
ATTRIBUTES = {
    "predict": "head.topk(query, k) has the best classes, head.log_prob(query, ids) their "
    "log-probabilities",
    "weight": "the rows are head.table.weight",
    "bias": "the biases are head.table.bias",
    "in_features": "it is head.dim",
    "out_features": "it is head.num_classes",
}


def refuse_names(names: Iterable[str], cures: Mapping[str, str]) -> None:
    """Raise the error of the first of `names` that `cures` has."""
    for name in names:
        if name in cures:
            raise UsageError(cures[name])
