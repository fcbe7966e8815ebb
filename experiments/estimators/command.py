"""`python -m experiments estimators`: step times over the number of classes, and biases."""

import logging

from experiments.estimators.bias import bias_runs, measure_bias
from experiments.estimators.page import BIAS, FIGURE, README, STEP_TIMES, make_page, read_estimators
from experiments.estimators.step_times import StepTimesConfig, measure_step_times
from experiments.options import ALL_CORES, RESULTS, Draw, Out, Quick, Workers, home_of
from experiments.quick import FEW_REPEATS, quick_page, say_quick
from tapas.atomic_file import OutputFolder
from tapas.cli.exit_codes import report_errors
from tapas.cli.progress import run_progress
from tapas.cli.terminal import status
from tapas.comparison.ledger import Ledger
from tapas.comparison.process_pool import run_missing

NAME = "estimators"
ABOUT = {
    NAME: ("Not a claim of the paper: step time and bias of every method of docs/methods.md.", "40")
}
QUICK = StepTimesConfig(
    contenders=("full", "sampled", "tapas"), classes=(200, 400), dim=8, examples=16, repeats=3,
    block=2, fresh_processes=False,
)  # fmt: skip


def estimators(
    out: Out = RESULTS,
    quick: Quick = False,
    draw: Draw = False,
    workers: Workers = ALL_CORES,
) -> None:
    """Measure step time and bias of every method.

    Step times are measured one at a time, each in a separate process: do not use the machine
    meanwhile. Finished measurements are kept, and the same command continues. About 40 minutes.
    """
    with report_errors():
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        from experiments.estimators.figure import draw_step_times

        if quick:
            say_quick(FEW_REPEATS)
        place = home_of(out, quick) / NAME
        folder, config = OutputFolder(place), QUICK if quick else StepTimesConfig()
        if not draw:
            biases = bias_runs(config.contenders, (16,), 40) if quick else bias_runs()
            with run_progress() as follow:
                measure_step_times(Ledger(place / STEP_TIMES), config, follow("step times"))
                ledger = Ledger(place / BIAS)
                run_missing(ledger, biases, measure_bias, follow("bias"), workers=workers)
        found = read_estimators(place)
        page = quick_page(make_page(found), FEW_REPEATS) if quick else make_page(found)
        folder.write({README: page.encode(), FIGURE: draw_step_times(found, quick=quick)})
        status(f"Wrote {place / README} and {place / FIGURE}.")
