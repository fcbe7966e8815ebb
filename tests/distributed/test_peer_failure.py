"""One of three ranks is killed, hangs or stops during training: the others name it.

Each fault is one job; all jobs run at the same time, because they mostly wait.
"""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import CONTEXT

from tapas import PeerError, ShardedTable, TapasSoftmax, join_ranks
from tapas.distributed import peer_failure
from tapas.optim import RowwiseAdagrad
from tapas.rng import stream

C, D, M, FATAL_STEP = 31, 3, 3, 3
TIMEOUT_SECONDS, GRACE_SECONDS = 4.0, 2.0
SLACK_SECONDS = 10.0  # for a busy machine
CHECKPOINT = "run/checkpoints/step-2"
OFFER = rf" The last checkpoint is {CHECKPOINT}\."
DIED = r"rank {} died or hangs: no answer \(.+\)\." + OFFER
# the first rank that times out exits, and the next one sees a closed connection
HANGS = r"rank {} (hangs or is lost|died or hangs): no answer \(.+\)\." + OFFER
STOPPED = r"rank {} stopped: OSError: no space left on device\." + OFFER
# without torchrun, rank 0 has the store in which ranks report that they are alive
UNHOSTED = (
    r"the process with the ranks' shared store is gone \(.+\); that is rank {} or torchrun\."
    + OFFER
)

# the rank at fault, its fault, the call before which it happens, and the errors of the others
FAULTS = {
    "killed inside a step": (2, "kill", "backward", DIED),
    "rank 0 is killed": (0, "kill", "forward", DIED),
    "hangs": (2, "hang", "forward", HANGS),
    "rank 0 hangs": (0, "hang", "backward", HANGS),
    "raises": (1, "raise", "backward", STOPPED),
    "rank 0 is killed, and with it the store": (0, "kill", "forward", UNHOSTED),
}


def fail(how, folder):
    Path(folder, "fault").write_text(str(time.time()))
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)
    raise OSError("no space left on device")


def train(ranks, victim, how, where, folder):
    table = ShardedTable(C, D, row_optimizer=RowwiseAdagrad.fused(lr=0.1))
    head = TapasSoftmax(table=table, num_samples=7, presample_factor=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(D, D))
    for step in range(100_000):
        if step == 2:
            ranks.last_checkpoint = CHECKPOINT
        faulty = step == FATAL_STEP and ranks.rank == victim
        if faulty and where == "forward":
            fail(how, folder)
        x = torch.randn(5, D, generator=stream(0, "x", ranks.rank, step))
        loss = head(model(x), torch.arange(5))
        if faulty and where == "backward":
            fail(how, folder)
        loss.backward()


def work(rank, port, hosted, folder, fault):
    torch.set_num_threads(1)
    peer_failure.GRACE_SECONDS = GRACE_SECONDS
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(M),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if hosted:  # as under torchrun, whose process has the store
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    try:
        with join_ranks(timeout_seconds=TIMEOUT_SECONDS) as ranks:
            train(ranks, *fault, folder)
    except BaseException as error:
        errors = {
            "kind": type(error).__name__,
            "words": str(error),
            "blamed": list(error.ranks) if isinstance(error, PeerError) else None,
            "at": time.time(),
        }
        Path(folder, f"{rank}.partial").write_text(json.dumps(errors))
        os.rename(Path(folder, f"{rank}.partial"), Path(folder, f"{rank}.json"))


def start(name, folder):
    """The processes of one job, and its store if rank 0 does not have it."""
    hosted = FAULTS[name][3] != UNHOSTED
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    if not hosted:
        del store  # its port is free, and was so a moment ago
        store = None
    processes = [
        CONTEXT.Process(
            target=work, args=(rank, port, hosted, str(folder), FAULTS[name][:3]), daemon=True
        )
        for rank in range(M)
    ]
    for process in processes:
        process.start()
    return processes, store


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """{fault: {rank: its error, and after how many seconds}}"""
    folders = {name: tmp_path_factory.mktemp("job") for name in FAULTS}
    started = {name: start(name, folder) for name, folder in folders.items()}
    deadline = time.monotonic() + 90
    for name, (processes, _) in started.items():
        for rank, process in enumerate(processes):
            if rank != FAULTS[name][0]:
                process.join(max(0.0, deadline - time.monotonic()))
    for processes, _ in started.values():
        for process in processes:
            process.kill()
            process.join()
    errors = {}
    for name, folder in folders.items():
        errors[name] = {
            int(file.stem): json.loads(file.read_text()) for file in folder.glob("*.json")
        }
        for one in errors[name].values():
            one["seconds"] = one["at"] - float((folder / "fault").read_text())
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_others_name_the_rank_at_fault_and_the_last_checkpoint_in_time(jobs, name):
    victim, how, _, words = FAULTS[name]
    errors = jobs[name]
    if how == "raise":
        assert errors.pop(victim)["kind"] == "OSError"
    assert set(errors) == set(range(M)) - {victim}, "not all of the others have stopped"
    for one in errors.values():
        assert (one["kind"], one["blamed"]) == ("PeerError", [victim])
        assert re.fullmatch(words.format(victim), one["words"]), one["words"]
        assert one["seconds"] < TIMEOUT_SECONDS + GRACE_SECONDS + SLACK_SECONDS
        if how == "hang":  # it could have continued until then
            assert one["seconds"] > TIMEOUT_SECONDS / 2
