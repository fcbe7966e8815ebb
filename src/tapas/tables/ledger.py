"""Which pushes a server has applied, so that none is applied twice."""

from tapas.tables.messages import Receipt, Stamp


class Ledger:
    """Pushes by (worker, sequence); all with a sequence below `settled` have been applied.

    A worker says below which sequence it will never push again: those need no entry. What one
    worker has heard of says nothing of the pushes of another.
    """

    def __init__(self, settled: int = 0):
        self.settled = settled
        self._settled_by: dict[int | str, int] = {}
        self.num_repeated = 0
        self._entries: dict[tuple[int | str, int], Receipt] = {}

    def settle(self, worker: int | str, below: int) -> None:
        if below > self._settled_by.get(worker, self.settled):
            self._settled_by[worker] = below
            for tag in [t for t in self._entries if t[0] == worker and t[1] < below]:
                del self._entries[tag]

    def find(self, worker: int | str, sequence: int, stamp: Stamp) -> Receipt | None:
        """What to answer to a push that has been applied before; None if it has not."""
        found = self._entries.get((worker, sequence))
        if found is None and sequence >= self._settled_by.get(worker, self.settled):
            return None
        self.num_repeated += 1
        return found or Receipt(False, 0, 0, 0, stamp)

    def enter(self, worker: int | str, sequence: int, receipt: Receipt) -> Receipt:
        """Note that it is applied now."""
        self._entries[worker, sequence] = receipt._replace(fresh=False)
        return receipt
