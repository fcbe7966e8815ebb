"""TAPAS: two-pass approximate adaptive sampling for softmax (Bai, Goldman, Zhang 2017).

For each batch: draw a pool of r*n classes from a proposal Q, score the pool with the queries of
the batch and keep n classes, then compute softmax cross-entropy over the targets and the kept
classes. With r = 1 there is no second pass: that is sampled softmax.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.heads.batch import Batch, flat_context
from tapas.heads.diagnostics import (
    QUERIES,
    Diagnosis,
    diagnose,
    is_time_to_check,
    verdict,
    warn_of_uniform,
)
from tapas.heads.facts import BuildContext, Option, Options, drawn_options
from tapas.heads.flat import FlatOptions, SharedSample, build_proposal, check_shards
from tapas.proposals import Proposal
from tapas.proposals.squashed import SparseCounts
from tapas.rng import stream
from tapas.schedule import Anneal, Schedule, as_schedule, check_temperature
from tapas.selection import RULES, Priority, Selection, as_selection
from tapas.shapes import check_positive, check_query, check_samples
from tapas.tables import LocalTable
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass
from tapas.torch_modes import in_float32


class TapasSoftmax(SharedSample):
    """Softmax cross-entropy over many classes, computed on a small sample of them.

    The head takes the place of the last `nn.Linear` and of `cross_entropy`. It holds one weight
    row and one bias for each class. `backward` computes gradients only for the rows of the targets
    and of the sample, and the `step` of an optimizer from `tapas.optim` moves those rows; the
    optimizers of `torch.optim` do not see them.

    >>> import tapas
    >>> num_classes, dim = 20_000, 8
    >>> counts = torch.arange(num_classes, 0, -1)  # how often training has each class
    >>> encoder = torch.nn.LayerNorm(dim)  # stands for your model, whose outputs are (..., dim)
    >>> head = tapas.TapasSoftmax(num_classes, dim, num_samples=100, counts=counts)
    >>> optimizer = tapas.optim.Combined(
    ...     torch.optim.AdamW(encoder.parameters()), tapas.optim.RowwiseAdagrad(head, lr=0.1)
    ... )
    >>> x, target = torch.eye(32, dim), torch.arange(32)
    >>> loss = head(encoder(x), target)  # a scalar; 800 classes were drawn, 100 of them kept
    >>> loss.backward()
    >>> optimizer.step()
    >>> scores, ids = head.topk(encoder(x), k=5)  # exact, over all classes
    >>> ids.shape
    torch.Size([32, 5])

    Args:
        num_classes, dim: size of the table, C rows of D numbers. Leave both out if you pass
            `table`.
        num_samples: n, the number of classes kept for the loss; the batch shares them.
        presample_factor: r. The pool has min(r*n, num_classes) classes; 1 is sampled softmax.
        temperature: tau, divides the scores of the second pass and never those of the loss. A
            number, or a schedule such as `tapas.Anneal`. Lower it with selection="top" only: with
            "priority" a low temperature raises the variance without bound.
        counts: how often training has each class, (C,), or a tuple `(ids, counts)` of the classes
            that occur. The pool is then drawn from `tapas.Squashed(counts)`, counts ** 0.75. Pass
            them whenever they are known: without, the pool is uniform, which cost 11 to 42 % of
            MAP@20 on the data sets of docs/evidence.md (without a second pass, presample_factor=1,
            half to nine tenths). A uniform pool that nobody asked for is checked once in the
            first steps, and a low gradient cosine is a warning.
        proposal: Q, another distribution to draw from, such as `tapas.Squashed(counts, alpha=1)`.
        selection: which classes of the pool are kept. "priority" weights them so that the
            estimate of the partition sum Z is unbiased; log Z, and with it the loss, is too small
            on average, as in every sampled softmax, and less so the better the sample is. "top"
            keeps the highest scores without weights, as the paper does, and underestimates Z.
            Or pass a `Selection` that you wrote.
        table: rows that live elsewhere, such as `tapas.ShardedTable(num_classes, dim)`, or that
            another head shares. By default the head creates a `LocalTable`, and `row_optimizer`,
            `bias`, `dtype`, `num_shards` and `device` are passed to it.
        row_optimizer: leave it out to use an optimizer of `tapas.optim` as above. A fused one,
            `tapas.optim.RowwiseAdagrad.fused(lr=0.1)`, moves the rows inside `backward` instead.
        bias: True (start at 0), False, or (C,) values to start at.
        dtype: float32 or bfloat16, of the rows; the loss is computed in float32.
        num_shards: emulate that many shards, each of which keeps its share of the sample.
        device: of the rows; torch's default device if left out.
        reduction: "mean" over examples, "sum" or "none", as in `cross_entropy`.
        ignore_index: the target value that means padding.
        seed: of all random draws and of the initial rows; `torch.manual_seed` has no effect.

    Calling the head, `head(query, target, target_weight=None, context=None)`, returns the loss in
    nats as float32: a scalar, or one value for each example with reduction="none". Shapes are in
    `forward`. `topk`, `log_prob` and `full_loss` are exact and read all classes.

    `TapasSoftmax.from_linear(layer, num_samples=...)` starts from the weights of an `nn.Linear`,
    `from_rows` from any rows. Unlike `cross_entropy` it has no `label_smoothing`, no class
    `weight` (pass `target_weight=class_weight[target]`; the mean is still over examples) and no
    probabilities of all classes as targets.

    The draws of a step depend on `seed` and the number of training calls so far, so that a resumed
    run repeats them, and `sample` returns what the next `forward` on the same batch will keep.
    """

    method = "tapas"
    title = "TAPAS"
    paper = "Bai, Goldman, Zhang 2017"
    bibtex = ("bai2017tapas",)
    options: ClassVar[Options] = {
        **drawn_options(),
        "presample_factor": Option(
            8, int, low=1, help="r: the pool is r times num_samples; 1 is sampled softmax"
        ),
        "selection": Option(
            "priority",
            ("priority", "top"),
            help="which classes of the pool are kept; top is the paper's rule",
        ),
        "temperature": Option(
            1.0, float, low=1e-6, high=1e6, help="divides the scores of the second pass"
        ),
        "anneal_to": Option(
            None,
            float,
            low=1e-6,
            high=1e6,
            help="change the temperature linearly to this value over the run",
            argument="temperature",
        ),
        "score_queries": Option(
            None,
            int,
            low=1,
            help="queries of a batch that score the pool; default: 64 for priority, all for top",
            argument="selection",
        ),
    }
    estimates_probabilities = True

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        *,
        num_samples: int,
        presample_factor: int = 8,
        temperature: float | Schedule = 1.0,
        counts: "SparseCounts | None" = None,
        proposal: Proposal | None = None,
        selection: str | Selection = "priority",
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.num_samples = check_samples(num_samples, self.num_classes)
        self.presample_factor = check_positive("presample_factor", presample_factor)
        self.schedule, self.selection = as_schedule(temperature), as_selection(selection)
        check_shards(self.table, num_samples)
        self.proposal = build_proposal(proposal, counts, self.table.num_classes)
        chosen = proposal is not None or counts is not None
        is_exact = num_samples >= self.num_classes
        # only where all rows are in this process
        self._checks_uniform = not (chosen or is_exact) and isinstance(self.table, LocalTable)
        self.ranks.check_equal(
            "the head", (self.extra_repr(), self.reduction, self.ignore_index, self.seed)
        )

    @property
    def temperature(self) -> float:
        """tau of the current step."""
        value = self.schedule(self.step)
        check_temperature("temperature", value)
        return float(value)

    def papers(self) -> tuple[str, ...]:
        rule = "priority" if isinstance(self.selection, Priority) else ""
        return self.papers_of({"presample_factor": self.presample_factor, "selection": rule})

    @classmethod
    def papers_of(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The TAPAS paper, and that of priority sampling if a second pass uses it."""
        both = options["selection"] == "priority" and options["presample_factor"] > 1
        return (*cls.bibtex, "duffield2007priority") if both else cls.bibtex

    @classmethod
    def arguments(cls, options: Mapping[str, Any], context: BuildContext) -> dict[str, Any]:
        given = super().arguments(options, context)
        if options["score_queries"] is not None:
            rule = RULES[options["selection"]]
            given["selection"] = rule(score_queries=options["score_queries"])
        if options["anneal_to"] is not None:
            given["temperature"] = Anneal(
                start=options["temperature"], end=options["anneal_to"], steps=context.steps
            )
        return given

    @classmethod
    def rows_per_step(cls, options: Mapping[str, Any], num_classes: int) -> tuple[int, int]:
        return options["num_samples"] or 1, options["presample_factor"]

    @property
    def _pool_size(self) -> int:
        return min(self.presample_factor * self.num_samples, self.num_classes)

    def candidates(self, batch: GlobalBatch) -> Candidates:
        return self.table.select(*self._two_passes(batch))

    def _loss(self, batch: Batch, context: Tensor | None) -> Tensor:
        if self._checks_uniform and self._is_training():
            scores = self._num_scores * len(batch.query)
            if is_time_to_check(self.num_classes, self.step, scores):
                self._checks_uniform = False
                found = self._compare(batch.first(QUERIES), self._gather(batch, context))
                warn_of_uniform(found["gradient_cosine"], self.step, self.num_classes)
        return super()._loss(batch, context)

    def _costs(
        self, batch: GlobalBatch, counted: Tensor | None, factor: float | None = None
    ) -> Tensor:
        pool, second_pass = self._two_passes(batch)
        scored = 0.0
        if second_pass is not None:  # scored by some queries of the batch only
            scored = len(pool) * len(second_pass.query) / len(batch.query)
        self._count_scores(self.num_samples + scored)
        return self.table.sampled_costs(batch, pool, second_pass, counted, factor)

    def _two_passes(self, batch: GlobalBatch) -> tuple[Candidates, SecondPass | None]:
        """The pool of this step, and how n classes are selected from it (None: all are kept)."""
        generator = stream(self.seed, "draws", self.step)
        proposal = self.proposal.conditioned_on(batch.context)
        pool = proposal.sample(self._pool_size, generator=generator)
        if len(pool) <= self.num_samples:
            return pool, None
        second_pass = SecondPass.draw(
            batch, pool, self.num_samples, self.selection, self.temperature, generator=generator
        )
        return pool, second_pass

    @in_float32
    def sample(
        self, query: Tensor, target: Tensor | None = None, *, context: Tensor | None = None
    ) -> Candidates:
        """The classes kept for `query` (..., D): n ids and log expected counts.

        With `target` (...,) or (..., L) exactly those that the next `forward` on this batch will
        keep. Without it, targets are not left out of the scores of their examples. The result is
        on the device of the table; `context` is as in `forward`.
        """
        if target is not None:
            return self.candidates(self._gather_all(query, target, context)[1])
        with self.ranks.share_errors():
            flat = check_query(query, self.table.dim)
            context = flat_context(context, query.shape[:-1], flat.device)
            nothing = torch.full((len(flat), 1), -1, device=flat.device)
            batch = self.ranks.batch(
                flat, nothing, context, step=self.step, gradients=self.table.gradients
            )
        if not len(batch.query):
            raise UsageError(
                "the batch is empty: there is no query to sample for. Skip such a batch."
            )
        return self.candidates(batch)

    def _gather_all(
        self, query: Tensor, target: Tensor, context: Tensor | None
    ) -> tuple[Batch, GlobalBatch]:
        with self.ranks.share_errors():
            batch = self._prepare(query, target, None)
            context = batch.context_of(context)
        return batch, self._gather(batch, context)

    @in_float32
    def diagnose(
        self, query: Tensor, target: Tensor, *, context: Tensor | None = None
    ) -> Diagnosis:
        """Compare the sample of this batch with the exact softmax; print the result.

        Takes O(num_classes) time, so call it now and then, not in every step. On several ranks
        all must call it; each gets the numbers of the examples it passed, NaN if there are none.
        """
        found = self._compare(*self._gather_all(query, target, context))
        advice = verdict(
            found["gradient_cosine"],
            num_classes=self.num_classes,
            num_samples=self.num_samples,
            presample_factor=self.presample_factor,
            selection=self.selection,
            proposal=self.proposal,
            step=self.step,
        )
        return Diagnosis(**found, with_verdict=advice)

    @torch.no_grad()
    def _compare(self, batch: Batch, everyone: GlobalBatch) -> dict[str, float]:
        """The fields of a `Diagnosis` of `batch`, with the sample that `everyone` shares."""
        pool, second_pass = self._two_passes(everyone)
        kept = self.table.select(pool, second_pass)
        return diagnose(self.table, batch, pool.to(self.table.device), kept, self.temperature)

    def extra_repr(self) -> str:
        return (
            f"num_samples={self.num_samples}, presample_factor={self.presample_factor}, "
            f"temperature={self.schedule!r}, selection={self.selection!r}, "
            f"proposal={self.proposal!r}"
        )
