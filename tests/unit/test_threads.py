"""Threads: how many this process may use, how they wait, and what a fork leaves of them."""

import json
import multiprocessing
import os
import subprocess
import sys

import pytest
import torch

import tapas
from tapas.cli import torchrun
from tapas.errors import UsageError
from tapas.threads import (
    WAITING,
    allowed_cores,
    describe_waiting,
    requested_threads,
    set_waiting,
    waiting_variables,
)


def test_what_the_user_chose_is_left_alone():
    assert waiting_variables({}) == WAITING
    for name in WAITING:
        assert waiting_variables({name: "7"}) == {n: v for n, v in WAITING.items() if n != name}
    assert waiting_variables({"OMP_WAIT_POLICY": "active"}) == {}


def test_nothing_is_set_once_torch_is_loaded():
    environ: dict[str, str] = {}
    set_waiting(environ)
    assert environ == {}


def test_the_policy_in_force_is_that_of_the_library_in_this_process(tmp_path):
    given = {"GOMP_SPINCOUNT": "5", "KMP_BLOCKTIME": "9"}
    maps = tmp_path / "proc/self/maps"
    assert describe_waiting(given, root=tmp_path) == "OpenMP, as by default"
    maps.parent.mkdir(parents=True)
    maps.write_text("7f00-7f01 r--p 0000 fe:00 1  /torch/lib/libgomp.so.1\n")
    assert describe_waiting(given, root=tmp_path) == "libgomp, GOMP_SPINCOUNT=5"
    policy = {"OMP_WAIT_POLICY": "passive"}
    assert describe_waiting(policy, root=tmp_path) == "libgomp, OMP_WAIT_POLICY=passive"
    maps.write_text(maps.read_text() + "7f02-7f03 r--p 0000 fe:00 2  /lib/libiomp5.so\n")
    assert describe_waiting(given, root=tmp_path) == (
        "libgomp and libiomp5, GOMP_SPINCOUNT=5, KMP_BLOCKTIME=9"
    )


def test_there_is_one_openmp_library_in_this_process():
    """A second one, of our kernels, would start as many threads again."""
    assert " and " not in describe_waiting()


QUOTAS = {  # cgroups of this process, files below them, cores of the quota
    "no limit": ("0::/\n", {"cpu.max": "max 100000"}, None),
    "two and a half": ("0::/job\n", {"job/cpu.max": "250000 100000"}, 2),
    "half a core": ("0::/job\n", {"job/cpu.max": "50000 100000"}, 1),
    "of the group around it": (
        "0::/job/step\n", {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000"}, 1
    ),
    "the first version": (
        "5:cpu,cpuacct:/job\n4:memory:/\n",
        {"cpu/job/cpu.cfs_quota_us": "150000", "cpu/job/cpu.cfs_period_us": "100000"},
        1,
    ),
    "the first version, no limit": (
        "5:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None
    ),
    "nonsense": ("0::/\n", {"cpu.max": "lots 0"}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", QUOTAS)
def test_cores_are_those_allowed_and_no_more_than_the_quota(case, tmp_path, monkeypatch):
    groups, files, quota = QUOTAS[case]
    for name, text in {"proc/self/cgroup": groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, text in files.items():
        (tmp_path / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup" / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    assert allowed_cores(root=tmp_path) == (quota or 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert allowed_cores(root=tmp_path) == 1


def test_without_groups_or_affinity_all_cores_are_allowed(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert allowed_cores(root=tmp_path) == 5


def test_the_number_in_omp_num_threads_is_read_as_openmp_reads_it():
    assert requested_threads({}) is None
    assert requested_threads({"OMP_NUM_THREADS": "3"}) == 3
    assert requested_threads({"OMP_NUM_THREADS": " 4,2"}) == 4


@pytest.mark.parametrize("words", ["0", "-1", "1000000", "1025", "9" * 5_000, "two", "", "²"])
def test_a_number_of_threads_that_openmp_would_ignore_or_die_of_is_refused(words):
    with pytest.raises(UsageError) as error:
        requested_threads({"OMP_NUM_THREADS": words})
    assert str(error.value) == (
        f"OMP_NUM_THREADS is {words!r}; expected an integer from 1 to 1,024. Correct it, or unset "
        "it to use all cores."
    )


@pytest.mark.slow
def test_importing_the_library_leaves_the_environment_alone():
    script = (
        "import os, polars; before = dict(os.environ)\n"  # polars sets a variable of its own
        "import tapas; [getattr(tapas, name) for name in tapas.__all__]\n"
        "assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`tapas` on one core, with `variables` and no others that OpenMP reads."""
    ours = ("OMP_", "GOMP_", "KMP_")
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-m", "tapas", *arguments], capture_output=True, text=True, check=False,
        env=inherited | variables,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_uses_the_cores_it_is_allowed_and_bounds_the_spin():
    found = json.loads(command("info", "--json").stdout)
    assert found["processors"] == f"{os.cpu_count()}, 1 allowed, 1 thread in use"
    assert found["waiting threads"] == "libgomp, GOMP_SPINCOUNT=1000"
    chosen = command("info", "--json", OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="3")
    found = json.loads(chosen.stdout)
    assert found["processors"] == f"{os.cpu_count()}, 1 allowed, 3 threads in use"
    assert found["waiting threads"] == "libgomp, OMP_WAIT_POLICY=passive"
    refused = command("info", OMP_NUM_THREADS="0")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("tapas: OMP_NUM_THREADS is '0'; expected an integer from 1")


def losses(num_threads: int) -> list[float]:
    torch.set_num_threads(num_threads)
    head = tapas.TapasSoftmax(
        5_003, 33, num_samples=301, row_optimizer=tapas.optim.RowwiseAdagrad.fused(lr=0.1)
    )
    query = torch.randn(257, 33, generator=tapas.rng.stream(0, "query"), requires_grad=True)
    found = []
    for _ in range(2):
        loss = head(query, torch.arange(257))
        loss.backward()
        found.append(loss.item())
    return found


def answer(pipe) -> None:
    pipe.send((losses(2), torch.ones(700, 700).mm(torch.ones(700, 700)).max().item()))
    pipe.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # multi-threaded, Python 3.12
def test_a_fork_after_threads_have_worked_computes_the_same():
    """The child has none of the threads, for which torch and our kernels would wait for ever."""
    here = losses(2)
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=answer, args=(theirs,))
    child.start()
    try:
        assert mine.poll(60), "the child hangs"
        assert mine.recv() == (here, 700.0)
    finally:
        child.kill()
        child.join()
    assert losses(2) == here


@pytest.mark.parametrize("number", [0, -1])
def test_torch_refuses_impossible_numbers_of_threads(number):
    with pytest.raises(RuntimeError, match="set_num_threads expects a positive integer"):
        torch.set_num_threads(number)


def test_more_threads_than_cores_compute_the_same():
    assert losses(2) == pytest.approx(losses(61), rel=1e-6)


def test_the_default_is_what_is_asked_for_or_allowed_and_ranks_share_it(monkeypatch):
    monkeypatch.setattr(torchrun, "allowed_cores", lambda: 7)
    monkeypatch.setattr(torchrun, "started_by_torchrun", lambda: False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert torchrun.default_threads() == 7
    monkeypatch.setattr(torchrun, "started_by_torchrun", lambda: True)
    assert torchrun.default_threads() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert torchrun.default_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert torchrun.default_threads() == 5


def test_more_threads_than_cores_are_called_slow(monkeypatch):
    monkeypatch.setattr(torchrun, "allowed_cores", lambda: 1)
    assert torchrun.slow_threads(1) is None
    assert torchrun.slow_threads(1_024) == (
        "Slow: 1,024 threads, but this process may use 1 core. Threads that wait for a core hold "
        "up all others."
    )
