"""The method of docs/methods.md, in a file of the user's own, is trained, used and compared."""

import re
from pathlib import Path

import pytest
from oracle.command_line import TINY, invoke, last_line, names, tapas, write_chain

NAMED = ("--method", "mine:Hardest")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The module, a log, and a run that was trained with it."""
    folder = tmp_path_factory.mktemp("own")
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text()
    (block,) = re.findall(r"```python\n([^`]*class Hardest.*?)```", page, flags=re.DOTALL)
    (folder / "mine.py").write_text(block)
    file = write_chain(folder / "log.parquet", num_users=10, num_items=30)
    more = ("--set", "head.boost=0.5", "--cache", "cache")
    done = tapas("train", file, "--out", "run", *NAMED, *more, *TINY, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Hardest, n = 3" in done.stderr
    assert (
        "Next: `tapas evaluate run --method mine:Hardest`, `tapas recommend run --method "
        "mine:Hardest --user ...`, or look into it: `tapas serve run --method mine:Hardest`."
    ) in " ".join(done.stderr.split())
    return folder


@pytest.mark.slow
def test_the_run_opens_only_if_the_method_is_named(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert 'method = "mine:Hardest"' in (folder / "run/config.toml").read_text()
    for words in (
        ("evaluate", "run"),
        ("recommend", "run", "--user", "u1"),
        ("export", "run", "--to", "rows.safetensors"),
        ("cite", "run"),
        ("train", "--resume", "run"),
        ("checkpoint", "grow", "run", "--log", "log.parquet", "--out", "grown"),
    ):
        assert last_line(invoke(*words)) == (
            "run: 'mine:Hardest' is a method of your own, which is imported only if you name it. "
            "Pass --method mine:Hardest; in Python, call "
            "tapas.heads.import_method('mine:Hardest') first."
        )
        done = tapas(*words, *NAMED, cwd=folder)
        assert done.returncode == 0, done.stderr
    assert last_line(invoke("evaluate", "run", "--method", "tapas")) == (
        "--method tapas: a run knows its method. The option imports one of your own, module:Class."
    )


@pytest.mark.slow
def test_a_resumed_run_cannot_change_its_method(folder, run, monkeypatch):
    assert last_line(tapas("train", "--resume", run, *NAMED, cwd=folder)) == (
        f"--method is mine:Hardest, but the run in {run} was trained with tapas, which cannot be "
        "changed. Leave out --method."
    )
    (folder / "other.py").write_text("from mine import Hardest")
    named = ("--method", "other:Hardest")
    assert last_line(tapas("train", "--resume", "run", *named, cwd=folder)).startswith(
        "run: 'mine:"
    )
    monkeypatch.chdir(folder)
    assert last_line(invoke("train", "--resume", "run", "--method", "full")) == (
        "--resume continues a run with its saved settings; --method cannot be changed."
    )


@pytest.mark.slow
def test_it_is_compared_and_drawn_without_it(folder):
    names_of = ("--methods", "sampled,mine:Hardest", "--workers", 1)
    done = tapas("compare", "--quick", *names_of, "--out", "compared", "--cache", "c", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Hardest +0\.\d+ ±", done.stdout, re.MULTILINE), done.stdout
    page = (folder / "compared/README.md").read_text()
    assert "sampled,mine:Hardest" in page
    assert "nan" not in page.lower()
    drawn = tapas("compare", "--draw", "--out", "compared", cwd=folder)
    assert re.search(r"^mine:Hardest +0\.\d+ ±", drawn.stdout, re.MULTILINE), drawn.stdout
    assert "Pass --method mine:Hardest" in last_line(tapas("cite", "compared", cwd=folder))
    assert tapas("cite", "compared", *NAMED, cwd=folder).returncode == 0


def test_a_method_that_is_not_there_leaves_nothing_behind(folder):
    before = names(folder)
    for words in (
        ("train", "log.parquet", "--out", "new", "--method", "mine:Easiest"),
        ("compare", "log.parquet", "--out", "new", "--methods", "tapas,mine:Easiest"),
    ):
        said = last_line(tapas(*words, cwd=folder))
        assert said == f"{folder}/mine.py has no class Easiest. Heads there: Hardest."
    assert names(folder) == before


def test_an_error_of_the_method_keeps_its_traceback(folder):
    (folder / "raising.py").write_text(
        "from mine import Hardest\n\n\nclass Raising(Hardest):\n"
        "    def candidates(self, batch):\n        raise KeyError('my own bug')\n"
    )
    named = ("--out", "raised", "--method", "raising:Raising", "--cache", "cache")
    done = tapas("train", "log.parquet", *named, *TINY, cwd=folder)
    assert done.returncode == 1
    assert f'File "{folder}/raising.py", line 6, in candidates' in done.stderr
