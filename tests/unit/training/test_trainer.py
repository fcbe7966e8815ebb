"""The training loop: when it stops, its best checkpoint, its journal, its errors."""

import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from tapas import DataError, UsageError
from tapas.checkpoints.folder import CheckpointFolder
from tapas.data.source import LogSource
from tapas.training.build import build_training
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, OptimizerConfig, TrainConfig
from tapas.training.journal import Journal, read_journal
from tapas.training.step import local_steps
from tapas.training.trainer import Trainer, TrainResult

LOOP = LoopConfig(steps=20, evaluate_every=2, batch=4, patience=2, keep=3, checkpoint_seconds=1e9)


class Script:
    """A `validate` function that returns given metrics and records the steps of its calls."""

    def __init__(self, *values):
        self.values = list(values)

    def __call__(self, model):
        return {"map@20": self.values.pop(0), "recall@20": 0.5}


@pytest.fixture
def make(data, tmp_path):
    journals = []

    def make(validate, *, clip=1.0, **loop):
        config = TrainConfig(
            log=LogSource(files=("x.parquet",)),
            model=ModelConfig(dim=4, history=5),
            head=HeadConfig.of(num_samples=4, presample_factor=2),
            optimizer=OptimizerConfig(clip=clip),
            loop=replace(LOOP, **loop),
        )
        built = build_training(config, *data)
        journals.append(Journal(tmp_path, tensorboard=False))
        return Trainer(
            built.model,
            local_steps(built),
            validate,
            CheckpointFolder(tmp_path / "checkpoints", keep=built.config.loop.keep),
            journals[-1],
            loop=built.config.loop,
        )  # fmt: skip

    yield make
    for journal in journals:
        journal.close()


def stops_at(step):
    """A `should_stop` that returns True once `step` steps are done."""
    asked = iter(range(1, 1000))
    return lambda: next(asked) >= step


RESULTS = {  # metrics of the evaluations, the loop, then: reason, step, best, its step, steps kept
    "patience runs out": ((0.1, 0.3, 0.2, 0.25, 0.9), {}, ("no_improvement", 8, 0.3, 4), [4, 6, 8]),
    "as good is not better": ((0.2, 0.2, 0.2, 0.9), {}, ("no_improvement", 6, 0.2, 2), [2, 4, 6]),
    "a better one gives all patience back": (
        (0.1, 0.05, 0.2, 0.1, 0.3, 0.1, 0.1), {}, ("no_improvement", 14, 0.3, 10), [10, 12, 14]
    ),
    "the best is kept however old": (
        (0.9, *[0.1] * 9), {"patience": 100, "keep": 1}, ("finished", 20, 0.9, 2), [2, 20]
    ),
    "the last step is evaluated though it divides nothing": (
        (0.1, 0.2, 0.3), {"steps": 7, "evaluate_every": 3}, ("finished", 7, 0.3, 7), [3, 6, 7]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RESULTS)
def test_the_loop_stops_when_it_should_and_keeps_the_best(make, tmp_path, case):
    said, loop, (reason, step, best, best_step), kept = RESULTS[case]
    trainer = make(Script(*said), **loop)
    assert trainer.run() == TrainResult(reason, step, best, best_step)
    assert (trainer.checkpoints.best(), trainer.checkpoints.steps()) == (best_step, kept)
    every = trainer.evaluate_every
    lines = [line["step"] for line in read_journal(tmp_path / "journal.jsonl")]
    assert lines == sorted({*range(every, step + 1, every), step})


@pytest.mark.parametrize(
    ("step", "reason", "kept"),
    [
        (1, "interrupted", [1]),
        (3, "interrupted", [2, 3]),
        (4, "interrupted", [2, 4]),
        (6, "finished", [2, 4, 6]),
    ],
)
def test_an_interrupted_run_saves_its_current_step(make, step, reason, kept):
    trainer = make(Script(0.1, 0.2, 0.3), steps=6)
    outcome = trainer.run(should_stop=stops_at(step))
    assert (outcome.reason, outcome.step) == (reason, step)
    assert trainer.checkpoints.steps() == kept


def test_checkpoints_are_also_saved_by_the_clock(make):
    trainer = make(Script(0.1, 0.2), steps=6, evaluate_every=4, checkpoint_seconds=0, keep=9)
    trainer.run()
    assert trainer.checkpoints.steps() == [1, 2, 3, 4, 5, 6]
    assert trainer.checkpoints.best() == 6


def test_the_journal_rounds_metrics_and_the_best_checkpoint_does_not(make, tmp_path):
    """0.002 is 0.0020000000949949026 as a float32; the second of two close values is better."""
    trainer = make(Script(0.0020000000949949026, 0.0020000000949949027 + 1e-12), steps=4)
    result = trainer.run()
    lines = read_journal(tmp_path / "journal.jsonl")
    assert [line["map@20"] for line in lines] == [0.002, 0.002]
    assert (result.best_step, result.best) == (4, 0.0020000000949949027 + 1e-12)


def test_the_journal_holds_the_mean_loss_since_its_last_line(make, tmp_path):
    trainer = make(Script(0.1, 0.2, 0.3), steps=7, evaluate_every=3)
    losses, original = [], trainer.model.loss

    def noted(*arguments, **options):
        loss = original(*arguments, **options)
        losses.append(float(loss.detach()))
        return loss

    trainer.model.loss = noted
    trainer.run()
    lines = read_journal(tmp_path / "journal.jsonl")
    assert len(losses) == 7
    for line, part in zip(lines, (losses[:3], losses[3:6], losses[6:]), strict=True):
        assert line["event"] == "evaluate"
        assert line["train_loss"] == pytest.approx(fmean(part))
        assert line["recall@20"] == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_error_and_saves_nothing(make, bad):
    trainer = make(Script(0.1, 0.2))
    original = trainer.model.loss
    trainer.model.loss = lambda *a, **o: original(*a, **o) * (bad if trainer.state.step == 3 else 1)
    with pytest.raises(DataError) as error:
        trainer.run()
    assert trainer.checkpoints.steps() == [2]
    assert str(error.value) == (
        f"the loss is {bad} at step 3: training has diverged. Lower optimizer.rows_lr or "
        "optimizer.encoder_lr (with --set) and start again."
    )


def test_the_encoder_is_clipped_and_the_rows_are_not(make):
    trainer = make(Script(0.1), clip=1e-3)
    trainer.validate = lambda model: pytest.fail("not yet")
    trainer.steps.run_step(0, 1)
    norm = torch.stack([p.grad.norm() for p in trainer.model.encoder.parameters()]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-2)


def test_progress_is_reported(make, tmp_path):
    ticks = []
    make(Script(0.4, 0.1, 0.4), steps=6).run(on_progress=ticks.append)
    journal = [line["train_loss"] for line in read_journal(tmp_path / "journal.jsonl")]
    assert math.isnan(ticks[0].loss)
    assert [tick.loss for tick in ticks[1:]] == journal
    assert [(t.step, t.steps, t.best, t.evaluated, t.is_best) for t in ticks] == [
        (0, 6, None, None, False),
        (2, 6, 0.4, 0.4, True),
        (4, 6, 0.4, 0.1, False),
        (6, 6, 0.4, 0.4, False),
    ]


@pytest.mark.parametrize(
    ("process", "lost", "words"),
    [
        ("server 0", 1234, "server 0 died and was restarted from the last checkpoint; "
         "1,234 updates were lost."),
        ("encoder", 1, "encoder died and was restarted from the last checkpoint; "
         "1 update was lost."),
        ("worker 1", 0, "worker 1 died and was restarted; no updates were lost."),
    ],
)  # fmt: skip
def test_a_restarted_process_is_a_warning(make, monkeypatch, process, lost, words):
    trainer, said = make(Script(0.1), steps=2), []
    event = {"process": process, "rolled_back_updates": lost}
    monkeypatch.setattr(trainer.steps, "events", lambda: [("restart", event)])
    trainer.run(status=said.append)
    assert said == [f"Warning: {words}"]


def test_a_run_folder_that_was_moved_away_is_not_recreated(make, tmp_path):
    """The checkpoint would end up in a folder without a run."""
    trainer = make(Script(0.1, 0.2))
    moved = tmp_path.with_name("moved")
    trainer.validate = lambda model: (tmp_path.rename(moved), {"map@20": 0.1})[1]
    with pytest.raises(
        UsageError, match=r"journal\.jsonl is gone: the folder was moved or deleted"
    ):
        trainer.run()
    assert not tmp_path.exists()
    moved.rename(tmp_path)


def test_an_unresolved_loop_is_refused(make):
    trainer = make(Script())
    with pytest.raises(ValueError, match="must be resolved"):
        Trainer(
            trainer.model, trainer.steps, trainer.validate, trainer.checkpoints, trainer.journal,
            loop=LoopConfig(),
        )  # fmt: skip
