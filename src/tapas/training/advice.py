"""Advice on what to do next: options that fit the log, and the command that has them."""

import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tapas.data.description import Description, describe
from tapas.data.source import command_options
from tapas.escapes import not_an_option, shell_join, shell_path, shell_word
from tapas.evaluation.baselines import FOLLOWERS, OWN
from tapas.evaluation.verdict import LEAST_USERS
from tapas.heads.own_method import is_own
from tapas.training.config import TrainConfig
from tapas.training.recipe import FEW_ITEMS, SOME_REPEATS
from tapas.training.run_folder import CONFIG, RunFolder

if TYPE_CHECKING:
    from tapas.training.run_evaluation import RunsEvaluation

LONGEST_NAME = 255  # bytes of a file name


@dataclass(frozen=True, slots=True)
class Advice:
    """Options of `tapas train`, and why they fit."""

    options: tuple[str, ...]
    reason: str  # a clause without a full stop

    def __str__(self) -> str:
        return f"{shell_join(self.options)}: {self.reason}"


def advise(found: Description, config: TrainConfig, better: Collection[str]) -> list[Advice]:
    """Options that fit the log `found` and that a run with `config` does not have.

    `better` are baselines that are better than the model of the run; without any there is none.
    """
    advice, model, head = [], config.model, config.head
    repeats = found.repeats >= SOME_REPEATS and not config.loop.exclude_seen
    if OWN in better and repeats and not model.copy:
        reason = f"{100 * found.repeats:.0f} % of events repeat an item that the user had before"
        advice.append(Advice(("--copy",), reason))
    if FOLLOWERS in better and not model.follow:
        reason = "counting what follows the latest items is better than the model"
        advice.append(Advice(("--follow",), reason))
    if (
        better
        and found.num_items <= FEW_ITEMS
        and head.method != "full"
        and not is_own(head.method)
    ):
        reason = f"with {found.num_items:,} items a full softmax is exact and fast enough"
        advice.append(Advice(("--method", "full"), reason))
    return advice


def run_again(run: RunFolder) -> list[str]:
    """The command that trains with the settings of `run` once more, into another folder."""
    path = not_an_option(str(run.path))
    method = run.config.head.method
    named = ["--method", method] if is_own(method) else []
    return ["tapas", "train", "--config", f"{path}/{CONFIG}", "--out", f"{path}-2", *named]


def whole_log_command(path: Path, own: str | None) -> str:
    """The command that trains a model like the run in `path` on its whole log.

    `own` is its method, if that is one of the user's own.
    """
    whole = path.with_name(f"{path.name}-whole")
    if len(os.fsencode(whole.name)) > LONGEST_NAME:
        whole = path.with_name("whole")
    named = "" if own is None else f" --method {shell_word(own)}"
    return f"tapas train --like {shell_path(path)}{named} --out {shell_path(whole)}"


def next_training(
    command: Sequence[str], advice: Sequence[Advice], *, first: str = "Next"
) -> list[str]:
    """`command` with the options of `advice` as one line, and a line with each reason."""
    options = [option for each in advice for option in each.options]
    return [f"{first}: {shell_join([*command, *options])}", *(f"  {each}" for each in advice)]


def advise_evaluated(run: RunFolder, found: "RunsEvaluation") -> list[Advice]:
    """What to change in the next run, unless `run`, the first, is better than all baselines."""
    lead = found.baselines
    if found.num_users < LEAST_USERS or all(each.above_zero for each in lead.values()):
        return []
    better = [name for name in lead if lead[name].below_zero]
    return advise(describe(run.log), run.config, better)


def after_evaluation(
    run: RunFolder, found: "RunsEvaluation", advice: Sequence[Advice]
) -> list[str]:
    """Lines with the next command: one that follows `advice`, or else fits what was found."""
    if found.num_users < LEAST_USERS:
        return []
    if advice:
        return next_training(run_again(run), advice, first="Try")
    if any(lead.below_zero for lead in found.baselines.values()):
        log = command_options(asdict(run.config.log))
        return [f"Try: {shell_join(['tapas', 'compare', *log, '--budget', '10m'])}"]
    return [f"Next: tapas recommend {shell_path(run.path)} --user ..."]
