"""What the folders of results say about the paper's claims: read, judged, and listed."""

import json
from pathlib import Path

from experiments.claims import judge_claims
from experiments.real.cells import Cell, Plan
from experiments.real.claims import judge_real_claims
from experiments.real.evidence import Evidence
from experiments.real.pace import Pace, Rows
from experiments.real.sets import SETS
from experiments.study_results import Book, Claim
from experiments.synthetic.page import claims_table
from experiments.synthetic.studies import STUDIES, Study, fit_quick
from experiments.system.claims import STUDY as SYSTEM
from experiments.system.claims import judge_system_claims
from tapas.atomic_file import ResultsFolder
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError

REAL_RUNS = "real-data"
PACES = Path("table-1") / "pace.json"
PAGES = (*STUDIES, "figure-3", "figure-4", "table-1", SYSTEM, "sweeps")


def study_ledger(out: Path, study: Study) -> Ledger:
    lender = [out / study.borrows / "results.jsonl"] if study.borrows else []
    return Ledger(out / study.name / "results.jsonl", also=lender)


def read_book(out: Path, *, quick: bool = False) -> Book:
    """Every synthetic study that has results below `out`."""
    studies = {}
    for name, study in STUDIES.items():
        if (out / name / "results.jsonl").exists():
            studies[name] = (study.quick() if quick else study, study_ledger(out, study))
    cost = out / "figure-2" / "gradient_cost.json"
    measured = json.loads(cost.read_text()) if cost.exists() else None
    return Book(studies, measured, fit=fit_quick) if quick else Book(studies, measured)


def real_ledger(out: Path, name: str) -> Ledger:
    return Ledger(out / REAL_RUNS / f"{name}.jsonl")


def system_ledger(out: Path) -> Ledger:
    return Ledger(out / SYSTEM / "results.jsonl")


def read_evidence(out: Path, *, quick: bool = False) -> list[Evidence]:
    """Every real set that has results below `out`."""
    paces = read_paces(out)
    return [
        Evidence(Plan(real_set, quick=quick), real_ledger(out, name), paces.get(name, ()))
        for name, real_set in SETS.items()
        if (out / REAL_RUNS / f"{name}.jsonl").exists()
    ]


def read_paces(out: Path) -> dict[str, list[Pace]]:
    """What `table-1` has measured, by set."""
    path = out / PACES
    if not path.exists():
        return {}
    try:
        return {
            name: [
                Pace(
                    Cell(*pace["cell"]),
                    pace["steps_per_second"],
                    pace["against_sampled"],
                    Rows(*pace["rows"]),
                )
                for pace in paces
            ]
            for name, paces in json.loads(path.read_text()).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not what `python -m experiments table-1` writes ({error!r}). Move "
            "it away and measure again."
        ) from error


def all_claims(out: Path, *, quick: bool = False) -> list[Claim]:
    return [
        *judge_claims(read_book(out, quick=quick)),
        *judge_real_claims(read_evidence(out, quick=quick)),
        *judge_system_claims(system_ledger(out)),
    ]


def write_overview(out: Path, claims: list[Claim]) -> None:
    pages = [name for name in PAGES if (out / name / "README.md").exists()]
    lines = [
        "# The paper's claims",
        "",
        "Judged by `python -m experiments claims` from the ledgers in these folders: "
        + ", ".join(f"[{name}]({name}/README.md)" for name in pages)
        + ".",
        "",
        *claims_table(claims),
        "",
    ]
    ResultsFolder(out).write({"README.md": "\n".join(lines).encode()})
