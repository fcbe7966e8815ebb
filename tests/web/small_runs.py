"""Small trained runs of every kind that is served, and clients that ask for their lists."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from oracle.command_line import PLAIN, chain, invoke
from starlette.testclient import TestClient

from tapas.training import export as exporting
from tapas.web.models import Models, open_folder
from tapas.web.server import Address, build_app

NUM_USERS, NUM_ITEMS, MIN_COUNT = 30, 45, 9
ADDRESS = Address("127.0.0.1", 8321)
URL = ADDRESS.url
HARM = "<img src=x onerror=alert(1)>"
HOSTILE = (
    HARM, "\"quotes' & <b>", "🥑🧑‍🍳", "مرحبا", "..", "a/b/c", "x,y", " ", "\u200b",
    "\x1b[2J\nline", "e\u202evil", "k" * 400, "%2F?#&=", "line\n", "1002",
)  # fmt: skip
NETWORK = ("--encoder", "gru", "--no-copy", "--no-follow")
TRAINED: dict[str, tuple[Any, ...]] = {  # options by name; see `Runs`
    "mixture": ("--copy", "--follow", "--set", "loop.exclude_seen=false"),
    "network": (*PLAIN, "--set", "loop.exclude_seen=true"),
    "text": ("--copy", "--follow"),
    "half": (*PLAIN, "--set", "model.dtype=bfloat16"),
    "rare": (*PLAIN, "--rare", "fold", "--min-count", MIN_COUNT),
    "rare-mixture": ("--copy", "--follow", "--rare", "fold", "--min-count", MIN_COUNT),
    "warp": (*NETWORK, "--method", "warp"),
    "huffman": (*NETWORK, "--method", "huffman"),
}
KINDS = (*TRAINED, "export")


def hostile_key(item: int) -> str:
    """The key of `item` in the log of text: every third is hostile."""
    place, rest = divmod(item - 1000, 3)
    return HOSTILE[place] if rest == 0 and place < len(HOSTILE) else f"item-{item}"


class Runs:
    """Trains runs when they are asked for."""

    def __init__(self, home: Path):
        self.home = home
        frame = chain(num_users=NUM_USERS, num_items=NUM_ITEMS, num_baskets=8)
        frame = frame.with_columns(pl.from_epoch("time"))
        frame.write_parquet(home / "log.parquet")
        keys = pl.col("item_id").map_elements(hostile_key, return_dtype=pl.String)
        users = pl.col("user_id").replace({"u1": HARM, "u2": " ", "u3": ".."})
        frame.with_columns(keys, users).write_parquet(home / "text.parquet")

    def __getitem__(self, name: str) -> Path:
        path = self.home / name
        if not path.exists():
            if name == "export":
                self._export(path)
            else:
                self.train(path, self.log_of(name), *TRAINED[name])
        return path

    def log_of(self, name: str) -> Path:
        return self.home / ("text.parquet" if name == "text" else "log.parquet")

    def train(self, path: Path, log: Path, *options: Any) -> None:
        done = invoke(
            "train", log, "--out", path, "--cache", self.home / "cache", "--threads", 1,
            "--batch", 16, "--dim", 8, "--set", "loop.evaluate_every=3",
            *(() if "--steps" in options else ("--steps", 6)), *options,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        shutil.rmtree(path / "tensorboard")

    def _export(self, path: Path) -> None:
        """Without the program of the encoder, which takes seconds and is not read."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporting, "export_encoder", lambda _, to, __: to.write_bytes(bytes(99)))
            done = invoke("export", self["mixture"], "--to", path)
        assert done.returncode == 0, done.stderr


class Served:
    """An application, asked in this process."""

    def __init__(self, *folders: Path, address: Address = ADDRESS, token: str | None = None, **how):
        self.models = Models(folders, partial(open_folder, **how))
        self.app, self.api = build_app(self.models, address=address, token=token)
        self.client = TestClient(self.app, base_url=URL, raise_server_exceptions=False)

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.client.get(path, **how)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def recommend(self, **body: Any) -> list[dict[str, Any]]:
        """The lists of the answer."""
        answer = self.post("/recommend", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()["lists"]

    def error(self, status: int, path: str, **body: Any) -> str:
        """The sentence with which POST is refused."""
        return sentence(self.post(path, **body), status)

    def together(self, work: Callable[[httpx.AsyncClient], Iterable[Awaitable[Any]]]) -> list[Any]:
        """The results of requests that are under way at the same time."""

        async def ask() -> list[Any]:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                return await asyncio.gather(*work(client), return_exceptions=True)

        return asyncio.run(ask())


def sentence(answer: httpx.Response, status: int) -> str:
    """The words of an error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    (words,) = answer.json().values()
    assert answer.json() == {"error": words}
    return words


def items_of(lists: Iterable[dict[str, Any]]) -> list[list[Any]]:
    return [[each["item"] for each in one["items"]] for one in lists]


def scores_of(lists: Iterable[dict[str, Any]], name: str = "probability") -> list[list[float]]:
    return [[each[name] for each in one["items"]] for one in lists]
