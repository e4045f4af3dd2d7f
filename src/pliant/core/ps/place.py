"""Decide which server holds which bucket.

A layout follows from the one before with few moves. A lost primary is replaced by its backup at once. A copy that is
missing, or lies on a server that leaves, is filled on the server with the fewest. Then buckets move until all servers
have the same number of primaries and of backups, give or take one. No bucket has both copies on one server.

A server may be lost without the coordinator's knowledge. So a server whose copy is replaced keeps it while no other
second copy is left. If no server can replace a backup that leaves, it is dropped once its primary has reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS, NONE, BucketCopies, BucketLayout, ServerAddress, ServerTable


@dataclass(frozen=True, slots=True)
class Placement:
    """A layout, and the number of buckets of which the last copy was lost."""

    layout: BucketLayout
    lost: int


def next_placement(
    table: ServerTable, servers: Sequence[ServerAddress], leaving: frozenset[MemberId], number: int
) -> Placement | None:
    """Return the next layout, given the live servers; None if none is due.

    While copies are being filled, only a change of the servers makes another layout.
    """
    layout = table.layout
    unchanged = (tuple(servers), leaving) == (layout.servers, layout.leaving)
    if unchanged and not layout.fillers() <= table.copied:
        return None
    alive = frozenset(server.id for server in servers)
    staying = [server.id for server in servers if server.id not in leaving]
    copies = layout.all_copies()
    left = {each: _left_of(each, table.copied, alive, leaving) for each in set(copies)}
    buckets = [left[each] for each in copies]
    lost = sum(was != NONE and bucket.primary is None for was, bucket in zip(layout.primary, buckets, strict=True))
    if staying:
        _Balance(buckets, staying, _confirmed(table)).run()
    made = _layout(number, tuple(servers), leaving, buckets)
    if replace(made, number=layout.number) == layout:
        return None
    return Placement(made, lost)


def _left_of(
    bucket: BucketCopies, copied: Collection[MemberId], alive: Collection[MemberId], leaving: Collection[MemberId]
) -> BucketCopies:
    """Return a bucket without servers that are gone. A server that leaves hands its part to the backup.

    An incoming copy that is filled is as good as the others. It takes the place of the one that it replaces, which
    stays where fewer than two would be left.
    """
    filled = bucket.incoming is not None and bucket.primary in copied
    good = [bucket.primary, bucket.backup]
    if filled and bucket.replaces_primary:
        good = [bucket.incoming, bucket.backup, bucket.primary]
    elif filled:
        good = [bucket.primary, bucket.incoming, bucket.backup]
    there = [name for name in good if name is not None and name in alive]
    there.sort(key=leaving.__contains__)  # those that stay come first
    primary, backup, *_ = (*there, None, None)
    incoming = bucket.incoming
    if filled or incoming not in alive or incoming in leaving or bucket.primary not in alive:
        incoming = None  # without the primary that fills it, it has an unknown part of the rows
    return BucketCopies(primary, backup, incoming, bucket.replaces_primary and incoming is not None)


def _confirmed(table: ServerTable) -> dict[int, MemberId]:
    """Return the buckets whose backup leaves, and whose primary has reported in this layout that it has every row."""
    layout = table.layout
    leaving = {at for at, server in enumerate(layout.servers) if server.id in layout.leaving}
    reported = {at: server.id for at, server in enumerate(layout.servers) if server.id in table.copied}
    rows = enumerate(zip(layout.primary, layout.backup, strict=True))
    return {
        bucket: reported[primary] for bucket, (primary, backup) in rows if primary in reported and backup in leaving
    }


class _Balance:
    """Change `buckets` until every bucket has, or receives, two copies on servers that stay, evenly spread."""

    def __init__(self, buckets: list[BucketCopies], staying: list[MemberId], confirmed: Mapping[int, MemberId]) -> None:
        self._buckets = buckets
        self._staying = staying
        self._confirmed = confirmed  # by bucket: the primary that has reported
        self._primaries = dict.fromkeys(staying, 0)  # as they will be once all copies are filled
        self._backups = dict.fromkeys(staying, 0)

    def run(self) -> None:
        for bucket in self._buckets:
            self._count(bucket, 1)
        for at in range(BUCKETS):
            self._complete(at)
        self._even_primaries()
        self._even_backups()

    def _future(self, bucket: BucketCopies) -> tuple[MemberId | None, MemberId | None]:
        if bucket.incoming is None:
            return bucket.primary, bucket.backup
        if bucket.replaces_primary:
            return bucket.incoming, bucket.backup
        return bucket.primary, bucket.incoming

    def _count(self, bucket: BucketCopies, sign: int) -> None:
        primary, backup = self._future(bucket)
        if primary in self._primaries:
            self._primaries[primary] += sign
        if backup in self._backups:
            self._backups[backup] += sign

    def _set(self, at: int, bucket: BucketCopies) -> None:
        self._count(self._buckets[at], -1)
        self._buckets[at] = bucket
        self._count(bucket, 1)

    def _least(self, counts: dict[MemberId, int], *without: MemberId | None) -> MemberId | None:
        free = [name for name in self._staying if name not in without]
        return min(free, key=counts.__getitem__, default=None)

    def _complete(self, at: int) -> None:
        """Give a bucket the copies that it lacks, one at a time."""
        bucket = self._buckets[at]
        if bucket.primary is None:
            self._set(at, BucketCopies(self._least(self._primaries)))
            bucket = self._buckets[at]
        if bucket.incoming is not None:
            return
        if bucket.primary not in self._primaries:  # it leaves, and so does its backup, if there is one
            new = self._least(self._primaries)
            self._set(at, BucketCopies(bucket.primary, bucket.backup, new, replaces_primary=True))
        elif bucket.backup not in self._backups:
            new = self._least(self._backups, bucket.primary)
            # A backup that leaves need not wait for a server to come, only for its primary.
            may_go = new is None and self._confirmed.get(at) == bucket.primary
            self._set(at, BucketCopies(bucket.primary, None if may_go else bucket.backup, new, bucket.replaces_primary))

    def _even_primaries(self) -> None:
        low = self._least(self._primaries)
        for at, bucket in enumerate(self._buckets):
            if low is None or not self._is_above(self._primaries, bucket.primary, low) or bucket.incoming is not None:
                continue
            if bucket.backup == low:
                self._set(at, BucketCopies(low, bucket.primary))
            else:
                self._set(at, BucketCopies(bucket.primary, bucket.backup, low, replaces_primary=True))
            low = self._least(self._primaries)

    def _even_backups(self) -> None:
        for at, bucket in enumerate(self._buckets):
            if bucket.incoming is not None:
                continue
            low = self._least(self._backups, bucket.primary)
            if low is None or not self._is_above(self._backups, bucket.backup, low):
                continue
            self._set(at, BucketCopies(bucket.primary, bucket.backup, low))

    @staticmethod
    def _is_above(counts: dict[MemberId, int], name: MemberId | None, low: MemberId) -> bool:
        return name in counts and counts[name] > counts[low] + 1


def _layout(
    number: int, servers: tuple[ServerAddress, ...], leaving: frozenset[MemberId], buckets: list[BucketCopies]
) -> BucketLayout:
    at: dict[MemberId | None, int] = {server.id: index for index, server in enumerate(servers)}
    return BucketLayout(
        number,
        servers,
        primary=tuple(at.get(each.primary, NONE) for each in buckets),
        backup=tuple(at.get(each.backup, NONE) for each in buckets),
        incoming=tuple(at.get(each.incoming, NONE) for each in buckets),
        replaces_primary=frozenset(bucket for bucket, each in enumerate(buckets) if each.replaces_primary),
        leaving=leaving,
    )
