"""Write, trim and delete jobs in etcd.

**Revisions of new jobs.** The first event of a new job comes after the highest revision of all deleted jobs, which is
kept under one key. A handle remembers it, and a write that creates a job compares it. If another handle deleted a job
meanwhile, the write is planned again.

**The quota.** Some versions of etcd count only the puts of the outer transaction against their quota, and accept a
transaction without any at every size. So each write has an empty put there. Removing has none, so that it works in an
etcd that is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pliant.errors import StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.base import Conflict, Hold, Outcome, Segment, Write, Written, hold_lost
from pliant.stores.etcd import reading
from pliant.stores.etcd.client import EtcdClient
from pliant.stores.etcd.keys import EtcdKeys
from pliant.stores.etcd.transactions import (
    Op,
    TxnAnswer,
    created_at,
    delete,
    get,
    has_value,
    is_missing_key,
    modified_at,
    prefix_end,
    put,
    range_of,
    txn,
    txn_op,
)
from pliant.stores.etcd.values import join_events, pack

__all__ = ["EtcdWriter"]

WRITES_MAX = 100  # of one request; etcd allows 128 operations at one level
BATCH_BYTES = 1 << 20  # of one request; etcd allows 1.5 MiB
OVERHEAD_BYTES = 512  # of keys and comparisons, for each write
ATTEMPTS = 5  # while other handles delete jobs


@dataclass(frozen=True, slots=True)
class _PlannedWrite:
    """A write as operations of etcd, and the chunks to store before it."""

    write: Write
    revision: int
    compare: tuple[Op, ...]
    operations: tuple[Op, ...]
    chunks: tuple[tuple[bytes, bytes], ...]
    nbytes: int


class EtcdWriter:
    """The writes of one handle. `identity_revision` is that of the store's identity when it was opened."""

    def __init__(self, client: EtcdClient, keys: EtcdKeys, identity_revision: int) -> None:
        self._client = client
        self._keys = keys
        self._identity_revision = identity_revision
        self._floor: int | None = None  # the highest revision of a deleted job
        self._live: dict[str, tuple[int, bool]] = {}  # of each job written here: its revision, and if it is live

    # -------------------------------------------------------------------------------------------------- writing

    def write(self, writes: Sequence[Write], under: Hold | None) -> tuple[Outcome, ...]:
        outcomes: dict[str, Outcome] = {}
        for _ in range(ATTEMPTS):
            planned = [self._plan(write) for write in writes if write.job not in outcomes]
            for group in _groups(planned):
                try:
                    outcomes.update(self._write_group(group, under))
                except StoreError as error:
                    is_begun = any(isinstance(outcome, Written) for outcome in outcomes.values())
                    if isinstance(error, StoreTimeout) or not is_begun:
                        raise
                    raise StoreTimeout(
                        f"A part of the batch was written to etcd at {self._client.place} before it failed: {error}"
                    ) from error
            if len(outcomes) == len(writes):
                return tuple([outcomes[write.job] for write in writes])
        raise StoreUnavailable(f"Others delete jobs in etcd at {self._client.place} all the time; try again.")

    def _plan(self, write: Write) -> _PlannedWrite:
        keys = self._keys.job(write.job)
        compare, before = [has_value(keys.revision, b"%d" % write.expected)], write.expected
        operations: list[Op] = []
        if not write.expected:
            before = self._known_floor()
            compare = [is_missing_key(keys.revision), self._floor_is(before)]
            operations += [put(keys.base, b"%d" % before)] if before else []
        revision = before + len(write.events)
        events = pack(revision, join_events(write.events))
        operations += [put(keys.revision, b"%d" % revision), put(keys.events_at(revision), events.value)]
        chunks = [(keys.event_chunks + name, piece) for name, piece in events.chunks]
        nbytes = len(events.value)
        if chunks:
            operations += _delete_others(keys.event_chunks_at(before + 1), prefix_end(keys.event_chunks), chunks)
        if write.record is not None:
            record = pack(revision, write.record)
            new = [(keys.record_chunks + name, piece) for name, piece in record.chunks]
            operations.append(put(keys.record, record.value))
            operations += _delete_others(keys.record_chunks, prefix_end(keys.record_chunks), new)
            chunks += new
            nbytes += len(record.value)
        if self._live.get(write.job) != (write.expected, write.live):
            operations.append(put(keys.live, b"") if write.live else delete(keys.live))
        nbytes += OVERHEAD_BYTES
        return _PlannedWrite(write, revision, tuple(compare), tuple(operations), tuple(chunks), nbytes)

    def _write_group(self, group: Sequence[_PlannedWrite], under: Hold | None) -> dict[str, Outcome]:
        """Apply the writes of one request, after the chunks that they need. Leave out those to plan again."""
        outcomes: dict[str, Outcome] = {}
        ready = []
        for planned in group:
            refused = self._store_chunks(planned, under)
            if refused is None:
                ready.append(planned)
            else:
                self._note(planned, refused, outcomes)
        if not ready:
            return outcomes
        guards, look = self._guards(under)
        inner = [txn_op(txn(each.compare, each.operations, self._look_at(each.write.job))) for each in ready]
        answer = self._client.change(txn(guards, [put(self._keys.counted, b""), *inner], look))
        if not answer.succeeded:
            raise self._refusal(answer, under)
        for place, planned in enumerate(ready, 1):
            self._note(planned, answer.inner(place), outcomes)
        return outcomes

    def _note(self, planned: _PlannedWrite, answer: TxnAnswer, outcomes: dict[str, Outcome]) -> None:
        """Note the outcome of a write. A write without one is planned again, because a job was deleted meanwhile."""
        write = planned.write
        if answer.succeeded:
            self._live[write.job] = planned.revision, write.live
            outcomes[write.job] = Written(planned.revision)
            return
        self._live.pop(write.job, None)
        found = answer.number(0)
        if found == write.expected == 0:
            self._floor = answer.number(1)
        else:
            outcomes[write.job] = Conflict(found)

    def _store_chunks(self, planned: _PlannedWrite, under: Hold | None) -> TxnAnswer | None:
        """Store the chunks of a write while its job is at the expected revision. Return the refusal if it is not."""
        guards, look = self._guards(under)
        for key, piece in planned.chunks:
            inner = txn_op(txn(planned.compare, [put(key, piece)], self._look_at(planned.write.job)))
            answer = self._client.change(txn(guards, [put(self._keys.counted, b""), inner], look))
            if not answer.succeeded:
                raise self._refusal(answer, under)
            if not answer.inner(1).succeeded:
                return answer.inner(1)
        return None

    # ------------------------------------------------------------------------------------------------- removing

    def trim(self, job: str, segment: Segment, under: Hold | None) -> bool:
        """Put the segment's name in the place of its events. Those that share a write with later ones stay unread."""
        keys = self._keys.job(job)
        before = reading.extent(self._client, keys, job)
        possible = before is not None and (
            segment.first == before.first and segment.last <= min(before.record_revision, before.revision - 1)
        )
        if before is None or not possible:
            self._check_held(under)
            return False
        trimmed = b"%d" % (before.first - 1)
        unchanged = has_value(keys.trimmed, trimmed) if before.is_trimmed else is_missing_key(keys.trimmed)
        guards, look = self._guards(under)
        inner = txn_op(
            txn(
                [created_at(keys.revision, before.created), unchanged],
                [
                    put(keys.trimmed, b"%d" % segment.last),
                    put(keys.segment_at(segment.last), reading.encode_segment(segment)),
                    delete(keys.events, keys.events_at(segment.last + 1)),
                    delete(keys.event_chunks, keys.event_chunks_at(segment.last + 1)),
                ],
            )
        )
        answer = self._client.change(txn(guards, [inner], look))
        if not answer.succeeded:
            raise self._refusal(answer, under)
        return answer.inner(0).succeeded

    def delete(self, job: str, expected: int, under: Hold | None) -> Conflict | None:
        keys = self._keys.job(job)
        guards, look = self._guards(under)
        for _ in range(ATTEMPTS):
            floor = self._known_floor()
            everything = [delete(keys.own, prefix_end(keys.own)), delete(keys.revision), delete(keys.live)]
            higher = [put(self._keys.floor, b"%d" % expected)] if expected > floor else []
            compare = [has_value(keys.revision, b"%d" % expected), self._floor_is(floor)]
            inner = txn_op(txn(compare, [*everything, *higher], self._look_at(job)))
            answer = self._client.change(txn(guards, [inner], look))
            if not answer.succeeded:
                raise self._refusal(answer, under)
            self._live.pop(job, None)
            outcome = answer.inner(0)
            if outcome.succeeded:
                self._floor = max(floor, expected)
                return None
            found, self._floor = outcome.number(0), outcome.number(1)
            if found != expected:
                return Conflict(found)
        raise StoreUnavailable(f"Others delete jobs in etcd at {self._client.place} all the time; try again.")

    # --------------------------------------------------------------------------------------------------- guards

    def _guards(self, under: Hold | None) -> tuple[list[Op], list[Op]]:
        """Return the comparisons of every change, and the operation that shows which of them failed."""
        compare = [modified_at(self._keys.identity, self._identity_revision)]
        if under is not None:
            compare.append(created_at(self._keys.hold(under.name), max(under.term, 1)))
        return compare, [get(self._keys.identity)]

    def _check_held(self, under: Hold | None) -> None:
        """Raise HoldLost if a hold is over, where nothing is written that would compare it."""
        if under is not None:
            found = self._client.range(range_of(self._keys.hold(under.name))).kvs
            if not found or found[0].create_revision != under.term:
                raise hold_lost(under)

    def _refusal(self, answer: TxnAnswer, under: Hold | None) -> StoreError:
        found = answer.range(0).kvs
        if under is not None and found and found[0].mod_revision == self._identity_revision:
            return hold_lost(under)
        return StoreError(
            f"The store at {self._client.place} was removed, or restored under another identity, while it was in use; "
            "nothing was written. Stop, and start again."
        )

    def _look_at(self, job: str) -> list[Op]:
        """Return the operations that show why a comparison of a job failed."""
        return [get(self._keys.job(job).revision), get(self._keys.floor)]

    def _known_floor(self) -> int:
        if self._floor is None:
            self._floor = self._client.ranges([range_of(self._keys.floor)]).number(0)
        return self._floor

    def _floor_is(self, floor: int) -> Op:
        return has_value(self._keys.floor, b"%d" % floor) if floor else is_missing_key(self._keys.floor)


def _delete_others(start: bytes, end: bytes, chunks: Sequence[tuple[bytes, bytes]]) -> list[Op]:
    """Delete all chunks from `start` to `end` except these, which follow one another."""
    if not chunks:
        return [delete(start, end)]
    first, last = chunks[0][0], chunks[-1][0]
    return [delete(start, first), delete(last + b"\0", end)]


def _groups(planned: Sequence[_PlannedWrite]) -> Iterator[list[_PlannedWrite]]:
    """Divide a batch into requests that etcd accepts."""
    group: list[_PlannedWrite] = []
    nbytes = 0
    for each in planned:
        if group and (len(group) == WRITES_MAX or nbytes + each.nbytes > BATCH_BYTES):
            yield group
            group, nbytes = [], 0
        group.append(each)
        nbytes += each.nbytes
    if group:
        yield group
