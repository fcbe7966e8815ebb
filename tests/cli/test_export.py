"""Exports: used without tapas, never overwritten unasked, and no file where an index fails."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from oracle.command_line import ENVIRONMENT, PLAIN, TINY, invoke, last_line, names, write_chain

from tapas.retrieval import faiss_index
from tapas.training import export
from tapas.training.export_readme import export_readme

pytestmark = pytest.mark.slow

ASK = "print(json.dumps([recommend(history, 9) for history in {histories}]))"
NO_TAPAS = 'assert not [name for name in sys.modules if name.split(".")[0] == "tapas"]'


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with a class of merged rare items."""
    folder = tmp_path_factory.mktemp("finished")
    file = write_chain(folder / "log.parquet", num_users=30, num_items=90)
    flags = ("--rare", "fold", "--min-count", 8, "--cache", folder / "cache")
    done = invoke("train", file, "--out", folder / "run", *TINY, *PLAIN, *flags)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def quick_encoder(monkeypatch):
    """No encoder in the folder: torch.export takes seconds."""
    stub = export.Written("no encoder", {"history": 1})
    monkeypatch.setattr(export, "_encoder", lambda *_: stub)


def exported(*flags):
    """The last line of an export that succeeds."""
    done = invoke("export", "run", *flags)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1]


def program(readme):
    lines = readme.splitlines()
    return "\n".join(line[4:] for line in lines[lines.index("    import json") :])


def recommended(history):
    done = invoke("recommend", "run", "--history", json.dumps(history), "--top", 9, "--json")
    assert done.returncode == 0, done.stderr
    return [found["item"] for found in json.loads(done.stdout)["items"]]


def test_the_programs_of_the_readme_find_what_recommend_finds(run, at):
    """With torch, numpy and FAISS, or safetensors in its place, alone."""
    pytest.importorskip("faiss")
    exported("--to", "shop", "--index", "hnsw", "--recall", 1)
    readme = (at / "shop" / "README.txt").read_text()
    assert "All rare items together have one number." in readme
    record = json.loads((at / "shop" / "export.json").read_text())
    without_index = export_readme(
        record["step"], record, index=None, has_rare=True, has_counts=False
    )
    keys = json.loads((at / "shop" / "index.keys.json").read_text())
    known = sorted(key for key in keys if key is not None)
    histories = [known[:1], known[3:9], known]  # the last is longer than the model's history
    ask = ASK.format(histories=histories)
    script = "\n".join(["import sys", program(readme), ask, program(without_index), ask, NO_TAPAS])
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=at / "shop", capture_output=True, text=True,
        env=ENVIRONMENT | {"PYTHONWARNINGS": "default"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    want = [recommended(history) for history in histories]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [want, want]


def test_keys_stand_beside_an_index_and_the_rare_class_comes_last(run, at):
    faiss = pytest.importorskip("faiss")
    exported("--to", "a.faiss", "--index", "exact")
    assert names(at) == ["a.faiss", "a.keys.json", "run"]
    index, keys = faiss.read_index("a.faiss"), json.loads((at / "a.keys.json").read_text())
    assert len(keys) == index.ntotal
    assert keys.count(None) == 1
    assert {type(key) for key in keys if key is not None} == {int}
    query = np.random.default_rng(0).normal(size=(7, index.d)).astype(np.float32)
    assert [keys[row] for row in index.search(query, len(keys))[1][:, -1]] == [None] * 7


@pytest.mark.parametrize("to", ["a.faiss", "a.parquet", "shop"])
def test_nothing_is_overwritten_without_force(run, at, to, quick_encoder):
    if to == "a.faiss":
        pytest.importorskip("faiss")
    exported("--to", to)
    before = names(at)
    file = at / to if (at / to).is_file() else at / to / "export.json"
    file.write_bytes(b"something else")
    refusal = f"{to} exists. Choose another --to or add --force."
    assert last_line(invoke("export", "run", "--to", to)) == refusal
    assert file.read_bytes() == b"something else"
    exported("--to", to, "--force")
    assert file.read_bytes() != b"something else"
    assert names(at) == before


def test_keys_of_another_index_are_not_overwritten_either(run, at):
    (at / "a.keys.json").write_text("[]")
    assert last_line(invoke("export", "run", "--to", "a.faiss")) == (
        "a.keys.json exists, which would have the keys of a.faiss. Choose another --to or add "
        "--force."
    )
    assert names(at) == ["a.keys.json", "run"]


def test_the_working_directory_is_not_replaced(run, at, monkeypatch):
    (at / "empty").mkdir()
    monkeypatch.chdir(at / "empty")
    assert last_line(invoke("export", "../run", "--to", ".")) == (
        ". is the working directory, which cannot be replaced. Choose another --to, such as export."
    )
    assert names(at / "empty") == []


def test_force_replaces_a_whole_folder_and_only_one_that_was_exported(run, at, quick_encoder):
    pytest.importorskip("faiss")
    exported("--to", "shop", "--index", "exact")
    exported("--to", "shop", "--force")
    assert "index.faiss" not in names(at / "shop")
    shutil.rmtree(at / "shop")
    (at / "shop").mkdir()
    exported("--to", "shop")  # an empty folder is free


def test_an_index_without_the_recall_asked_for_is_an_error_and_no_file(
    run, at, quick_encoder, monkeypatch
):
    pytest.importorskip("faiss")
    monkeypatch.setattr(faiss_index, "_recall", lambda *_: 0.71)
    for to in ("a.faiss", "shop"):
        assert last_line(invoke("export", "run", "--to", to, "--index", "hnsw")) == (
            "this hnsw index finds 0.710 of the exact top 20 at efSearch 62, the largest, also "
            "with 64 neighbours per class; wanted was 0.95. Choose --index ivf or "
            "exact, or a lower --recall."
        )
        assert names(at) == ["run"]
