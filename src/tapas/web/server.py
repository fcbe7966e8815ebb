"""The process of `tapas serve`: its socket, its signals, and how it ends."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapas.errors import UsageError
from tapas.regular_file import read_given
from tapas.signals import handle_signals
from tapas.web.api import Api, as_json
from tapas.web.connection import Connection, allowed_connections
from tapas.web.explorer import Explorer
from tapas.web.guard import Guard
from tapas.web.measurements import Measurements
from tapas.web.models import Models, settle_garbage
from tapas.web.openapi import docs_page, docs_style, openapi
from tapas.web.post import Post, PostsFirst
from tapas.web.request_errors import FIELDS, HANDLED

DRAIN_SECONDS = 10  # for answers to requests that are under way when the server is stopped
SHORTEST_TOKEN = 16  # characters
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Anything(Convertor[str]):
    """The rest of an address, which may have slashes and, as keys of items may, ends of lines."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", Anything())


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def bind(self) -> socket.socket:
        """A listening socket; UsageError if the address cannot be had."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            listening = socket.socket(found[0][0], socket.SOCK_STREAM)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(found[0][4])
                listening.listen()  # or others could bind it, too, while models are loaded
            except BaseException:
                listening.close()
                raise
        except (OSError, UnicodeError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"cannot listen on {self.host}, port {self.port}: {reason}. Choose another with "
                "--port (0 takes a free one) or --host."
            ) from None
        return listening


def build_app(
    models: Models,
    *,
    address: Address,
    token: str | None = None,
) -> tuple[Guard, Api]:
    """The application and its API."""
    compute = ThreadPoolExecutor(1, "compute")
    measurements = Measurements()
    api = Api(models, compute, measurements)
    explorer = Explorer(models, compute)
    models.on_replaced = explorer.forget
    folder = files("tapas.web").joinpath("static")
    static = {
        each.name: (each.read_bytes(), MEDIA_TYPES[Path(each.name).suffix])
        for each in folder.iterdir()
        if Path(each.name).suffix in MEDIA_TYPES
    }
    page = folder.joinpath("explorer.html").read_bytes()

    async def front(request: Request) -> Response:
        return Response(page, media_type="text/html")

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "docs.css":
            return Response(docs_style(), media_type="text/css")
        if name not in static:
            raise HTTPException(404)
        content, media_type = static[name]
        return Response(content, media_type=media_type)

    async def docs(request: Request) -> Response:
        described = docs_page(address.url, with_token=token is not None)
        return Response(described, media_type="text/html")

    async def schema(request: Request) -> Response:
        return as_json(openapi())

    posts = {
        "/recommend": Post(api.recommend, FIELDS["/recommend"]),
        "/similar": Post(api.similar, FIELDS["/similar"]),
    }
    routes = [
        Route("/", front),
        Route("/docs", docs),
        Route("/openapi.json", schema),
        Route("/static/{name}", file),
        *(Route(path, post, methods=["POST"]) for path, post in posts.items()),
        Route("/items/{key:anything}", api.item),
        Route("/healthz", api.health),
        Route("/metrics", api.metrics),
        Route("/explorer/about", explorer.about),
        Route("/explorer/users", explorer.users),
        Route("/explorer/random-user", explorer.random_user),
        Route("/explorer/user", explorer.user),
        Route("/explorer/items", explorer.items),
        Route("/explorer/item", explorer.item),
        Route("/explorer/lists", explorer.lists, methods=["POST"]),
        Route("/explorer/map", explorer.map),
    ]
    app = Starlette(routes=routes, exception_handlers=HANDLED)
    app.router.redirect_slashes = False
    hosts = {"localhost", "127.0.0.1", "[::1]", address.host.lower(), f"[{address.host.lower()}]"}
    guarded = Guard(
        PostsFirst(posts, app),
        token=token,
        hosts=hosts if address.is_loopback else None,
        measurements=measurements,
    )
    return guarded, api


class Server(uvicorn.Server):
    """Stops on SIGTERM and Ctrl-C once all requests under way are answered.

    A second signal does not wait for them.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]):
        super().__init__(config)
        self._on_stop = on_stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with handle_signals({signal.SIGINT: self._stop, signal.SIGTERM: self._stop}):
            yield

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._on_stop()


def serve(
    models: Models,
    listening: socket.socket,
    *,
    host: str,
    token: str | None,
    reload: bool,
    ready: Callable[[Address], None],
    status: Callable[[str], None],
) -> None:
    """Answer requests until a signal; `ready` is called with the address once it can be called."""
    address = Address(host, listening.getsockname()[1])
    app, api = build_app(models, address=address, token=token)

    def stopping() -> None:
        if not api.stopping:
            api.stopping = True
            status("Stopping: requests under way are answered first.")

    server = Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            server_header=False,
            proxy_headers=False,
            http=Connection,
            limit_concurrency=allowed_connections(),
            timeout_graceful_shutdown=DRAIN_SECONDS,
        ),
        stopping,
    )
    settle_garbage()
    # uvloop, if it is there, as uvicorn chooses it
    loop_factory = server.config.get_loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(server, models, listening, address, reload, ready, status))


async def _serve(
    server: Server,
    models: Models,
    listening: socket.socket,
    address: Address,
    reload: bool,
    ready: Callable[[Address], None],
    status: Callable[[str], None],
) -> None:
    async def tell_when_ready() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        ready(address)

    tasks = [asyncio.create_task(tell_when_ready())]
    if reload:
        tasks.append(asyncio.create_task(models.watch(status)))
    try:
        await server.serve([listening])
    finally:
        for task in tasks:
            task.cancel()


def read_token(path: Path) -> str:
    """The token in the first line of a file, which only its owner may read."""
    token = read_given(path).decode("utf-8", "replace").split("\n")[0].strip()
    if path.stat().st_mode & 0o077:
        raise UsageError(f"{path} can be read by others. `chmod 600` it, and write a new token.")
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"{path} has no token in its first line: expected at least {SHORTEST_TOKEN} printable "
            "ASCII characters, for example from `openssl rand -hex 32`."
        )
    return token
