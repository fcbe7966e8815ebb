"""The end points that programs call most, without what Starlette does for each request.

Its layers took as long as everything else that Python does between the connection and the model.
"""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from tapas.errors import TapasError
from tapas.web.api import JSON
from tapas.web.request_errors import answer_to


class Post:
    """An ASGI application that answers the body of a POST with JSON.

    Args:
        answer: the answer to a body; what it raises is answered as `answer_to` says.
        fields: those that a request may have, for errors.
    """

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]], fields: Sequence[str]):
        self._answer, self._fields = answer, fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            content = await self._answer(await _body(receive))
        except Exception as error:
            response = answer_to(error, self._fields)
            await response(scope, receive, send)
            if response.status_code == 500 and not isinstance(error, TapasError):
                raise  # a bug: the server writes its traceback to stderr
            return
        length = str(len(content)).encode()
        headers = [(b"content-type", JSON.encode()), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def _body(receive: Receive) -> bytes:
    parts, more = list[bytes](), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


class PostsFirst:
    """Calls `posts` by their path, and `otherwise` for every other request."""

    def __init__(self, posts: dict[str, Post], otherwise: ASGIApp):
        self._posts, self._otherwise = posts, otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        post = self._posts.get(scope["path"]) if scope.get("method") == "POST" else None
        await (post or self._otherwise)(scope, receive, send)
