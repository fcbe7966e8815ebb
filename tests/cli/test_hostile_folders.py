"""Folders from a stranger: nothing in them is run, waited for or believed, whatever it claims."""

import io
import json
import os
import pickle
import shutil
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from damage import rewrite
from error_text import raises_text
from oracle.command_line import invoke, last_line, names, write_chain
from torch import nn

import tapas
from tapas.checksums import checksum
from tapas.retrieval import export_encoder, load_encoder
from tapas.training import export

OPENS_RUN = (
    ("recommend", "strange", "--user", "u1", "--json"),
    ("similar", "strange", "--item", "1003", "--json"),
    ("evaluate", "strange", "--json"),
    ("export", "strange", "--to", "rows.parquet"),
    ("checkpoint", "info", "strange"),
    ("cite", "strange"),
    ("train", "--resume", "strange"),
    ("verify", "strange"),
)
OPENS_EXPORT = (
    ("recommend", "strange", "--history", "1003", "--json"),
    ("similar", "strange", "--item", "1003", "--json"),
)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def as_pipe(file):
    file.unlink()
    os.mkfifo(file)


def as_device(file):
    file.unlink()
    file.symlink_to("/dev/zero")


def as_link_out(file):
    shutil.copy(file, "outside")
    file.unlink()
    file.symlink_to(Path("outside").resolve())


def as_folder(file):
    file.unlink()
    file.mkdir()


ODD = {
    "a pickle": lambda file: file.write_bytes(pickle.dumps(Evil(Path("canary").resolve()))),
    "a torch.save": lambda file: file.write_bytes(saved(Evil(Path("canary").resolve()))),
    "nothing": lambda file: file.write_bytes(b""),
    "10 TB": lambda file: os.truncate(file, 10 * 2**40),
    "a pipe": as_pipe,
    "a device": as_device,
    "a link out of the folder": as_link_out,
    "a folder": as_folder,
}


@pytest.fixture(autouse=True)
def canary(at):
    """No code was run, and nothing took longer than a minute."""

    def late(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield at / "canary"
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert not (at / "canary").exists()


@pytest.fixture(scope="module")
def shop(finished):
    """An export of the run, without the program for others, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        stub = export.Written("no encoder", {"history": 50})
        patch.setattr(export, "_encoder", lambda *_: stub)
        done = invoke("export", finished, "--to", finished.parent / "shop")
    assert done.returncode == 0, done.stderr
    return finished.parent / "shop"


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, items, lengths):
        return items[:, :1] * self.weight


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A function that writes an encoder.pt2 whose weight is a pickle, as torch allows."""
    plain = tmp_path_factory.mktemp("program") / "encoder.pt2"
    example = torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
    export_encoder(Plain(), plain, example)

    def write(file):
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(file, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                if name.endswith("model_weights_config.json"):
                    config = json.loads(content)
                    for each in config["config"].values():
                        each["use_pickle"] = True
                    content = json.dumps(config).encode()
                elif "data/weights/weight_" in name:
                    content = saved(Evil(Path("canary").resolve()))
                new.writestr(name, content)

    return write


def refusals(folder, opens):
    """Every file of `folder` as each of `ODD`, opened by the commands in turn."""
    files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    for row, file in enumerate(files):
        for column, (odd, change) in enumerate(ODD.items()):
            shutil.rmtree("strange", ignore_errors=True)
            shutil.copytree(folder, "strange")
            change(Path("strange") / file)
            command = opens[(row + column) % len(opens)]
            yield file, odd, command, invoke(*command)


def check_refused(folder, opens):
    """Each is one sentence, or not needed: then the answer is that of the whole folder."""
    answers = {}
    for command in opens:
        shutil.rmtree("strange", ignore_errors=True)
        shutil.copytree(folder, "strange")
        done = invoke(*command)
        assert done.returncode == 0, done.stderr
        answers[command] = done.stdout
        Path("rows.parquet").unlink(missing_ok=True)
    refused = 0
    for file, odd, command, done in refusals(folder, opens):
        what = f"{file} as {odd}: {' '.join(command)}: {done.stderr}"
        assert not Path("canary").exists(), what
        if done.returncode == 0:  # verify says what it could not check
            assert done.stdout == answers[command] or command[0] == "verify", what
        else:
            refused += 1
            assert done.returncode in (1, 2), what
            lines = done.stderr.splitlines()
            errors = [line for line in lines if line.startswith("tapas: ")]
            assert errors[-1:] == lines[-1:], what
            assert len(errors) == 1 or command[0] == "verify", what  # which lists all damage
        Path("rows.parquet").unlink(missing_ok=True)
    return refused


@pytest.mark.slow
def test_every_file_of_a_run_may_be_anything(finished, at):
    assert check_refused(finished, OPENS_RUN) > 60


@pytest.mark.slow
def test_every_file_of_an_export_may_be_anything(shop, at):
    assert check_refused(shop, OPENS_EXPORT) == 4 * len(ODD)  # README.txt is not read


@pytest.mark.slow
def test_every_file_of_a_cache_may_be_anything(at):
    write_chain(at / "log.csv", num_users=10, num_items=30)
    inspect = ("inspect", "log.csv", "--cache", "cache", "--json")
    clean = invoke(*inspect)
    (folder,) = (path for path in (at / "cache").iterdir() if path.is_dir())
    shutil.copytree(folder, at / "whole")
    for file in names(at / "whole"):
        for odd, change in ODD.items():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(at / "whole", folder)
            change(folder / file)
            done = invoke(*inspect)
            what = f"{file} as {odd}: {done.stderr}"
            assert not Path("canary").exists(), what
            if done.returncode == 0:  # prepared again
                assert done.stdout == clean.stdout, what
            else:
                assert last_line(done), what


@pytest.mark.slow
def test_a_run_with_the_files_of_an_export_is_a_run(run, shop, at, program, canary):
    """Code in its encoder.pt2 ran for whoever recommended from it."""
    for file in shop.iterdir():
        shutil.copy(file, run)
    program(run / "encoder.pt2")
    listed = invoke("recommend", "run", "--user", "u1", "--json")
    assert listed.returncode == 0, listed.stderr
    assert "user" in json.loads(listed.stdout)
    assert tapas.load("run").name.startswith("run ")
    assert last_line(invoke("export", "run", "--to", "run", "--force")) == (
        "run exists and is not an exported folder, nor empty. Choose another --to."
    )
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("nowhere")  # still a run, though a broken one
    assert "run.json is a link; expected a regular file" in last_line(
        invoke("recommend", "run", "--user", "u1")
    )


@pytest.mark.slow
def test_a_program_is_loaded_only_if_it_is_trusted(shop, at, program, canary):
    shutil.copytree(shop, at / "shop")
    program(at / "shop" / "encoder.pt2")
    asked = ("--history", "1003", "--json")
    assert invoke("recommend", "shop", *asked).returncode == 0  # the weights are used
    assert invoke("recommend", "shop", "--trust", *asked).returncode == 0
    rewrite(at / "shop" / "export.json", lambda record: record.pop("encoder"))
    refusal = last_line(invoke("recommend", "shop", *asked))
    assert refusal.startswith("shop was exported by an earlier version of tapas, with its encoder ")
    with raises_text("shop was exported by an earlier version of tapas, with its encoder "):
        tapas.load("shop")
    with raises_text(
        "encoder.pt2 contains a program, which could do anything that you can. Load it with "
        "trust=True if you know who made it."
    ):
        load_encoder(at / "shop" / "encoder.pt2")
    assert not canary.exists()
    last_line(invoke("recommend", "shop", "--trust", *asked))  # shows that the attack works
    assert canary.is_dir()
    canary.rmdir()


def test_a_zip_bomb_as_a_program_is_not_opened(shop, at):
    shutil.copytree(shop, at / "shop")
    with zipfile.ZipFile(at / "shop" / "encoder.pt2", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(2**26))
    rewrite(at / "shop" / "export.json", lambda record: record.pop("encoder"))
    os.chmod(at / "shop" / "encoder.pt2", 0)
    assert "add --trust (in Python trust=True)" in last_line(
        invoke("recommend", "shop", "--history", "1003")
    )


MODULE = "import os; os.mkdir({canary!r})\nclass Head: pass\nclass Encoder: pass\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('method = "tapas"', 'method = "strange_module:Head"'),
        ('method = "tapas"', 'method = "os:mkdir"'),
        ('encoder = "gru"', 'encoder = "strange_module:Encoder"'),
        ('rows = "rowwise-adagrad"', 'rows = "strange_module:Encoder"'),
        ('precision = "float32"', 'precision = "strange_module:Encoder"'),
    ],
)
def test_names_of_modules_in_a_run_import_nothing(run, at, canary, monkeypatch, old, new):
    monkeypatch.syspath_prepend(str(at))
    for folder in (at, run):
        (folder / "strange_module.py").write_text(MODULE.format(canary=str(canary)))
    lines = (run / "config.toml").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    (run / "config.toml").write_text(text.replace(old, new, 1) + "\n")
    assert new in (run / "config.toml").read_text()
    for command in (("recommend", "run", "--user", "u1"), ("train", "--resume", "run")):
        assert last_line(invoke(*command))
        assert not canary.exists()


def test_names_of_modules_in_an_export_and_in_a_comparison_import_nothing(
    shop, at, canary, monkeypatch
):
    monkeypatch.syspath_prepend(str(at))
    (at / "strange_module.py").write_text(MODULE.format(canary=str(canary)))
    shutil.copytree(shop, at / "shop")
    rewrite(
        at / "shop" / "export.json",
        lambda record: record["encoder"].update(kind="strange_module:Encoder"),
    )
    assert "does not fit the settings of the encoder in export.json" in last_line(
        invoke("recommend", "shop", "--history", "1003")
    )
    (at / "compare").mkdir()
    settings = {"contenders": ["strange_module:Head"], "optimizer": {"rows": "sgd"}, "seeds": 1}
    (at / "compare" / "settings.json").write_text(json.dumps(settings))
    assert "'strange_module:Head' is a method of your own" in last_line(invoke("cite", "compare"))


@pytest.mark.parametrize(
    "name",
    ["../../outside.safetensors", "/dev/zero", "rows-0.safetensors/../../../x", "state.json"],
)
def test_names_of_files_in_a_checkpoint_stay_in_its_folder(run, name):
    newest = max((run / "checkpoints").iterdir())
    (run.parent / "outside.safetensors").write_bytes(b"x")

    def point(record):
        record["files"][name] = {"bytes": 0, "blake2b": "00"}
        for table in record["tables"].values():
            table["ranges"][0][0] = name

    rewrite(newest / "state.json", point)
    for command in (("checkpoint", "info", "run"), ("recommend", "run", "--user", "u1")):
        assert "state.json is damaged: it is not the JSON that was saved." in last_line(
            invoke(*command)
        )


def test_a_file_that_no_checksum_covers_is_not_read(run):
    newest = max((run / "checkpoints").iterdir())
    rewrite(newest / "state.json", lambda record: record["files"].pop("dense.safetensors"))
    assert "state.json is damaged: it is not the JSON that was saved." in last_line(
        invoke("recommend", "run", "--user", "u1")
    )


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("model", "dim", 10**9), ("model", "layers", 1000), ("model", "dim", 5)],
)
def test_sizes_that_the_checkpoint_does_not_have_are_refused(run, section, name, value):
    lines = (run / "config.toml").read_text().splitlines()
    changed = [f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in lines]
    text = "\n".join(line for line in changed if not line.startswith("#"))
    (run / "config.toml").write_text(text + "\n")
    for command in (("recommend", "run", "--user", "u1"), ("train", "--resume", "run")):
        assert f"model.{name} {value}" in last_line(invoke(*command))


def test_shapes_of_rows_are_compared_with_the_file_before_memory_is_taken(run):
    newest = max((run / "checkpoints").iterdir())

    def claim(record):
        for table in record["tables"].values():
            table["tensors"]["weight"]["shape"] = [table["num_classes"], 10**12]

    rewrite(newest / "state.json", claim)
    assert "rows-0.safetensors has model." in last_line(
        invoke("recommend", "run", "--user", "u1", "--step", int(newest.name[5:]))
    )


def test_items_out_of_range_are_refused_even_with_right_checksums(run):
    items = np.load(run / "log" / "items.npy")
    items[-1] = 2**30
    np.save(run / "log" / "items.npy", items)
    file = run / "log" / "items.npy"
    rewrite(run / "log" / "log.json", lambda d: d["files"].update({file.name: checksum(file)}))
    rewrite(
        run / "run.json",
        lambda d: d.get("files", {}).update({"log/log.json": checksum(run / "log" / "log.json")}),
    )
    for command in (("recommend", "run", "--user", "u1"), ("evaluate", "run")):
        assert last_line(invoke(*command)).endswith(
            "items.npy is damaged: it has the item 1073741824; expected 0 to 29."
        )


def test_folders_of_a_run_may_be_links_but_not_into_another_run(run, at):
    """Checkpoints on another disk are their owner's choice; those of another run are not ours."""
    asked = ("recommend", "run", "--user", "u1", "--json")
    before = invoke(*asked).stdout
    shutil.copytree(run, at / "other")
    for name in ("checkpoints", "log"):
        shutil.move(run / name, at / f"disk-{name}")
        (run / name).symlink_to(at / f"disk-{name}")
    assert invoke(*asked).stdout == before
    assert invoke("train", "--resume", "run").returncode == 0
    (run / "checkpoints").unlink()
    (run / "checkpoints").symlink_to("../other/checkpoints")
    kept = names(at / "other" / "checkpoints")
    assert last_line(invoke("train", "--resume", "run")) == (
        "run/checkpoints is a link to the checkpoints of another run, "
        f"{at / 'other'}, which training would replace. Copy the run with `cp -rL`, and continue "
        "the copy."
    )
    assert names(at / "other" / "checkpoints") == kept


def test_training_writes_through_no_link_of_a_strangers_run(run, at):
    (at / "victim").write_text("")
    (run / "journal.jsonl").unlink()
    for target in ("../victim", "../nothing"):
        (run / "journal.jsonl").symlink_to(target)
        assert "journal.jsonl is a link; expected a regular file" in last_line(
            invoke("train", "--resume", "run")
        )
        (run / "journal.jsonl").unlink()
    assert (at / "victim").read_text() == ""
    assert not (at / "nothing").exists()
