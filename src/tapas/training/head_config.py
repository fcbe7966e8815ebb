"""The [head] of a configuration: which method, and what it needs to know."""

from dataclasses import dataclass, fields

from tapas.errors import UsageError, pick
from tapas.training.config_checks import at_least, one_of, within
from tapas.training.methods import METHODS, Method


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadConfig:
    """A method and its options; the last three are for all methods.

    An option that the method does not read must be left as it is: nothing is dropped in
    silence. `tapas compare --list` says which method reads what.
    """

    method: str = "tapas"
    samples: int | None = None  # n; left out: 1,000, or an eighth of few classes
    presample: int = 8  # r; 1 is sampled softmax
    selection: str = "priority"  # or "top", the paper's
    temperature: float = 1.0
    anneal_to: float | None = None  # the temperature falls to this in a straight line over the run
    score_queries: int | None = None  # queries that score; left out: 64 for priority, all for top
    proposal: str = "squashed"  # or "log-uniform" by rank, or "bigram" by what came before
    alpha: float = 0.75  # squash exponent of the training frequencies that classes are drawn by
    beta: float | None = None  # floor of squashed frequencies; left out: that of a class seen once
    rate: float = 0.01  # in-batch, mixed: at which frequencies of batches are learned
    min_ess: float = 50.0  # adaptive-importance: effective sample size that a batch shall have
    clusters: int | None = None  # two-level; left out: about the root of the number of classes
    negatives: float = 5.0  # negative-sampling: noise classes that weigh against each target
    penalty: float = 0.1  # self-normalised: of the squared log of the partition sum
    share: float = 0.1  # self-normalised: examples of a batch that are normalised
    tries: int = 1024  # warp: draws for one that violates the margin
    hardest: int = 64  # dynamic-negatives: of the samples, those that an example keeps
    bucket_classes: int = 256  # sce: classes of a bucket, the nearest among all
    calibration: float = 0.75  # gbce: t, from 0 (as sampled) to 1 (fully calibrated)
    next_items: int = 5  # targets of one position
    target_decay: float = 1.0  # weight of each further target against the one before it
    positions: str = "all"  # predict from all baskets of a stretch, or from the "last"

    def __post_init__(self) -> None:
        for name in ("samples", "score_queries", "clusters"):
            if getattr(self, name) is not None:
                at_least(f"head.{name}", getattr(self, name), 1)
        for name in ("presample", "next_items", "tries", "hardest", "bucket_classes"):
            at_least(f"head.{name}", getattr(self, name), 1)
        one_of("head.selection", self.selection, ("priority", "top"))
        one_of("head.positions", self.positions, ("all", "last"))
        one_of("head.proposal", self.proposal, ("squashed", "log-uniform", "bigram"))
        for name, low, high in (
            ("alpha", 0, 1),
            ("beta", 1e-300, 1),
            ("target_decay", 1e-6, 1),
            ("temperature", 1e-6, 1e6),
            ("anneal_to", 1e-6, 1e6),
            ("rate", 1e-9, 1),
            ("min_ess", 1, 1e9),
            ("negatives", 1e-6, 1e9),
            ("penalty", 0, 1e6),
            ("share", 1e-9, 1),
            ("calibration", 0, 1),
        ):
            if getattr(self, name) is not None:
                within(f"head.{name}", getattr(self, name), low, high)
        self._check_unread()

    @property
    def the_method(self) -> Method:
        return pick("head.method", self.method, METHODS)

    def _check_unread(self) -> None:
        read = {"method", "next_items", "target_decay", "positions", *self.the_method.options}
        for option in fields(self):
            if option.name not in read and getattr(self, option.name) != option.default:
                readers = [m.name for m in METHODS.values() if option.name in m.options]
                raise UsageError(
                    f"head.{option.name} is no option of the method '{self.method}', but of "
                    f"{', '.join(readers)}. Leave it out."
                )
