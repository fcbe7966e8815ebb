"""Checkpoints: always complete, whether a process is killed, a disk full or a file damaged."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from damage import rewrite, without_checksum
from error_text import raises_text
from hypothesis import given
from hypothesis import strategies as st
from oracle.stored_rows import flip

from tapas import DataError, UsageError, checksums, load_checkpoint, save_checkpoint
from tapas.atomic_file import private_folder
from tapas.checkpoints import files as checkpoint_files
from tapas.checkpoints import folder as checkpoint
from tapas.checkpoints.files import unshare
from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.checksums import with_checksum
from tapas.version import __version__

DENSE, STATE = "dense.safetensors", "state.json"


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "run" / "checkpoints")


def save(folder: CheckpointFolder, *steps: int, best: tuple[int, ...] = ()) -> None:
    for step in steps:
        folder.save(step, {"row": torch.full((5,), float(step))}, {"at": step}, best=step in best)


def is_right(found: Checkpoint) -> bool:
    return found.state == {"at": found.step} and found.tensors["row"].tolist() == [found.step] * 5


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.folder.iterdir())


def test_what_is_saved_is_loaded_and_the_record_describes_the_files(folder):
    state = {"rate": -float("inf"), "names": ["a", "ü"], "deep": {"on": None, "big": 2**70}}
    path = folder.save(400, {"row": torch.arange(6.0).view(2, 3)}, state, best=True)
    assert path == folder.folder / "step-00000400"
    found = folder.load()
    assert (found.step, found.state) == (400, state)
    assert torch.equal(found.tensors["row"], torch.arange(6.0).view(2, 3))
    record = json.loads((path / STATE).read_text())
    assert record == with_checksum({key: record[key] for key in record if key != "checksum"})
    checked = record.pop("files")
    assert record.pop("checksum").startswith("blake2b:")
    assert record == {
        "format": 1,
        "tapas": checkpoint_files.__version__,
        "step": 400,
        "best": True,
        "processes": 1,
        "tables": {},
        "numbers": {},
        "optimizers": [],
        "state": state,
        "blocks": {},
    }
    assert list(checked) == [DENSE]
    assert checked[DENSE]["bytes"] == (path / DENSE).stat().st_size
    assert len(checked[DENSE]["blake2b"]) == 128
    save(folder, 400)
    assert is_right(folder.load(400))
    assert folder.best() is None, "saved again, it is another one"


def test_all_files_are_on_disk_before_the_folder_is_renamed(folder, monkeypatch):
    done, rename = [], os.rename
    for module in (checkpoint_files, checkpoint):
        monkeypatch.setattr(module, "sync", lambda path: done.append(path.name))
    monkeypatch.setattr(os, "rename", lambda *a: (done.append("renamed"), rename(*a)))
    save(folder, 4)
    assert done == [DENSE, STATE, "checkpoint", "renamed", "checkpoints"]


def odd_tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(24.0)
    number = torch.complex(torch.arange(3.0), torch.ones(3))
    kinds = [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
    return {str(kind): torch.tensor([0, 1, 3]).to(kind) for kind in kinds} | {
        "eight bits": torch.tensor([0.5, -2.0]).to(torch.float8_e4m3fn),
        "no dimension": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "empty view": base[5:5],
        "whole": base,
        "the same again": base,
        "part": base[3:9],
        "overlapping part": base[6:12],
        "turned": base.view(4, 6).T,
        "every other": base[::2],
        "spread": torch.ones(1).expand(5),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugate": number.conj(),
        "negated": number.conj().imag,
    }


def test_tensors_of_every_kind_are_loaded_unchanged(folder):
    tensors = odd_tensors()
    folder.save(1, tensors, {})
    found = folder.load().tensors
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert found[name].tolist() == tensor.tolist(), name


def test_only_tensors_that_share_memory_are_copied_and_the_largest_is_not():
    base = torch.arange(24.0)
    whole = torch.arange(24.0)
    tensors = {
        "a": torch.ones(3), "first": base[:7], "rest": base[7:], "scalar": torch.tensor(1),
        "part": whole[:7], "whole": whole,
    }  # fmt: skip
    unshared = unshare(tensors)
    copied = {name for name, t in tensors.items() if unshared[name].data_ptr() != t.data_ptr()}
    assert copied == {"part"}


@given(pieces=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6))
def test_views_of_one_tensor_are_unshared(pieces):
    base = torch.arange(12.0)
    tensors = {str(i): base[start:end] for i, (start, end) in enumerate(pieces)}
    unshared = unshare(tensors)
    places = [range(t.data_ptr(), t.data_ptr() + t.nbytes) for t in unshared.values() if t.nbytes]
    for i, one in enumerate(places):
        assert all(one.stop <= other.start or other.stop <= one.start for other in places[:i])
    assert all(torch.equal(unshared[name], tensor) for name, tensor in tensors.items())


UNSAVEABLE = (
    "tensor 'row' ({}) cannot be saved: expected a dense tensor, not meta or quantized, "
    "and complex64 if complex."
)
REFUSED = [  # step, tensors, state, words
    (
        (1, {}, {"rows": [1, {"rate": torch.ones(1)}]}),
        "state.rows[1].rate is of type Tensor; expected numbers, strings, lists or dicts. "
        "Convert it, or save it as a tensor.",
    ),
    ((1, {}, {"seen": {3: "x"}}), "state.seen has the key 3; expected a string. Use str(key)."),
    (
        (1, {"row": torch.zeros(2, dtype=torch.complex128)}, {}),
        UNSAVEABLE.format("torch.complex128, torch.strided, cpu"),
    ),
    (
        (1, {"row": torch.eye(2).to_sparse()}, {}),
        UNSAVEABLE.format("torch.float32, torch.sparse_coo, cpu"),
    ),
    (
        (1, {"row": torch.zeros(2, device="meta")}, {}),
        UNSAVEABLE.format("torch.float32, torch.strided, meta"),
    ),
    ((1, {"row": [1.0]}, {}), "row must be a torch.Tensor, got list. torch.as_tensor makes one."),
    ((-1, {}, {}), "step must be at least 0, got -1."),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_the_error_names_what_cannot_be_saved(folder, arguments, words):
    with pytest.raises(UsageError) as error:
        folder.save(*arguments)
    assert str(error.value) == words
    assert not folder.folder.exists()


KEPT = {  # keep, saved steps, which of them as the best; steps left, the best of them
    "the last": (2, [0, 10, 20], [], [10, 20], None),
    "the best is one of them": (3, [0, 10, 20, 30], [20], [10, 20, 30], 20),
    "the best is older": (1, [0, 10, 20, 30], [0, 10], [10, 30], 10),
    "numbers with another digit": (
        2, [99_999_999, 100_000_000, 100_000_001], [], [100_000_000, 100_000_001], None
    ),
    "saved again": (2, [200, 400, 400], [], [200, 400], None),
    "resumed earlier, which leaves the later ones behind": (
        3, [100, 200, 300, 400, 250], [100, 250], [100, 200, 250], 250
    ),
    "resumed earlier than the best": (
        3, [100, 200, 300, 400, 250, 210], [100, 250], [100, 200, 210], 100
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_the_last_ones_and_the_best_are_kept_and_other_files_left_alone(tmp_path, case):
    keep, saved, best, left, best_left = KEPT[case]
    folder = CheckpointFolder(tmp_path, keep=keep)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-by-step").mkdir()
    save(folder, *saved, best=best)
    assert (folder.steps(), folder.best()) == (left, best_left)
    assert names(folder) == ["notes.txt", *(f"step-{step:08}" for step in left), "step-by-step"]
    assert all(folder.load(step).state == {"at": step} for step in left)
    assert folder.load().step == left[-1]


def test_missing_checkpoints_and_bad_folders_are_errors(folder, tmp_path):
    with pytest.raises(UsageError, match=r"keep must be at least 1, got 0\."):
        CheckpointFolder(tmp_path, keep=0)
    words = f"there is no checkpoint in {folder.folder}."
    with pytest.raises(UsageError, match=re.escape(words)):
        folder.load()
    assert (folder.steps(), folder.best()) == ([], None)
    assert not folder.folder.exists()
    (tmp_path / "file").write_text("")
    words = (
        f"cannot save checkpoint step 1 into {tmp_path / 'file'}: File exists. There is no "
        "valid checkpoint. Make sure that it can be written to and continue with --resume."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        CheckpointFolder(tmp_path / "file").save(1, {}, {})


OFFER = "Step 200 is valid: use it with --step 200."
DAMAGE = {
    "is damaged: 52 bytes; expected 92.": lambda file: os.truncate(file, 52),
    "is damaged: its checksum differs from the one it was saved with.": flip,
    "cannot be read: No such file or directory.": Path.unlink,
}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_damaged_file_is_named_and_the_previous_checkpoint_is_suggested(folder, words):
    save(folder, 200, 400)
    file = folder.folder / "step-00000400" / DENSE
    assert file.stat().st_size == 92
    DAMAGE[words](file)
    with pytest.raises(DataError, match=re.escape(f"{file} {words} {OFFER}")):
        folder.load()
    assert is_right(folder.load(200))
    flip(folder.folder / "step-00000200" / DENSE)
    none = "No other checkpoint is valid: start again without --resume, in another --out."
    with pytest.raises(DataError, match=re.escape(f"{file} {words} {none}")):
        folder.load()
    save(folder, 400)  # a resumed run replaces it
    assert is_right(folder.load())


def renamed(name):
    """Gives the only file of a checkpoint another name in the record."""

    def change(record):
        record["files"][name] = record["files"].pop(DENSE)

    return change


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"format": 1',
        "[]",
        '{"format": 1, "tapas": "0.1"}',
        "[" * 100_000,
        "\0",
        renamed("../elsewhere.safetensors"),
        renamed("rows-x.safetensors"),
        renamed("dense.safetensors.pkl"),
        lambda record: record.pop("tables"),
        lambda record: record.update(best=1),
        lambda record: record.update(step=-400),
        lambda record: record["blocks"].update({DENSE: "00"}),
        lambda record: record["tables"].update(odd={"num_classes": 3}),
    ],
)
def test_a_damaged_state_is_named_by_load_and_by_best(folder, content):
    save(folder, 200, 400, best=(200, 400))
    file = folder.folder / "step-00000400" / STATE
    if callable(content):
        rewrite(file, content)
    else:
        file.write_text(content)
    words = f"{file} is damaged: it is not the JSON that was saved."
    with pytest.raises(DataError, match=re.escape(f"{words} {OFFER}")):
        folder.load()
    with pytest.raises(
        DataError, match=re.escape(f"{words} It may be the best checkpoint. {OFFER}")
    ):
        folder.best()


@pytest.mark.parametrize("number", [-3, 0, 1.5, True, None, "1"])
def test_a_format_number_that_no_tapas_has_is_damage(folder, number):
    save(folder, 200, 400)
    file = folder.folder / "step-00000400" / STATE
    rewrite(file, lambda record: record.update(format=number))
    with raises_text(f"{file} is damaged: its format number is {number!r}. {OFFER}", DataError):
        folder.load()


@pytest.mark.parametrize("name", ["step-00000400", f"step-{'9' * 40}"])
def test_a_checkpoint_in_the_folder_of_another_step_is_refused(folder, name):
    save(folder, 200, 400)
    shutil.rmtree(folder.folder / "step-00000400")
    shutil.copytree(folder.folder / "step-00000200", folder.folder / name)
    words = (
        f"{folder.folder / name / STATE} is that of step 200, not of the step that its "
        "folder is named after. Rename the folder to step-00000200 if it was renamed by mistake. "
    )
    with raises_text(f"{words}{OFFER}", DataError):
        folder.load()
    with raises_text(f"{words}It may be the best checkpoint. {OFFER}", DataError):
        folder.best()


def test_checkpoints_of_earlier_versions_are_loaded_and_their_files_checked(folder):
    save(folder, 200, 400, best=(200,))
    for step in (200, 400):
        without_checksum(folder.folder / f"step-{step:08}" / STATE)
    assert is_right(folder.load())
    assert folder.best() == 200
    flip(file := folder.folder / "step-00000400" / DENSE)
    with raises_text(f"{file} is damaged: its checksum differs", DataError):
        folder.load()


def test_of_large_files_some_blocks_are_checked_or_all(folder, monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 8)
    monkeypatch.setattr(checksums, "SMALL_BYTES", 80)
    folder.save(400, {"row": torch.arange(500.0)}, {})
    path = folder.folder / "step-00000400"
    record = json.loads((path / STATE).read_text())
    assert [*record["files"][DENSE]] == ["bytes", "blake2b"]  # which version 0.1.0 compares
    assert len(record["blocks"][DENSE]) == 16 * -(-record["files"][DENSE]["bytes"] // 8)
    assert folder.load().tensors["row"].tolist() == list(range(500))
    content = bytearray((path / DENSE).read_bytes())
    content[1_000] ^= 1
    (path / DENSE).write_bytes(content)
    with raises_text(f"{path / DENSE} is damaged: its checksum differs", DataError):
        folder.load()
    monkeypatch.setattr(checksums, "SAMPLED_BLOCKS", 0)
    assert folder.load(everything=False).step == 400
    content[3] ^= 1
    (path / DENSE).write_bytes(content)
    with raises_text(f"{path / DENSE} is damaged: its checksum differs", DataError):
        folder.load(everything=False)


def test_a_checkpoint_that_may_be_the_best_is_not_pruned(folder):
    save(folder, 100, 200, best=(100, 200))
    file = folder.folder / "step-00000200" / STATE
    content = file.read_text()
    file.write_text("{")
    save(folder, 300, 400, 500)
    assert folder.steps() == [100, 200, 400, 500]
    file.write_text(content)
    assert folder.best() == 200
    file.write_text("{")
    save(folder, 600, best=(600,))
    save(folder, 700, 800)
    assert folder.best() == 600  # newer than the one that cannot be read
    assert folder.steps() == [600, 700, 800]


def test_a_newer_format_is_an_error_that_names_both_versions(folder):
    save(folder, 200, 400)
    path = folder.folder / "step-00000400"
    (path / STATE).write_text('{"format": 2, "tapas": "9.1.0", "elsewhere": true}')
    words = (
        f"{path} has checkpoint format 2, written by tapas 9.1.0; this is tapas "
        f"{checkpoint_files.__version__}, which reads formats up to 1. Upgrade tapas-softmax to "
        "read it."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        folder.load()


@pytest.mark.parametrize("call", ["save_file", "sync", "checksum"])
def test_a_full_disk_leaves_earlier_checkpoints_and_says_how_to_continue(folder, monkeypatch, call):
    save(folder, 100, 200, best=(100,))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_files, call, full)
    words = (
        f"cannot save checkpoint step 400 into {folder.folder}: No space left on device. "
        "Checkpoint step 200 is valid. Free some space and continue with --resume."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        save(folder, 400)
    monkeypatch.undo()
    assert names(folder) == ["step-00000100", "step-00000200"]
    assert is_right(folder.load())


def test_a_replaced_checkpoint_is_restored_if_the_new_one_cannot_be_renamed(folder, monkeypatch):
    save(folder, 200, 400)
    rename = os.rename

    def fail(source, target):
        if "unfinished" in str(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    words = (
        f"cannot save checkpoint step 400 into {folder.folder}: Input/output error. Checkpoint "
        "step 400 is valid. Make sure that it can be written to and continue with --resume."
    )
    with pytest.raises(UsageError, match=re.escape(words)):
        folder.save(400, {}, {"at": "new"})
    assert names(folder) == ["step-00000200", "step-00000400"]
    assert is_right(folder.load(400))


def test_an_interrupt_leaves_nothing_unfinished(folder, monkeypatch):
    save(folder, 200)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_files, "sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 400)
    assert names(folder) == ["step-00000200"]


def test_leftovers_of_dead_processes_are_removed_and_those_of_running_ones_stay(folder):
    save(folder, 1)
    for step in (2, 7):
        dead = folder.folder / f".step-0000000{step}.0123456789abcdef.unfinished"
        (dead / "checkpoint").mkdir(parents=True)
        (dead / ".lock").touch()
    with private_folder(folder.folder / "step-00000009") as living:
        save(folder, 2)
        assert names(folder) == [living.name, "step-00000001", "step-00000002"]


@pytest.mark.parametrize("aside", ["4194305", "0123456789abcdef"])  # earlier versions: process id
def test_a_checkpoint_moved_aside_by_a_dead_process_is_loaded_and_then_restored(folder, aside):
    save(folder, 200, 400)
    aside = folder.folder / f".step-00000400.{aside}.replaced"
    os.rename(folder.folder / "step-00000400", aside)
    assert folder.steps() == [200, 400]
    assert is_right(folder.load())
    assert aside.exists()  # a reader changes nothing
    save(folder, 600)
    assert names(folder) == ["step-00000400", "step-00000600"]


TROUBLE = '''
"""Kills child processes of a process that has already imported torch."""
import os, signal, sys, time
from pathlib import Path
import torch
from tapas.rng import stream
from tapas.checkpoints.folder import CheckpointFolder

torch.set_num_threads(1)
os.fsync = lambda _: None  # slow, and not needed to survive a killed process
root = Path(sys.argv[1])

def content(step):
    return {"row": torch.full((3_001,), float(step)), "step": torch.tensor(step)}

def save(folder, step):
    folder.save(step, content(step), {"at": step}, best=step % 3 == 0)

def check(folder, least):
    for step in folder.steps():
        found, want = folder.load(step), content(step)
        assert found.state == {"at": step}, step
        assert all(torch.equal(found.tensors[name], want[name]) for name in want), step
    newest = folder.load().step
    assert newest >= least, (newest, least)
    best = max((step for step in folder.steps() if step % 3 == 0), default=None)
    assert folder.best() == best, (folder.best(), folder.steps())
    return newest

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

folder, least = CheckpointFolder(root / "killed"), 0
save(folder, 0)
def forever():
    for step in range(least, 10**6):
        save(folder, step)
        os.write(saved, b".")
        save(folder, step)
for wait in torch.rand(8, generator=stream(0, "kills")).tolist():
    seen, saved = os.pipe()
    pid = child(forever)
    os.read(seen, 1)
    os.read(seen, 1)
    time.sleep(0.02 * wait)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    least = check(folder, least)
    save(folder, least)
    assert not [name for name in os.listdir(folder.folder) if name.startswith(".")]
print("reached:", least)
'''


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_valid_checkpoint(tmp_path):
    """At every operation: see test_crash_points.py."""
    command = [sys.executable, "-c", TROUBLE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.removeprefix("reached: ")) > 0


def test_names_of_another_model_are_an_error_that_says_which_checkpoint_and_version(tmp_path):
    old = torch.nn.ModuleDict({"reader": torch.nn.LayerNorm(3)})
    save_checkpoint(tmp_path, 7, old)
    with pytest.raises(UsageError) as error:
        load_checkpoint(tmp_path, torch.nn.ModuleDict({"encoder": torch.nn.LayerNorm(3)}))
    assert str(error.value) == (
        f"the checkpoint of step 7 ({tmp_path / 'step-00000007'}, saved by tapas {__version__}) "
        "belongs to another model: encoder.bias is missing in it (4 such names). Build the model "
        "and its row optimizer as they were saved, or use the version that saved it; this is "
        f"tapas {__version__}."
    )
