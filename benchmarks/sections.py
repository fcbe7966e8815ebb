"""The sections of the benchmarks page: one function from a record to Markdown for each theme."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import surface_grid
from measuring import quartiles, ratio, ratio_quartiles, rounded

Record = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def duration(seconds: float) -> str:
    """A time in the most readable unit."""
    return f"{rounded(seconds)} s" if seconds >= 1 else f"{rounded(1000 * seconds)} ms"


def timing(seconds: Sequence[float]) -> str:
    """Median and quartiles."""
    middle = statistics.median(seconds)
    scale = 1 if middle >= 1 else 1000
    low, high = (rounded(scale * value) for value in quartiles(seconds))
    return f"{duration(middle)} [{low}, {high}]"


def megabytes(size: float) -> str:
    return f"{rounded(size / 1e6)} MB"


def against(seconds: dict[str, list[float]], base: str, title: str) -> str:
    """A table of contenders with their times and ratios to one of them."""
    return table(
        ("contender", "time", title),
        ((name, timing(values), ratio(values, seconds[base])) for name, values in seconds.items()),
    )


def peers(record: Record) -> str:
    found = record["results"]
    turns = found["step_seconds_by_round"]
    ours = next(iter(turns.values()))
    rows = []
    for name, rounds in turns.items():
        state, peak = found["state_bytes"][name], found["peak_bytes_beyond_state"][name]
        rows.append(
            (
                name,
                timing(list(rounds.values())),
                f"{ratio(*in_common(rounds, ours))} ×",
                megabytes(state),
                f"{megabytes(peak)} ({100 * peak / state:.0f} %)",
            )
        )
    return table(("contender", "step", "times ours", "table and row state", "peak beyond"), rows)


def recommenders(record: Record) -> str:
    """A figure, and a table for each log: quality after each time."""
    parts = ["![Quality against seconds of training](figures/recommenders.png)"]
    for log, found in record["results"].items():
        rows = []
        for key, each in found.items():
            name, seconds = key.split("|")
            if "left_out" in each:
                rows.append((name, f"{seconds} s", each["left_out"], ""))
                continue
            told = each["told"]
            fitted = seconds if told is None else f"{told['fit_seconds']:.0f}"
            values = (each["metrics"][metric]["mean"] for metric in ("ndcg@10", "map@20"))
            rows.append((name, f"{fitted} s", *(f"{value:.4f}" for value in values)))
        rows.sort(key=lambda row: row[2])
        parts.append(f"{log}\n\n{table(('contender', 'trained for', 'NDCG@10', 'MAP@20'), rows)}")
    return "\n\n".join(parts)


def full(record: Record) -> str:
    parts = []
    for point, found in record["results"].items():
        first = next(iter(found["seconds"].values()))
        rows = [
            (name, timing(values), ratio(values, first), megabytes(found["peak_bytes"][name]))
            for name, values in found["seconds"].items()
        ]
        head = ("contender", "step", "against the first", "peak beyond rows and state")
        parts.append(f"{point}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def in_common(a: dict[str, float], b: dict[str, float]) -> tuple[list[float], list[float]]:
    """Seconds of both in the rounds in which both had a turn."""
    common = [number for number in a if number in b]
    return [a[number] for number in common], [b[number] for number in common]


def surface(record: Record) -> str:
    """Readings of both numbers of threads, figures, large logits, and all cells."""
    found = record["results"]
    two, one = (surface_grid.surface_of(found, threads) for threads in surface_grid.THREADS)
    parts = [
        "![Ratios of step times at every size, two threads](figures/surface-two-threads.png)",
        table(
            ("with one thread", "target with two", "reading with one"),
            (
                (target.measure, target.wanted, target.found)
                for target in surface_grid.verdicts(one)
            ),
        ),
    ]
    if one:
        words = "![The same with one thread](figures/surface-one-thread.png)"
        parts.append(f"<details><summary>one thread</summary>\n\n{words}\n\n</details>")
    for ratio_of in (surface_grid.TENSORFLOW_ONE, surface_grid.TENSORFLOW_TWO):
        values = ratio_of.medians(two).values()
        if values:
            parts.append(
                f"{ratio_of}: {rounded(min(values))} to {rounded(max(values))} ×, median "
                f"{rounded(statistics.median(values))} ×."
            )
    why = dict.fromkeys(cell["left_out"] for cell in found["cells"] if cell["left_out"])
    parts += [f"Left out: {words}." for words in why]
    busy = max(cell["other_cores"] for cell in found["cells"])
    parts.append(f"Other processes kept at most {rounded(busy)} cores busy meanwhile.")
    large = surface_grid.LARGE_ONE.medians(two)
    if large:
        words = ", ".join(f"{rounded(value)} × ({cell})" for cell, value in large.items())
        parts.append(f"Logits with a standard deviation of 17 instead of 0.6, r=1: {words}.")
    for cells in (two, one):
        parts.append(_cells(cells))
    return "\n\n".join(parts)


def _cells(surface: surface_grid.Surface) -> str:
    """All times of one number of threads, folded."""
    names = list(dict.fromkeys(name for seconds in surface.values() for name in seconds))
    lines = [
        (
            *(f"{size:,}" for size in cell[1:]),
            *(timing(seconds[name]) if name in seconds else "" for name in names),
        )
        for cell, seconds in surface.items()
    ]
    threads = ", ".join(sorted({str(cell.threads) for cell in surface}))
    words = f"all steps, threads: {threads}"
    body = table(("B", "D", "n", *names), lines)
    return f"<details><summary>{words}</summary>\n\n{body}\n\n</details>"


def neighbour(record: Record) -> str:
    parts = []
    for case, turns in record["results"]["cases"].items():
        lines = []
        for name, found in turns.items():
            alone, beside = ([s for steps in found[k] for s in steps] for k in ("alone", "beside"))
            lines.append(
                (
                    name,
                    *(
                        f"{timing(steps)}, p90 {duration(statistics.quantiles(steps, n=10)[-1])}"
                        for steps in (alone, beside)
                    ),
                    f"{rounded(statistics.median(beside) / statistics.median(alone))} ×",
                )
            )
        head = ("contender", "alone", "beside a busy process", "beside / alone")
        parts.append(f"{case}\n\n{table(head, lines)}")
    words = [
        f"{name}: {', '.join(f'`{k}={v}`' for k, v in variables.items()) or 'nothing set'}"
        for name, variables in record["settings"]["environments"].items()
    ]
    return "\n\n".join([f"Environments: {'; '.join(words)}.", *parts])


def sharded(record: Record) -> str:
    rows = []
    for name, found in record["results"]["settings"].items():
        one, two = found["seconds"].values()
        shares = [100 * share for share in found["share_in_meetings"]]
        low, high = quartiles(shares)
        rows.append(
            (
                name,
                timing(one),
                timing(two),
                ratio(one, two),
                f"{statistics.median(shares):.0f} % [{low:.0f}, {high:.0f}]",
                megabytes(found["sent_bytes"]),
                megabytes(found["planned_bytes"]),
            )
        )
    return table(
        (
            "step",
            "1 rank",
            "2 ranks",
            "steps of 2 / of 1",
            "2 ranks in collectives",
            "sent by a rank",
            "planned, at most",
        ),
        rows,
    )


def percent(part: Sequence[float], total: Sequence[float]) -> str:
    """Median and quartiles of part / total, turn by turn."""
    middle, low, high = (100 * value for value in ratio_quartiles(part, total))
    return f"{middle:.1f} % [{low:.1f}, {high:.1f}]"


def servers(record: Record) -> str:
    head = "round trip of | time | transport | share | with a core each | worker | slowest server"
    head += " | one process | push | bytes of a step | planned"
    rows = []
    for name, found in record["results"]["settings"].items():
        trip, echo, push, alone = found["seconds"].values()
        transport = echo["between"]
        worker = [sum(both) for both in zip(trip["splitting"], trip["joining"], strict=True)]
        rows.append(
            (
                name,
                timing(trip["whole"]),
                timing(transport),
                percent(transport, trip["whole"]),
                percent(transport, found["own_cores_seconds"]),
                *map(timing, (worker, trip["cpu"], alone["whole"], push["whole"])),
                megabytes(sum(found["sent_bytes"].values())),
                megabytes(found["planned_bytes"]),
            )
        )
    words = (
        "Transport: the same round trip with servers that score nothing. Worker: splitting the "
        "pool and joining the answers. Slowest server: CPU time of its scoring. Share: transport "
        "of the measured time; with a core each: transport of the sum of transport, worker and "
        "slowest server, which is the time if every server had a core. Planned: by `tapas plan`, "
        "which counts no ids, and all queries of the batch."
    )
    return f"{words}\n\n{table(head.split(' | '), rows)}"


def optimizers(record: Record) -> str:
    rows = (
        (
            name,
            timing(found["fused"]),
            timing(found["optimizer"]),
            f"{ratio(found['optimizer'], found['fused'])} ×",
        )
        for name, found in record["results"]["seconds"].items()
    )
    return table(("step", "fused", "by an optimizer", "optimizer / fused"), rows)


def second_pass(record: Record) -> str:
    parts = []
    for shape, seconds in record["results"]["seconds"].items():
        rows = []
        for name, values in seconds.items():
            floor = "floor, all queries" if "all queries" in name else "floor, 64 queries"
            rows.append(
                (
                    name,
                    timing(values),
                    ratio(values, seconds[floor]),
                    ratio(values, seconds["floor, all queries"]),
                )
            )
        head = ("contender", "time", "against its floor", "against all queries' floor")
        parts.append(f"(B, r*n, D) = {shape}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def whole_step(record: Record) -> str:
    parts = []
    for name, seconds in record["results"]["seconds"].items():
        parts.append(f"{name}\n\n{against(seconds, 'r=1', 'against r=1')}")
    for name, operations in record["results"].get("profiles", {}).items():
        parts.append(f"Where the time of one step goes ({name}):\n\n{profile(operations)}")
    return "\n\n".join(parts)


def profile(operations: list[dict[str, Any]]) -> str:
    """A table of the rows of `profiling.profile_summary`."""
    return table(
        ("operation", "calls", "self time", "share"),
        (
            (
                f"`{row['operation']}`",
                str(row["calls"]),
                duration(row["self_seconds"]),
                f"{100 * row['share']:.0f} %",
            )
            for row in operations
        ),
    )


def classes(record: Record) -> str:
    found = record["results"]
    seconds = found["step_seconds"]
    first = next(iter(seconds))
    return table(
        ("classes", "step", f"against {first}", "table and row state", "peak beyond"),
        (
            (
                name,
                timing(values),
                ratio(values, seconds[first]),
                megabytes(found["table_bytes"][name]),
                megabytes(found["peak_bytes_beyond_table"][name]),
            )
            for name, values in seconds.items()
        ),
    )


def memory(record: Record) -> str:
    runs = record["results"]["runs"].items()
    return table(
        ("run", "peak", "planned"),
        ((n, megabytes(run["peak_bytes"]), megabytes(run["planned_bytes"])) for n, run in runs),
    )


def draw(record: Record) -> str:
    return "\n\n".join(
        f"{name}\n\n{against(seconds, 'ours', 'against ours')}"
        for name, seconds in record["results"]["seconds"].items()
    )


def top(record: Record) -> str:
    return against(record["results"]["seconds"], "product", "against the product")


def evaluation(record: Record) -> str:
    peak = f"Peak memory, beyond the model: {megabytes(record['results']['peak_bytes'])}."
    return f"{top(record)}\n\n{peak}"


def lists(record: Record) -> str:
    found, number = record["results"], record["settings"]["lists_per_turn"]
    bare = found["seconds"]["bare top-k"]
    rows = [
        (name, timing(values), ratio(values, bare), rounded(number / statistics.median(values)))
        for name, values in found["seconds"].items()
    ]
    head = ("contender", f"{number:,} lists", "against the bare top-k", "lists a second")
    peak = f"Peak memory of `recommend`, beyond the model: {megabytes(found['peak_bytes'])}."
    return f"{table(head, rows)}\n\n{peak}"


def opening(record: Record) -> str:
    return against(record["results"]["seconds"], "without checks", "against without checks")


def serve(record: Record) -> str:
    """Throughput and latency for each number of clients, then memory."""
    rows, parts = [], []
    for items, found in record["results"]["sizes"].items():
        for clients, turns in found["clients"].items():
            floor = [int(clients) / seconds for seconds in turns["floor_seconds"]]
            each = turns["seconds"]
            rows.append(
                (
                    f"{int(items):,}",
                    clients,
                    f"{statistics.median(turns['per_second']):,.0f}",
                    ratio(turns["per_second"], floor),
                    timing([turn["p50"] for turn in each]),
                    timing([turn["p99"] for turn in each]),
                    timing(turns["floor_seconds"]),
                )
            )
    head = ("items", "clients", "requests/s", "of the floor", "p50", "p99", "bare top-k")
    parts.append(table(head, rows))
    if (long := record["results"].get("long")) is not None:
        own = [size for _, size in long["own_bytes"]]
        failed = f"a request failed: {long['failed']}" if long["failed"] else "no request failed"
        parts.append(
            f"Long load: {long['requests']:,} requests of 64 clients in "
            f"{duration(long['own_bytes'][-1][0])}, {long['reloads']:.0f} reloads, {failed}; "
            f"memory of its own {megabytes(min(own))} to {megabytes(max(own))}."
        )
    return "\n\n".join(parts)


def small_step(record: Record) -> str:
    steps = record["settings"]["steps_per_repeat"]
    parts = []
    for rule, seconds in record["results"]["seconds"].items():
        each = {name: [value / steps for value in values] for name, values in seconds.items()}
        parts.append(f"{rule}\n\n{against(each, 'by hand', 'against by hand')}")
    return "\n\n".join(parts)


def ingest(record: Record) -> str:
    rows = []
    for name, runs in record["results"]["runs"].items():
        seconds = [run["seconds"] for run in runs]
        rate = record["settings"]["events"] / statistics.median(seconds)
        peak = max(run["peak_bytes"] for run in runs)
        again = statistics.median(run["again_seconds"] for run in runs)
        rows.append(
            (
                name,
                timing(seconds),
                rounded(rate),
                f"{rounded(peak / 2**30)} GiB",
                duration(again) if name == "prepare_log" else "",
            )
        )
    return table(("contender", "time", "events/s", "peak memory", "opened again"), rows)


def train_step(record: Record) -> str:
    results, parts = record["results"], []
    for kind, ways in results["encoders"].items():
        totals = {way: [sum(row) for row in one["seconds"]] for way, one in ways.items()}
        rows = []
        for way, one in ways.items():
            rate = one["events_of_a_step"] / statistics.median(totals[way])
            rows.append((f"**{kind}, {way}**", timing(totals[way]), f"{rounded(rate)} events/s"))
            total = statistics.median(totals[way])
            columns = zip(results["parts"], zip(*one["seconds"], strict=True), strict=True)
            rows += [
                (name, timing(values), f"{100 * statistics.median(values) / total:.1f} %")
                for name, values in columns
            ]
        parts.append(table(("part", "time", "share of a step"), rows))
    return "\n\n".join(parts)


def partition_bias(record: Record) -> str:
    def percent(found: dict[str, float]) -> str:
        return f"{100 * found['mean']:+.2f} % ± {100 * found['standard_error']:.2f}"

    def nats(found: dict[str, float]) -> str:
        return f"{found['mean']:+.4f} ± {found['standard_error']:.4f}"

    rows = [
        (name, percent(found["bias"]), nats(found["log_bias"]))
        for name, found in record["results"].items()
    ]
    words = "[docs/accuracy.md](../docs/accuracy.md) explains these numbers."
    return f"{words}\n\n{table(('case', 'bias of Z', 'bias of log Z, nats'), rows)}"


def growth(record: Record) -> str:
    parts = [
        "![Step time over C, r, n, B and D](figures/growth.png)",
        "![Break-even against the full softmax](figures/break-even.png)",
    ]
    for sweep in record["results"]["sweeps"].values():
        names = list(dict.fromkeys(n for point in sweep["points"] for n in point["seconds"]))
        rows = []
        for point in sweep["points"]:
            taken = point["seconds"]
            why = point["left_out"]
            cells = [timing(taken[n]) if n in taken else why.get(n, "") for n in names]
            rows.append((f"{point['x']:,}", *cells))
        fixed = ", ".join(f"{key}={value:,}" for key, value in sweep["fixed"].items())
        words = (
            f"over {sweep['letter']}; {fixed}; plain PyTorch draws {sweep['plain_draws']} classes"
        )
        lines = table((sweep["letter"], *names), rows)
        parts.append(f"<details><summary>{words}</summary>\n\n{lines}\n\n</details>")
    return "\n\n".join(parts)


def rows(record: Record) -> str:
    """The table of a record with results `{"rows": [{column: value}, ...]}`.

    Below it, their "conclusion", if there is one.
    """
    found = record["results"]["rows"]
    cells = [
        [f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()] for line in found
    ]
    lines = table(list(found[0]), cells)
    return f"{lines}\n\n{record['results'].get('conclusion', '')}".rstrip()
