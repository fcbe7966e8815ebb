"""Damage to any file of a run is found: nothing ends with another result and without a word."""

import json
import os
import shutil

import pytest
from damage import as_earlier_version, flip, rewrite, swap
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle.command_line import TINY, invoke

import tapas
from tapas import DataError, TapasError
from tapas.training import export
from tapas.training.run_check import check_run
from tapas.training.run_folder import best_step, open_run

LOST = "is damaged: its checksum differs from the one it was saved with."


def verdicts(run):
    return {part.name: part.verdict for part in check_run(run)}


def answer(run):
    """The recommendations of a run, bit for bit."""
    model = tapas.load(run)
    lists = model.recommend([model.item_keys.keys([0, 1])], k=5)
    return lists.to_frame().to_dict(as_series=False)


def test_a_whole_run_is_found_whole(run):
    done = invoke("verify", run)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines[2:-1]] == [
        "run.json", "config.toml", "log", *["step"] * 2, "journal.jsonl",
    ]  # fmt: skip
    assert {line[-1] for line in lines[2:-1]} == {"whole"}
    assert " ".join(lines[-1]).startswith(f"No damage found in {run}: ")
    found = json.loads(invoke("verify", run, "--json").stdout)
    assert found["valid"]
    assert [part["bytes"] > 0 for part in found["parts"]] == [True] * 6
    assert verdicts(open_run(run).log.folder) == {"log": "whole"}


def test_each_damaged_part_is_named_with_its_cure_and_the_exit_code_is_1(run):
    steps = open_run(run).checkpoints.steps()
    best = best_step(open_run(run).checkpoints)
    other = next(step for step in reversed(steps) if step != best)
    damaged = [
        run / "config.toml",
        run / "log" / "item_keys.parquet",
        run / "checkpoints" / f"step-{best:08}" / "rows-0.safetensors",
    ]
    for file in damaged:
        flip(file, -9)
    done = invoke("verify", run)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"tapas: {damaged[0]} {LOST} Restore it from another copy of the run; if you changed it "
        "yourself, delete its first line.",
        f"tapas: {damaged[1]} {LOST} Restore {run}/log from another copy of the run, or train "
        f"again from the files of the log, which are named in {run}/config.toml.",
        f"tapas: {damaged[2]} {LOST} Step {other} is whole: use it with --step {other}, or train "
        f"on from it with `tapas train --resume {run} --step {other}`.",
    ]
    assert "No damage" not in done.stdout
    assert not json.loads(invoke("verify", run, "--json").stdout)["valid"]
    info = invoke("checkpoint", "info", run)
    assert info.returncode == 1
    assert info.stderr == f"tapas: {damaged[2]} {LOST}\n"


def test_a_damaged_description_of_the_log_is_named_once(run):
    flip(run / "log" / "log.json", -40)
    done = invoke("verify", run)
    assert done.returncode == 1
    assert done.stderr == (
        f"tapas: {run}/log/log.json {LOST} Restore {run}/log from another copy of the run, or "
        f"train again from the files of the log, which are named in {run}/config.toml.\n"
    )


@pytest.mark.parametrize("name", ["journal.jsonl", "restore.json"])
def test_a_link_that_leads_nowhere_is_damage(run, name):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to("nowhere")
    done = invoke("verify", run)
    assert done.returncode == 1
    assert done.stderr.startswith(f"tapas: {run / name} ")
    assert done.stderr.count("\n") == 1


def test_other_files_are_named_and_are_no_damage(run):
    (run / "notes.txt").write_text("mine")
    (run / ".x.0123456789abcdef.unfinished").mkdir()
    with (run / "journal.jsonl").open("a") as journal:
        journal.write('{"step": 9')
    done = invoke("verify", run)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-4:-1] == [
        "journal.jsonl: the last line is incomplete, as after a crash; `tapas train --resume` "
        "removes it.",
        ".x.0123456789abcdef.unfinished: left by a killed process; `tapas train --resume` removes "
        "it.",
        "notes.txt: no part of the run.",
    ]


def test_a_run_of_an_earlier_version_works_and_what_cannot_be_checked_is_named(run):
    want = answer(run)
    as_earlier_version(run)
    assert answer(run) == want
    assert set(verdicts(run).values()) == {"not checked"}
    done = invoke("verify", run)
    assert done.returncode == 0
    assert "run.json: no checksum, as an earlier version wrote it.\n" in done.stdout
    step = best_step(open_run(run).checkpoints)
    flip(run / "checkpoints" / f"step-{step:08}" / "rows-0.safetensors", -1)
    assert "damaged" in verdicts(run).values()


def test_damage_to_an_export_is_found(run, at, monkeypatch):
    monkeypatch.setattr(export, "export_encoder", lambda _, to, __: to.write_bytes(bytes(99)))
    assert invoke("export", run, "--to", "shop").returncode == 0
    shop, want = at / "shop", answer(at / "shop")
    assert set(verdicts(shop).values()) == {"whole"}
    for name in ("embeddings.safetensors", "items.parquet", "encoder.safetensors", "export.json"):
        content = (shop / name).read_bytes()
        flip(shop / name, -30)
        assert verdicts(shop)[name] == "damaged"
        with pytest.raises(DataError, match=f"{name} is damaged: its checksum differs"):
            tapas.load(shop)
        (shop / name).write_bytes(content)
    flip(shop / "encoder.pt2", 50)  # which is only read if it is trusted
    assert answer(shop) == want
    assert invoke("verify", "shop").returncode == 1
    rewrite(shop / "export.json", lambda record: record.pop("files"))
    assert answer(shop) == want
    assert verdicts(shop)["items.parquet"] == "not checked"


def test_neither_run_nor_log_is_a_wrong_usage(at):
    done = invoke("verify", "nothing")
    assert done.returncode == 1
    assert done.stderr.startswith("tapas: nothing holds no run (run.json is missing).")


@pytest.mark.parametrize("earlier_best", [True, False])
def test_the_best_checkpoint_is_not_replaced_by_another_in_silence(run, earlier_best):
    """The newest says that step 3 was the best, and it is gone; step 2 may have been before."""
    for step, best in ((2, earlier_best), (4, False)):
        file = run / "checkpoints" / f"step-{step:08}" / "state.json"
        rewrite(file, lambda record, best=best: record.update(best=best))
        rewrite(file, lambda record: record["state"]["progress"].update(best_step=3))
    words = (
        f"the best checkpoint, that of step 3, is missing in {run}/checkpoints. Restore it from "
        "another copy of the run, or use the newest with --step 4."
    )
    with pytest.raises(DataError) as error:
        tapas.load(run)
    assert str(error.value) == words
    assert [part.problems for part in check_run(run) if part.problems] == [[words]]
    assert invoke("recommend", run, "--user", 1).returncode == 1
    assert tapas.load(run, step=4)


def test_a_checkpoint_that_resuming_cannot_read_is_named_and_kept(run):
    file = run / "checkpoints" / "step-00000002" / "state.json"
    flip(file, 40)
    before = file.read_bytes()
    done = invoke("train", "--resume", run)
    assert done.returncode == 0
    assert (
        f"Warning: {file.parent} cannot be read and is kept. Check it with `tapas verify`.\n"
        in done.stderr
    )
    assert file.read_bytes() == before


def test_checkpoints_that_resuming_gives_up_are_named(run):
    done = invoke("train", "--resume", run, "--step", 2)
    assert done.returncode == 0
    assert (
        "Continuing from step 2. The checkpoint of a later step (4) will be removed by the next "
        "save.\n" in done.stderr
    )


FILES = (
    "run.json", "config.toml", "journal.jsonl", "log/log.json", "log/items.npy", "log/times.npy",
    "log/offsets.npy", "log/item_keys.parquet", "log/user_keys.parquet", "BEST/state.json",
    "BEST/rows-0.safetensors", "BEST/dense.safetensors",
)  # fmt: skip
DAMAGE = {
    "a bit": lambda file, at: flip(file, at % file.stat().st_size, at % 8),
    "the end": lambda file, at: os.truncate(file, at % file.stat().st_size),
    "everything": lambda file, at: os.truncate(file, 0),
    "a page": lambda file, at: zero(file, at % file.stat().st_size),
    "gone": lambda file, at: file.unlink(),
}


def zero(file, at):
    content = file.read_bytes()
    file.write_bytes(content[:at] + bytes(len(content[at : at + 512])) + content[at + 512 :])


@pytest.fixture(scope="module")
def whole(finished):
    best = best_step(open_run(finished).checkpoints)
    return finished, answer(finished), f"checkpoints/step-{best:08}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), kind=st.sampled_from([*DAMAGE]), at=st.integers(0, 10**6))
def test_random_damage_is_found_or_changes_nothing(whole, tmp_path, name, kind, at):
    finished, want, best = whole
    shutil.rmtree(run := tmp_path / "run", ignore_errors=True)
    shutil.copytree(finished, run)
    file = run / name.replace("BEST", best)
    before = file.read_bytes()
    DAMAGE[kind](file, at)
    try:
        assert answer(run) == want  # in the journal, between two fields, or a page of zeros
    except TapasError as error:
        assert str(file) in str(error) or name == "run.json", str(error)  # noqa: PT017
    if file.exists() and file.read_bytes() == before:
        return
    try:
        found = [problem for part in check_run(run) for problem in part.problems]
    except TapasError as error:
        found = [str(error)]
    if name.endswith(".json") and kind == "a bit" and not found:
        assert json.loads(file.read_bytes()) == json.loads(before)  # a space
    elif not (name == "journal.jsonl" and kind != "a bit"):  # lines may be lost at its end
        assert found or name == "journal.jsonl"


def test_files_of_another_run_are_found(whole, tmp_path):
    """Files of a run on the same log with another seed, exchanged one by one."""
    finished, _, best = whole
    runs = [tmp_path / "one", tmp_path / "two"]
    shutil.copytree(finished, runs[0])
    log = finished.parent / "log.parquet"
    cache = finished.parent / "cache"
    done = invoke("train", log, "--out", runs[1], "--cache", cache, *TINY, "--seed", 5)
    assert done.returncode == 0, done.stderr
    for name in FILES:
        files = [run / name.replace("BEST", best) for run in runs]
        if not all(file.exists() for file in files) or name == "journal.jsonl":
            continue
        same = files[0].read_bytes() == files[1].read_bytes()
        swap(*files)
        assert ("damaged" in verdicts(runs[0]).values()) != same, name
        swap(*files)
    assert "damaged" not in verdicts(runs[0]).values()
