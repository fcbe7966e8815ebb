"""`tapas checkpoint`: what is in one, and one with more classes."""

import json

import pytest
from oracle.journeys import invoke, last_line

from tapas.version import __version__

STEP = "step-00000004"


def run_checkpoint(*words) -> str:
    done = invoke("checkpoint", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_info_says_what_is_in_the_newest_checkpoint(run):
    size = sum(file.stat().st_size for file in (run / "checkpoints" / STEP).glob("*.safetensors"))
    assert run_checkpoint("info", "run").splitlines() == [
        f"run/checkpoints/{STEP}: step 4, the best so far",
        f"rows of 1 process (format 1, tapas {__version__})",
        "model.head.table: 30 classes, dim 4, float32, optimizer state: sum, 4 updates",
        "model.own_inputs: 30 classes, dim 4, float32, optimizer state: sum, 4 updates",
        f"{size:,} bytes, whole",
    ]


def test_grow_says_where_new_rows_start(run):
    done = invoke("checkpoint", "grow", "run", "--to", 37, "--out", "more", "--initial", "sum=0.5")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"Wrote more from run/checkpoints/{STEP}, with 37 classes. Their row optimizer state "
        "starts with sum at 0.5."
    )
    found = json.loads(run_checkpoint("info", "more", "--json"))
    assert [table["classes"] for table in found["tables"]] == [37, 37]
    assert found["tables"][0] == {
        "name": "model.head.table",
        "classes": 37,
        "dim": 4,
        "dtype": "float32",
        "order": "contiguous",
        "optimizer_state": ["sum"],
        "updates": 4,
    }


def test_a_damaged_checkpoint_is_described_and_ends_with_one(run):
    file = run / "checkpoints" / STEP / "rows-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    done = invoke("checkpoint", "info", "run")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith(" bytes, damaged")
    words = f"run/checkpoints/{STEP}/rows-0.safetensors is damaged: its checksum is not the one"
    assert words in done.stderr
    assert words in last_line(invoke("checkpoint", "grow", "run", "--to", 31, "--out", "out"))
    assert not (run.parent / "out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("info", "elsewhere"),
            "there is no folder elsewhere.",
        ),
        (
            ("grow", "run", "--to", 31, "--out", "run"),
            "run exists already. Choose another --out.",
        ),
        (
            ("grow", "run", "--to", 31, "--out", f"run/checkpoints/{STEP}"),
            f"run/checkpoints/{STEP} exists already. Choose another --out.",
        ),
        (
            ("grow", "run", "--to", 30, "--out", "more"),
            f"run/checkpoints/{STEP} has 30 classes already; --to must be more, got 30.",
        ),
        (
            ("grow", "run", "--to", 31, "--out", "more", "--initial", "sum"),
            "--initial must be a name and a number of at least 0, as sum=0.1, got 'sum'.",
        ),
        (
            ("info", "run", "--step", 5),
            "no checkpoint of step 5 in run/checkpoints. There are: 2, 4.",
        ),
    ],
)
def test_bad_wishes_are_one_line(run, words, told):
    assert last_line(invoke("checkpoint", *words)) == told
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]
