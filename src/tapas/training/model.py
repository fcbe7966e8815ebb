"""The sequence model: input vectors, an encoder, a softmax head and an optional copy part."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tapas.data.windows import SequenceBatch
from tapas.encoders import Encoder, Places, last_state
from tapas.errors import UsageError
from tapas.heads import FlatHead, Head, SharedSample, TapasSoftmax
from tapas.tables import ClassTable
from tapas.training.copy_part import CopyDistribution, CopyPart

PLACES_AT_ONCE = 1 << 13  # positions of histories that are encoded at a time to predict


class SequenceModel(nn.Module):
    """Predicts the next items of a history.

    `inputs` is the table of item vectors that the encoder reads; if left out, the encoder reads
    the rows of the softmax. Only rows of items in the batch are read and updated. With `copy`,
    part of the probability is copied from the history. Batches may be on any device; they are
    moved to that of the tables.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
        *,
        inputs: ClassTable | None = None,
        encoder_dtype: torch.dtype = torch.float32,
        target_decay: float = 1.0,
        copy: CopyPart | None = None,
    ):
        super().__init__()
        self.encoder, self.head, self.input_table = encoder, head, inputs
        self.copy = copy
        self.encoder_dtype, self.target_decay = encoder_dtype, target_decay
        if not self.inputs.dim == encoder.dim == head.dim:
            raise UsageError(
                f"inputs, encoder and head have {self.inputs.dim}, {encoder.dim} and "
                f"{head.dim} dimensions; expected the same dim for all three."
            )
        if copy is not None and not isinstance(head, SharedSample):
            raise UsageError(
                f"a copy part needs softmax probabilities, which the method '{head.method}' does "
                "not estimate. Leave `copy` out, or use TapasSoftmax."
            )

    @property
    def inputs(self) -> ClassTable:
        """The table that the encoder reads: `input_table`, or `output_table` if it is shared."""
        return self.output_table if self.input_table is None else self.input_table

    @property
    def output_table(self) -> ClassTable:
        """The class table of the softmax; UsageError if the method has none."""
        if isinstance(self.head, FlatHead):
            return self.head.table
        raise UsageError(
            f"the method '{self.head.method}' has no table of class vectors, which shared inputs, "
            "exports and similar items need. `tapas recommend` works without it."
        )

    @property
    def tapas_head(self) -> TapasSoftmax:
        """The head; UsageError if it is not a TapasSoftmax."""
        if isinstance(self.head, TapasSoftmax):
            return self.head
        raise UsageError(f"the method of this model is '{self.head.method}'; expected 'tapas'.")

    def states(
        self, items: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Queries (B, T, D) of `items` (B, T); items beyond `lengths` (B,) are padding."""
        items, lengths = items.to(self.inputs.device), lengths.to(self.inputs.device)
        return self._encode(self._vectors(items, lengths), lengths, generator)

    def _vectors(self, items: Tensor, lengths: Tensor) -> Tensor:
        """Input vectors (B, T, D) of `items` (B, T), 0 for padding."""
        places = Places.of(lengths, items.shape[1])
        return places.pad(self._rows(items, places))

    def _rows(self, items: Tensor, places: Places) -> Tensor:
        """Input vectors (N, D) of the events of `items` (B, T) at `places`.

        Padding must not read or update any row.
        """
        return self.inputs.lookup(items.reshape(-1)[places.index])

    def _encode(self, x: Tensor, lengths: Tensor, generator: torch.Generator | None) -> Tensor:
        if not len(x):
            return x
        with self._autocast(x):
            states: Tensor = self.encoder(x, lengths, generator=generator)
        return states.float()

    def _queries(
        self,
        rows: Tensor,
        places: Places,
        query_index: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Queries (Q, D) at `query_index` (Q,) of the events with vectors `rows` (N, D)."""
        if not len(rows):  # this rank has no examples
            return rows
        with self._autocast(rows):
            query = self.encoder.queries(rows, places, query_index, generator=generator)
        return query.float()

    def _autocast(self, x: Tensor) -> torch.autocast:
        half = self.encoder_dtype != torch.float32
        return torch.autocast(x.device.type, dtype=self.encoder_dtype, enabled=half)

    def loss(self, batch: SequenceBatch, *, generator: torch.Generator | None = None) -> Tensor:
        """The sampled loss, -log p of the targets: a scalar, the mean over predicting positions."""
        device = self.inputs.device
        items, lengths = batch.items.to(device), batch.lengths.to(device)
        query_index = batch.query_index.to(device)
        places = Places.of(lengths, items.shape[1])
        rows = self._rows(items, places)
        query = self._queries(rows, places, query_index, generator)
        before = items.reshape(-1)[query_index] if self.head.wants_context else None
        if self.copy is None:
            is_plain = self.target_decay == 1 and batch.weight is None
            weight = None if is_plain else self._target_weights(batch, batch.target)
            loss: Tensor = self.head(query, batch.target, weight, context=before)
            return loss
        target = batch.target.to(device)
        softmax = self.head.sampled_log_prob(query, target, context=before)  # type: ignore[operator]
        copies: CopyDistribution = self.copy(query, places.pad(rows), items, query_index)
        log_prob = copies.log_prob(softmax, target).masked_fill(target < 0, 0.0)
        cost = -(log_prob * self._target_weights(batch, target)).sum(dim=1)
        mean_size = self.head.ranks.mean(len(cost))
        return cost.mean() if mean_size == len(cost) else cost.sum() / mean_size

    def _target_weights(self, batch: SequenceBatch, target: Tensor) -> Tensor:
        """Weights (Q, L) of `target` (Q, L), on its device: those of its place and of its event."""
        weight = target_weights(target, self.target_decay)
        return weight if batch.weight is None else weight * batch.weight.to(target.device)

    @torch.no_grad()
    def query(self, items: Tensor, lengths: Tensor) -> Tensor:
        """Queries (B, D) after the last item of each history."""
        states = self.states(items, lengths)
        return last_state(states, lengths.to(states.device))

    @torch.no_grad()
    def predict(self, items: Tensor, lengths: Tensor) -> "Prediction":
        """Predict what follows the last item of each history, rows of `items` (B, T)."""
        if len(lengths) and int(lengths.min()) < 1:
            raise UsageError("a history is empty; expected at least one item in each.")
        items, lengths = items.to(self.inputs.device), lengths.to(self.inputs.device)
        places = Places.of(lengths, items.shape[1])
        rows = self._rows(items, places)
        query = self._last_queries(rows, places)
        if self.copy is None:
            return Prediction(self.head, query, None)
        query_index = torch.arange(len(items), device=items.device) * items.shape[1] + lengths - 1
        return Prediction(self.head, query, self.copy(query, places.pad(rows), items, query_index))

    def _last_queries(self, rows: Tensor, places: Places) -> Tensor:
        """Queries (B, D) after the last of the events with vectors `rows` (N, D).

        A few sequences at a time: an encoder may need a hundred times the memory of its input.
        """
        at_once = max(1, PLACES_AT_ONCE // max(1, places.width))
        found = []
        for lengths in torch.split(places.lengths, at_once):
            here, rows = rows.tensor_split([int(lengths.sum())])
            x = Places.of(lengths, places.width).pad(here)
            found.append(last_state(self._encode(x, lengths, None), lengths))
        return torch.cat(found)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The exact distribution over all classes after each of B histories."""

    head: Head
    query: Tensor  # (B, D)
    copies: CopyDistribution | None  # None for a model without a copy part

    @property
    def num_classes(self) -> int:
        return self.head.num_classes

    def topk(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best classes of each history, (B, k) each; see `Head.topk`.

        Scores are logits, or log-probabilities for a model with a copy part.
        """
        if self.copies is None:
            return self.head.topk(self.query, k, exclude=exclude)
        return self.topk_log_prob(k, exclude)

    def topk_log_prob(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`topk` with exact log-probabilities instead of scores."""
        if self.copies is None:
            return self.head.topk_log_prob(self.query, k, exclude=exclude)
        best, log_prob = best_classes(self.head, self.query, k, exclude)
        return self.copies.topk(best, log_prob, self.num_classes, exclude)

    def topk_and_log_prob(
        self, k: int, ids: Tensor, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ids (B, k) of `topk` and `log_prob` of `ids` (B, L), in one pass over the rows."""
        best, log_prob = best_classes(self.head, self.query, k, exclude)
        softmax = log_prob(ids)
        if self.copies is None:
            return best, softmax
        _, best = self.copies.topk(best, log_prob, self.num_classes, exclude)
        return best, self.copies.log_prob(softmax, ids.to(softmax.device))

    def log_prob(self, ids: Tensor) -> Tensor:
        """Exact log-probabilities (B, L) of `ids` (B, L)."""
        softmax = self.head.log_prob(self.query, ids)
        if self.copies is None:
            return softmax
        return self.copies.log_prob(softmax, ids.to(softmax.device))


def best_classes(
    head: Head, query: Tensor, k: int, exclude: Tensor | None
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Ids (B, k) of the best classes of `query` (B, D), and a function that is `head.log_prob`.

    If all rows are in this process, it needs no other pass over them: a log-probability is that
    of the best class and the difference of the two logits.
    """
    if not isinstance(head, FlatHead) or head.ranks.size > 1:
        _, best = head.topk(query, k, exclude=exclude)
        return best, partial(head.log_prob, query)
    top, best = head.topk_log_prob(query, k, exclude=exclude)
    table = head.table

    @torch.no_grad()
    def log_prob(ids: Tensor) -> Tensor:
        first = best[:, :1]
        if bool((first < 0).any()):  # all classes are excluded
            return head.log_prob(query, ids)
        ids = torch.cat([first, ids.to(first.device)], dim=1)
        weight, bias = table.rows(ids.reshape(-1))
        with torch.autocast(query.device.type, enabled=False):
            logit = torch.einsum("bld,bd->bl", weight.view(*ids.shape, table.dim), query)
        logit += bias.view_as(ids)
        return logit[:, 1:] - logit[:, :1] + top[:, :1]

    return best, log_prob


def target_weights(target: Tensor, decay: float) -> Tensor:
    """Weights (Q, L) of `target` (Q, L): each is `decay` times the one before; rows sum to 1."""
    steps = torch.arange(target.shape[1], device=target.device)
    weight = (decay**steps) * (target >= 0)
    return weight / weight.sum(dim=1, keepdim=True)
