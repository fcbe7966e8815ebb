"""One small run, its export and a comparison, which all targets share."""

import shutil
from pathlib import Path

import pytest
from fuzz.readers import Sample
from oracle.command_line import TINY, invoke, write_chain

from tapas.servers.training_server import set_restore_point
from tapas.training import export as exporting


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of a finished run with all files that a run can have."""
    folder = tmp_path_factory.mktemp("fuzz")
    file = write_chain(folder / "log.parquet", num_users=11, num_items=23)
    run, cache = folder / "run", folder / "cache"
    once = ("--set", "loop.evaluate_every=4", "--set", "loop.keep=1")  # the last is the best
    done = invoke("train", file, "--out", run, "--cache", cache, *TINY, *once)
    assert done.returncode == 0, done.stderr
    set_restore_point(run, 4)
    shutil.rmtree(run / "tensorboard")
    return run


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory) -> Sample:
    """A copy of the run, whose files a target changes and puts back."""
    path = tmp_path_factory.mktemp("copy") / "run"
    shutil.copytree(trained, path)
    return Sample(path)


@pytest.fixture(scope="module")
def export(trained, tmp_path_factory) -> Sample:
    """An export whose program, which takes seconds and is read by no target, is a few zeros."""
    path = tmp_path_factory.mktemp("copy") / "export"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "export_encoder", lambda _, to, __: to.write_bytes(bytes(99)))
        done = invoke("export", trained, "--to", path)
    assert done.returncode == 0, done.stderr
    return Sample(path)
