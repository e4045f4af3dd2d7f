"""Connections to the servers of a layout, opened with the layout's key."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BucketLayout
from pliant.ps.wire import Answered, Array, NotAnswered, Request, receive_message, send_message
from pliant.train.peer.framing import GenerationUnknown, PeerConnection, PeerLost, WaitCheck, authenticate_to_peer
from pliant.train.peer.rpc import retry_pauses
from pliant.train.peer.server import connect

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls


class ServerRefused(PeerLost):
    """A server did not carry out a request."""

    def __init__(self, reply: NotAnswered) -> None:
        super().__init__(reply.why)
        self.reply = reply


def dial(
    layout: BucketLayout, key: bytes, me: MemberId, server: int, check: WaitCheck, tls: PeerTls | None
) -> PeerConnection:
    """Connect to a server of a layout, and wait until it has entered that layout.

    Raises OSError or PeerLost if it cannot be reached, and what `check` raises, which is called while this waits.
    """
    pauses = retry_pauses()
    known = layout.servers[server]
    while True:
        connection = PeerConnection(connect(known.address, check), check)
        try:
            if tls is not None:
                tls.connect(connection)
            authenticate_to_peer(connection, layout.number, me, known.id, key)
        except GenerationUnknown:
            connection.close()
            time.sleep(next(pauses))
            check()
            continue
        except BaseException:  # why: a failed handshake must not leave a connection open, whatever the error
            connection.close()
            raise
        return connection


def request(connection: PeerConnection, head: Request, arrays: Sequence[Array] = ()) -> list[bytearray]:
    """Send a request and return the arrays of its answer. Raises ServerRefused, or if the connection breaks."""
    send_message(connection, head, arrays)
    return answer(connection)


def answer(connection: PeerConnection) -> list[bytearray]:
    """Return the arrays of the next answer. Raises ServerRefused, or if the connection breaks."""
    reply, bodies = receive_message(connection)
    if isinstance(reply, Answered):
        return bodies
    raise ServerRefused(reply if isinstance(reply, NotAnswered) else NotAnswered("it sent a request, not an answer"))


__all__ = ["ServerRefused", "answer", "dial", "request"]
