"""The copies that one server has under a layout: of buckets that it serves, and of buckets of other servers.

A copy moves in small pieces while pushes go on. A piece, and all later updates of its buckets, go to the other server
on one stream, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, NONE, BucketLayout
from pliant.ps.tables.hashing import Buckets
from pliant.ps.tables.recent import Trails
from pliant.ps.tables.table_copy import Mask, TableCopy, Update

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
        self.kept_for_others: Mask = ((self._backup == at) | (self._incoming == at)) & present

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

    def open_buckets(self, followed: Mapping[int, Mask], *, reported: bool) -> Mask:
        """Return the buckets whose pushes may be applied. `followed` has, by server, those whose updates it receives.

        A backup must receive them. So must an incoming copy once it was reported as filled, since the coordinator may
        then make it the primary.
        """
        found = self.primary.copy()
        for server in self.backups():
            found &= ~self._missing(self.sent_to(server), followed.get(server))
        for server in self.receivers() if reported else ():
            found &= ~self._missing(self.filled_at(server), followed.get(server))
        return found

    def are_filled(self, arrived: Mapping[int, Mask]) -> bool:
        """Return whether all incoming copies that this server fills have arrived, by the streams to their servers."""
        return not any(self._missing(self.filled_at(at), arrived.get(at)).any() for at in self.receivers())

    def _missing(self, buckets: Buckets, found: Mask | None) -> Mask:
        missing: Mask = np.zeros(BUCKETS, np.bool_)
        missing[buckets] = True if found is None else ~found[buckets]
        return missing


def split_by_digests(copies: TableCopy, buckets: Buckets, digests: Trails, trails: Trails) -> SplitBuckets:
    """Divide buckets by what another copy of them lacks, given its digests and trails."""
    same = copies.digests(buckets) == digests
    behind, updates = copies.recent.since(buckets[~same], trails[~same])
    return SplitBuckets(buckets[same], behind, np.setdiff1d(buckets[~same], behind), list(updates))


@dataclass(frozen=True, slots=True)
class SplitBuckets:
    """Buckets of another server: equal ones, those that lack only the `updates`, and those to be copied."""

    equal: Buckets
    behind: Buckets
    other: Buckets
    updates: list[tuple[Update, Mask]]


class FollowedBuckets:
    """The buckets that one stream carries. `mask`: their updates go this way. `arrived`: so did their copies."""

    def __init__(self) -> None:
        self.mask: Mask = np.zeros(BUCKETS, np.bool_)
        self.arrived: Mask = np.zeros(BUCKETS, np.bool_)

    def copy(self, tables: TableCopy, buckets: Buckets) -> dict[str, Any]:
        """Return a copy of buckets, to be sent before any later update of them."""
        self.mask[buckets] = True
        return tables.extract(buckets)

    def confirm(self, buckets: Buckets) -> None:
        """Note that the copies arrived."""
        self.arrived[buckets] = True

    def begin_equal(self, buckets: Buckets) -> None:
        """Begin with buckets whose copies are equal already, or will be by the updates on the way to them."""
        self.mask[buckets] = self.arrived[buckets] = True


def enter_roles(copies: TableCopy, roles: BucketRoles, restore: Restore) -> int:
    """Keep the copies that a server needs in a layout. Return how many of its buckets no copy was here of.

    Those continue from the newest checkpoint, or begin empty.
    """
    copies.keep_only(roles.primary | roles.kept_for_others)
    missing = roles.primary & ~copies.held
    count = int(missing.sum())
    if count:
        for copy in restore(missing):
            copies.install(copy, missing)
        copies.hold(np.flatnonzero(missing))
    return count
