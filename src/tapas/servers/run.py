"""A run with workers and servers, from its start to its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tapas.checkpoints.folder import Checkpoint, CheckpointFolder
from tapas.data.splits import Split
from tapas.errors import PeerError
from tapas.servers.job import Engine, Job
from tapas.training.journal import Journal
from tapas.training.model import SequenceModel
from tapas.training.run_folder import RunFolder
from tapas.training.trainer import Outcome, Tick, Trainer
from tapas.training.validation import judge_of, training_words


def serve(
    run: RunFolder,
    split: Split,
    checkpoint: Checkpoint | None,
    talk: Callable[[str], None],
    watch: Callable[[Tick], None],
    asked_to_stop: Callable[[], bool],
    engine: Engine | None,
) -> Outcome:
    """Train `run` to its end with processes that `engine` starts; by default Ray, here."""
    if engine is None:
        with on_ray() as started:
            return serve(run, split, checkpoint, talk, watch, asked_to_stop, started)
    run = replace(run, path=run.path.resolve())  # processes elsewhere have other working folders
    config, begun = run.config, checkpoint.step if checkpoint else 0
    service = config.service
    talk(
        f"{training_words(config, split)}, {counted(service.workers, 'worker')}, "
        f"{counted(service.servers, 'server')}, staleness at most {service.max_staleness}."
    )
    with Journal(run.path, resume_at=begun) as journal:
        job = Job(run, split, engine, restore=checkpoint.step if checkpoint else None)
        try:
            judge = judge_of(run, split)

            def judge_now(model: SequenceModel) -> dict[str, float]:
                job.refresh()
                return judge(model)

            # a server that is started again may still read the one before the newest
            kept = CheckpointFolder(run.checkpoints.folder, keep=max(2, config.loop.keep))
            trainer = Trainer(job.model, job, judge_now, kept, journal, loop=config.loop)
            if checkpoint is not None:
                trainer.resume(checkpoint)
            return trainer.run(on_tick=watch, asked_to_stop=asked_to_stop)
        except PeerError as error:
            saved = run.checkpoints.steps()
            left = f"What was saved at step {saved[-1]:,} is there" if saved else "Nothing is saved"
            raise PeerError(f"{error} {left}: go on with --resume.", error.ranks) from error
        finally:
            job.close()


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


@contextmanager
def on_ray(address: str | None = None) -> Iterator[Engine]:
    """Ray on this machine, or the cluster at `address`."""
    from tapas.servers.ray_peers import RayPeers
    from tapas.servers.ray_session import join_ray

    with join_ray(address):
        yield partial(RayPeers.start, wait=False)
