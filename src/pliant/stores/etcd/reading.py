"""Read jobs from etcd, each from one moment.

The first request of a read answers with the cluster's revision, and the others read at that revision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pliant.errors import EventsTrimmed, StoreUnavailable
from pliant.stores.base import Entry, Segment, Stored
from pliant.stores.etcd.client import EtcdClient
from pliant.stores.etcd.errors import Compacted
from pliant.stores.etcd.keys import EtcdKeys, JobKeys
from pliant.stores.etcd.transactions import EtcdEntry, RangeAnswer, prefix_end, range_of
from pliant.stores.etcd.values import chunks_of, damaged, is_reference, revision_of, split_events, unpack

__all__ = ["Extent", "encode_segment", "events", "extent", "names", "read", "read_page", "segments"]

NAMES_AT_ONCE = 5000
KEYS_AT_ONCE = 500  # of events
JOBS_AT_ONCE = 50
CHUNKS_AT_ONCE = 4
ATTEMPTS = 3  # a revision is compacted some minutes after it, so a second attempt nearly always succeeds

T = TypeVar("T")


def read(client: EtcdClient, keys: JobKeys, job: str) -> Stored | None:
    def attempt() -> Stored | None:
        answer = client.range(range_of(keys.record))
        if not answer.kvs:
            return None
        moment = Moment(client, answer.header.revision)
        record = moment.record(keys, job, answer.kvs[0])
        return moment.stored(keys, job, record, client.range(moment.tail(keys, record[0])))

    return _again_if_compacted(client, attempt)


def read_page(client: EtcdClient, keys: EtcdKeys, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
    def attempt() -> tuple[tuple[str, Stored], ...]:
        start = keys.live + after.encode() + b"\0"
        answer = client.range(range_of(start, prefix_end(keys.live), limit=limit, keys_only=True))
        moment = Moment(client, answer.header.revision)
        found = [entry.key[len(keys.live) :].decode() for entry in answer.kvs]
        parts = [found[at : at + JOBS_AT_ONCE] for at in range(0, len(found), JOBS_AT_ONCE)]
        return tuple([each for part in parts for each in moment.jobs(keys, part)])

    return _again_if_compacted(client, attempt)


def events(client: EtcdClient, keys: JobKeys, job: str, after: int, limit: int) -> tuple[Entry, ...]:
    def attempt() -> tuple[Entry, ...]:
        start, end = keys.events_at(after + 1), prefix_end(keys.events)
        first = range_of(start, end, limit=min(limit, KEYS_AT_ONCE))
        answer = client.ranges([range_of(keys.trimmed), range_of(keys.base), first])
        moment = Moment(client, answer.header.revision)
        trimmed, base = answer.number(0), answer.number(1)
        begin = max(after, base)
        if begin < trimmed:
            raise EventsTrimmed(f"The events of job {job!r} up to revision {trimmed} are archived.", trimmed)
        entries: list[Entry] = []
        for entry in moment.all_keys(answer.range(2), end, min(limit, KEYS_AT_ONCE)):
            entries += [each for each in moment.events(keys, job, entry) if each.revision > begin]
            if len(entries) >= limit:
                break
        _check_sequence(job, begin, entries)
        return tuple(entries[:limit])

    return _again_if_compacted(client, attempt)


def segments(client: EtcdClient, keys: JobKeys) -> tuple[Segment, ...]:
    def attempt() -> tuple[Segment, ...]:
        end = prefix_end(keys.segments)
        answer = client.range(range_of(keys.segments, end, limit=NAMES_AT_ONCE))
        moment = Moment(client, answer.header.revision)
        found = moment.all_keys(answer, end, NAMES_AT_ONCE)
        return tuple([decode_segment(entry.key[len(keys.segments) :], entry.value) for entry in found])

    return _again_if_compacted(client, attempt)


def encode_segment(segment: Segment) -> bytes:
    """Return the value of a segment's key, which has the last revision itself."""
    return b"%d %s" % (segment.first, segment.name.encode())


def decode_segment(last: bytes, value: bytes) -> Segment:
    """Return a segment from the end of its key and its value."""
    first, _, name = value.partition(b" ")
    try:
        return Segment(int(first), int(last), name.decode())
    except ValueError as error:
        raise damaged("A segment", str(error)) from error


@dataclass(frozen=True, slots=True)
class Extent:
    """The revisions of a job's events in the store."""

    first: int
    is_trimmed: bool
    record_revision: int
    revision: int
    created: int  # the revision of etcd at which the job was created


def extent(client: EtcdClient, keys: JobKeys, job: str) -> Extent | None:
    """Return which events of a job are in the store; None if there is no such job."""
    wanted = [keys.revision, keys.record, keys.trimmed, keys.base]
    answer = client.ranges([range_of(key) for key in wanted])
    found, record = answer.range(0).kvs, answer.range(1).kvs
    if not found or not record:
        return None
    trimmed = answer.number(2)
    return Extent(
        first=(trimmed or answer.number(3)) + 1,
        is_trimmed=trimmed > 0,
        record_revision=revision_of(f"The record of job {job!r}", record[0].value),
        revision=int(found[0].value),
        created=found[0].create_revision,
    )


def names(client: EtcdClient, prefix: bytes) -> tuple[str, ...]:
    """Return the names after a prefix, in their order."""

    def attempt() -> tuple[str, ...]:
        end = prefix_end(prefix)
        answer = client.range(range_of(prefix, end, limit=NAMES_AT_ONCE, keys_only=True))
        moment = Moment(client, answer.header.revision)
        found = moment.all_keys(answer, end, NAMES_AT_ONCE, keys_only=True)
        return tuple([entry.key[len(prefix) :].decode() for entry in found])

    return _again_if_compacted(client, attempt)


class Moment:
    """The contents of etcd at one revision."""

    def __init__(self, client: EtcdClient, revision: int) -> None:
        self._client = client
        self._revision = revision

    def jobs(self, keys: EtcdKeys, found: Sequence[str]) -> Iterator[tuple[str, Stored]]:
        """Read jobs that are there at this moment, with two requests for all of them if they are small."""
        each_keys = [keys.job(name) for name in found]
        answer = self._client.ranges([range_of(each.record, revision=self._revision) for each in each_keys])
        records = []
        for place, (name, each) in enumerate(zip(found, each_keys, strict=True)):
            kvs = answer.range(place).kvs
            if not kvs:
                raise damaged(f"Job {name!r}", "it has no record")
            records.append(self.record(each, name, kvs[0]))
        tails = [self.tail(each, revision) for each, (revision, _) in zip(each_keys, records, strict=True)]
        answer = self._client.ranges(tails)
        for place, (name, each, record) in enumerate(zip(found, each_keys, records, strict=True)):
            yield name, self.stored(each, name, record, answer.range(place))

    def record(self, keys: JobKeys, job: str, entry: EtcdEntry) -> tuple[int, bytes]:
        """Return the revision and the contents of a record."""
        what = f"The record of job {job!r}"
        revision = revision_of(what, entry.value)
        return revision, self._whole(keys.record_chunks, what, entry.value, revision)

    def tail(self, keys: JobKeys, record_revision: int) -> dict[str, object]:
        """Return the request for the first events after a record."""
        start, end = keys.events_at(record_revision + 1), prefix_end(keys.events)
        return range_of(start, end, revision=self._revision, limit=KEYS_AT_ONCE)

    def stored(self, keys: JobKeys, job: str, record: tuple[int, bytes], first: RangeAnswer) -> Stored:
        """Return a job from its record and the first of its events after that."""
        record_revision, contents = record
        found = self.all_keys(first, prefix_end(keys.events), KEYS_AT_ONCE)
        tail = [each for entry in found for each in self.events(keys, job, entry)]
        _check_sequence(job, record_revision, tail)
        return Stored(record_revision + len(tail), contents, record_revision, tuple([each.data for each in tail]))

    def events(self, keys: JobKeys, job: str, entry: EtcdEntry) -> list[Entry]:
        """Return the events of one write."""
        last = int(entry.key[len(keys.events) :])
        what = f"Event {last} of job {job!r}"
        found = split_events(what, self._whole(keys.event_chunks, what, entry.value, last))
        return [Entry(revision, data) for revision, data in enumerate(found, last - len(found) + 1)]

    def all_keys(self, first: RangeAnswer, end: bytes, at_once: int, *, keys_only: bool = False) -> Iterator[EtcdEntry]:
        """Yield the entries of a range whose first part is there already, and read the rest as needed."""
        answer = first
        yield from answer.kvs
        while answer.more and answer.kvs:
            start = answer.kvs[-1].key + b"\0"
            body = range_of(start, end, limit=at_once, revision=self._revision, keys_only=keys_only)
            answer = self._client.range(body)
            yield from answer.kvs

    def _whole(self, chunks: bytes, what: str, value: bytes, revision: int) -> bytes:
        """Return the contents of a value, from its chunks if it is large."""
        if not is_reference(value):
            return unpack(what, value, revision)
        name, count = chunks_of(what, value)
        start, end = chunks + name, prefix_end(chunks + name)
        first = self._client.range(range_of(start, end, limit=CHUNKS_AT_ONCE, revision=self._revision))
        pieces = [entry.value for entry in self.all_keys(first, end, CHUNKS_AT_ONCE)]
        if len(pieces) != count:
            raise damaged(what, f"it has {len(pieces)} of {count} chunks")
        return unpack(what, b"".join(pieces), revision)


def _check_sequence(job: str, after: int, found: Sequence[Entry]) -> None:
    for place, entry in enumerate(found, after + 1):
        if entry.revision != place:
            raise damaged(f"Job {job!r}", f"it has no event {place}")


def _again_if_compacted(client: EtcdClient, attempt: Callable[[], T]) -> T:
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except Compacted:
            continue
    raise StoreUnavailable(f"etcd at {client.place} was compacted during each of {ATTEMPTS} reads; try again.")
