"""The synthetic figures of the paper and the two sweeps that its text calls for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tapas.errors import pick
from tapas.paper.experiment import Cell, Experiment, Temperature


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One experiment with what the paper says about it."""

    name: str
    title: str
    claim: str  # the paper's, in one sentence
    experiment: Experiment
    panels: tuple[tuple[str, tuple[Cell, ...]], ...]  # title and curves of each
    minutes: str  # on two cores

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
            cells=tuple(fit_quick(cell) for cell in self.experiment.cells),
        )
        panels = tuple(
            (f"{title} (quick: n/4)", tuple(fit_quick(c) for c in cells))
            for title, cells in self.panels
        )
        return replace(self, experiment=small, panels=panels)


def fit_quick(cell: Cell) -> Cell:
    """Fewer samples for fewer classes, with the same r."""
    return cell._replace(num_samples=cell.num_samples // 4)


def _both_rules(pairs: Sequence[tuple[int, int]]) -> tuple[Cell, ...]:
    """Cells for (n, r) pairs: sampled softmax where r is 1, else both rules."""
    return tuple(
        Cell(method, n, r)
        for n, r in pairs
        for method in (("sampled",) if r == 1 else ("top", "priority"))
    )


def _only(cells: Sequence[Cell], rule: str) -> tuple[Cell, ...]:
    return tuple(c for c in cells if c.method in ("sampled", "full", rule))


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

VARY_R = _both_rules([(16, 1), (16, 2), (16, 4), (16, 8)])
EQUAL_POOL = _both_rules([(16, 8), (32, 4), (64, 2), (128, 1)])
FIGURE_1 = Study(
    name="figure-1",
    title="Linear classifiers",
    claim="With n fixed, accuracy rises with r; at equal n·r the curves approach each other.",
    experiment=replace(LINEAR, cells=tuple(dict.fromkeys((FULL, *VARY_R, *EQUAL_POOL)))),
    panels=(
        ("n = 16, the paper's rule", (FULL, *_only(VARY_R, "top"))),
        ("n·r = 128, the paper's rule", (FULL, *_only(EQUAL_POOL, "top"))),
        ("n = 16, priority", (FULL, *_only(VARY_R, "priority"))),
        ("n·r = 128, priority", (FULL, *_only(EQUAL_POOL, "priority"))),
    ),
    minutes="6",
)

VARY_R_2 = _both_rules([(64, 1), (64, 2), (64, 4), (64, 8)])
EQUAL_POOL_2 = _both_rules([(64, 8), (128, 4), (256, 2), (512, 1)])
FIGURE_2 = Study(
    name="figure-2",
    title="Networks",
    claim="The gain from r is larger on a harder task, and n=128, r=4 is about as good as "
    "n=512, r=1.",
    experiment=Experiment(
        name="figure-2",
        task="network",
        cells=tuple(dict.fromkeys((*VARY_R_2, *EQUAL_POOL_2))),
        seeds=(0, 1, 2),
        steps=31_250,
        search_steps=5_000,
        batch=32,
        evaluate_every=1_250,
        lrs=(0.05, 0.1, 0.2),
        temperatures=(Temperature(0.3), Temperature(1.0, 0.1)),
        hidden=50,
    ),
    panels=(
        ("n = 64, the paper's rule", _only(VARY_R_2, "top")),
        ("n·r = 512, the paper's rule", _only(EQUAL_POOL_2, "top")),
        ("n = 64, priority", _only(VARY_R_2, "priority")),
        ("n·r = 512, priority", _only(EQUAL_POOL_2, "priority")),
    ),
    minutes="60",
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

STUDIES = {study.name: study for study in (FIGURE_1, FIGURE_2, POOL_SIZE, TEMPERATURE)}


def find_study(name: str) -> Study:
    return pick("study", name, STUDIES)
