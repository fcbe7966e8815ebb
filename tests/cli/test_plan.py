"""`tapas plan`: the memory and traffic of a run, and exit code 1 if it does not fit."""

import json

import pytest
import typer
from oracle.command_line import invoke, last_line, write_chain

from tapas.cli.plan import amount_of_memory, whole_number
from tapas.training import memory_plan as planning
from tapas.training.memory_plan import Workload, traffic_designs

SIZES = ("--classes", "1e6", "--dim", 32, "--num-samples", "1,000", "--batch", 400, "--ranks", 4)


def test_the_table_has_every_part_and_its_total():
    assert "sent" not in invoke("plan", "--classes", "1e6", "--memory", "2GB").stdout  # one rank
    done = invoke("plan", *SIZES, "--memory", "2GB")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "memory of the rank that needs most",
        "  process                        400 MB",
        "  rows                            32 MB",
        "  biases                           1 MB",
        "  row state                        2 MB",
        "  proposal                        28 MB",
        "  batch                          218 kB",
        "  pool                          2.37 MB",
        "  kept rows and gradients        333 kB",
        "  kept scores                    400 kB",
        "  building the rows              682 kB",
        "  building the proposal           45 MB",
        "  total                          512 MB",
        "  free                             2 GB",
        "disk of a run, without its log, which takes 12 bytes for each event",
        "  a checkpoint                   140 MB",
        "  two newest and the best        420 MB",
        "  while another is saved         560 MB",
        "sent by a rank in a step",
        "  headers                         336 B",
        "  queries and targets           40.8 kB",
        "  answers                        2.4 kB",
        "  answers' gradients             2.4 kB",
        "  query gradients               38.4 kB",
        "  total                         84.3 kB",
        "sent by all ranks in a step, without encoder and inputs, by three designs",
        "  rows to the worker            1.29 MB",
        "  algorithm 2                    574 kB",
        "  no rows (ours)                 337 kB",
    ]


def test_every_option_reaches_the_plan_and_json_is_the_plan_in_bytes():
    done = invoke(
        "plan", "--classes", "1e6", "--dim", 32, "--num-samples", 1_000,
        "--presample-factor", 3, "--batch", 9, "--targets", 5, "--ranks", 4,
        "--dtype", "bfloat16", "--optimizer", "adagrad", "--inputs",
        "--head", "1e5", "--encoder-parameters", "2e4", "--events", "3e6", "--memory", "2GB",
        "--json",
    )  # fmt: skip
    workload = Workload(
        num_classes=1_000_000, dim=32, num_samples=1_000, presample_factor=3, batch=9, targets=5,
        ranks=4, dtype="bfloat16", optimizer="adagrad", inputs=True, head_classes=100_000,
        encoder_parameters=20_000, events=3_000_000,
    )  # fmt: skip
    printed, planned = json.loads(done.stdout), planning.memory_plan(workload)
    assert Workload(**printed["workload"]) == workload
    assert (printed["memory_bytes"], printed["traffic_bytes"]) == (planned.memory, planned.traffic)
    assert printed["memory_total_bytes"] == planned.memory_bytes
    assert printed["disk_bytes"] == planned.disk
    assert printed["traffic_total_bytes"] == planned.traffic_bytes
    assert printed["designs_bytes"] == traffic_designs(workload)
    assert (printed["available_bytes"], printed["fits"]) == (2_000_000_000, True)


def test_servers_and_workers_have_a_plan_each():
    sizes = ("--classes", "1e6", "--dim", 32, "--num-samples", "1,000", "--batch", 400)
    done = invoke("plan", *sizes, "--servers", 4, "--inputs", "--memory", "2GB")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "memory of the server that needs most",
        "  process                        400 MB",
        "  rows                            32 MB",
        "  biases                           1 MB",
        "  row state                        2 MB",
        "  input rows and state            33 MB",
        "  last updates of rows             2 MB",
        "  batch                         54.4 kB",
        "  pool                          1.17 MB",
        "  kept rows and gradients        166 kB",
        "  building the rows              611 kB",
        "  total                          472 MB",
        "  free                             2 GB",
        "memory of a worker; the process that starts the run needs as much",
        "  process                        400 MB",
        "  counts of classes                8 MB",
        "  proposal                        56 MB",
        "  batch                          416 kB",
        "  pool                           3.2 MB",
        "  kept rows and gradients       1.43 MB",
        "  kept scores                    3.2 MB",
        "  building the proposal         75.8 MB",
        "  total                          548 MB",
        "  free                             2 GB",
        "disk of a run, without its log, which takes 12 bytes for each event",
        "  a checkpoint                   272 MB",
        "  two newest and the best        816 MB",
        "  while another is saved        1.09 GB",
        "sent and received by a worker in a step, without encoder and inputs",
        "  total                          574 kB",
    ]
    plain = json.loads(invoke("plan", *sizes, "--servers", 4, "--json").stdout)
    assert (plain["workload"]["role"], plain["workload"]["ranks"]) == ("server", 4)
    assert sum(plain["worker_memory_bytes"].values()) == plain["worker_memory_total_bytes"]
    assert "traffic_bytes" not in plain
    few = invoke("plan", *sizes, "--servers", 4, "--memory", "540MB")  # too few for a worker only
    assert few.returncode == 1
    assert few.stderr.startswith(
        "tapas: 1,000,000 classes of 32 dimensions on 4 servers need 548 MB a worker, but only "
        "540 MB are free. The largest item: process, 400 MB. What would fit: at most "
    )
    rows = invoke("plan", *sizes, "--servers", 1, "--head", 10, "--memory", "450MB")
    assert "on 1 server need 549 MB a server, but only 450 MB are free." in rows.stderr
    assert "What would fit: 4 servers with as much memory each (" in rows.stderr
    assert last_line(invoke("plan", *sizes, "--servers", 2, "--ranks", 2)) == (
        "--ranks and --servers are two ways to share rows: give one of them."
    )


def test_what_does_not_fit_is_explained_in_one_line(monkeypatch):
    done = invoke("plan", *SIZES, "--memory", "450MB", "--head", 0)
    assert done.returncode == 0
    done = invoke("plan", *SIZES, "--memory", "450MB")
    assert done.returncode == 1
    assert done.stdout.startswith("memory of the rank that needs most\n  process ")
    assert done.stderr == (
        "tapas: 1,000,000 classes of 32 dimensions on 4 ranks need 512 MB a rank, but only 450 MB "
        "are free. The largest item: process, 400 MB. What would fit: at most 374,999 "
        "classes that were seen more than once (450 MB); 446,428 classes (450 MB).\n"
    )
    done = invoke("plan", *SIZES, "--memory", "450MB", "--json")
    assert (done.returncode, json.loads(done.stdout)["fits"]) == (1, False)
    monkeypatch.setattr(planning, "available_memory", lambda ranks_per_host: 123_000_000)
    done = invoke("plan", *SIZES)  # what this machine has free
    assert done.returncode == 1
    assert "  free                           123 MB\n" in done.stdout
    assert last_line(invoke("plan", "--classes", "1e6", "--dtype", "float16")) == (
        "unknown dtype 'float16'. Did you mean 'bfloat16'? Known: bfloat16, float32."
    )


@pytest.mark.parametrize(
    ("words", "number"),
    [("1e9", 10**9), ("10_000", 10_000), ("1,000", 1_000), ("1,234,567", 1_234_567), ("7", 7),
     ("1.5e6", 1_500_000), ("2E+3", 2_000), (" 64 ", 64),
     ("123456789123456789", 123456789123456789)],
)  # fmt: skip
def test_numbers_may_be_written_as_people_write_them(words, number):
    assert whole_number(words) == number


@pytest.mark.parametrize(
    "words", ["1,5", "1.5", "1e-3", "many", "", "-3", "1e400", "1,0000", "1__0"]
)
def test_other_text_than_an_integer_is_refused(words):
    with pytest.raises(typer.BadParameter, match="is not an integer such as"):
        whole_number(words)


@pytest.mark.parametrize(
    ("words", "size"),
    [("64GB", 64 * 10**9), ("1.5 tb", 15 * 10**11), ("60GiB", 60 * 2**30), ("512kB", 512_000),
     ("1KiB", 1024), ("7B", 7)],
)  # fmt: skip
def test_memory_has_a_unit(words, size):
    assert amount_of_memory(words) == size


@pytest.mark.parametrize("words", ["64", "64 gigs", "GB", "-1GB", "64GBs", ""])
def test_memory_without_a_unit_is_refused_with_examples(words):
    done = invoke("plan", "--classes", "1e6", f"--memory={words}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        f"Error: Invalid value for '--memory': {words!r} is not an amount of memory. Give a number "
        "and a unit, such as 64GB, 1.5TB or 60GiB.\n"
    )


def test_training_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "available_memory", lambda: 1_000_000)
    file = write_chain(tmp_path / "chain.parquet")
    done = invoke("train", file, "--out", tmp_path / "run", "--cache", tmp_path / "cache")
    assert done.returncode == 1
    assert "200 classes of 128 dimensions on 1 rank need " in done.stderr
    assert "but only 1 MB are free." in done.stderr
    assert not (tmp_path / "run").exists()
