"""Memory plans match what tables hold and ranks send; errors suggest changes that fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranks import run_ranks

from tapas import LocalTable, Squashed, TapasSoftmax, UsageError
from tapas.distributed.sharded import ShardedTable
from tapas.servers.row_server import RowServer
from tapas.servers.worker import STEPS_AT_ONCE
from tapas.tables.shard import TableSpec
from tapas.training import memory_plan as planning
from tapas.training.memory_plan import (
    BUILD_BYTES,
    OPTIMIZERS,
    PROCESS_BYTES,
    Workload,
    available_memory,
    check_fits,
    check_machine_fits,
    describe_memory,
    memory_plan,
    traffic_designs,
)

C, D, L, M = 1_003, 7, 2, 3
SMALL = Workload(
    num_classes=C, dim=D, num_samples=23, presample_factor=3, batch=11, targets=L, ranks=M
)
LARGE = Workload(
    num_classes=10**9,
    dim=64,
    num_samples=10_000,
    presample_factor=10,
    batch=1_000,
    ranks=4,
    optimizer="lazy-adam",
    head_classes=10**7,
)
GB = 10**9


def held(table: torch.nn.Module, *names: str) -> int:
    return sum(b.nbytes for name, b in table.row_tensors().items() if not names or name in names)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_of_tables_is_exact(optimizer, dtype):
    workload = replace(SMALL, ranks=1, optimizer=optimizer, dtype=dtype, inputs=True)
    memory = memory_plan(workload).memory
    options = {"row_optimizer": OPTIMIZERS[optimizer], "dtype": getattr(torch, dtype)}
    table = LocalTable(C, D, **options)
    assert memory["rows"] == held(table, "weight")
    assert memory["biases"] == held(table, "bias")
    assert memory["row state"] == held(table) - held(table, "weight", "bias")
    assert memory["input rows and state"] == held(LocalTable(C, D, bias=False, **options))


def test_the_plan_of_a_server_is_what_its_shards_hold_and_a_worker_has_no_rows():
    workload = replace(SMALL, role="server", inputs=True)
    spec = TableSpec(C, D, M, OPTIMIZERS["rowwise-adagrad"])
    shards = {"out": spec.shard(0), "in": spec._replace(has_bias=False).shard(0)}
    server, planned = RowServer(0, shards), memory_plan(workload).memory
    assert planned["rows"] + planned["biases"] + planned["row state"] == held(shards["out"])
    assert planned["input rows and state"] == held(shards["in"])
    moved = sum(numbers.nbytes for numbers in server._moved.values())
    assert planned["last updates of rows"] == moved
    rank = memory_plan(SMALL).memory
    worker = memory_plan(replace(workload, role="worker")).memory
    assert worker["proposal"] == STEPS_AT_ONCE * rank["proposal"]
    assert not any("rows" in name and "kept" not in name for name in worker)
    bytes_of_a_step = worker["kept scores"] // STEPS_AT_ONCE
    assert bytes_of_a_step == 11 * 23 * 4  # all that is kept, not a share of it
    assert memory_plan(workload).disk == memory_plan(replace(SMALL, inputs=True)).disk


@pytest.mark.parametrize("seen", [C, 300, 251, 250])
def test_the_plan_of_the_proposal_is_exact(seen):
    counts = torch.ones(C)
    counts[:seen] += 1 + torch.arange(seen)
    proposal = Squashed(counts)
    assert len(proposal.head_ids) == seen
    size = sum(part.nbytes for part in proposal._parts if isinstance(part, torch.Tensor))
    assert memory_plan(replace(SMALL, head_classes=seen)).memory["proposal"] == size


def test_a_step_has_room_for_what_it_allocates():
    """Computed by hand: 12 examples with padding, 8 of 23 kept classes on the largest rank."""
    memory = memory_plan(replace(SMALL, encoder_parameters=10)).memory
    assert memory["rows"] == 335 * D * 4  # a third of 1,003 classes, rounded up
    assert memory["batch"] == 12 * (4 * 4 * D + 8 * L + 3 * 4 * (L + 1))
    assert memory["pool"] == 200 * 69 + 23 * (4 * D + 4 * 64)
    assert memory["kept rows and gradients"] == 4 * (8 + 12 * L) * D * 4
    assert memory["kept scores"] == 12 * 8 * 4
    assert memory["encoder, gradients, Adam"] == 10 * (4 + 4 + 8)
    pools = [memory_plan(replace(SMALL, presample_factor=r)).memory["pool"] for r in (44, 10**6)]
    assert pools[0] == pools[1], "a pool is all classes at most"


def test_the_log_counts_and_the_peak_is_told_beside_the_plan():
    with_log = memory_plan(replace(SMALL, events=1_000_000))
    assert with_log.memory["log"] == 24_000_000
    assert with_log.memory_bytes == memory_plan(SMALL).memory_bytes + 24_000_000
    assert describe_memory(with_log, 431_000_000) == "Memory: 431 MB at most, 424 MB planned."
    assert describe_memory(with_log, None) == "Memory: 424 MB planned."


def test_the_total_is_the_peak_of_building_and_training():
    lasting = ("process", "rows", "biases", "row state", "proposal")
    for changed in ({}, {"head_classes": None}, {"inputs": True}, {"ranks": 1}):
        planned = memory_plan(replace(LARGE, **changed))
        memory = planned.memory
        building = {name for name in memory if name.startswith("building")}
        stepping = sum(size for name, size in memory.items() if name not in building)
        start = 4 * 10**9 if planned.workload.ranks > 1 else 0
        rows = sum(memory[name] for name in lasting) + start
        proposal = PROCESS_BYTES + BUILD_BYTES * planned.workload.head
        assert planned.memory_bytes == max(stepping, rows, proposal)


def sent(ranks, workload, num_ids):
    """Bytes that a rank sends in a step of a head, and for the rows of inputs."""
    rows = OPTIMIZERS["sgd"]
    table = ShardedTable(C, D, row_optimizer=rows)
    head = TapasSoftmax(table=table, num_samples=23, presample_factor=3)
    mine = workload.batch // ranks.size + (ranks.rank < workload.batch % ranks.size)
    before = table.ranks.sent_bytes
    head(torch.randn(mine, D, requires_grad=True), torch.randint(C, (mine, L))).backward()
    step = table.ranks.sent_bytes - before
    inputs = ShardedTable(C, D, bias=False, row_optimizer=rows, placement="contiguous")
    before = inputs.ranks.sent_bytes
    inputs.lookup(torch.linspace(0, C - 1, num_ids).long()).sum().backward()
    return step, inputs.ranks.sent_bytes - before


@pytest.mark.slow
def test_ranks_send_as_many_bytes_as_planned():
    """Each rank reads 12 input rows, 4 of them from itself."""
    step = memory_plan(SMALL).traffic_bytes
    with_inputs = memory_plan(replace(SMALL, inputs=True, input_ids=12 * M)).traffic_bytes
    assert run_ranks(M, sent, SMALL, 12) == [(step, with_inputs - step)] * M


def test_the_bytes_of_a_step_by_hand():
    """B/m = 100 examples are sent to, and received from, each of 9 other ranks."""
    traffic = memory_plan(replace(LARGE, ranks=10, encoder_parameters=50)).traffic
    assert traffic == {
        "headers": 9 * (2 * 5 * 8 + 4 * 8),
        "queries and targets": 9 * 100 * (4 * 64 + 8),
        "answers": 9 * 100 * 2 * 4,
        "answers' gradients": 9 * 100 * 2 * 4,
        "query gradients": 9 * 100 * 4 * 64,
        "inputs": 0,
        "encoder gradients": 360,
    }
    assert (
        memory_plan(replace(LARGE, ranks=1, inputs=True, encoder_parameters=5)).traffic_bytes == 0
    )
    one_a_query = memory_plan(replace(LARGE, ranks=10, inputs=True)).traffic
    assert one_a_query["inputs"] == 90 * (8 + 2 * 4 * 64)
    assert one_a_query["headers"] == traffic["headers"] + 2 * 9 * 5 * 8


def test_three_designs_by_hand():
    workload = replace(LARGE, ranks=10)
    assert traffic_designs(workload) == {
        "rows to the worker": (100_000 + 1_000 + 11_000) * 65 * 4,
        "algorithm 2": 10 * 1_000 * 64 * 4 + 2 * 11_000 * 65 * 4,
        "no rows (ours)": 10 * memory_plan(workload).traffic_bytes,
    }
    assert traffic_designs(workload) == traffic_designs(
        replace(workload, inputs=True, encoder_parameters=9)
    )
    one_pass = traffic_designs(replace(workload, presample_factor=1))
    assert one_pass["rows to the worker"] == 2 * 11_000 * 65 * 4


def refusal(workload, available):
    with pytest.raises(UsageError) as caught:
        check_fits(memory_plan(workload), available)
    return str(caught.value)


def test_the_error_names_what_is_too_large_and_the_smallest_changes_that_fit():
    def need(**changed):
        return memory_plan(replace(LARGE, **changed)).memory_bytes

    check_fits(memory_plan(LARGE), need())
    assert refusal(LARGE, need() - 1)
    assert refusal(LARGE, 60 * GB) == (
        "1,000,000,000 classes of 64 dimensions on 4 ranks need 200 GB a rank, but only 60 GB are "
        "free. The largest item: row state, 130 GB. What would fit: 15 ranks with as much memory "
        "each (56.7 GB); bfloat16 rows and rowwise-adagrad instead of lazy-adam (39.2 GB); "
        "297,917,188 classes (60 GB)."
    )
    assert need(ranks=15) <= 60 * GB < need(ranks=14)
    assert need(num_classes=297_917_188) <= 60 * GB < need(num_classes=297_917_189)
    assert min(need(dtype="bfloat16"), need(optimizer="rowwise-adagrad")) > 60 * GB
    assert "bfloat16" not in refusal(LARGE, 100 * GB)
    assert "; rowwise-adagrad instead of lazy-adam (71.7 GB); " in refusal(LARGE, 100 * GB)
    assert "; bfloat16 rows (167 GB); rowwise-adagrad instead" in refusal(LARGE, 170 * GB)
    assert "on 1 rank need" in refusal(replace(LARGE, ranks=1), 60 * GB)
    assert refusal(LARGE, GB // 10).endswith("No change that we know of would fit.")


def test_all_processes_of_a_run_with_servers_must_fit_on_the_machine(monkeypatch):
    """The sizes of 5e7 classes of 64 dimensions, three servers and two workers."""
    workload = replace(LARGE, num_classes=5 * 10**7, ranks=1, optimizer="rowwise-adagrad")
    server, worker = (
        memory_plan(replace(workload, ranks=3, role=role)).memory_bytes
        for role in ("server", "worker")
    )
    needed = 3 * server + 3 * worker + PROCESS_BYTES
    free = [needed, needed - 1, 21 * GB, GB]
    monkeypatch.setattr(planning, "available_memory", lambda ranks_per_host: free.pop(0))
    check_machine_fits(workload, 3, 2)
    with pytest.raises(
        UsageError, match=r" need 22\.2 GB on this machine, but only 22\.2 GB are free"
    ):
        check_machine_fits(workload, 3, 2)
    with pytest.raises(UsageError) as error:
        check_machine_fits(workload, 3, 2)
    assert str(error.value) == (
        "50,000,000 classes of 64 dimensions need 22.2 GB on this machine, but only 21 GB are "
        "free. Servers: 3 of 5.07 GB; workers and this process: 3 of 2.21 GB; encoder server: "
        "400 MB. What would fit: --servers 0 (14.2 GB), or --workers 1 (20 GB). With "
        "--ray-address, several machines share the rows."
    )
    with pytest.raises(UsageError, match=r" encoder server: 400 MB\. With --ray-address, "):
        check_machine_fits(workload, 3, 1)


def test_more_ranks_do_not_help_a_proposal_that_is_too_large():
    workload = replace(LARGE, head_classes=None, ranks=50)
    words = refusal(workload, 64 * GB)
    assert "ranks with" not in words
    assert (
        "What would fit: at most 567,857,142 classes that were seen more than once (64 GB); "
        "567,857,142 classes (64 GB). Most of it is the proposal, 92.4 GB, which assumes that "
        "every class was seen more than once: --head 1e7 needs 303 MB."
    ) in words
    most = memory_plan(replace(workload, head_classes=567_857_142)).memory_bytes
    assert most <= 64 * GB < memory_plan(replace(workload, head_classes=567_857_143)).memory_bytes


def test_where_one_change_does_not_suffice_two_are_advised():
    """Four ranks cannot hold the proposal, whatever else is changed, nor the rows without it."""
    workload = replace(LARGE, head_classes=None, optimizer="rowwise-adagrad")
    assert (
        "What would fit: --head 1e7 and 5 ranks (58.3 GB); --head 1e7 and bfloat16 rows (39.2 GB); "
    ) in refusal(replace(workload, presample_factor=8, num_samples=1_000), 64 * GB)
    few = replace(LARGE, ranks=1, num_samples=20, head_classes=10**6)  # at most 20 ranks
    words = refusal(few, 20 * GB)
    assert "What would fit: 18 ranks and rowwise-adagrad instead of lazy-adam (19.3 GB); " in words
    lighter = replace(few, optimizer="rowwise-adagrad")
    assert memory_plan(replace(few, ranks=20)).memory_bytes > 20 * GB
    assert memory_plan(replace(lighter, ranks=18)).memory_bytes <= 20 * GB
    assert memory_plan(replace(lighter, ranks=17)).memory_bytes > 20 * GB


def test_the_disk_holds_all_rows_and_state_three_times_whatever_the_ranks():
    for ranks in (1, 3):
        disk = memory_plan(replace(SMALL, ranks=ranks, encoder_parameters=7, inputs=True)).disk
        tensors = 2 * SMALL.dim + 1  # rows, biases and the input rows
        state = {"rowwise-adagrad": 3, "lazy-adam": 2 * tensors}[SMALL.optimizer]
        checkpoint = 4 * SMALL.num_classes * (tensors + state) + 12 * 7
        assert list(disk.values()) == [checkpoint, 3 * checkpoint, 4 * checkpoint]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dim": 0}, r"dim must be at least 1, got 0\."),
        ({"num_samples": 2_000}, r"num_samples is 2,000, but there are only 1,003 classes\."),
        ({"ranks": 24}, r"ranks must be between 1 and num_samples \(23\), .*, got 24\."),
        ({"ranks": 0}, r"ranks must be between 1 and .*, got 0\."),
        ({"dtype": "float16"}, r"unknown dtype 'float16'\. Did you mean 'bfloat16'\?"),
        ({"optimizer": "adam"}, r"unknown optimizer 'adam'\. Did you mean 'lazy-adam'\?"),
        ({"head_classes": -1}, r"head_classes must be at least 0, got -1\."),
    ],
)
def test_an_impossible_workload_is_an_error(changed, words):
    with pytest.raises(UsageError, match=words):
        replace(SMALL, **changed)


def host(root: Path, free_kilobytes: int, groups: str, **limits: dict[str, object]) -> Path:
    """Fake /proc and /sys: free memory, the cgroups of this process and their limits."""
    files = {
        "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {free_kilobytes} kB\n",
        "proc/self/cgroup": groups,
    }
    for folder, names in limits.items():
        files |= {f"sys/fs/cgroup/{folder}/{name}": f"{v}\n" for name, v in names.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


LIMITED = {
    "memory.max": 1_000_000,
    "memory.current": 400_000,
    "memory.stat": "anon 300000\ninactive_file 50000",
}
FIRST_VERSION = {
    "memory.limit_in_bytes": 1_000_000,
    "memory.usage_in_bytes": 900_000,
    "memory.stat": "total_inactive_file 1000",
}
UNLIMITED = {"memory.max": "max", "memory.current": 10}
GROUPS = {  # cgroups of this process, their limits, bytes that are free
    "no limit": ("0::/\n", {}, 5_000 * 1024),
    "a limit around a group without one": (
        "0::/job/step\n", {"job/step": UNLIMITED, "job": LIMITED}, 650_000
    ),
    "the first version; a container sees its own group as the root": (
        "5:cpu:/outside\n4:hugetlb,memory:/outside\n0::/\n", {"memory": FIRST_VERSION}, 101_000
    ),
    "over its limit": ("0::/job\n", {"job": {"memory.max": 10, "memory.current": 20}}, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", GROUPS)
def test_the_tightest_group_decides_and_inactive_file_pages_count_as_free(tmp_path, case):
    groups, limits, free = GROUPS[case]
    root = host(tmp_path, 5_000, groups, **limits)
    assert available_memory(1, root=root) == free
    assert available_memory(4, root=root) == free // 4


def test_ranks_of_a_host_share_its_memory(tmp_path, monkeypatch):
    root = host(tmp_path, 5_000, "0::/\n")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert available_memory(root=root) == 1_000 * 1024
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert available_memory(root=root) == 5_000 * 1024
    with pytest.raises(UsageError, match=r"ranks_per_host must be at least 1, got 0\."):
        available_memory(0, root=root)


def test_the_scaling_page_says_where_the_designs_cross():
    def first(dearer: str, cheaper: str) -> int:
        def designs(ranks: int) -> dict[str, int]:
            return traffic_designs(replace(LARGE, ranks=ranks))

        return next(m for m in range(2, 200) if designs(m)[dearer] > designs(m)[cheaper])

    standard, paper, ours = traffic_designs(LARGE)
    r, n, batch = LARGE.presample_factor, LARGE.num_samples, LARGE.batch
    limits = (r - 1) * n / batch, (r + 1) * n / (2 * batch)  # nearly, as rows have biases, too
    page = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text()
    assert f"m < (r − 1) n / B, here {limits[0]:g}" in page
    assert f"m < (r + 1) n / 2B, here {limits[1]:g}" in page
    assert first(paper, standard) == pytest.approx(limits[0], rel=0.03)
    assert first(ours, standard) == pytest.approx(limits[1], rel=0.03)
