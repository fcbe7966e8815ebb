"""What does the API cost beside the bare top-k?

    python benchmarks/bench_serve.py [--quick] [--long]

`tapas serve` and its clients share this machine, over the loopback interface, for bounded times.
Models of random weights with 100,000 and 1,000,000 items of 64 dimensions (mean encoder, no
counting parts): 1 to 64 clients ask for 20 items after a history of 20, each over one connection.
The floor is `head.topk` on batches of as many queries in one process with all cores, measured in
turns with the clients; they take no part of the machine from it.

`--long` also loads the server of 100,000 items with 64 clients for ten minutes, with a model that
is replaced every minute: no request may fail, and memory may not grow.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from made_up_runs import make_run
from measuring import Target, arguments, quick, ratio_quartiles, spread, write_record

import tapas

SIZES = (20_000,) if quick() else (100_000, 1_000_000)
CLIENTS = (1, 64) if quick() else (1, 4, 16, 64)
TURNS, SECONDS = (2, 1.0) if quick() else (7, 5.0)
DIM, K = 64, 20
LONG_SECONDS, RELOAD_SECONDS = (20, 5) if quick() else (600, 60)
HERE = Path(__file__).parent
STARTUP_SECONDS = 120


def resident(pid: int) -> dict[str, int]:
    """Bytes of a process in memory: in all, and those of its own (without mapped files)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if "kB" in line}
    return {"all": found["VmRSS"], "own": found["RssAnon"]}


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process of `tapas serve` on a free port, and the port."""
    command = [sys.executable, "-m", "tapas", "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server, int(server.stdout.readline().rpartition(":")[2])
        finally:
            server.terminate()
            server.wait(STARTUP_SECONDS)


def load(port: int, clients: int, seconds: float, items: int) -> dict[str, Any]:
    words = [sys.executable, HERE / "load_clients.py", port, clients, seconds, items]
    done = subprocess.run([*map(str, words)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def libraries_bytes() -> int:
    """Own memory of a process that has imported what the server imports, and has no model."""
    script = "import tapas.web.server, tapas.cli.main, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident(process.pid)["own"]


def measure(folder: Path, items: int) -> dict[str, Any]:
    """Turns of clients and floor for each number of clients."""
    run = make_run(folder, items, 2 * items, dim=DIM, encoder="mean", inputs="shared")
    head = tapas.load(run).sequence_model.head
    found: dict[str, Any] = {"row_bytes": head.table.weight.nbytes, "clients": {}}
    with served(run) as (server, port):
        found["memory_before"] = resident(server.pid)
        load(port, 1, SECONDS, items)
        for clients in CLIENTS:
            query = torch.randn(clients, DIM)
            turns: dict[str, list[Any]] = {"floor_seconds": [], "seconds": [], "per_second": []}
            for _ in range(TURNS):
                floor = []
                until = time.perf_counter() + SECONDS / 5
                while time.perf_counter() < until or len(floor) < 5:
                    start = time.perf_counter()
                    head.topk(query, K)
                    floor.append(time.perf_counter() - start)
                turns["floor_seconds"].append(statistics.median(floor))
                loaded = load(port, clients, SECONDS, items)
                turns["seconds"].append({"p50": loaded["p50"], "p99": loaded["p99"]})
                turns["per_second"].append(loaded["requests"] / loaded["total_seconds"])
            found["clients"][clients] = turns
            print_turns(items, clients, turns)
        found["memory_after"] = resident(server.pid)
    return found


def print_turns(items: int, clients: int, turns: dict[str, list[Any]]) -> None:
    share, low, high = throughput(clients, turns)
    p50, p99 = ([each[name] for each in turns["seconds"]] for name in ("p50", "p99"))
    print(
        f"{items:>9,} items, {clients:>2} clients: {statistics.median(turns['per_second']):,.0f} "
        f"requests/s, {share:.2f} [{low:.2f}, {high:.2f}] of the floor, p50 {spread(p50)}, "
        f"p99 {spread(p99)}, floor {spread(turns['floor_seconds'])}",
        flush=True,
    )


def throughput(clients: int, turns: dict[str, list[Any]]) -> tuple[float, float, float]:
    """Requests per second as a share of the floor's: median and quartiles of the turns."""
    floor = [clients / seconds for seconds in turns["floor_seconds"]]
    return ratio_quartiles(turns["per_second"], floor)


def long_load(folder: Path, items: int) -> dict[str, Any]:
    """Own memory over time, under load and with a reload every minute."""
    run = folder / "run"
    memory, failed = [], ""
    with served(run, "--reload") as (server, port):
        load(port, 64, SECONDS, items)
        found: dict[str, Any] = {}

        def ask() -> None:
            nonlocal failed
            try:
                found.update(load(port, 64, LONG_SECONDS, items))
            except subprocess.CalledProcessError as error:
                failed = error.stderr.splitlines()[-1]

        clients = threading.Thread(target=ask)
        clients.start()
        start = last = time.monotonic()
        while clients.is_alive():
            clients.join(RELOAD_SECONDS / 10)
            memory.append([time.monotonic() - start, resident(server.pid)["own"]])
            if time.monotonic() - last > RELOAD_SECONDS:
                os.utime(run / "run.json")  # as if it had been replaced
                last = time.monotonic()
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    reloads = next(line for line in text.splitlines() if line.startswith("tapas_reloads "))
    return {
        "requests": found.get("requests", 0),
        "failed": failed,
        "reloads": float(reloads.split()[1]),
        "own_bytes": memory,
    }


def main() -> None:
    results: dict[str, Any] = {"libraries_own_bytes": libraries_bytes(), "sizes": {}}
    targets = []
    with tempfile.TemporaryDirectory() as name:
        for items in SIZES:
            found = measure(Path(name) / str(items), items)
            results["sizes"][items] = found
            most, one = found["clients"][max(CLIENTS)], found["clients"][1]
            share, low, high = throughput(max(CLIENTS), most)
            beyond = [
                1000 * (each["p50"] - floor)
                for each, floor in zip(one["seconds"], one["floor_seconds"], strict=True)
            ]
            own = found["memory_after"]["own"] - results["libraries_own_bytes"]
            targets += [
                Target(
                    measure=f"{items:,} items, {max(CLIENTS)} clients: requests / floor",
                    target=0.6, kind="at least", reading=share, low=low, high=high,
                ),
                Target(
                    measure=f"{items:,} items, one client: p50 beyond the bare top-k",
                    target=2.0, kind="at most", reading=statistics.median(beyond), unit="ms",
                ),
                Target(
                    measure=f"{items:,} items: memory beyond libraries and rows",
                    target=200.0, kind="at most", reading=own / 1e6, unit="MB",
                ),
            ]  # fmt: skip
        if "--long" in arguments():
            results["long"] = long_load(Path(name) / str(SIZES[0]), SIZES[0])
            print({name: value for name, value in results["long"].items() if name != "own_bytes"})
            own = [size for _, size in results["long"]["own_bytes"]]
            targets.append(
                Target(
                    measure="memory at the end / after a tenth of the time, with reloads",
                    target=1.1, kind="at most", reading=own[-1] / own[len(own) // 10],
                )
            )  # fmt: skip
    write_record("serve", {"D": DIM, "k": K, "clients": CLIENTS}, results, targets=targets)


if __name__ == "__main__":
    main()
