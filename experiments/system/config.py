"""Settings of Table 1: its cells, the system that they run on, and rounds over them."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from experiments.synthetic.experiment import Cell
from experiments.system.viewing_log import ViewingLogConfig, write_viewing_log
from tapas.atomic_file import atomic_write
from tapas.comparison.ledger import Ledger, Result, short_key
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.errors import DataError, UsageError
from tapas.shapes import check_positive
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, ServiceConfig, TrainConfig

MORE = 8  # r, and the larger n over the smaller
RULES = ("top", "priority")  # the paper's, ours
ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """Everything that the numbers depend on, except the machine."""

    servers: int = 6
    workers: int = 6
    max_staleness: int = 11  # the default of `tapas train`: all workers are busy
    classes: int = 500_000
    users: int = 60_000
    samples: int = 1_000  # n; the larger one is 8 n
    batch: int = 35  # users; of 30 events each, about 1,000 queries
    dim: int = 64
    history: int = 50
    warm_up: int = 60  # steps before those that count
    steps: int = 120

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "max_staleness":
                check_positive(field.name, getattr(self, field.name))
        if self.max_staleness < 0:
            raise UsageError(f"max_staleness must be at least 0, got {self.max_staleness}.")
        if self.classes < MORE * self.samples:
            raise UsageError(
                f"classes must be at least {MORE * self.samples:,}, the larger number of samples, "
                f"got {self.classes:,}."
            )

    def quick(self) -> "System":
        """A version that runs in seconds."""
        return replace(
            self, servers=2, workers=2, max_staleness=3, classes=2_000, users=300, samples=16,
            batch=8, dim=8, warm_up=4, steps=8,
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, int]:
        """Both n."""
        return (self.samples, MORE * self.samples)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Both n with r=1, which is sampled softmax under either rule, and r=8 with both rules."""
        return tuple(
            cell
            for n in self.sizes
            for cell in (Cell("sampled", n, 1), *(Cell(rule, n, MORE) for rule in RULES))
        )

    def config(self, cell: Cell, log: Path, seed: int) -> TrainConfig:
        """The run of `cell`; cells with the same seed see the same batches."""
        return TrainConfig(
            log=LogSource(files=(str(log),), user="user", item="item", time="time"),
            split=SplitConfig(kind="group", validation=0.01, test=0.01),
            model=ModelConfig(encoder="gru", dim=self.dim, history=self.history),
            head=HeadConfig.of(
                num_samples=cell.num_samples,
                presample_factor=cell.presample_factor,
                selection="top" if cell.method == "sampled" else cell.method,
            ),
            loop=LoopConfig(batch=self.batch, steps=self.warm_up + self.steps, seed=seed),
            service=ServiceConfig(
                servers=self.servers, workers=self.workers, max_staleness=self.max_staleness
            ),
        )

    def make_log(self, cache: Path) -> Path:
        """The synthetic log, written once."""
        made = ViewingLogConfig(
            num_users=self.users,
            num_items=self.classes,
            num_interests=max(1, min(1_000, self.classes // 500)),
        )
        name = hashlib.blake2b(repr(made).encode(), digest_size=8).hexdigest()
        path = cache / f"viewing-{name}.parquet"
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as unfinished:
                write_viewing_log(unfinished, made)
        return path


@dataclass(frozen=True, slots=True)
class Round:
    """All cells once, in turn. Its number is the seed and decides which cell goes first."""

    system: System
    number: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        cells = self.system.cells
        first = self.number % len(cells)
        return cells[first:] + cells[:first]

    def key(self) -> str:
        return short_key(asdict(self))


def finished_rounds(ledger: Ledger) -> tuple[System, list[Result]]:
    """The system of a ledger and its rounds, in order."""
    found: dict[str, list[Result]] = {}
    try:
        for result in ledger.results.values():
            found.setdefault(json.dumps(result["run"]["system"], sort_keys=True), []).append(result)
        systems = [System(**json.loads(text)) for text in found]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{ledger.path} is not what `python -m experiments table-1` writes ({error!r}). Move "
            "it away and measure again."
        ) from error
    if not systems:
        raise DataError("the system has not been measured. `python -m experiments table-1` does.")
    if len(systems) > 1:
        raise DataError(
            f"{ledger.path} has rounds of {len(systems)} different systems. Keep those of one."
        )
    return systems[0], sorted(*found.values(), key=lambda result: result["run"]["number"])


def check_same_system(ledger: Ledger, system: System) -> None:
    """Raise if the ledger has rounds of another system."""
    if not ledger.results:
        return
    before, now = asdict(finished_rounds(ledger)[0]), asdict(system)
    other = [
        f"{name} ({before[name]} there, {now[name]} here)"
        for name in now
        if before[name] != now[name]
    ]
    if other:
        raise UsageError(
            f"{ledger.path} was measured with other {', '.join(other)}. Choose another folder with "
            "--out, or move it away."
        )
