"""The synthetic studies: the paper's figures 1 and 2, pool size, temperature and shards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.synthetic.experiment import Cell, Experiment, Temperature
from tapas.errors import choice

QUICK_SHARDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One experiment and the paper's claim about it."""

    name: str
    title: str
    claim: str  # one sentence
    experiment: Experiment
    panels: tuple[tuple[str, tuple[Cell, ...]], ...]  # title and curves of each
    minutes: str  # on two cores
    shares_runs_with: str | None = None  # a study with some of the same runs
    timed: bool = True  # False if step times are meaningless
    is_quick: bool = False

    def quick(self) -> "Study":
        """The same study in about a minute: a small task, few steps, two seeds."""
        small = replace(
            self.experiment,
            task=f"{self.experiment.task}-quick",
            seeds=(0, 1),
            steps=60,
            search_steps=20,
            evaluate_every=20,
            lrs=self.experiment.lrs[1:],
            temperatures=self.experiment.temperatures[:1],
            looks=min(1, self.experiment.looks),
            cells=tuple(dict.fromkeys(fit_quick(cell) for cell in self.experiment.cells)),
        )
        panels = tuple(
            (_quick_title(title), tuple(fit_quick(c) for c in cells))
            for title, cells in self.panels
        )
        return replace(self, experiment=small, panels=panels, is_quick=True)


def _quick_title(title: str) -> str:
    """The n of `fit_quick`: "n = 4" for "n = 16"."""
    name, equals, number = title.partition(" = ")
    return f"{name} = {int(number.replace(',', '')) // 4:,}" if equals else title


def fit_quick(cell: Cell) -> Cell:
    """Fewer samples for fewer classes, with the same r, and few shards."""
    return cell._replace(
        num_samples=cell.num_samples // 4, num_shards=min(cell.num_shards, QUICK_SHARDS)
    )


def _cells(rule: str, full: Cell | None, pairs: Sequence[tuple[int, int]]) -> tuple[Cell, ...]:
    """`full` if any, then a cell for each (n, r), once: sampled softmax where r is 1."""
    cells = [Cell("sampled" if r == 1 else rule, n, r) for n, r in pairs]
    return tuple(dict.fromkeys(([full] if full else []) + cells))


FULL = Cell("full")
LINEAR = Experiment(
    name="figure-1",
    task="linear",
    cells=(),
    seeds=(0, 1, 2, 3, 4),
    steps=10_000,
    search_steps=3_000,
    batch=16,
    evaluate_every=500,
    lrs=(0.05, 0.1, 0.2),
    temperatures=(Temperature(0.3), Temperature(1.0, 0.1)),
    l2=0.001,
)

VARY_R = ((16, 1), (16, 2), (16, 4), (16, 8))
EQUAL_POOL = ((16, 8), (32, 4), (64, 2), (128, 1))
FIGURE_1 = Study(
    name="figure-1",
    title="Linear classifiers",
    claim="With n fixed, accuracy rises with r; at equal n·r the curves approach each other.",
    experiment=replace(LINEAR, cells=_cells("top", FULL, VARY_R + EQUAL_POOL)),
    panels=(
        ("n = 16", _cells("top", FULL, VARY_R)),
        ("n·r = 128", _cells("top", FULL, EQUAL_POOL)),
    ),
    minutes="7",
)
FIGURE_1_PRIORITY = replace(
    FIGURE_1,
    name="figure-1-priority",
    title="Linear classifiers, priority rule",
    claim="Not a claim of the paper: the same experiment with this library's rule.",
    experiment=replace(
        LINEAR, name="figure-1-priority", cells=_cells("priority", FULL, VARY_R + EQUAL_POOL)
    ),
    panels=(
        ("n = 16", _cells("priority", FULL, VARY_R)),
        ("n·r = 128", _cells("priority", FULL, EQUAL_POOL)),
    ),
    minutes="4",
    shares_runs_with="figure-1",
)

VARY_R_2 = ((64, 1), (64, 2), (64, 4), (64, 8))
EQUAL_POOL_2 = ((64, 8), (128, 4), (256, 2), (512, 1))
NETWORK = Experiment(
    name="figure-2",
    task="network",
    cells=_cells("top", None, VARY_R_2 + EQUAL_POOL_2),
    seeds=(0, 1, 2),
    steps=31_250,
    search_steps=5_000,
    batch=32,
    evaluate_every=1_250,
    lrs=(0.05, 0.1, 0.2),
    temperatures=(Temperature(0.3), Temperature(1.0, 0.1)),
    hidden=50,
)
FIGURE_2 = Study(
    name="figure-2",
    title="Networks",
    claim="The gain from r is larger on a harder task, and n=128, r=4 is about as good as "
    "n=512, r=1.",
    experiment=NETWORK,
    panels=(
        ("n = 64", _cells("top", None, VARY_R_2)),
        ("n·r = 512", _cells("top", None, EQUAL_POOL_2)),
    ),
    minutes="22",
)
FIGURE_2_PRIORITY = replace(
    FIGURE_2,
    name="figure-2-priority",
    title="Networks, priority rule",
    claim="Not a claim of the paper: the same experiment with this library's rule.",
    experiment=replace(
        NETWORK,
        name="figure-2-priority",
        cells=_cells("priority", None, VARY_R_2 + EQUAL_POOL_2),
    ),
    panels=(
        ("n = 64", _cells("priority", None, VARY_R_2)),
        ("n·r = 512", _cells("priority", None, EQUAL_POOL_2)),
    ),
    minutes="18",
    shares_runs_with="figure-2",
)

POOL_FACTORS = (1, 2, 4, 8, 16, 32, 63)  # 16 * 63 is every class: no random first pass
POOL_SIZE = Study(
    name="pool-size",
    title="Size of the first-pass sample",
    claim="A pool of 1 to 10 % of the classes is a good trade-off, and the top n of all classes "
    "generalise worse.",
    experiment=replace(
        LINEAR,
        name="pool-size",
        seeds=(0, 1, 2),
        cells=tuple(Cell(m, 16, r) for m in ("top", "priority") for r in POOL_FACTORS),
    ),
    panels=(
        ("the paper's rule", tuple(Cell("top", 16, r) for r in POOL_FACTORS)),
        ("priority", tuple(Cell("priority", 16, r) for r in POOL_FACTORS)),
    ),
    minutes="6",
)

TAUS = tuple(Temperature(t) for t in (3.0, 1.0, 0.3, 0.1, 0.03))
ANNEALED = (Temperature(1.0, 0.1), Temperature(3.0, 0.3))
TEMPERATURE = Study(
    name="temperature",
    title="Temperature of the second pass",
    claim="Lower temperatures are more adaptive; the paper anneals the temperature downwards.",
    experiment=replace(
        LINEAR,
        name="temperature",
        seeds=(0, 1, 2),
        temperatures=(),
        cells=tuple(Cell("top", 16, 8, t) for t in (*TAUS, *ANNEALED)),
    ),
    panels=(
        ("constant", tuple(Cell("top", 16, 8, t) for t in TAUS)),
        ("annealed", tuple(Cell("top", 16, 8, t) for t in (Temperature(1.0), *ANNEALED))),
    ),
    minutes="4",
)

SHARD_SAMPLES = (100, 1_000)
SHARD_COUNTS = (1, 10, 100)


def _sharded(n: int) -> tuple[Cell, ...]:
    rules = [Cell(rule, n, 8, None, m) for rule in ("top", "priority") for m in SHARD_COUNTS]
    return (Cell("sampled", n, 1), *rules)


MOVING = Cell("top", SHARD_SAMPLES[0], 8, None, SHARD_COUNTS[-1], True)


SHARDS = Study(
    name="shards",
    title="Second pass on many shards",
    claim="With classes spread at random over m shards, the union of the best n/m of each shard "
    "is close to the best n of all when n is much larger than m.",
    experiment=Experiment(
        name="shards",
        task="long-tail",
        cells=(*(cell for n in SHARD_SAMPLES for cell in _sharded(n)), MOVING),
        seeds=(0, 1, 2, 3),
        steps=500,
        search_steps=250,
        batch=128,
        evaluate_every=500,
        lrs=(0.5, 1.0, 2.0, 4.0),
        looks=6,
    ),
    panels=tuple((f"n = {n:,}", _sharded(n)) for n in SHARD_SAMPLES),
    minutes="8",
    timed=False,  # virtual shards work one after the other
)

STUDIES = {
    study.name: study
    for study in (
        FIGURE_1,
        FIGURE_2,
        POOL_SIZE,
        TEMPERATURE,
        FIGURE_1_PRIORITY,
        FIGURE_2_PRIORITY,
        SHARDS,
    )
}


def find_study(name: str) -> Study:
    return choice("study", name, STUDIES)
