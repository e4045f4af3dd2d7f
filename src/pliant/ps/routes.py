"""A primary's stream of updates to one other server. Updates arrive there in the order in which they are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pliant.ps.copies import FollowedBuckets
from pliant.ps.dialing import answer
from pliant.ps.tables.table_copy import TableCopy, Update
from pliant.ps.wire import Array, CopyTables, InstallBuckets, Request, encode_copy, encode_update, send_message
from pliant.train.peer.framing import PeerConnection, PeerLost


@dataclass(frozen=True, slots=True)
class Ticket:
    """A message on its way to the other server."""

    route: UpdateRoute
    number: int

    def wait(self) -> bool:
        """Return once the other server has carried it out; False if it did not, or may not have."""
        return self.route.wait_for(self.number)


class UpdateRoute:
    """Send from one thread at a time."""

    def __init__(self, connection: PeerConnection, on_broken: Callable[[UpdateRoute], None]) -> None:
        self._connection = connection
        self._on_broken = on_broken
        self.followed = FollowedBuckets()
        self._sent = self._answered = 0
        self._broken = False
        self._changed = threading.Condition()
        threading.Thread(target=self._read_answers, name="pliant-route", daemon=True).start()

    def send_tables(self, tables: TableCopy) -> Ticket:
        """Define these tables at the other server."""
        return self._send(CopyTables(tables.tables, tables.policy), ())

    def send_update(self, update: Update) -> Ticket:
        head, arrays = encode_update(update, to_backup=True)
        return self._send(head, arrays)

    def send_copy(self, copy: dict[str, Any]) -> Ticket:
        """Send a copy of buckets, which replaces what the other server has of them."""
        state = encode_copy(copy)
        return self._send(InstallBuckets(state.tree), [np.frombuffer(leaf.content, np.uint8) for leaf in state.leaves])

    def barrier(self) -> Ticket:
        """Return a ticket for everything that was sent so far."""
        return Ticket(self, self._sent)

    def wait_for(self, number: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._broken or self._answered >= number)
            return self._answered >= number

    def interrupt(self) -> None:
        """Let every send and wait fail, from any thread."""
        self._connection.shut_down()

    def close(self) -> None:
        """End the stream. Tickets that were not answered fail."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()
        self._connection.shut_down()

    def _send(self, head: Request, arrays: Sequence[Array]) -> Ticket:
        self._sent += 1
        try:
            send_message(self._connection, head, arrays)
        except (OSError, PeerLost):
            self._connection.shut_down()  # the reader reports it
        return Ticket(self, self._sent)

    def _read_answers(self) -> None:
        try:
            while True:
                answer(self._connection)
                with self._changed:
                    self._answered += 1
                    self._changed.notify_all()
        except (OSError, PeerLost):
            pass
        with self._changed:
            closed, self._broken = self._broken, True
            self._changed.notify_all()
        self._connection.shut_down()
        if not closed:
            self._on_broken(self)
        self._connection.close()
