"""`tapas plan`: the memory of a rank and the bytes of a step, before anything is started."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapas.cli.exit_codes import FAILED, one_line_endings
from tapas.cli.options import AsJson
from tapas.errors import TapasError

if TYPE_CHECKING:
    from tapas.training.memory_plan import Plan, Workload

UNITS = {
    **{f"{letter}B".lower(): 1000**power for power, letter in enumerate(("", *"kMGTP"))},
    **{f"{letter}iB".lower(): 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
BATCH, SAMPLES, PRESAMPLE = 1_000, 10_000, 10  # the sizes that the paper speaks of
BILLION, HOSTS, SEEN = 10**9, 50, 10**7


def whole_number(words: str) -> int:
    """1e9, 10_000 and 1,000 are numbers, too."""
    text = str(words).strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        return int(text.replace(",", ""))
    if re.fullmatch(r"\d+(_\d+)*(\.\d+)?([eE]\+?\d{1,2})?", text):
        value = Decimal(text)
        if value < 10**18 and value == value.to_integral_value():
            return int(value)
    raise typer.BadParameter(f"{words!r} is no whole number such as 1000000, 1_000_000 or 1e6.")


def amount_of_memory(words: str) -> int:
    """64GB is 64e9 bytes, 64GiB is 64 * 2^30."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", str(words).strip())
    if found is None or found[2].lower() not in UNITS:
        raise typer.BadParameter(
            f"{words!r} is no amount of memory. Give a number and a unit, such as 64GB, 1.5TB or "
            "60GiB."
        )
    return int(Decimal(found[1]) * UNITS[found[2].lower()])


def _number(help_text: str, parser: Callable[[str], int] = whole_number) -> Any:
    return typer.Option(metavar="N", parser=parser, help=help_text)


def plan(
    classes: Annotated[int, _number("Classes; 1e9, 10_000 and 1,000 are numbers, too.")],
    dim: Annotated[int, _number("Size of a class's vector.")] = 64,
    num_samples: Annotated[int, _number("n: classes kept for each batch.")] = 1_000,
    presample_factor: Annotated[
        int, _number("r: r·n classes are drawn and scored. 1: sampled softmax.")
    ] = 8,
    batch: Annotated[int, _number("Examples of a step, on all ranks together.")] = 1_000,
    targets: Annotated[int, _number("Targets of an example.")] = 1,
    ranks: Annotated[int, _number("Processes that share the rows.")] = 1,
    dtype: Annotated[
        str, typer.Option(metavar="float32|bfloat16", help="Of the rows.")
    ] = "float32",
    optimizer: Annotated[
        str,
        typer.Option(metavar="rowwise-adagrad|adagrad|lazy-adam|sgd", help="Of the rows."),
    ] = "rowwise-adagrad",
    inputs: Annotated[
        bool,
        typer.Option(
            "--inputs/--no-inputs",
            help="The encoder reads vectors of its own, a second table of the same size.",
        ),
    ] = False,
    head: Annotated[
        int | None,
        _number("Classes above the proposal's floor, seen more than once. Default: all."),
    ] = None,
    encoder_parameters: Annotated[int, _number("Parameters of the encoder.")] = 0,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=amount_of_memory,
            help="Of a rank, such as 64GB. Default: what this machine has free.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run needs: memory of the fullest rank, bytes that it sends in a step.

    Exit code 1 if it does not fit, with the reason and with changes that would make it fit.
    """
    with one_line_endings():
        from tapas.training.memory_plan import (
            Workload,
            available_memory,
            check_fits,
            traffic_designs,
        )
        from tapas.training.memory_plan import plan as plan_of

        workload = Workload(
            num_classes=classes,
            dim=dim,
            num_samples=num_samples,
            presample_factor=presample_factor,
            batch=batch,
            targets=targets,
            ranks=ranks,
            dtype=dtype,
            optimizer=optimizer,
            inputs=inputs,
            head_classes=head,
            encoder_parameters=encoder_parameters,
        )
        planned, available = plan_of(workload), available_memory(1) if memory is None else memory
        designs = traffic_designs(workload)
        typer.echo(
            _as_json(planned, available, designs)
            if as_json
            else "\n".join(_as_text(planned, available, designs))
        )
        try:
            check_fits(planned, available)
        except TapasError as error:
            typer.echo(f"tapas: {error}", err=True)
            raise typer.Exit(FAILED) from None


def _as_json(planned: "Plan", available: int, designs: dict[str, int]) -> str:
    told = {
        "workload": asdict(planned.workload),
        "memory_bytes": planned.memory,
        "memory_total_bytes": planned.memory_bytes,
        "available_bytes": available,
        "fits": planned.memory_bytes <= available,
        "traffic_bytes": planned.traffic,
        "traffic_total_bytes": planned.traffic_bytes,
        "designs_bytes": designs,
    }
    return json.dumps(told, indent=1)


def _as_text(planned: "Plan", available: int, designs: dict[str, int]) -> Iterable[str]:
    """Parts of nothing are left out."""
    from tapas.training.memory_plan import in_units

    memory = {**planned.memory, "total": planned.memory_bytes, "free": available}
    traffic = {**planned.traffic, "total": planned.traffic_bytes}
    yield "memory of the fullest rank"
    yield from (f"  {name:<28}{in_units(size):>9}" for name, size in memory.items() if size)
    if planned.workload.ranks == 1:
        return
    yield "sent by a rank in a step"
    yield from (f"  {name:<28}{in_units(size):>9}" for name, size in traffic.items() if size)
    yield "sent by all in a step, by design, without encoder and inputs"
    yield from (f"  {name:<28}{in_units(size):>9}" for name, size in designs.items())


def designs_table() -> str:
    """Traffic of one step by three designs, as docs/scaling.md shows it."""
    from tapas.training.memory_plan import traffic_designs

    lines = [
        "| D | m | rows to the worker | Algorithm 2 | no rows (ours) | ours, each rank sends "
        "| Algorithm 2 : rows | ours : rows | ours : Algorithm 2 |",
        "|" + "---|" * 9,
    ]
    for dim in (64, 128, 256):
        for ranks in (10, 20, 50, 100):
            rows, servers, ours = traffic_designs(_at_scale(dim=dim, ranks=ranks)).values()
            sizes = (f"{size / 1e6:.1f} MB" for size in (rows, servers, ours))
            ratios = (f"{a / b:.2f}" for a, b in ((servers, rows), (ours, rows), (ours, servers)))
            cells = (dim, ranks, *sizes, f"{ours / ranks / 1e6:.2f} MB", *ratios)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def billion_table() -> str:
    """Memory and traffic of a rank for a billion classes, as docs/scaling.md shows it."""
    from tapas.training.memory_plan import in_units
    from tapas.training.memory_plan import plan as plan_of

    kinds = [
        ("float32", "rowwise-adagrad"),
        ("bfloat16", "rowwise-adagrad"),
        ("float32", "lazy-adam"),
    ]
    plans = [
        plan_of(_at_scale(ranks=HOSTS, dtype=dtype, optimizer=optimizer, inputs=True))
        for dtype, optimizer in kinds
    ]
    lines = [
        "| | " + " | ".join(f"{dtype}, {optimizer}" for dtype, optimizer in kinds) + " |",
        "|" + "---|" * (1 + len(kinds)),
    ]

    def add(name: str, sizes: list[int]) -> None:
        if any(sizes):
            lines.append(f"| {name} | " + " | ".join(in_units(size) for size in sizes) + " |")

    for name in plans[0].memory:
        add(name, [planned.memory[name] for planned in plans])
    add("**memory of a rank**", [planned.memory_bytes for planned in plans])
    for name in plans[0].traffic:
        add(f"sent: {name}", [planned.traffic[name] for planned in plans])
    add("**sent by a rank in a step**", [planned.traffic_bytes for planned in plans])
    return "\n".join(lines)


def _at_scale(**changed: Any) -> "Workload":
    from tapas.training.memory_plan import Workload

    usual = {
        "num_classes": BILLION,
        "dim": 64,
        "num_samples": SAMPLES,
        "presample_factor": PRESAMPLE,
        "batch": BATCH,
        "head_classes": SEEN,
    }
    return Workload(**{**usual, **changed})
