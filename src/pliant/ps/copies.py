"""The copies that one server has under a layout: of buckets that it serves, and of buckets of other servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, NONE, BucketLayout
from pliant.ps.tables.rows import Buckets
from pliant.ps.tables.table_copy import Mask, TableCopy

Restore = Callable[[Mask], list[dict[str, Any]]]
"""Return copies of these buckets from the newest checkpoint; an empty list if there is none."""


class BucketRoles:
    """The buckets of one server in a layout, as masks, and the servers that its updates go to."""

    def __init__(self, layout: BucketLayout, me: MemberId) -> None:
        at = layout.index(me)
        self.layout = layout
        self._backup, self._incoming = np.asarray(layout.backup), np.asarray(layout.incoming)
        present = at != NONE
        self.primary: Mask = (np.asarray(layout.primary) == at) & present
        self.backup: Mask = (self._backup == at) & present
        self.incoming: Mask = (self._incoming == at) & present

    def sent_to(self, server: int) -> Buckets:
        """Return the buckets of which this server is the primary, and that one the backup."""
        return np.flatnonzero(self.primary & (self._backup == server))

    def filled_at(self, server: int) -> Buckets:
        """Return the buckets of which this server is the primary, and that one receives a copy."""
        return np.flatnonzero(self.primary & (self._incoming == server))

    def backups(self) -> list[int]:
        return [int(at) for at in np.unique(self._backup[self.primary]) if at != NONE]

    def receivers(self) -> list[int]:
        return [int(at) for at in np.unique(self._incoming[self.primary]) if at != NONE]

    def open_buckets(self, reached: Mapping[int, Mask], *, reported: bool) -> Mask:
        """Return the buckets whose pushes may be acknowledged. `reached` has, by server, the buckets that keep up.

        A backup must keep up. So must an incoming copy once it was reported as filled, since the coordinator may then
        make it the primary.
        """
        found = self.primary.copy()
        for server in self.backups():
            found &= ~self._missing(self.sent_to(server), reached.get(server))
        for server in self.receivers() if reported else ():
            found &= ~self._missing(self.filled_at(server), reached.get(server))
        return found

    def are_filled(self, reached: Mapping[int, Mask]) -> bool:
        """Return whether all incoming copies that this server fills are complete and keep up."""
        return not any(self._missing(self.filled_at(at), reached.get(at)).any() for at in self.receivers())

    def _missing(self, buckets: Buckets, reached: Mask | None) -> Mask:
        missing: Mask = np.zeros(BUCKETS, np.bool_)
        missing[buckets] = True if reached is None else ~reached[buckets]
        return missing


class ServerCopies:
    """Two sets of copies. `primary` has the buckets that this server serves, `backup` those of other servers."""

    def __init__(self, me: MemberId) -> None:
        self.me = me
        self.primary = TableCopy()
        self.backup = TableCopy()

    def enter(self, roles: BucketRoles, restore: Restore) -> int:
        """Take over the buckets of a layout. Return how many of them no copy was here of.

        Those continue from the newest checkpoint, or begin empty. A copy that moves between the two roles is compared
        with the other server's before it is used.
        """
        for source, target, wanted in (
            (self.backup, self.primary, roles.primary),
            (self.primary, self.backup, roles.backup),
        ):
            moving = np.flatnonzero(source.held & wanted & ~target.held)
            if len(moving):
                target.install(source.extract(moving))
        missing = roles.primary & ~self.primary.held
        count = int(missing.sum())
        if count:
            for copy in restore(missing):
                self.primary.install(copy, missing)
            self.primary.hold(np.flatnonzero(missing))
        self.primary.keep_only(roles.primary)
        self.backup.keep_only(roles.backup | roles.incoming)
        return count
