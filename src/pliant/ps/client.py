"""A worker's connections to the parameter servers. A request is repeated until it succeeds, under newer layouts too."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, BucketLayout
from pliant.errors import BadInput
from pliant.ps.dialing import ServerRefused, answer, dial, request
from pliant.ps.tables.hashing import Buckets, Floats, Ids, buckets_of
from pliant.ps.tables.spec import PushPolicy, Table
from pliant.ps.tables.table_copy import Mask, Update, Versions
from pliant.ps.wire import Array, OpenTables, PullRows, Request, decode_rows, encode_update, send_message
from pliant.train.peer.framing import PeerConnection, PeerLost, WaitCheck

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls

log = logging.getLogger(__name__)

RETRY_S = 0.05
PATIENCE_S = 10.0  # without an answer for so long, the wait is logged


@dataclass(frozen=True, slots=True)
class KeyedLayout:
    """A layout, and the key that its members have."""

    layout: BucketLayout
    key: bytes


class LayoutNews:
    """The newest layout. One thread puts it, another one waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: KeyedLayout | None = None

    def put(self, layout: BucketLayout, key: str) -> None:
        with self._changed:
            if self._newest is None or layout.number > self._newest.layout.number:
                self._newest = KeyedLayout(layout, bytes.fromhex(key))
                self._changed.notify_all()

    def wake(self) -> None:
        """Let a wait call its check now."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, after: int, limit_s: float) -> KeyedLayout | None:
        """Return the newest layout, as soon as it is newer than `after`, or when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None and self._newest.layout.number > after, limit_s)
            return self._newest


class ServerRows:
    """Use it from one thread. `check` is called while it waits, and raises to end the wait."""

    def __init__(
        self,
        me: MemberId,
        tables: Sequence[Table],
        policy: PushPolicy,
        news: LayoutNews,
        check: WaitCheck,
        tls: PeerTls | None = None,
    ) -> None:
        self._me, self._news, self._check, self._tls = me, news, check, tls
        self._tables = {table.name: table for table in tables}
        self._opening = OpenTables(list(tables), policy)
        self._connections: dict[int, PeerConnection] = {}
        self._layout: KeyedLayout | None = None
        self._primary: Buckets = np.zeros(0, np.int64)

    def pull(self, table: Table, ids: Ids, step: int = 0) -> tuple[Floats, Buckets, Versions]:
        buckets = buckets_of(table, ids)
        values = np.empty((len(ids), table.dim), np.float32)
        versions: Versions = np.zeros(BUCKETS, np.int64)
        left: Mask = np.ones(len(ids), np.bool_)
        asked: dict[int, Array] = {}

        def ask(server: int) -> tuple[Request, list[Array]] | None:
            asked[server] = np.flatnonzero(left & (self._primary[buckets] == server))
            return (PullRows(table.name, step), [ids[asked[server]]]) if len(asked[server]) else None

        def take(server: int, bodies: list[bytearray]) -> None:
            at = asked[server]
            inside = np.unique(buckets[at])
            values[at], versions[inside] = decode_rows(bodies, len(at), table.dim, len(inside))
            left[at] = False

        self._exchange(ask, take, lambda: bool(left.any()))
        touched = np.unique(buckets)
        return values, touched, versions[touched]

    def push(self, update: Update) -> bool:
        left: Mask = np.zeros(BUCKETS, np.bool_)
        left[update.buckets] = True
        sent: dict[int, Mask] = {}

        def ask(server: int) -> tuple[Request, list[Array]] | None:
            sent[server] = left & (self._primary == server)
            if not sent[server].any():
                return None
            return encode_update(update.within(self._tables.__getitem__, sent[server]))

        def take(server: int, bodies: list[bytearray]) -> None:  # noqa: ARG001 - the answer has none
            left[sent[server]] = False

        return self._exchange(ask, take, lambda: bool(left.any()))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # ------------------------------------------------------------------------------------------------ requests

    def _exchange(
        self,
        ask: Callable[[int], tuple[Request, list[Array]] | None],
        take: Callable[[int, list[bytearray]], None],
        is_left: Callable[[], bool],
    ) -> bool:
        """Send requests to all servers, then take their answers, until none is left. False if one is too old."""
        told_at = time.monotonic()
        tried = 0
        while is_left():
            self._check()
            keyed = self._next_layout(tried)
            if time.monotonic() - told_at > PATIENCE_S:
                told_at = time.monotonic()
                if keyed is None:
                    log.info("waiting for parameter servers; `pliant run --ps N` starts them")
                else:
                    log.info("the parameter servers of layout %d do not answer yet", keyed.layout.number)
            if keyed is None:
                continue
            waiting, failed = self._send_all(keyed, ask)
            for server in waiting:
                try:
                    take(server, answer(self._connections[server]))
                except ServerRefused as refused:
                    if refused.reply.stale:
                        self._drain(waiting[waiting.index(server) + 1 :])
                        return False
                    self._require_again(refused)
                    failed = True
                except (OSError, PeerLost) as error:
                    self._disconnect(server, error)
                    failed = True
            tried = keyed.layout.number if failed else 0
        return True

    def _require_again(self, refused: ServerRefused) -> None:
        """Raise BadInput if a request that was refused would be refused again."""
        if not refused.reply.again:
            self.close()
            raise BadInput(refused.why) from refused

    def _drain(self, servers: list[int]) -> None:
        """Take the answers that nothing needs any more, so that the connections can be used again."""
        for server in servers:
            try:
                answer(self._connections[server])
            except ServerRefused:
                pass
            except (OSError, PeerLost) as error:
                self._disconnect(server, error)

    def _send_all(
        self, keyed: KeyedLayout, ask: Callable[[int], tuple[Request, list[Array]] | None]
    ) -> tuple[list[int], bool]:
        """Return the servers that will answer, and whether one could not be asked."""
        waiting, failed = [], not keyed.layout.servers
        for server in range(len(keyed.layout.servers)):
            message = ask(server)
            if message is None:
                continue
            try:
                send_message(self._connected(keyed, server), *message)
                waiting.append(server)
            except ServerRefused as refused:
                self._require_again(refused)
                self._disconnect(server, refused)
                failed = True
            except (OSError, PeerLost) as error:
                self._disconnect(server, error)
                failed = True
        return waiting, failed

    def _next_layout(self, tried: int) -> KeyedLayout | None:
        """Return the newest layout. After a failure, wait a moment for one that is newer."""
        newest = self._news.wait(tried, RETRY_S)
        if newest is not None and (self._layout is None or newest.layout.number != self._layout.layout.number):
            self.close()
            self._layout, self._primary = newest, np.asarray(newest.layout.primary)
        return newest

    def _connected(self, keyed: KeyedLayout, server: int) -> PeerConnection:
        known = self._connections.get(server)
        if known is not None:
            return known

        def check() -> None:
            self._check()
            newest = self._news.wait(0, 0)
            if newest is not None and newest.layout.number != keyed.layout.number:
                raise PeerLost("the layout changed")

        connection = dial(keyed.layout, keyed.key, self._me, server, check, self._tls)
        self._connections[server] = connection
        connection.set_check(check)
        request(connection, self._opening)
        return connection

    def _disconnect(self, server: int, error: Exception) -> None:
        log.debug("server %d: %s", server, error)
        if (connection := self._connections.pop(server, None)) is not None:
            connection.close()
