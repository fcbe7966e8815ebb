"""`four-ways` as its users meet it: what it prints where, what it writes, how it ends."""

import errno
import json
import os
import pty
import re
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from oracle.journeys import experiment
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.four_ways import command as four_ways
from experiments.four_ways.training import METHODS, FourWaysConfig, train_four_ways
from experiments.synthetic.long_tail import LongTailConfig
from tapas.atomic_file import ResultsFolder
from tapas.errors import UsageError

pytestmark = pytest.mark.slow

TINY = ("four-ways", "--classes", "300", "--steps", "20")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """With stdout and stderr both piped: nobody watches."""
    out = tmp_path_factory.mktemp("table") / "made" / "on the way"
    return experiment(*TINY, "--out", out), out


@pytest.fixture(scope="module")
def json_run(tmp_path_factory):
    """With stderr on a terminal, so that the bars are drawn; stdout piped."""
    out = tmp_path_factory.mktemp("json")
    terminal, far_end = pty.openpty()
    talk: list[bytes] = []

    def listen():
        with suppress(OSError):  # how a pty says that its far end was closed
            while heard := os.read(terminal, 4096):
                talk.append(heard)

    listener = threading.Thread(target=listen)
    listener.start()
    done = experiment(*TINY, "--json", "--out", out, terminal=os.ttyname(far_end))
    os.close(far_end)
    listener.join()
    os.close(terminal)
    return done, b"".join(talk).decode(), out


def test_the_table_is_all_of_stdout(table_run):
    done, _ = table_run
    assert done.returncode == 0
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert lines[0] == "300 classes, 20 steps of 128 examples, one seed (0), 1 thread."
    assert lines[1].split() == ["precision@1", "MAP@20", "step", "time", "vs", "sampled"]
    rows = {name: line.removeprefix(name).split() for name in METHODS for line in lines
            if line.startswith(f"{name}  ")}  # fmt: skip
    assert list(rows) == list(METHODS)
    for precision, average, _, unit, ratio in rows.values():
        assert 0 < float(precision) <= float(average) < 1
        assert unit == "ms"
        assert ratio.endswith("x")
    assert rows["sampled softmax"][-1] == "1.0x"
    assert lines[7].startswith("Bayes-optimal")
    said = " ".join(lines[8:])
    assert "n = 128" in said
    assert "draws 300 (r = 8) and keeps 128" in said  # the pool is never more than there is
    assert "2,048 held-out examples ranked over all classes" in said
    assert "One seed: repeat with --seed before you believe a small difference." in said
    assert "\x1b" not in done.stdout


def test_stderr_says_only_what_was_written_when_nobody_watches(table_run):
    done, out = table_run
    assert done.stderr == f"Wrote {out / 'figure.png'} and {out / 'results.json'}.\n"
    assert names(out) == ["figure.png", "results.json"]
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_json_is_all_of_stdout_and_the_file_that_was_written(json_run):
    done, _, out = json_run
    assert done.returncode == 0
    assert done.stdout == (out / "results.json").read_text()
    document = json.loads(done.stdout)
    assert document["num_seeds"] == 1
    assert document["num_threads"] == 1
    config = document["config"]
    assert (config["task"]["num_classes"], config["steps"], config["seed"]) == (300, 20, 0)
    assert [method["name"] for method in document["methods"]] == list(METHODS)
    assert document["methods"][0]["step_seconds_ratio"] == 1
    for method in document["methods"]:
        assert [point["step"] for point in method["curve"]] == [1, 2, 5, 10, 15, 20]
        assert method["curve"][-1]["score"]["map_at_20"] <= document["bayes"]["map_at_20"]


def test_a_terminal_sees_bars_with_a_rate_and_the_time_left(json_run):
    _, talk, _ = json_run
    for method in METHODS:
        assert method in talk
    assert re.search(r"20/20  [\d.e+]+ steps/s", talk)
    assert "about 0:00 left" in talk


def test_two_runs_of_one_seed_agree_but_for_the_time(table_run, json_run):
    one, other = (
        json.loads((run[-1] / "results.json").read_text()) for run in (table_run, json_run)
    )
    assert one["bayes"] == other["bayes"]
    for mine, theirs in zip(one["methods"], other["methods"], strict=True):
        assert [p["score"] for p in mine["curve"]] == [p["score"] for p in theirs["curve"]]


@pytest.mark.parametrize(("load", "said"), [(0.9, False), (1.1, True), (None, False)])
def test_a_busy_machine_is_owned_up_to(monkeypatch, tmp_path, load, said):
    monkeypatch.setattr(four_ways, "_load_average", lambda: load)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    config = FourWaysConfig(
        task=LongTailConfig(num_classes=40, dim=3),
        steps=2, batch_size=5, num_samples=7, hidden=4, dim=4, num_held_out=9,
    )  # fmt: skip
    monkeypatch.setattr(four_ways, "train_four_ways", lambda *_, **__: train_four_ways(config))
    ended = invoke("four-ways", "--out", tmp_path)
    assert ended.exit_code == 0
    words = (
        "The machine was busy before this began (load average 1.1 on 2 cores): "
        "do not trust these step times.\n"
    )
    assert ended.stdout.endswith(words) == said
    assert json.loads((tmp_path / "results.json").read_text())["load_average_before"] == load


def test_a_mistyped_option_is_named_with_exit_code_2():
    ended = invoke("four-ways", "--clases", 300)
    assert ended.exit_code == 2
    assert ended.stdout == ""
    assert "No such option: --clases" in ended.stderr
    assert "--classes" in ended.stderr.split("--clases")[1]


def test_too_few_classes_are_a_usage_error():
    ended = invoke("four-ways", "--classes", 19)
    assert ended.exit_code == 2
    assert "Invalid value for '--classes'" in ended.stderr
    assert "200" in ended.stderr


@pytest.mark.parametrize("place", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_made_is_one_line_before_any_work(monkeypatch, tmp_path, place):
    monkeypatch.setattr(four_ways, "train_four_ways", lambda *_, **__: pytest.fail("it trained"))
    (tmp_path / "taken").write_text("mine")
    ended = invoke("four-ways", "--out", tmp_path / place)
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        f"tapas: cannot write into {tmp_path / place}: a file is in the way. "
        "Choose another folder with --out.\n"
    )
    assert (tmp_path / "taken").read_text() == "mine"


def test_ctrl_c_is_one_line_and_exit_code_130(monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(four_ways, "train_four_ways", interrupted)
    ended = invoke("four-ways", "--out", tmp_path)
    assert (ended.exit_code, ended.stdout) == (130, "")
    assert ended.stderr == "tapas: stopped by Ctrl-C.\n"
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_too_little_memory_is_one_line(monkeypatch, tmp_path, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(four_ways, "train_four_ways", full)
    ended = invoke("four-ways", "--out", tmp_path)
    assert ended.exit_code == 1
    assert ended.stderr == "tapas: out of memory. Ask for fewer classes.\n"


def test_a_bug_keeps_its_traceback(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise RuntimeError("size mismatch")

    monkeypatch.setattr(four_ways, "train_four_ways", broken)
    ended = invoke("four-ways", "--out", tmp_path)
    assert isinstance(ended.exception, RuntimeError)


def test_a_full_disk_leaves_the_old_files_and_no_half_written_one(monkeypatch, tmp_path):
    folder = ResultsFolder(tmp_path)
    folder.write({"a": b"old", "b": b"old"})
    calls = []

    def fsync(_):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UsageError) as error:
        folder.write({"a": b"fresh", "b": b"fresh"})
    assert str(error.value) == (
        f"cannot write into {tmp_path}: No space left on device. Choose another folder with --out."
    )
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == b"old"


def test_a_read_only_folder_is_refused_before_any_work(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(UsageError) as error:
        ResultsFolder(tmp_path)
    assert str(error.value) == (
        f"cannot write into {tmp_path}: Read-only file system. Choose another folder with --out."
    )


def test_help_speaks_of_the_four_ways_and_of_every_option():
    ended = invoke("four-ways", "--help")
    assert ended.exit_code == 0
    assert "Train one small model four ways and compare them." in ended.stdout
    for option in ("--classes", "--steps", "--out", "--seed", "--json"):
        assert option in ended.stdout
