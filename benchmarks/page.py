"""Writes README.md and figures/ from the newest record of every theme. Measures nothing.

All numbers on the page come from records; themes without a record are listed as missing. To add
a theme, add a function to sections.py and an entry to THEMES.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sections
from growth_figures import draw_growth
from measuring import RECORDS, Target, two_digits
from recommenders_figure import draw_recommenders
from sections import Record, duration, table
from surface_figure import draw_surface

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Theme:
    file: str
    question: str
    section: Callable[[Record], str]
    has_targets: bool = True

    @property
    def command(self) -> str:
        return f"python benchmarks/{self.file}"


THEMES = {
    "peers": Theme(
        "bench_peers.py",
        "How does a step of our head compare with what people use today?",
        sections.peers,
    ),
    "recommenders": Theme(
        "bench_recommenders.py",
        "What would a user pick instead of `tapas train`, and how good is it after the same time?",
        sections.recommenders,
    ),
    "surface": Theme(
        "bench_surface.py",
        "How fast is a head step at every size, against plain PyTorch, TensorFlow and the floor?",
        sections.surface,
    ),
    "neighbour": Theme(
        "bench_neighbour.py",
        "What does a busy process on the same machine cost?",
        sections.neighbour,
    ),
    "full": Theme(
        "bench_full.py",
        "How is a full softmax best written today?",
        sections.full,
        has_targets=False,
    ),
    "optimizers": Theme(
        "bench_optimizers.py",
        "What does it cost to update the rows by an optimizer, against the fused update?",
        sections.optimizers,
    ),
    "second-pass": Theme(
        "bench_second_pass.py",
        "How far is the second pass from its floor, the bare gather and matrix product?",
        sections.second_pass,
    ),
    "whole-step": Theme(
        "bench_whole_step.py",
        "What does the second pass add to a complete training step with a GRU encoder?",
        sections.whole_step,
    ),
    "classes": Theme(
        "bench_classes.py",
        "Does a step get slower, or memory grow, with the number of classes?",
        sections.classes,
    ),
    "memory": Theme(
        "bench_memory.py", "Does a run need the memory that was planned?", sections.memory
    ),
    "sharded": Theme(
        "bench_sharded.py",
        "How much faster do two ranks train than one, on the same global batch?",
        sections.sharded,
    ),
    "servers": Theme(
        "bench_servers.py",
        "How long is one round trip of the paper's Algorithm 2, and how much of it is transport?",
        sections.servers,
    ),
    "draw": Theme(
        "bench_draw.py",
        "How fast are distinct classes drawn, against `torch.multinomial`?",
        sections.draw,
    ),
    "top": Theme(
        "bench_top.py",
        "How far are exact answers over all classes from the bare matrix product?",
        sections.top,
    ),
    "evaluation": Theme(
        "bench_evaluation.py",
        "How far is an exact evaluation, with baselines and intervals, from the bare products?",
        sections.evaluation,
    ),
    "lists": Theme(
        "bench_lists.py",
        "How far is `tapas recommend --users all` from the bare top-k?",
        sections.lists,
    ),
    "opening": Theme(
        "bench_opening.py",
        "What do checksums cost when a run is opened?",
        sections.opening,
    ),
    "serve": Theme(
        "bench_serve.py",
        "What does the API of `tapas serve` cost beside the bare top-k?",
        sections.serve,
    ),
    "small-step": Theme(
        "bench_small_step.py",
        "How slow is the head where Python overhead dominates, against a hand-written loop?",
        sections.small_step,
    ),
    "ingest": Theme(
        "bench_ingest.py",
        "How fast is a log prepared, and in how much memory, against Polars' bare read and sort?",
        sections.ingest,
    ),
    "train-step": Theme(
        "bench_train_step.py", "Where does the time of a training step go?", sections.train_step
    ),
    "partition-bias": Theme(
        "bench_partition_bias.py",
        "Is the estimated partition sum right on average?",
        sections.partition_bias,
    ),
    "index-recall": Theme(
        "bench_index_recall.py",
        "How much of the exact lists do FAISS indexes find, and with what effort?",
        sections.rows,
        has_targets=False,
    ),
    "scoring": Theme(
        "bench_scoring.py",
        "What does approximate scoring in the second pass save, and what does it cost?",
        sections.rows,
        has_targets=False,
    ),
    "growth": Theme(
        "bench_growth.py",
        "How does the time of a head step grow with C, r, n, B and D?",
        sections.growth,
        has_targets=False,
    ),
}

TEMPLATE = """\
# Benchmarks

<!-- written by `python benchmarks/page.py` from records/; changes by hand are lost -->

Each file answers one question. `make bench` runs all of them and writes this page, \
`python benchmarks/bench_x.py` runs one (with `--quick`: few repeats, no record), and \
`python benchmarks/page.py` only rewrites the page from the records. Contenders take turns in one \
run, so that whatever slows one down slows all of them. The page reports medians, with quartiles \
in brackets, and **ratios inside one run**, because absolute times vary on shared machines: other \
work on the machine can make a two-thread operation many times slower. Raw repeats, commit and \
versions are in `records/`, one record for each theme.

## Targets

{targets}

{missing}## When not to use sampling at all

{advice}

{sections}

## To add one

A file `bench_<question>.py` with a `main()` that prints a table a person can read and calls \
`write_record(theme, settings, results, targets=[...])` of `measuring.py`; a small function in \
`sections.py` that turns the record into a table; a line in `THEMES` of `page.py`.
"""


def newest_records(folder: Path) -> dict[str, Record]:
    """The last record of every theme, by date."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return {record["theme"]: record for record in sorted(found, key=lambda r: r["date"])}


def command(theme: Theme, record: Record) -> str:
    return f"`{record.get('command', theme.command)}`"


def targets_table(records: dict[str, Record]) -> str:
    rows = []
    for name, theme in THEMES.items():
        if not theme.has_targets:
            continue
        if name not in records:
            rows.append(
                (f"all of {name}", "", "no record yet", "not measured", f"`{theme.command}`")
            )
            continue
        record = records[name]
        kept = [Target(**target) for target in record.get("targets", [])]
        how = command(theme, record)
        for target in kept:
            verdict = target.verdict.replace("MISSED", "**missed**")
            rows.append((target.measure, target.wanted, target.found, verdict, how))
        if not kept:
            rows.append((f"all of {name}", "", "recorded before targets were kept", "", how))
    return table(("measure", "target", "reading", "verdict", "command"), rows)


def missing(records: dict[str, Record]) -> str:
    names = [f"{name} (`{theme.command}`)" for name, theme in THEMES.items() if name not in records]
    return f"Missing, because no record was written yet: {', '.join(names)}.\n\n" if names else ""


def section(name: str, theme: Theme, records: dict[str, Record]) -> str:
    title = f"## {name}\n\n{theme.question}"
    if name not in records:
        return f"{title} No record yet: `{theme.command}` writes one."
    record = records[name]
    settings = ", ".join(f"{k}={v}" for k, v in record["settings"].items() if is_short(v))
    threads = f"{record['threads']} thread{'s' if record['threads'] > 1 else ''}"
    source = (
        f"{command(theme, record)} on {record['date']}, commit {record['commit']}, {threads} of "
        f"{record['cpu']}, torch {record['versions']['torch']}; {settings}."
    )
    return f"{title}\n\n{source}\n\n{theme.section(record)}"


def is_short(value: object) -> bool:
    return isinstance(value, str | int | float)


def advice(records: dict[str, Record]) -> str:
    """When the full softmax is the better choice, by the growth record."""
    theme = THEMES["growth"]
    if "growth" not in records:
        return f"The break-even was not measured yet: `{theme.command}` measures it."
    record = records["growth"]
    found = record["results"]["break_even"]
    sweeps = record["results"]["sweeps"]
    parts = [f"with batches of {int(size):,} {break_even(even)}" for size, even in found.items()]
    fixed = next(s["fixed"] for name, s in sweeps.items() if name.startswith("break-even"))
    text = (
        "With few classes: a full softmax is exact, has nothing to tune, and is faster up to its "
        f"break-even. Against our step with n={fixed['n']:,} and r={fixed['r']} "
        f"(D={fixed['D']}) it breaks even {'; '.join(parts)}. Below that, "
        "`torch.nn.functional.cross_entropy` or `linear_cross_entropy` over all classes is the "
        "better choice."
    )
    return f"{text} {far_beyond(record)}Measured by {command(theme, record)}."


def break_even(even: dict[str, float | None]) -> str:
    if even["classes"] is None:
        if even["first_ratio"] >= 1:
            return f"below {even['from']:,} classes, the fewest that were measured"
        return f"beyond {even['to']:,} classes, the most that were measured"
    low = f"below {even['from']:,}" if even["low"] is None else two_digits(even["low"])
    high = f"beyond {even['to']:,}" if even["high"] is None else two_digits(even["high"])
    return f"at about {two_digits(even['classes'])} classes [{low}, {high}]"


def far_beyond(record: Record) -> str:
    """The full softmax against ours at the largest number of classes it was measured with."""
    sweep, medians = (record["results"][k]["C"] for k in ("sweeps", "median_step_seconds"))
    both = [
        (point["x"], min(full), times["TAPAS priority"])
        for point, times in zip(sweep["points"], medians, strict=True)
        if (full := [times[name] for name in times if name.startswith("full softmax")])
    ]
    if not both:
        return ""
    classes, full, ours = both[-1]
    batch = sweep["fixed"]["B"]
    return (
        f"Far above the break-even the choice is clear, too: at {classes:,} classes and batches "
        f"of {batch:,} a step of the full softmax took {duration(full)}, ours {duration(ours)}. "
        "In between, consider accuracy: a full softmax has no sampling noise. "
        "`head.diagnose(query, target)` measures how far the sampled gradient is from the full "
        "one on your data. "
    )


def write_page(records_folder: Path, folder: Path) -> None:
    """`folder`/README.md and `folder`/figures/."""
    records = newest_records(records_folder)
    figures = {
        "growth": draw_growth,
        "surface": draw_surface,
        "recommenders": draw_recommenders,
    }
    for theme, draw in figures.items():
        if theme in records:
            (folder / "figures").mkdir(exist_ok=True)
            for name, png in draw(records[theme]).items():
                (folder / "figures" / name).write_bytes(png)
    text = TEMPLATE.format(
        targets=targets_table(records),
        missing=missing(records),
        advice=advice(records),
        sections="\n\n".join(section(n, theme, records) for n, theme in THEMES.items()),
    )
    (folder / "README.md").write_text(text)
    print("benchmarks/README.md is written.")
    for name in THEMES:
        if name not in records:
            print(f"no record of {name}: {THEMES[name].command} writes one")


if __name__ == "__main__":
    write_page(RECORDS, FOLDER)
