"""`--set model.copy=true`: train, evaluate, recommend and export."""

import json

import pytest
import torch
from oracle.command_line import TINY, invoke, last_line, names, write_chain

from tapas.training.run_evaluation import load_model
from tapas.training.run_folder import open_run


@pytest.fixture(scope="module")
def copy_run(tmp_path_factory):
    """A run whose rare items are folded into one class, which is never to be recommended."""
    folder = tmp_path_factory.mktemp("copy_run")
    file = write_chain(folder / "log.parquet", num_users=10, num_items=30)
    done = invoke(
        "train", file, "--out", folder / "run", "--cache", folder / "cache", *TINY,
        "--set", "model.copy=true", "--min-count", 7, "--rare", "fold",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


def recommended(run, *options):
    done = invoke("recommend", run, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["items"]


def test_recommending_ranks_by_the_mixture_of_the_best_checkpoint(copy_run):
    run = open_run(copy_run)
    model, _ = load_model(run)
    keys = run.log.item_keys
    assert keys.rare_id is not None
    history = [int(i) for i in range(run.log.num_items) if i != keys.rare_id][:3]
    said = ",".join(str(key) for key in keys.keys(history))
    found = recommended(copy_run, "--history", said, "--top", 27)
    after = model.predict(torch.tensor([history]), torch.tensor([3]))
    log_p = after.log_prob(torch.arange(run.log.num_items)[None])[0]
    log_p[keys.rare_id] = -torch.inf
    best = log_p.argsort(descending=True)[:-1]
    assert [row["item"] for row in found] == keys.keys(best.numpy())
    want = log_p[best].exp().tolist()
    assert [row["probability"] for row in found] == pytest.approx(want, abs=1e-4)
    assert sum(want) < 1, "the class of rare items has the rest"
    assert set(keys.keys(history)) == {row["item"] for row in found[:3]}
    fresh = recommended(copy_run, "--history", said, "--top", 27, "--exclude-seen")
    assert not set(keys.keys(history)) & {row["item"] for row in fresh}


def test_it_is_evaluated_and_never_lists_the_class_of_rare_items(copy_run):
    done = invoke("evaluate", copy_run, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]
    assert scores["model"]["metrics"]["loss"]["mean"] > 0
    num_items = open_run(copy_run).log.num_items
    assert max(each["coverage"] for each in scores.values()) < num_items


def test_files_have_the_softmax_part_only_and_a_folder_is_refused(copy_run, at):
    assert last_line(invoke("export", copy_run, "--to", "shop")) == (
        f"{copy_run} was trained with model.copy, and the part that copies from the history "
        "cannot be exported. Recommend from the run itself, or train without it."
    )
    done = invoke("export", copy_run, "--to", "items.safetensors", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == (
        "items.safetensors has only the softmax part, not the part that copies from the history "
        "(model.copy): its lists differ from those of `tapas recommend`."
    )
    assert json.loads(done.stdout)["part"] == "softmax"
    assert names(at) == ["items.safetensors"]
