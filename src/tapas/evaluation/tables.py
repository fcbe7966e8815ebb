"""Names of metrics and rows of tables of an evaluation, for the terminal and for pages."""

from tapas.evaluation.intervals import Interval
from tapas.evaluation.scores import Scores

LABELS = {"map@20-hits": "MAP@20 ÷ hits", "loss": "softmax loss"}
CAPITALS = ("map", "ndcg", "mrr")
BUCKET_HEADING = ("items", "number", "targets", "recall@20", "share of lists")
ABOUT_BUCKETS = (
    "Head: the most frequent items, with half of the training events; tail: the rarest, with the "
    "last 10 %; unseen: in no training event."
)


def metric_label(metric: str) -> str:
    """
    >>> metric_label("map@20"), metric_label("recall@5")
    ('MAP@20', 'recall@5')
    """
    if metric in LABELS:
        return LABELS[metric]
    name, at, k = metric.partition("@")
    return (name.upper() if name in CAPITALS else name) + at + k


def plus_minus(interval: Interval | None, few: bool) -> str:
    """A number with the distance to the end of its interval, without that for `few` users."""
    if interval is None:
        return ""
    return f"{interval.mean:.4f}" if few else interval.plus_minus()


def bucket_rows(scores: Scores, few: bool) -> list[list[str]]:
    """Under `BUCKET_HEADING`: how frequent and rare items do; without intervals for `few` users."""
    rows = []
    for name, bucket in scores.buckets.items():
        recall = ""
        if bucket.recall is not None:
            recall = f"{bucket.recall.mean:.4f}" if few else bucket.recall.format()
        counts = (f"{bucket.num_classes:,}", f"{bucket.num_targets:,}")
        rows.append([name, *counts, recall, f"{100 * bucket.share:.1f} %"])
    return rows
