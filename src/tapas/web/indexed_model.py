"""A model that finds items through an approximate index instead of scoring all of them.

The index finds classes with large logits; the counting parts of a model add those that they offer.
Probabilities need the softmax's sum over all classes. It is estimated: the classes that were found
exactly, the others from a fixed random sample of the rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapas.errors import UsageError
from tapas.mixture.softmax_part import logits_of
from tapas.retrieval.faiss_index import WANTED_RECALL, build_index
from tapas.retrieval.recommender import LIST_LENGTH, Prediction
from tapas.rng import stream
from tapas.tables import LocalTable
from tapas.web.served_model import Query, ServedModel

KINDS = ("hnsw", "ivf")
FOUND = 256  # classes that the index finds for a history, at least
SAMPLE = 4_096  # rows from which the sum over the others is estimated
JUDGED = 256  # histories for which lists are compared with exact ones


class IndexedModel(ServedModel):
    """`served` with an index of `kind`, "hnsw" or "ivf", built over its rows.

    `recall` is the share of the exact lists of 20 that its lists have, measured on histories of
    the log: those of the whole model, not of the index alone.
    """

    is_approximate = True

    def __init__(self, served: ServedModel, kind: str, recall: float = WANTED_RECALL):
        super().__init__(served.name, served.model, served.step)
        table = self.model.output_table
        if not isinstance(table, LocalTable) or self.model.score != "probability":
            raise UsageError(
                f"--index {kind} needs a softmax with a vector for each item. Leave it out."
            )
        self._table = table
        queries = self._some_histories()
        prediction = self._predict(queries)
        self._index = build_index(
            table.weight, table.bias, kind, query=prediction.query, recall=recall
        )
        number = min(SAMPLE, table.num_classes)
        self._sample = torch.randperm(table.num_classes, generator=stream(0, "rows of an index"))
        self._sample = self._sample[:number].sort().values
        self._rows, self._biases = table.rows(self._sample)
        k = min(LIST_LENGTH, self.num_items)
        exact, found = served.rank(queries, k), self.rank(queries, k)
        shares = [np.isin(a.ids, b.ids).mean() for a, b in zip(exact, found, strict=True)]
        self.recall, self.num_judged = float(np.mean(shares)), len(queries)

    def _some_histories(self) -> list[Query]:
        """Histories of users of the log, or single items of an export."""
        log = self.model.log
        if log is None:
            ids, _ = self.model.popular(JUDGED)
            return [Query(ids[place : place + 1]) for place in range(len(ids))]
        users = np.linspace(0, log.num_users - 1, min(JUDGED, log.num_users)).astype(int)
        found = []
        for user in users.tolist():
            start, stop = int(log.offsets[user]), int(log.offsets[user + 1])
            items = np.asarray(log.items[start:stop], dtype=np.int64)
            found.append(Query(items, np.asarray(log.times[start:stop])))
        return found

    @torch.no_grad()
    def _predict(self, queries: Sequence[Query]) -> Any:
        return self.predict(*self._histories(queries))

    def _best(
        self, prediction: Prediction, k: int, exclude: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As the exact lists, with the classes that the index finds as the best of the softmax."""
        given: Any = prediction
        query, mixture = given.query.cpu(), given.mixture
        scale = 1.0 if mixture is None else float(mixture.scale)
        number = min(max(k, FOUND), self._table.num_classes)
        score, best = self._index.topk(query, number, exclude)
        known, logits = best, scale * score  # ids and logits of all that is known exactly
        if exclude is not None:  # they are not listed, but in the sum
            others = scale * logits_of(self._table, query, exclude.clamp(min=0))
            known = torch.cat([known, exclude], dim=1)
            logits = torch.cat([logits, others.masked_fill(exclude < 0, -torch.inf)], dim=1)
        log_sum = self._log_sum(query, known, logits, scale)[:, None]
        score, best = score[:, :k], best[:, :k]
        if mixture is None:
            return scale * score - log_sum, best
        mixed = mixture(given.past, exclude)
        score, best = mixed.topk(
            best,
            lambda ids: scale * logits_of(self._table, query, ids) - log_sum,
        )
        return score, best

    def _log_sum(self, query: Tensor, ids: Tensor, logits: Tensor, scale: float) -> Tensor:
        """(B,) log of the estimated sum of exponentials; `logits` (B, N) of `ids` are known.

        Ids are distinct, negative ones are padding.
        """
        others = scale * (query @ self._rows.float().T + self._biases.float())
        place = torch.searchsorted(self._sample, ids).clamp(max=len(self._sample) - 1)
        drawn_too = self._sample[place] == ids
        row = torch.arange(len(ids))[:, None].expand_as(ids)
        others[row[drawn_too], place[drawn_too]] = -torch.inf
        left = self._table.num_classes - (ids >= 0).sum(dim=1)
        drawn = (others > -torch.inf).sum(dim=1).clamp(min=1)
        rest = others.logsumexp(dim=1) + (left / drawn).log()  # -inf where nothing is left
        return torch.logaddexp(logits.logsumexp(dim=1), rest)
