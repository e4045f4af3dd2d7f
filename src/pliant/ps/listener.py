"""The listening socket of a parameter server. Each connection is authenticated, and served in a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pliant.core.model.names import MemberId
from pliant.train.peer.framing import (
    HANDSHAKE_S,
    GenerationUnknown,
    PeerConnection,
    PeerLost,
    authenticate_peer,
    deadline_check,
)

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 4096

Serve = Callable[[int, MemberId, PeerConnection], None]


class TableListener:
    """`key_of` returns the key of a layout, None if it is not the current one. `serve` uses one connection."""

    def __init__(
        self,
        host: str,
        me: MemberId,
        key_of: Callable[[int, MemberId], bytes | None],
        serve: Serve,
        tls: PeerTls | None,
    ) -> None:
        self._me, self._key_of, self._serve, self._tls = me, key_of, serve, tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=512)
        port = self._socket.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._lock = threading.Lock()
        self._connections: dict[PeerConnection, tuple[int, MemberId] | None] = {}  # None: not authenticated yet
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="pliant-listen", daemon=True)
        self._thread.start()

    def end_before(self, layout: int) -> None:
        """End the connections of earlier layouts."""
        with self._lock:
            over = [each for each, known in self._connections.items() if known is not None and known[0] < layout]
        for connection in over:
            connection.shut_down()

    def callers(self) -> set[MemberId]:
        """Return the members that are connected."""
        with self._lock:
            return {known[1] for known in self._connections.values() if known is not None}

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.shut_down()

    def _listen(self) -> None:
        with self._socket:
            while not self._closed.is_set():
                try:
                    sock, _ = self._socket.accept()
                    connection = PeerConnection(sock, deadline_check(HANDSHAKE_S))
                except OSError as error:
                    if not self._closed.wait(0.05):
                        log.warning("a connection could not be accepted: %s", error)
                    continue
                with self._lock:
                    is_full = len(self._connections) >= CONNECTIONS_MAX
                    if not is_full:
                        self._connections[connection] = None
                if is_full:
                    connection.close()
                    continue
                threading.Thread(target=self._handle, args=(connection,), name="pliant-table", daemon=True).start()

    def _handle(self, connection: PeerConnection) -> None:
        try:
            if self._tls is not None:
                self._tls.accept(connection)
            layout, member = authenticate_peer(connection, self._me, self._key_of)
            with self._lock:
                self._connections[connection] = (layout, member)
            connection.set_check(None)
            self._serve(layout, member, connection)
        except (PeerLost, GenerationUnknown, OSError) as error:
            log.debug("a connection was ended: %s", error)
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            connection.close()
