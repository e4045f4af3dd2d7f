"""Send whole responses over ASGI: an answer, or a refusal."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import Send

from pliant.wire.api import Problem
from pliant.wire.codec import encode_reply


async def answer(send: Send, status: int, body: bytes, media: str = "application/json", *, close: bool = False) -> None:
    """Send one whole response. `close` asks the client to close the connection afterwards."""
    headers = [(b"content-type", media.encode()), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="pliant"'))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, status: int, problem: Problem, *, close: bool = False) -> None:
    await answer(send, status, encode_reply(problem), close=close)
