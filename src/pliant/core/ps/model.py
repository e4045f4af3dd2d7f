"""The state of a job's parameter servers: frozen values, without decisions."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model.names import MemberId

BUCKETS = 1024
NONE = -1  # no server
SERVERS_MAX = 256  # of a job


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A parameter server, and where workers and other servers reach it, as host:port."""

    id: MemberId
    address: str


@dataclass(frozen=True, slots=True)
class BucketCopies:
    """The servers of one bucket. `incoming` is being filled by the primary, to replace the primary or the backup."""

    primary: MemberId | None
    backup: MemberId | None = None
    incoming: MemberId | None = None
    replaces_primary: bool = False


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """The servers of every bucket, as indices into `servers`; `NONE` for no server.

    `number` is a generation: it is never used twice, and higher in each later layout. `leaving` are servers that drain.
    """

    number: int
    servers: tuple[ServerAddress, ...]
    primary: tuple[int, ...]
    backup: tuple[int, ...]
    incoming: tuple[int, ...]
    replaces_primary: frozenset[int] = frozenset()  # buckets
    leaving: frozenset[MemberId] = frozenset()

    @property
    def ids(self) -> tuple[MemberId, ...]:
        return tuple(server.id for server in self.servers)

    @property
    def is_whole(self) -> bool:
        """Return whether every bucket has all its copies, and none moves. A lone server has no backups."""
        lacks_backup = len(self.servers) > 1 and NONE in self.backup
        return not (self.leaving or lacks_backup) and set(self.incoming) == {NONE}

    def index(self, server: MemberId) -> int:
        """Return the index of a server; `NONE` if the layout does not have it."""
        ids = self.ids
        return ids.index(server) if server in ids else NONE

    def copies(self, bucket: int) -> BucketCopies:
        """Return the servers of a bucket."""
        primary, backup, incoming = (
            self.servers[at].id if at != NONE else None
            for at in (self.primary[bucket], self.backup[bucket], self.incoming[bucket])
        )
        return BucketCopies(primary, backup, incoming, bucket in self.replaces_primary)

    def all_copies(self) -> list[BucketCopies]:
        """Return the servers of every bucket. Buckets with the same servers share one value: few differ."""
        known: dict[tuple[tuple[int, int, int], bool], BucketCopies] = {}
        found = []
        for bucket, row in enumerate(zip(self.primary, self.backup, self.incoming, strict=True)):
            key = (row, bucket in self.replaces_primary)
            if key not in known:
                known[key] = self.copies(bucket)
            found.append(known[key])
        return found

    def fillers(self) -> frozenset[MemberId]:
        """Return the primaries that must report: they fill an incoming copy, or their backup waits to leave.

        A backup that leaves, and that no server replaces, stays until its primary has shown that it lives and has
        every row.
        """
        leaving = {at for at, server in enumerate(self.servers) if server.id in self.leaving}
        rows = set(zip(self.primary, self.backup, self.incoming, strict=True))
        return frozenset(
            self.servers[primary].id
            for primary, backup, incoming in rows
            if incoming != NONE or (backup in leaving and primary not in leaving)
        )

    def holds(self, server: MemberId) -> bool:
        """Return whether a server has, or receives, a copy of any bucket."""
        at = self.index(server)
        return at != NONE and (at in self.primary or at in self.backup or at in self.incoming)


def empty_layout(number: int) -> BucketLayout:
    """Return a layout without servers."""
    none = (NONE,) * BUCKETS
    return BucketLayout(number, (), none, none, none)


@dataclass(frozen=True, slots=True)
class ServerTable:
    """The parameter servers of a job.

    `history` is the attempt of the job with which the tables began. `copied` are the primaries that have filled all
    incoming copies of the current layout, and whose backups keep up.
    """

    history: int
    layout: BucketLayout
    copied: frozenset[MemberId] = frozenset()
