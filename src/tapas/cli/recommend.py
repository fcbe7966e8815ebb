"""`tapas recommend`: the next items of a user, of a history, or of a file of users."""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.model_source import ModelSource, open_model
from tapas.cli.options import AsJson, OwnMethods, import_methods
from tapas.cli.terminal import status
from tapas.errors import UsageError


def recommend(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or of an export.")
    ],
    user: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Recommend for this user of the log, from all of their events.",
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,KEY...",
            help="Recommend for this history: item ids, the oldest first, or a JSON list if ids "
            "contain commas.",
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Recommend for all users in a file: Parquet, CSV, JSON lines, or one id per line.",
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --users: column of the user ids. Default: the first column.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --users: file to write, .parquet, .jsonl or .csv.",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of items to recommend.")
    ] = 20,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Step of the checkpoint. Default: the best one.",
        ),
    ] = None,
    exclude_seen: Annotated[
        bool,
        typer.Option(
            "--exclude-seen",
            help="Leave out items that the user has had before.",
        ),
    ] = False,
    method: OwnMethods = None,
    as_json: AsJson = False,
) -> None:
    """Recommend the next items for users or histories.

    All items are ranked, exactly. Scores are logits (log-probabilities if the run was trained
    with model.copy): compare them within one list only.

    For one user or history the list is printed on stdout, one line per item: rank, item, score.
    For a file of users it is written to --out, one row per user and item.
    """
    with report_errors():
        if sum(given is not None for given in (user, history, users)) != 1:
            raise UsageError("give one of --user KEY, --history KEY,KEY or --users FILE.")
        if (users is None) != (out is None):
            raise UsageError("--users FILE needs --out FILE, and --out needs --users.")
        if out is not None:
            from tapas.data.table_files import check_suffix

            check_suffix(out)
        import_methods(method)
        opened = open_model(source, step)
        if users is not None and out is not None:
            _for_many(opened, users, column, out, top, exclude_seen, as_json)
            return
        if history is not None:
            taken = opened.item_keys.ids(_split_keys(history))
        else:
            taken = _histories(opened, [str(user)])[0]
        scores, ids = opened.recommender.recommend([taken], top, exclude_seen=exclude_seen)
        real = ids[0] >= 0
        found = list(
            zip(
                opened.item_keys.keys(ids[0][real].numpy()),
                scores[0][real].tolist(),
                strict=True,
            )
        )
        if as_json:
            for_whom = {"user": user} if user is not None else {"history": history}
            items = [{"item": key, "score": round(score, 6)} for key, score in found]
            typer.echo(json.dumps({**for_whom, "items": items}))
            return
        for rank, (key, score) in enumerate(found, start=1):
            typer.echo(f"{rank}\t{key}\t{score:.4f}")


def _split_keys(history: str) -> list[str]:
    """Keys separated by commas, or a JSON list, for keys that contain commas."""
    if history.lstrip().startswith("["):
        try:
            keys = json.loads(history)
        except ValueError as error:
            raise UsageError(f"--history {history!r} is not a JSON list: {error}.") from None
        return [str(key) for key in keys]
    return [key.strip() for key in history.split(",") if key.strip()]


def _histories(opened: ModelSource, keys: list[str]) -> list[np.ndarray]:
    if opened.log is None:
        raise UsageError(
            "an export has items but no users. Give --history, or the folder of the run."
        )
    log = opened.log
    return [log.items[log.offsets[u] : log.offsets[u + 1]] for u in log.user_keys.ids(keys)]


def _for_many(
    opened: ModelSource,
    users: Path,
    column: str | None,
    out: Path,
    top: int,
    exclude_seen: bool,
    as_json: bool,
) -> None:
    from tapas.data.table_files import read_keys, write_frame

    keys = read_keys(users, column)
    if not keys:
        raise UsageError(f"{users} has no users.")
    try:
        histories = _histories(opened, keys)
    except UsageError as error:
        raise UsageError(f"{users}: {error}") from None
    scores, ids = opened.recommender.recommend(histories, top, exclude_seen=exclude_seen)
    real = ids >= 0
    rank = np.arange(1, ids.shape[1] + 1)[None, :].repeat(len(keys), axis=0)
    place = np.arange(len(keys))[:, None].repeat(ids.shape[1], axis=1)
    write_frame(
        out,
        {
            "user": [keys[p] for p in place[real.numpy()]],
            "rank": rank[real.numpy()],
            "item": opened.item_keys.keys(ids[real].numpy()),
            "score": scores[real].numpy(),
        },
    )
    if as_json:
        typer.echo(json.dumps({"users": len(keys), "rows": int(real.sum()), "out": str(out)}))
    status(f"Wrote {int(real.sum()):,} recommendations for {len(keys):,} users to {out}.")
