"""The sequence model: input vectors, an encoder, a softmax head and perhaps counting parts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tapas.data.windows import SequenceBatch
from tapas.encoders import Encoder, Packed, Places, last_state, latest
from tapas.errors import UsageError
from tapas.heads import FlatHead, Head, TapasSoftmax
from tapas.mixture import Mixed, Mixture, Past, softmax_part
from tapas.tables import ClassTable

PLACES_AT_ONCE = 1 << 13  # positions of histories that are encoded at a time to predict


class SequenceModel(nn.Module):
    """Predicts the next items of a history.

    `inputs` is the table of item vectors that the encoder reads; if left out, the encoder reads
    the rows of the softmax. Only rows of items in the batch are read and updated. `mixture` adds
    counting parts to what the model predicts; they do not take part in its loss. The encoder reads
    the last `history` items of longer histories. Batches may be on any device; they are moved to
    that of the tables.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
        *,
        inputs: ClassTable | None = None,
        encoder_dtype: torch.dtype = torch.float32,
        target_decay: float = 1.0,
        mixture: Mixture | None = None,
        history: int | None = None,
    ):
        super().__init__()
        self.encoder, self.head, self.input_table = encoder, head, inputs
        self.mixture, self.history = mixture, history
        self.encoder_dtype, self.target_decay = encoder_dtype, target_decay
        if not self.inputs.dim == encoder.dim == head.dim:
            raise UsageError(
                f"inputs, encoder and head have {self.inputs.dim}, {encoder.dim} and "
                f"{head.dim} dimensions; expected the same dim for all three."
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
        is_plain = self.target_decay == 1 and batch.weight is None
        weight = None if is_plain else self._target_weights(batch, batch.target)
        loss: Tensor = self.head(query, batch.target, weight, context=before)
        return loss

    def _target_weights(self, batch: SequenceBatch, target: Tensor) -> Tensor:
        """Weights (Q, L) of `target` (Q, L), on its device: those of its place and of its event."""
        weight = target_weights(target, self.target_decay)
        return weight if batch.weight is None else weight * batch.weight.to(target.device)

    @torch.no_grad()
    def query(self, items: Tensor, lengths: Tensor) -> Tensor:
        """Queries (B, D) after the last item of each history."""
        if self.history is not None:
            items, lengths = latest(items, lengths, self.history)
        states = self.states(items, lengths)
        return last_state(states, lengths.to(states.device))

    @torch.no_grad()
    def predict(self, items: Tensor, lengths: Tensor, age: Tensor | None = None) -> "Prediction":
        """Predict what follows the last item of each history, rows of `items` (B, T).

        `age` (B, T) is how many baskets ago each event was, 1 for the last basket; without it
        each event is a basket of its own.
        """
        if len(lengths) and int(lengths.min()) < 1:
            raise UsageError("a history is empty; expected at least one item in each.")
        past = None
        if self.mixture is not None:
            past = Past.of(items.cpu(), lengths.cpu(), None if age is None else age.cpu())
        items, lengths = items.to(self.inputs.device), lengths.to(self.inputs.device)
        if self.history is not None:
            items, lengths = latest(items, lengths, self.history)
        places = Places.of(lengths, items.shape[1])
        query = self._last_queries(self._rows(items, places), places)
        return Prediction(self.head, query, self.mixture, past)

    def _last_queries(self, rows: Tensor, places: Places) -> Tensor:
        """Queries (B, D) after the last of the events with vectors `rows` (N, D).

        A few sequences at a time: an encoder may need a hundred times the memory of its input.
        """
        number = len(places.lengths)
        if not number:  # of ranks, some may have no history
            return rows[:0]
        longest = int(places.lengths.max())
        if longest <= 2 * int(places.lengths.min()) and number * longest <= PLACES_AT_ONCE:
            end = torch.arange(number, device=rows.device) * places.width + places.lengths
            return self._queries(rows, places, end - 1, None)
        packed = Packed.of(places)
        rows = rows.index_select(0, packed.order)
        lengths = places.lengths[packed.sequences]
        found, done = [rows[:0]], 0
        for group in packed.groups:
            at_once = max(1, PLACES_AT_ONCE // group.width)
            for some in torch.split(lengths[done : done + group.num_sequences], at_once):
                here, rows = rows.tensor_split([int(some.sum())])
                last = torch.arange(len(some), device=some.device) * group.width + some - 1
                mine = Places.of(some, group.width)
                found.append(self._queries(here, mine, last, None))
            done += group.num_sequences
        query = torch.cat(found)
        return torch.empty_like(query).index_copy(0, packed.sequences, query)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The exact distribution over all classes after each of B histories."""

    head: Head
    query: Tensor  # (B, D)
    mixture: Mixture | None = None
    past: Past | None = None  # what counting parts read

    @property
    def num_classes(self) -> int:
        return self.head.num_classes

    def mixed(self, exclude: Tensor | None = None) -> Mixed:
        """What counting parts add to the softmax; they offer no class in `exclude` (B, E)."""
        if self.mixture is None or self.past is None:
            raise UsageError("this model has no counting parts.")
        banned = None if exclude is None else exclude.cpu()
        mixed: Mixed = self.mixture(self.past, banned)
        return mixed.to(self.query.device)

    @property
    def scale(self) -> float:
        """What logits of the softmax are multiplied by."""
        return 1.0 if self.mixture is None else float(self.mixture.scale)

    def topk(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best classes of each history, (B, k) each; see `Head.topk`.

        Scores are logits, or log-probabilities for a model with counting parts.
        """
        if self.mixture is None:
            return self.head.topk(self.query, k, exclude=exclude)
        return self.topk_log_prob(k, exclude)

    def topk_log_prob(self, k: int, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`topk` with exact log-probabilities instead of scores."""
        if self.mixture is None:
            return self.head.topk_log_prob(self.query, k, exclude=exclude)
        best, log_prob = best_classes(self.head, self.query, k, exclude, self.scale)
        return self.mixed(exclude).topk(best, log_prob)

    def topk_and_log_prob(
        self, k: int, ids: Tensor, exclude: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The ids (B, k) of `topk`, and log-probabilities (B, L) of `ids` (B, L), in one pass.

        They are those of `log_prob`; but counting parts offer no class in `exclude`, and what
        they would have given to it goes to others.
        """
        best, log_prob = best_classes(self.head, self.query, k, exclude, self.scale)
        softmax = log_prob(ids)
        if self.mixture is None:
            return best, softmax
        mixed = self.mixed(exclude)
        _, best = mixed.topk(best, log_prob)
        return best, mixed.log_prob(softmax, ids.to(softmax.device))

    def log_prob(self, ids: Tensor) -> Tensor:
        """Exact log-probabilities (B, L) of `ids` (B, L)."""
        if self.mixture is None:
            return self.head.log_prob(self.query, ids)
        softmax = self._softmax_log_prob(ids)
        return self.mixed().log_prob(softmax, ids.to(softmax.device))

    def _softmax_log_prob(self, ids: Tensor) -> Tensor:
        """Log-probabilities (B, L) of `ids` (B, L) by the softmax, as the mixture scales it."""
        if isinstance(self.head, FlatHead):
            return softmax_part.log_prob_of(self.head.table, self.query, ids, self.scale)
        return self.head.log_prob(self.query, ids)

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts of the model: the softmax, and the counting parts that it has."""
        return ("softmax", *(() if self.mixture is None else self.mixture.names))

    def contributions(self, ids: Tensor, exclude: Tensor | None = None) -> Tensor:
        """What each part adds to the probabilities of `ids` (B, L): (B, L, parts), on the CPU.

        Without counting parts it is 1, as there is only the softmax. Negative ids are padding.
        """
        if self.mixture is None or self.past is None:
            return torch.ones(*ids.shape, 1, dtype=torch.float64)
        ids = ids.clamp(min=0)
        softmax = self._softmax_log_prob(ids)
        banned = None if exclude is None else exclude.cpu()
        return self.mixture.contributions(self.past, ids, softmax, banned)


def best_classes(
    head: Head, query: Tensor, k: int, exclude: Tensor | None, scale: float = 1.0
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Ids (B, k) of the best classes of `query` (B, D), and a function for log-probabilities.

    It returns those of ids (B, L). Only methods with a table of class vectors have logits that
    `scale` can multiply.
    """
    if isinstance(head, FlatHead):
        return softmax_part.best_classes(head.table, query, k, exclude, scale)
    _, best = head.topk(query, k, exclude=exclude)
    return best, partial(head.log_prob, query)


def target_weights(target: Tensor, decay: float) -> Tensor:
    """Weights (Q, L) of `target` (Q, L): each is `decay` times the one before; rows sum to 1."""
    steps = torch.arange(target.shape[1], device=target.device)
    weight = (decay**steps) * (target >= 0)
    return weight / weight.sum(dim=1, keepdim=True)
