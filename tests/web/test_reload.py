"""--reload: newer models are taken over while requests are answered; what is damaged is not."""

import asyncio
import gc
import os
import shutil
import threading
import weakref

import httpx
import polars as pl
import pytest
import torch
from oracle.command_line import PLAIN, chain
from web.small_runs import NETWORK, NUM_ITEMS, URL, Served

import tapas
from tapas.checkpoints.folder import CheckpointFolder
from tapas.web import models as models_module
from tapas.web.models import Models, names_of, open_folder, signature


@pytest.fixture
def run(runs, tmp_path):
    """A copy of a run, which the test may change."""
    shutil.copytree(runs["network"], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def said():
    return []


def look(served, said):
    """What a look at the folders makes the server say."""
    said.clear()
    served.models.look(said.append)
    return said


def test_nothing_is_done_while_nothing_changes(run, said):
    served = Served(run)
    first = served.models.first
    for _ in range(3):
        assert look(served, said) == []
    assert served.models.first is first
    (run / "journal.jsonl").touch()
    (run / "report.html").write_text("a page")
    assert look(served, said) == []


def test_a_run_that_is_trained_further_is_taken_over(runs, tmp_path, said):
    """Checkpoints are renamed into their place, as training does once they are on disk."""
    run, later = tmp_path / "run", tmp_path / "later"
    every = ("--set", "loop.keep=99", "--set", "loop.patience=99", "--set", "model.dropout=0")
    runs.train(run, runs.log_of("network"), *PLAIN, *every, "--steps", 40)
    best, first = tapas.load(run).step, CheckpointFolder(run / "checkpoints").steps()[0]
    assert best > first
    later.mkdir()
    for place in sorted((run / "checkpoints").iterdir())[1:]:
        place.rename(later / place.name)
    served = Served(run)
    assert served.models.first.step == first
    for place in sorted(later.iterdir()):
        place.rename(run / "checkpoints" / place.name)
    assert look(served, said) == [f"run was replaced by what is in its folder now, step {best}."]
    assert served.get("/healthz").json()["models"][0]["step"] == best
    assert served.models.num_reloads == 1
    wanted = tapas.load(run).recommend([[1000]], k=5).items.tolist()
    answer = served.post("/recommend", histories=[[1000]], k=5).json()
    assert (answer["step"], [[each["item"] for each in answer["lists"][0]["items"]]]) == (
        best, wanted
    )  # fmt: skip
    assert look(served, said) == []


def test_a_checkpoint_that_is_not_the_best_changes_nothing(run, said):
    served = Served(run)
    checkpoints = CheckpointFolder(run / "checkpoints", keep=9)
    newest = checkpoints.load()
    checkpoints.save(99, newest.tensors, newest.state, best=False)
    assert look(served, said) == []


def other_run(runs, folder):
    """A run of another log, whose items have other ids."""
    frame = chain(num_users=20, num_items=NUM_ITEMS, num_baskets=6, seed=8)
    frame = pl.concat([frame, frame.with_columns(pl.col("item_id") + 30)])
    frame.write_parquet(folder / "other.parquet")
    runs.train(folder / "other", folder / "other.parquet", *NETWORK)
    return folder / "other"


def test_a_run_that_was_replaced_by_another_is_taken_over_with_names_and_groups(
    runs, run, said, tmp_path
):
    """The table of items is by id, and the other run has other ids, and more of them."""
    table = {"item_id": range(1000, 1080), "name": [f"Item {n}" for n in range(1000, 1080)]}
    pl.DataFrame(table).write_csv(tmp_path / "items.csv")
    served = Served(run, items=tmp_path / "items.csv")
    other = other_run(runs, tmp_path)
    assert served.get("/explorer/user?key=u1").status_code == 200
    assert served.get("/explorer/map").status_code == 200
    shutil.rmtree(run)
    assert look(served, said) == []  # there is nothing: the model stays
    other.rename(run)
    assert len(look(served, said)) == 1
    for item in (1000, 1031, 1074):
        assert served.get(f"/items/{item}").json()["name"] == f"Item {item}"
        found = served.get(f"/explorer/item?key={item}").json()
        assert {each["name"] for each in [found, *found["similar"][0]["items"]]} == {
            f"Item {each['item']}" for each in [found, *found["similar"][0]["items"]]
        }
    assert len(served.get("/explorer/map").json()["items"]) == 75
    history = served.get("/explorer/user?key=u1").json()["history"]
    assert all(each["name"] == f"Item {each['item']}" for each in history)


def test_an_export_that_was_replaced_is_taken_over(runs, said, tmp_path):
    shutil.copytree(runs["export"], tmp_path / "shop")
    served = Served(tmp_path / "shop")
    assert look(served, said) == []
    shutil.copytree(runs["export"], tmp_path / "next")
    os.rename(tmp_path / "shop", tmp_path / "before")
    assert look(served, said) == []
    os.rename(tmp_path / "next", tmp_path / "shop")
    assert look(served, said) == ["shop was replaced by what is in its folder now."]


def damage(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def test_a_damaged_newer_checkpoint_is_a_warning_and_the_model_stays(run, said):
    served = Served(run)
    before = served.post("/recommend", histories=[[1000]]).json()
    checkpoints = CheckpointFolder(run / "checkpoints", keep=9)
    newest = checkpoints.load()
    path = checkpoints.save(99, newest.tensors, newest.state, best=True)
    damage(path / "dense.safetensors")
    (words,) = look(served, said)
    assert words.startswith("Warning: run was not replaced: ")
    assert "is damaged" in words
    assert look(served, said) == []  # it is told once
    assert served.post("/recommend", histories=[[1000]]).json() == before
    assert (served.models.num_reloads, served.models.num_failed_reloads) == (0, 1)
    damage(path / "dense.safetensors")  # the same bit: it is whole again
    assert look(served, said) == ["run was replaced by what is in its folder now, step 99."]


def test_any_failure_to_open_a_newer_model_is_a_warning(run, said, monkeypatch):
    """And does not end the looking."""
    served = Served(run)
    (run / "run.json").touch()

    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(served.models, "_open", fail)
    assert look(served, said) == ["Warning: run was not replaced: a bug"]
    monkeypatch.undo()
    (run / "run.json").touch()
    assert len(look(served, said)) == 1


def test_a_checkpoint_that_is_being_written_is_not_loaded(run, said):
    """Neither one in the private folder of training, nor one that is copied file by file."""
    served = Served(run)
    checkpoints = CheckpointFolder(run / "checkpoints", keep=9)
    newest = checkpoints.load()
    whole = run.parent / "whole"
    checkpoints.save(99, newest.tensors, newest.state, best=True).rename(whole)
    private = run / "checkpoints" / ".checkpoint.x"
    shutil.copytree(whole, private)
    assert look(served, said) == []
    place = run / "checkpoints" / whole.name.replace("whole", "step-00000099")
    place.mkdir()
    before = served.models.first
    for file in sorted(whole.iterdir(), reverse=True):  # state.json before the rows
        content = file.read_bytes()
        with (place / file.name).open("wb") as written:
            for half in (content[: len(content) // 2], content[len(content) // 2 :]):
                assert served.models.first is before
                look(served, said)
                written.write(half)
                written.flush()
    look(served, said)
    assert served.models.first.step == 99


def test_no_request_is_dropped_while_models_are_replaced(run, said):
    """Requests under way keep the model with which they began."""
    served = Served(run)
    done = threading.Event()

    async def ask():
        transport = httpx.ASGITransport(app=served.app, raise_app_exceptions=False)
        answers = []
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            while not done.is_set() or len(answers) < 100:
                users = {"users": ["u1", "u2"], "k": 5}
                posts = [client.post("/recommend", json=users) for _ in range(4)]
                answers += await asyncio.gather(*posts, client.get("/items/1000"))
            answers.append(await client.post("/recommend", json=users))  # all are replaced now
        return answers

    def replace():
        try:
            checkpoints = CheckpointFolder(run / "checkpoints", keep=99)
            newest = checkpoints.load()
            for step in range(100, 104):
                checkpoints.save(step, newest.tensors, newest.state, best=True)
                served.models.look(said.append)
        finally:
            done.set()

    thread = threading.Thread(target=replace)
    thread.start()
    answers = asyncio.run(ask())
    thread.join()
    assert {answer.status_code for answer in answers} == {200}
    steps = [answer.json()["step"] for answer in answers if "step" in answer.json()]
    assert steps == sorted(steps)
    assert steps[-1] == 103
    assert len(said) == 4


def test_folders_are_looked_at_again_and_again(run, said):
    served = Served(run)

    async def main():
        task = asyncio.create_task(served.models.watch(said.append, seconds=0.01))
        while not said:
            os.utime(run / "run.json")
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert said[0].startswith("run was replaced by what is in its folder now, step ")


def test_a_model_is_opened_once(runs, monkeypatch):
    opened = []

    def count(folder, name):
        opened.append(name)
        return open_folder(folder, name)

    models = Models([runs["network"], runs["warp"]], count)
    models.look(opened.append)
    assert opened == ["network", "warp"]


def test_a_model_that_was_replaced_leaves_the_memory(run, said):
    """Whether or not somebody has used the explorer, and before it is used again."""
    served = Served(run)
    for explored in (False, True):
        old = weakref.ref(served.models.first)
        if explored:
            served.get("/explorer/users", params={"prefix": "u"})
        os.utime(run / "run.json", ns=(1, 1 + explored))
        assert len(look(served, said)) == 1
        gc.collect()
        assert old() is None


def mapped_file(tensor):
    """The file in whose memory map `tensor` lies; "" for memory of the process."""
    for line in models_module.Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, file = line.split(maxsplit=5)
        first, last = (int(each, 16) for each in addresses.split("-"))
        if first <= tensor.data_ptr() < last:
            return file if file.startswith("/") else ""
    return ""


@pytest.mark.parametrize(("kind", "file"), [("network", "checkpoints"), ("export", "embeddings")])
def test_rows_are_memory_mapped(runs, kind, file):
    """They are in memory once, however many servers there are."""
    model = open_folder(runs[kind], kind)
    assert mapped_file(model.model.output_table.weight).startswith(str(runs[kind] / file))
    assert mapped_file(model.model.output_table.weight.clone()) == ""
    assert mapped_file(model.model.output_table.to(torch.float64).weight) == ""


def test_folders_with_the_same_name_are_told_apart(tmp_path):
    names = ["a/run", "b/run", "c/run", "run-2", "d/run-2"]
    folders = [tmp_path / name for name in names]
    assert names_of(folders) == ["run", "run-2", "run-3", "run-2-2", "run-2-3"]
    assert names_of([tmp_path / os.fsdecode(b"r\xff<n>")]) == ["r\ufffd<n>"]
    assert names_of([models_module.Path("/")]) == ["model"]


def test_what_is_no_run_has_no_signature(tmp_path):
    for name in ("run.json", "export.json"):
        assert signature(tmp_path) == ()
        (tmp_path / name).mkdir()
    assert signature(tmp_path / "nothing") == ()


def test_a_run_whose_items_are_all_rare_is_refused(runs, tmp_path):
    rare = tmp_path / "rare"
    runs.train(rare, runs.log_of("network"), *NETWORK, "--rare", "fold", "--min-count", 10**6)
    with pytest.raises(tapas.UsageError, match=r"rare has no item to recommend: all are rare\.$"):
        open_folder(rare, "rare")
