"""`tapas` with a fault planned for each attempt of a job: FAULTS="kill@1:7 hang@0:9", then none.

Each is KIND@RANK:STEP. Started by torchrun in place of `-m tapas`.
"""

import os
import signal
import sys
import time

import torch

from tapas.cli import stopping
from tapas.cli.main import app
from tapas.tables import ranks
from tapas.training import trainer

ranks.GRACE_SECONDS, stopping.PATIENCE_SECONDS = 1.0, 2
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
planned = (os.environ.get("FAULTS", "").split() + [""] * (attempt + 1))[attempt]
inner = trainer.step


def step(*args, number, **options):
    kind, _, place = planned.partition("@")
    if place == f"{os.environ['RANK']}:{number}":
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang":
            time.sleep(600)
        raise ValueError("a fault that was planned")
    return inner(*args, number=number, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer.step = step
    sys.argv[0] = "tapas"
    app()
