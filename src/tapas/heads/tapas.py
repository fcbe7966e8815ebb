"""TAPAS: two-pass approximate adaptive sampling for softmax (Bai, Goldman, Zhang 2017).

Per batch: draw a pool of r*n classes from Q; score it with the batch and keep n; softmax
cross-entropy on targets and kept classes. r = 1 is sampled softmax.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from tapas.candidates import Candidates
from tapas.errors import UsageError
from tapas.heads.batch import Batch, flat_context
from tapas.heads.diagnostics import Diagnosis, diagnose, verdict
from tapas.heads.facts import BuildContext, Option, Options, drawn_options
from tapas.heads.flat import FlatOptions, SharedSample, build_proposal
from tapas.proposals import Proposal
from tapas.rng import stream
from tapas.schedule import Anneal, Schedule, as_schedule, check_temperature
from tapas.selection import RULES, Priority, Selection, as_selection
from tapas.shapes import check_positive, check_query, check_samples
from tapas.tables.ranks import GlobalBatch
from tapas.tables.second_pass import SecondPass
from tapas.torch_modes import in_float32


class TapasSoftmax(SharedSample):
    """A softmax head over many classes that looks at few of them.

    Args:
        num_classes, dim: size of the class table; leave both out when you pass `table`.
        num_samples: n, classes kept for the loss.
        presample_factor: r; the pool has min(r*n, num_classes) classes. 1 is sampled softmax.
        temperature: tau of the second pass, a number or a schedule. Never touches the loss. Lower
            it with "top" alone: "priority" stays unbiased, but its variance grows without bound.
        proposal: Q of the first pass; uniform when left out.
        selection: "priority" (unbiased), "top" (the paper's), or a `Selection` of yours.
        options: `table`, `row_optimizer`, `bias`, `seed` and so on; see `FlatHead`.

    The step counts training calls (those with gradients on, in training mode). Draws are
    named by (seed, step), so that a resumed run repeats them and `sample` shows just what
    the next `forward` on the same batch will keep.
    """

    method = "tapas"
    title = "TAPAS"
    paper = "Bai, Goldman, Zhang 2017"
    bibtex = ("bai2017tapas",)
    options: ClassVar[Options] = {
        **drawn_options(),
        "presample_factor": Option(8, int, low=1, help="r; 1 is sampled softmax"),
        "selection": Option(
            "priority", ("priority", "top"), help="rule of the second pass; top is the paper's"
        ),
        "temperature": Option(1.0, float, low=1e-6, high=1e6, help="tau of the second pass"),
        "anneal_to": Option(
            None,
            float,
            low=1e-6,
            high=1e6,
            help="the temperature falls to this in a straight line over the run",
            part_of="temperature",
        ),
        "score_queries": Option(
            None,
            int,
            low=1,
            help="queries that score the pool; left out: 64 for priority, all for top",
            part_of="selection",
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
        proposal: Proposal | None = None,
        selection: str | Selection = "priority",
        **options: Unpack[FlatOptions],
    ):
        super().__init__(num_classes, dim, **options)
        self.num_samples = check_samples(num_samples, self.num_classes)
        self.presample_factor = check_positive("presample_factor", presample_factor)
        self.schedule, self.selection = as_schedule(temperature), as_selection(selection)
        if self.table.num_shards > num_samples:
            raise UsageError(
                f"num_shards is {self.table.num_shards}, but only num_samples={num_samples} "
                "classes are kept: some shards would keep none. Keep at least one for each shard."
            )
        self.proposal = build_proposal(proposal, self.table.num_classes)
        self.ranks.check_equal(
            "the head", (self.extra_repr(), self.reduction, self.ignore_index, self.seed)
        )

    @property
    def temperature(self) -> float:
        """tau at the current step."""
        value = self.schedule(self.step)
        check_temperature("temperature", value)
        return float(value)

    def papers(self) -> tuple[str, ...]:
        rule = "priority" if isinstance(self.selection, Priority) else ""
        return self.papers_of({"presample_factor": self.presample_factor, "selection": rule})

    @classmethod
    def papers_of(cls, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The paper's, and that of priority sampling where a second pass uses it."""
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

    def _logits(self, batch: GlobalBatch) -> tuple[Tensor, Tensor]:
        pool, second_pass = self._two_passes(batch)
        scored = 0.0
        if second_pass is not None:  # queries that do not score the pool score the kept classes
            scored = len(pool) * len(second_pass.query) / len(batch.query)
        self._count_scores(self.num_samples + scored)
        return self.table.sampled_logits(batch, pool, second_pass)

    def _two_passes(self, batch: GlobalBatch) -> tuple[Candidates, SecondPass | None]:
        """S' of this step, and how S is chosen from it."""
        generator = stream(self.seed, "draws", self.step)
        proposal = self.proposal.conditioned_on(batch.context)
        pool = proposal.sample(self._pool_size, generator=generator)
        second_pass = SecondPass.draw(
            batch, pool, self.num_samples, self.selection, self.temperature, generator=generator
        )
        return pool, second_pass

    @in_float32
    def sample(
        self, query: Tensor, target: Tensor | None = None, *, context: Tensor | None = None
    ) -> Candidates:
        """What the two passes keep for this batch, on the table's device.

        With `target`, exactly what the next `forward` will keep; without it, no query has
        targets of its own to leave out of its score.
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
            raise UsageError("the batch is empty: there is no query to sample for.")
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
        batch, everyone = self._gather_all(query, target, context)
        pool, second_pass = self._two_passes(everyone)
        kept = self.table.select(pool, second_pass)
        found = diagnose(self.table, batch, pool.to(self.table.device), kept, self.temperature)
        advice = verdict(
            found["gradient_cosine"],
            num_classes=self.num_classes,
            num_samples=self.num_samples,
            presample_factor=self.presample_factor,
            selection=self.selection,
            proposal=self.proposal,
        )
        return Diagnosis(**found, with_verdict=advice)

    def extra_repr(self) -> str:
        return (
            f"num_samples={self.num_samples}, presample_factor={self.presample_factor}, "
            f"temperature={self.schedule!r}, selection={self.selection!r}, "
            f"proposal={self.proposal!r}"
        )
