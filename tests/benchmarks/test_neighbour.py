"""The benchmark beside a busy process: the process itself, environments, targets and the page."""

import os
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def bench(load):
    return load("bench_neighbour")


def test_the_busy_process_ends_with_its_context(bench):
    with bench.busy_process() as pid:
        os.kill(pid, 0)  # it is there
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ZeroDivisionError), bench.busy_process() as pid:
        1 / 0  # noqa: B018
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cpu_time_of_known_processes_is_no_other_work(bench, load):
    measuring = load("measuring")
    with bench.busy_process() as pid:
        stat = Path(f"/proc/{pid}/stat")
        while int(stat.read_text().split()[13]) < 5:
            time.sleep(0.01)
        known = measuring.OtherWork([pid])
        assert measuring.OtherWork().seconds - known.seconds > 0.04
    assert measuring.OtherWork().cores() >= 0


def test_variables_of_an_argument_make_a_contender_and_others_are_refused(bench):
    found = bench.environments(["GOMP_SPINCOUNT=0"])
    assert list(found) == ["default", "command", "GOMP_SPINCOUNT=0"]
    assert found["default"] == {}
    assert found["command"]
    assert found["GOMP_SPINCOUNT=0"] == {"GOMP_SPINCOUNT": "0"}
    words = r"'{}' is not OMP_WAIT_POLICY=value or GOMP_SPINCOUNT=value or KMP_BLOCKTIME=value\."
    for word in ("PATH=x", "GOMP_SPINCOUNT"):
        with pytest.raises(SystemExit, match=words.format(word)):
            bench.environments([word])


def fake_turns() -> dict[str, dict[str, list[list[float]]]]:
    slow = [[0.020] * 10, [0.020] * 8 + [0.050] * 2]
    return {
        "default": {"alone": [[0.010] * 10] * 2, "beside": [[0.090] * 10] * 2},
        "command": {"alone": [[0.011] * 10] * 2, "beside": slow},
    }


def test_targets_compare_rounds_and_the_slowest_steps(bench):
    found = bench.verdicts("a step", fake_turns())
    assert [(target.found, target.verdict) for target in found] == [
        ("1.10 × [1.10, 1.10]", "MISSED"),
        ("1.82 × [1.82, 1.82]", "met"),
        ("4.27 ×", "MISSED"),
    ]
    assert bench.ninth_decile(fake_turns()["command"]["beside"]) == pytest.approx(0.047)


def test_the_page_shows_medians_and_ninth_deciles(load):
    record = {
        "settings": {"environments": {"default": {}, "command": {"GOMP_SPINCOUNT": "1"}}},
        "results": {"cases": {"a step": fake_turns()}},
    }
    text = load("sections").neighbour(record)
    assert "Environments: default: nothing set; command: `GOMP_SPINCOUNT=1`." in text
    assert (
        "| command | 11.0 ms [11.0, 11.0], p90 11.0 ms | 20.0 ms [20.0, 20.0], p90 47.0 ms "
        "| 1.82 × |"
    ) in text
