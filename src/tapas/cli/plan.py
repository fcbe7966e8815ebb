"""`tapas plan`: estimate memory, traffic and disk of a run before starting it."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tapas.cli.exit_codes import FAILED, report_errors
from tapas.cli.options import AsJson
from tapas.cli.terminal import print_lines, status
from tapas.errors import TapasError, UsageError

if TYPE_CHECKING:
    from tapas.training.memory_plan import MemoryPlan

UNITS = {
    **{f"{letter}B".lower(): 1000**power for power, letter in enumerate(("", *"kMGTP"))},
    **{f"{letter}iB".lower(): 1024**power for power, letter in enumerate("KMGTP", start=1)},
}


def whole_number(words: str) -> int:
    """Parse an integer; 1e9, 10_000 and 1,000 are accepted, too."""
    text = str(words).strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        return int(text.replace(",", ""))
    if re.fullmatch(r"\d+(_\d+)*(\.\d+)?([eE]\+?\d{1,2})?", text):
        value = Decimal(text)
        if value < 10**18 and value == value.to_integral_value():
            return int(value)
    raise typer.BadParameter(f"{words!r} is not an integer such as 1000000, 1_000_000 or 1e6.")


def amount_of_memory(words: str) -> int:
    """Parse a size in bytes: 64GB is 64e9, 64GiB is 64 * 2^30."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", str(words).strip())
    if found is None or found[2].lower() not in UNITS:
        raise typer.BadParameter(
            f"{words!r} is not an amount of memory. Give a number and a unit, such as 64GB, 1.5TB "
            "or 60GiB."
        )
    return int(Decimal(found[1]) * UNITS[found[2].lower()])


def _number(help_text: str, parser: Callable[[str], int] = whole_number) -> Any:
    return typer.Option(metavar="N", parser=parser, help=help_text)


def plan(
    classes: Annotated[int, _number("Number of classes. 1e9, 10_000 and 1,000 are fine, too.")],
    dim: Annotated[int, _number("Dimensions of the class vectors.")] = 64,
    num_samples: Annotated[
        int, _number("Sampled classes (n) that each batch is trained with.")
    ] = 1_000,
    presample_factor: Annotated[
        int,
        _number(
            "TAPAS draws N times as many classes (r), scores them and keeps n. 1: plain sampled "
            "softmax."
        ),
    ] = 8,
    batch: Annotated[int, _number("Examples of a step, over all ranks.")] = 1_000,
    targets: Annotated[int, _number("Number of targets of an example.")] = 1,
    ranks: Annotated[int, _number("Number of processes that share the class vectors.")] = 1,
    servers: Annotated[
        int, _number("Number of servers of class vectors, instead of ranks; see `tapas train`.")
    ] = 0,
    dtype: Annotated[
        str, typer.Option(metavar="float32|bfloat16", help="Number type of the class vectors.")
    ] = "float32",
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="rowwise-adagrad|adagrad|lazy-adam|sgd", help="Optimizer of the class vectors."
        ),
    ] = "rowwise-adagrad",
    inputs: Annotated[
        bool,
        typer.Option(
            "--inputs/--no-inputs",
            help="Whether the encoder has input vectors of its own: a second table of the same "
            "size.",
        ),
    ] = False,
    head: Annotated[
        int | None,
        _number(
            "Classes seen more than once; 24 bytes each on every rank. Default: all, the worst "
            "case."
        ),
    ] = None,
    encoder_parameters: Annotated[int, _number("Number of parameters of the encoder.")] = 0,
    events: Annotated[
        int, _number("Number of events of the log, which every rank keeps in memory.")
    ] = 0,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=amount_of_memory,
            help="Memory of one process, such as 64GB. Default: what is free on this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate memory, network traffic and disk of a run.

    The memory is that of the rank that needs most, or of the server and the worker that do. If
    it does not fit, the exit code is 1, and the message says what is largest and which changes
    would make it fit.
    """
    with report_errors():
        from tapas.training.memory_plan import (
            Workload,
            available_memory,
            check_fits,
            memory_plan,
        )

        if servers and ranks > 1:
            raise UsageError("--ranks and --servers are two ways to share rows: give one of them.")
        workload = Workload(
            num_classes=classes,
            dim=dim,
            num_samples=num_samples,
            presample_factor=presample_factor,
            batch=batch,
            targets=targets,
            ranks=servers or ranks,
            role="server" if servers else "rank",
            dtype=dtype,
            optimizer=optimizer,
            inputs=inputs,
            head_classes=head,
            encoder_parameters=encoder_parameters,
            events=events,
        )
        plans = [memory_plan(workload)]
        if servers:
            plans.append(memory_plan(replace(workload, role="worker")))
        available = available_memory(1) if memory is None else memory
        show = _as_json if as_json else _as_text
        print_lines(*show(plans, available))
        try:
            for planned in plans:
                check_fits(planned, available)
        except TapasError as error:
            status(f"tapas: {error}")
            raise typer.Exit(FAILED) from None


def _as_json(plans: "list[MemoryPlan]", available: int) -> Iterable[str]:
    from tapas.training.memory_plan import traffic_designs

    planned, *workers = plans
    told = {
        "workload": asdict(planned.workload),
        "memory_bytes": planned.memory,
        "memory_total_bytes": planned.memory_bytes,
        "available_bytes": available,
        "fits": all(plan.memory_bytes <= available for plan in plans),
        "disk_bytes": planned.disk,
        "designs_bytes": traffic_designs(planned.workload),
    }
    for worker in workers:
        told["worker_memory_bytes"] = worker.memory
        told["worker_memory_total_bytes"] = worker.memory_bytes
    if not workers:
        told["traffic_bytes"] = planned.traffic
        told["traffic_total_bytes"] = planned.traffic_bytes
    yield from json.dumps(told, indent=1).splitlines()


def _as_text(plans: "list[MemoryPlan]", available: int) -> Iterable[str]:
    """The lines to print; entries of 0 bytes are left out."""
    from tapas.training.memory_plan import traffic_designs

    planned, workload = plans[0], plans[0].workload
    for plan in plans:
        memory = {**plan.memory, "total": plan.memory_bytes, "free": available}
        if plan.workload.role == "worker":
            yield "memory of a worker; the process that starts the run needs as much"
        else:
            yield f"memory of the {plan.workload.role} that needs most"
        yield from _lines(memory)
    yield "disk of a run, without its log, which takes 12 bytes for each event"
    yield from _lines(planned.disk)
    designs = traffic_designs(workload)
    if workload.role == "server":
        yield "sent and received by a worker in a step, without encoder and inputs"
        yield from _lines({"total": designs["algorithm 2"]})
    elif workload.ranks > 1:
        yield "sent by a rank in a step"
        yield from _lines({**planned.traffic, "total": planned.traffic_bytes})
        yield "sent by all ranks in a step, without encoder and inputs, by three designs"
        yield from _lines(designs)


def _lines(sizes: dict[str, int]) -> Iterable[str]:
    from tapas.training.memory_plan import in_units

    yield from (f"  {name:<28}{in_units(size):>9}" for name, size in sizes.items() if size)
