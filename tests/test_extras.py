"""What `pip install tapas-softmax` alone can do, and what is said of what it cannot."""

import subprocess
import sys

import pytest

from tapas.extras import EXTRAS, how_to_install

BLOCK = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def without_extras(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", BLOCK + script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_heads_optimizers_and_checkpoints_need_torch_numpy_and_safetensors_alone(tmp_path):
    """And a log, which needs polars, says what to install."""
    script = """
import torch, tapas
encoder, head = torch.nn.Linear(4, 4), tapas.TapasSoftmax(50, 4, num_samples=8)
model = torch.nn.Sequential(encoder, head)
rows = tapas.optim.RowwiseAdagrad(head, lr=0.1)
head(encoder(torch.ones(3, 4)), torch.arange(3)).backward()
rows.step()
tapas.save_checkpoint(sys.argv[1], 1, model, rows)
print(tapas.load_checkpoint(sys.argv[1], model, rows), head.topk(torch.ones(4), 3)[1].shape)
from tapas.data import prepare_log
"""
    done = without_extras(script, str(tmp_path / "run"))
    assert "torch.Size([3])" in done.stdout, done.stderr
    assert done.returncode == 1
    words = 'UsageError: this needs polars. Install it with `pip install "tapas-softmax[train]"`.'
    assert words in done.stderr


@pytest.mark.slow
def test_the_command_says_what_to_install():
    script = "from tapas.__main__ import main; sys.argv[0] = 'tapas'; main()"
    done = without_extras(script, "train", "log.csv")
    words = 'tapas: this needs typer. Install it with `pip install "tapas-softmax[train]"`.\n'
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


@pytest.mark.slow
def test_a_comparison_without_matplotlib_trains_nothing(tmp_path):
    only = BLOCK.replace(repr(sorted(EXTRAS)), "['matplotlib']")
    script = f"{only}\nfrom tapas.__main__ import main; sys.argv[0] = 'tapas'; main()"
    command = [sys.executable, "-c", script, "compare", "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    words = 'tapas: this needs matplotlib. Install it with `pip install "tapas-softmax[plots]"`.\n'
    assert (done.returncode, done.stderr) == (1, words)
    assert not (tmp_path / "out").exists()


def test_a_figure_without_matplotlib_says_what_to_install(monkeypatch):
    import typer
    from typer.testing import CliRunner

    from tapas.cli.exit_codes import report_errors

    app = typer.Typer()

    @app.command()
    def draw():
        with report_errors():
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.axes")

    done = CliRunner().invoke(app)
    assert done.exit_code == 1
    assert done.stderr == (
        'tapas: this needs matplotlib. Install it with `pip install "tapas-softmax[plots]"`.\n'
    )


def test_what_no_extra_brings_is_left_to_python():
    assert how_to_install("numpy") is how_to_install(None) is None
