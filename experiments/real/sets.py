"""The five sets: where their events come from, what is held out, and the model they get.

The paper's log is private. Two texts with its scale and long tail, a grocery log and the
files of commits, for its kind of task, and a synthetic log with its statistics, whose true
distribution is known, stand in for it.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapas.comparison.groceries import PACKAGE, find_groceries
from tapas.comparison.synthetic_log import TRUTH, SyntheticLogConfig, cached_synthetic_log
from tapas.data.event_log import EventLog
from tapas.data.prepare import prepare_log
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.errors import UsageError, choice
from tapas.evaluation.baselines import COUNTING, POPULAR
from tapas.training.config import ModelConfig

REFERENCES: dict[str, tuple[str, ...]] = {  # shown for each set
    "linux": (POPULAR,),
    "wikipedia": (POPULAR,),
    "synthetic": (POPULAR, TRUTH),
    "rust": COUNTING,
    "grocery": COUNTING,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where files are: downloaded ones, and logs prepared from them."""

    data: Path
    cache: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class RealSet:
    """One set, with everything that is the same for all methods."""

    name: str
    title: str
    asks: str  # what has to be predicted
    source: LogSource  # a file name in the data folder; the log to make, or the package
    split: SplitConfig
    model: ModelConfig
    batch: int  # windows of history
    num_classes: int  # in the complete log
    num_samples: int  # n; the large size is 8 n
    steps: int
    search_steps: int
    points: int  # test points at the end of a run
    curve_points: int  # the first of these, during a run
    search_points: int  # validation points at the end of a search
    made: SyntheticLogConfig | None = None
    url: str = ""  # where to download the file

    def open(self, place: Place) -> EventLog:
        """The prepared log; written the first time."""
        return prepare_log(self.find(place), place.cache)

    def find(self, place: Place) -> LogSource:
        """The source with the path of its file, or an error that says how to get it."""
        if self.made is not None:
            return dataclasses.replace(
                self.source, files=(str(cached_synthetic_log(self.made, place.cache)),)
            )
        if self.source.files == (PACKAGE,):
            groceries = find_groceries()
            if groceries is None:
                raise UsageError(f"{self.name} needs its log. Install it: pip install {PACKAGE}.")
            return dataclasses.replace(self.source, files=(str(groceries.transactions),))
        path = place.data / self.source.files[0]
        if not path.is_file():
            raise UsageError(
                f"{self.name} needs the file {path}, which is not there. Name the folder that has "
                f"it with --data, or leave the set out with --sets. {self.url}".rstrip()
            )
        return dataclasses.replace(self.source, files=(str(path),))

    def settings(self, log: EventLog) -> dict[str, Any]:
        """Settings that the numbers depend on and that are not in the key of a run, for JSON."""
        mine = dataclasses.asdict(self) | {"source": self.source.as_key()}
        kept = ("source", "split", "model", "points", "curve_points", "search_points", "made")
        sizes = {"events": log.num_events, "items": log.num_items, "users": log.num_users}
        found: dict[str, Any] = json.loads(json.dumps({k: mine[k] for k in kept} | {"log": sizes}))
        return found

    def quick(self) -> "RealSet":
        """A version that runs in seconds: a synthetic log, few steps."""
        made = SyntheticLogConfig(num_users=300, num_items=2_000, num_groups=20, baskets_per_user=8)
        return dataclasses.replace(
            self,
            title="Made-up log",
            asks="the next items",
            source=_MADE,
            split=SplitConfig(kind="last", validation=5, test=5),
            model=dataclasses.replace(self.model, dim=8, history=20),
            batch=8,
            num_classes=made.num_items,
            num_samples=16,
            steps=12,
            search_steps=6,
            points=60,
            curve_points=40,
            search_points=40,
            made=made,
        )


_MADE = LogSource(files=("made",), user="user", item="item", time="time")
_TEXT = ModelConfig(encoder="gru", dim=64, history=32)


LINUX = RealSet(
    name="linux",
    title="Linux identifiers",
    asks="the next 5 identifiers",
    source=LogSource(files=("linux_identifiers.parquet",), text="identifiers", split="spaces"),
    split=SplitConfig(kind="group"),
    model=_TEXT,
    batch=16,
    num_classes=1_285_847,
    num_samples=1_000,
    steps=2_000,
    search_steps=800,
    points=2_000,
    curve_points=600,
    search_points=1_000,
    url="It is a table of documents with a column `identifiers`: the C sources of Linux 6.1, "
    "comments stripped, identifiers separated by spaces.",
)
WIKIPEDIA = RealSet(
    name="wikipedia",
    title="Wikipedia words",
    asks="the next 5 words",
    source=LogSource(files=("wikipedia_en.parquet",), text="text"),
    split=SplitConfig(kind="group"),
    model=_TEXT,
    batch=16,
    num_classes=415_688,
    num_samples=1_000,
    steps=2_000,
    search_steps=800,
    points=3_000,
    curve_points=1_000,
    search_points=1_500,
    url="It is a table of English articles with a column `text`.",
)
SYNTHETIC = RealSet(
    name="synthetic",
    title="Made-up log",
    asks="the next basket of 5",
    source=_MADE,
    split=SplitConfig(kind="group", validation=0.02, test=0.02),
    model=ModelConfig(encoder="gru", dim=64, history=30),
    batch=80,
    num_classes=498_088,  # of 500,000 the log shows these
    num_samples=1_000,
    steps=2_000,
    search_steps=800,
    points=3_000,
    curve_points=1_000,
    search_points=1_500,
    made=SyntheticLogConfig(
        num_users=200_000,
        num_items=500_000,
        num_groups=1_000,
        baskets_per_user=6,
        items_per_basket=5,
        exponent=0.7,  # the top 20 % of the items take about 60 % of the events, as in the paper
    ),
)
RUST = RealSet(
    name="rust",
    title="Files of Rust commits",
    asks="the next 5 files, from the next commit on",
    source=LogSource(files=("rust_commits.parquet",), user="user", item="item", time="time"),
    split=SplitConfig(kind="last", validation=5, test=5),
    model=ModelConfig(encoder="gru", dim=64, history=50),
    batch=32,
    num_classes=121_035,
    num_samples=256,
    steps=2_000,
    search_steps=800,
    points=5_000,
    curve_points=1_500,
    search_points=2_000,
    url="It is a table of who touched which file when (user, item, time), from the history of "
    "the Rust repository.",
)
GROCERY = RealSet(
    name="grocery",
    title="Groceries",
    asks="the next 5 purchases",
    source=LogSource(
        files=(PACKAGE,), user="household_id", item="product_id", time="transaction_timestamp"
    ),
    split=SplitConfig(kind="time"),
    model=ModelConfig(encoder="mean", dim=64, history=200, inputs="shared"),
    batch=24,
    num_classes=68_509,
    num_samples=128,
    steps=1_250,
    search_steps=800,
    points=5_000,
    curve_points=1_500,
    search_points=2_000,
)
SETS = {each.name: each for each in (LINUX, WIKIPEDIA, SYNTHETIC, RUST, GROCERY)}


def find_set(name: str) -> RealSet:
    return choice("set", name, SETS)
