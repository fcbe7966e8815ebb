"""Two small trained models, served to a browser, with keys and names that try to do harm."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from browser.chromium import DESKTOP, open_chromium
from oracle.command_line import DAY, ENVIRONMENT, PLAIN, tapas

NUM_ITEMS, NUM_BASKETS = 90, 14
HARM = "<img src=x onerror=document.title='harm'>"
HOSTILE_ITEMS = (
    HARM, "\"quotes' & <b>", "🥑🧑‍🍳", "مرحبا", "..", "a/b/c", "x,y", " ", "\u200b",
    "\x1b[2J\nline", "e\u202evil", "k" * 400, "%2F?#&=",
)  # fmt: skip
HOSTILE_USERS = (
    "<script>document.title='harm'</script>",
    "..",
    "ü/ß?#%2F",
    "\u202eresu",
    "a,b",
    " ",
)
EARLY = "early bird"  # a user without held-out events
ITEMS = [f"item-{i}" for i in range(NUM_ITEMS)]
for place, key in enumerate(HOSTILE_ITEMS):
    ITEMS[6 * place] = key


def write_log(path: Path) -> None:
    """Baskets of neighbours on a ring of items; the next basket is 7 items ahead."""
    draw, rows = random.Random(3), []
    for number in range(70):
        user = HOSTILE_USERS[number] if number < len(HOSTILE_USERS) else f"u{number}"
        position, day = draw.randrange(NUM_ITEMS), 0
        for _ in range(NUM_BASKETS):
            day += draw.randrange(1, 4)
            for neighbour in range(draw.randrange(1, 4)):
                rows.append((user, ITEMS[(position + neighbour) % NUM_ITEMS], day))
            position = (position + 7) % NUM_ITEMS
    rows += [(EARLY, ITEMS[i], 1) for i in range(3)]
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "time"], orient="row")
    frame.with_columns(pl.from_epoch(pl.col("time") * DAY + 1_700_000_000)).write_parquet(path)


def write_item_table(path: Path) -> None:
    """Every ninth item has no name, and one a name that tries to do harm."""
    kinds = ("apple", "bread", "cheese", "dates", "eggs")
    names = [None if i % 9 == 4 else f"Fresh {kinds[i % 5]} {i}" for i in range(NUM_ITEMS)]
    names[1] = "<script>document.title='harm'</script>"
    columns = {"item_id": ITEMS, "name": names, "kind": [kinds[i % 5] for i in range(NUM_ITEMS)]}
    pl.DataFrame(columns).write_parquet(path)


class Server:
    """`tapas serve` in a process of its own."""

    def __init__(self, *arguments: object, log: Path):
        self._arguments, self._log, self.port = arguments, log, 0
        self.start()

    def start(self) -> None:
        """On the same port as before."""
        command = (sys.executable, "-m", "tapas", "serve", *self._arguments, "--port", self.port)
        with self._log.open("a") as talk:
            self.process = subprocess.Popen(
                list(map(str, command)), env=ENVIRONMENT, text=True,
                stdout=subprocess.PIPE, stderr=talk,
            )  # fmt: skip
        self.url = self.process.stdout.readline().strip()
        assert self.url, self._log.read_text()
        self.port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()


@pytest.fixture(scope="module")
def chromium():
    """The browser, before all that takes longer: without it the tests are skipped."""
    with open_chromium() as page:
        yield page


@pytest.fixture(scope="module")
def server(chromium, tmp_path_factory):
    """Serves a mixture, and below a hostile name a recurrent network."""
    folder = tmp_path_factory.mktemp("explorer")
    log, items = folder / "log.parquet", folder / "items.parquet"
    write_log(log)
    write_item_table(items)
    options = (
        "--cache", folder / "cache", "--threads", 1, "--batch", 16,
        "--steps", 20, "--set", "loop.evaluate_every=20",
    )  # fmt: skip
    mixture, network = folder / "mixture", folder / "<b>network"
    for run, more in (
        (mixture, ("--dim", 16, "--copy", "--set", "loop.exclude_seen=false")),
        (network, ("--dim", 8, *PLAIN)),
    ):
        done = tapas("train", log, "--out", run, *options, *more)
        assert done.returncode == 0, done.stderr
    server = Server(mixture, network, "--items", items, log=folder / "server.txt")
    yield server
    server.stop()


@pytest.fixture
def page(chromium, server):
    """The explorer in the browser. Its console may say what is in `page.expected`, nothing else."""
    chromium.url = server.url
    chromium.expected = ()
    chromium.resize(DESKTOP)
    chromium.colours("light")
    chromium.errors()
    yield chromium
    errors = [
        error for error in chromium.errors() if not any(map(error.__contains__, chromium.expected))
    ]
    assert not errors
    assert chromium.driver.title != "harm"
