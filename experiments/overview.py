"""Reads the folders of results and lists the verdict on every claim of the paper."""

from pathlib import Path
from typing import Any

from experiments.claims import Claim, claims_table
from experiments.options import QUICK_FOLDER
from experiments.real.cells import SetCell, SetRuns
from experiments.real.claims import check_real_claims
from experiments.real.evidence import SetEvidence
from experiments.real.pace import Pace, Rows
from experiments.real.sets import SETS, SYNTHETIC
from experiments.synthetic.claims import StudyResults, check_synthetic_claims
from experiments.synthetic.studies import STUDIES, Study
from experiments.system.claims import STUDY as SYSTEM
from experiments.system.claims import check_system_claims
from tapas.atomic_file import OutputFolder
from tapas.comparison.ledger import Ledger
from tapas.errors import DataError, UsageError
from tapas.json_toml import parse_json

REAL_RUNS = "real-data"
PACES = Path("table-1") / "pace.json"
PAGES = (*STUDIES, "figure-3", "figure-4", "table-1", SYSTEM, "sweeps")


def study_ledger(out: Path, study: Study) -> Ledger:
    lender = [out / study.shares_runs_with / "results.jsonl"] if study.shares_runs_with else []
    return Ledger(out / study.name / "results.jsonl", also=lender)


def read_studies(out: Path) -> StudyResults:
    """Every synthetic study that has results below `out`."""
    studies = {}
    for name, study in STUDIES.items():
        if (out / name / "results.jsonl").exists():
            studies[name] = (study, study_ledger(out, study))
    cost = out / "figure-2" / "gradient_cost.json"
    return StudyResults(studies, _measured(cost) if cost.exists() else None)


def _measured(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise DataError(
            f"{path} is not what `python -m experiments figure-2` writes ({error}). Restore it "
            "from another copy, or move it away."
        ) from error


def real_ledger(out: Path, name: str) -> Ledger:
    return Ledger(out / REAL_RUNS / f"{name}.jsonl")


def system_ledger(out: Path) -> Ledger:
    return Ledger(out / SYSTEM / "results.jsonl")


def read_evidence(out: Path, *, quick: bool = False) -> list[SetEvidence]:
    """Every real set that has results below `out`; of quick runs, the made-up log."""
    paces = read_paces(out)
    sets = {SYNTHETIC.name: SYNTHETIC} if quick else SETS
    return [
        SetEvidence(SetRuns(real_set, quick=quick), real_ledger(out, name), paces.get(name, ()))
        for name, real_set in sets.items()
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
                    SetCell(*pace["cell"]),
                    pace["steps_per_second"],
                    pace["against_sampled"],
                    Rows(*pace["rows"]),
                )
                for pace in paces
            ]
            for name, paces in parse_json(path.read_bytes()).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path} is not what `python -m experiments table-1` writes. Move it away and measure "
            "again."
        ) from None


def all_claims(out: Path) -> list[Claim]:
    """The verdict on every claim. Raises UsageError for a folder of quick runs."""
    if out.resolve().name == QUICK_FOLDER:
        raise UsageError(
            f"{out} has quick runs, which have no verdicts. Run the studies without --quick."
        )
    return [
        *check_synthetic_claims(read_studies(out)),
        *check_real_claims(read_evidence(out)),
        *check_system_claims(system_ledger(out)),
    ]


def overview_page(out: Path, claims: list[Claim]) -> str:
    pages = [name for name in PAGES if (out / name / "README.md").exists()]
    lines = [
        "# The paper's claims",
        "",
        "Verdicts by `python -m experiments claims`, from the ledgers in these folders: "
        + ", ".join(f"[{name}]({name}/README.md)" for name in pages)
        + ". Each follows from the numbers by a rule in the code.",
        "",
        "- **reproduced**: the rule holds; for a claim about real data, on every set;",
        "- **partly**: one of its conditions holds, or it holds on some of the sets;",
        "- **not reproduced**: the results contradict the claim, or the 95 % interval of the "
        "difference includes 0.",
        "",
        "The two rules about temperature were made stricter after the runs: an interval that "
        "includes 0 was *partly* before. This changed the verdict on annealing.",
        "",
        "(-0.2 to +3.6) and ± are 95 % intervals. *One seed* means that the interval is over "
        "users only.",
        "",
        *claims_table(claims),
        "",
    ]
    return "\n".join(lines)


def write_overview(out: Path, claims: list[Claim]) -> None:
    OutputFolder(out).write({"README.md": overview_page(out, claims).encode()})
