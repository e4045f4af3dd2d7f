"""Send whole responses over ASGI: an answer, or a refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from starlette.types import Send

from pliant.wire.api import Problem
from pliant.wire.codec import encode_reply

CHUNK_BYTES = 1 << 16  # a longer answer waits for its client after each
UNREAD_MAX = 1 << 24  # bytes of long answers that the clients of one token have not read


class UnreadAnswers:
    """The bytes of long answers that are being sent, by token, so that clients that do not read cannot fill memory."""

    def __init__(self) -> None:
        self._nbytes: Counter[str] = Counter()

    @contextmanager
    def hold(self, token: str, nbytes: int) -> Iterator[bool]:
        """Count an answer for a block. Yields False, and counts nothing, if the token has too many unread ones."""
        if self._nbytes[token] and self._nbytes[token] + nbytes > UNREAD_MAX:
            yield False
            return
        self._nbytes[token] += nbytes
        try:
            yield True
        finally:
            self._nbytes[token] -= nbytes
            self._nbytes += Counter()  # removes zeros


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
    for start in range(CHUNK_BYTES, len(body), CHUNK_BYTES):
        await send({"type": "http.response.body", "body": body[start - CHUNK_BYTES : start], "more_body": True})
    sent = (len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES if body else 0
    await send({"type": "http.response.body", "body": body[sent:] if sent else body})


async def refuse(send: Send, status: int, problem: Problem, *, close: bool = False) -> None:
    await answer(send, status, encode_reply(problem), close=close)
