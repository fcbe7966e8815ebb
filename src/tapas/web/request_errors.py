"""What goes wrong with a request, as a status and one sentence."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tapas.errors import TapasError, UsageError, is_out_of_memory
from tapas.phrases import did_you_mean
from tapas.web.api import RequestError, as_error
from tapas.web.batches import BusyError
from tapas.web.explorer import Lists
from tapas.web.schema import Recommend, Similar

FIELDS = {  # of requests, by their address
    "/recommend": Recommend.__struct_fields__,
    "/similar": Similar.__struct_fields__,
    "/explorer/lists": Lists.__struct_fields__,
}
PLACES = {404: "there is nothing at this address.", 405: "use another method here."}
Handler = Callable[[Request, Exception], Awaitable[Response]]


def answer_to(error: Exception, fields: Sequence[str] = ()) -> Response:
    """The answer to a request that failed with `error`; `fields` are those that it may have."""
    match error:
        case RequestError(status=status, words=words):
            return as_error(status, words)
        case HTTPException(status_code=status, headers=headers):
            response = as_error(status, PLACES.get(status, "the request cannot be answered."))
            response.headers.update(headers or {})  # such as the methods that are allowed
            return response
        case msgspec.ValidationError():
            return as_error(422, _misfit(str(error), fields))
        case msgspec.DecodeError() | UnicodeDecodeError():
            return as_error(400, f"the request is not JSON: {error}.")
        case BusyError():
            response = as_error(503, "the server has too much to do. Try again in a second.")
            response.headers["retry-after"] = "1"
            return response
        case _ if is_out_of_memory(error):
            return as_error(503, "there is too little memory for this request. Ask for less.")
        case ClientDisconnect():  # nobody reads it
            return as_error(400, "the request is not complete.")
        case UsageError():
            return as_error(422, str(error))
        case TapasError():
            return as_error(500, str(error))
    return as_error(500, "the server failed; its own output says why.")


def _misfit(words: str, fields: Sequence[str] = ()) -> str:
    """A sentence of msgspec in the order of ours: the place, what was expected.

    >>> _misfit("Expected `int` >= 1 - at `$.k`")
    'k: expected `int` >= 1.'
    """
    what, _, place = words.partition(" - at `$")
    place = place.rstrip("`").removeprefix(".")
    if unknown := re.search("unknown field `(.*)`", what):
        what += f".{did_you_mean(unknown[1], fields)}".removesuffix(".")
    what = what if not place else what[:1].lower() + what[1:]
    return f"{place}: {what}." if place else f"{what}{'' if what.endswith('?') else '.'}"


async def handle(request: Request, error: Exception) -> Response:
    """`answer_to` as Starlette calls it."""
    return answer_to(error, FIELDS.get(request.scope["path"], ()))


HANDLED: dict[Any, Handler] = dict.fromkeys(
    (
        RequestError,
        HTTPException,
        msgspec.DecodeError,  # and ValidationError, which is one
        UnicodeDecodeError,
        BusyError,
        MemoryError,
        ClientDisconnect,
        TapasError,
        Exception,  # a bug: the server writes its traceback to stderr, too
    ),
    handle,
)
