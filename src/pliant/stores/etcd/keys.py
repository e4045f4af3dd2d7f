"""The keys of a store in etcd.

    PREFIX/identity             the store's identity, the format of its keys, and the id of its cluster
    PREFIX/counted              empty, and put with every write: see `writing`
    PREFIX/floor                the highest revision of a deleted job, if any was deleted
    PREFIX/revision/JOB         the job's revision; every job has one
    PREFIX/live/JOB             empty; every live job has one, for `read_page`
    PREFIX/job/JOB/record       the record, or a reference to its chunks
    PREFIX/job/JOB/base         the revision before its first event, if that is not 0
    PREFIX/job/JOB/events/REV   the events of one write, by the revision of the last of them; or a reference
    PREFIX/job/JOB/trimmed      the last revision in an archive, if events were trimmed
    PREFIX/job/JOB/segment/REV  the segment of the archive with REV as its last revision
    PREFIX/job/JOB/parts/...    chunks of a large record
    PREFIX/job/JOB/pieces/...   chunks of large events
    PREFIX/hold/NAME            the holder, with a lease; its revision of creation is the term

JOB at the end of a key is the name as it is, so that the order of keys is that of names. Inside a key, `/` and `%` are
escaped.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EtcdKeys", "JobKeys"]


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job."""

    revision: bytes
    live: bytes
    own: bytes  # the beginning of all keys of the job but these two

    @property
    def record(self) -> bytes:
        return self.own + b"record"

    @property
    def base(self) -> bytes:
        return self.own + b"base"

    @property
    def trimmed(self) -> bytes:
        return self.own + b"trimmed"

    @property
    def events(self) -> bytes:
        return self.own + b"events/"

    @property
    def segments(self) -> bytes:
        return self.own + b"segment/"

    @property
    def record_chunks(self) -> bytes:
        return self.own + b"parts/"

    @property
    def event_chunks(self) -> bytes:
        return self.own + b"pieces/"

    def events_at(self, revision: int) -> bytes:
        return self.events + b"%016d" % revision

    def event_chunks_at(self, revision: int) -> bytes:
        return self.event_chunks + b"%016d" % revision

    def segment_at(self, revision: int) -> bytes:
        return self.segments + b"%016d" % revision


@dataclass(frozen=True, slots=True)
class EtcdKeys:
    """The keys under one prefix."""

    prefix: str

    @property
    def identity(self) -> bytes:
        return self._key("identity")

    @property
    def counted(self) -> bytes:
        return self._key("counted")

    @property
    def floor(self) -> bytes:
        return self._key("floor")

    @property
    def revisions(self) -> bytes:
        return self._key("revision/")

    @property
    def live(self) -> bytes:
        return self._key("live/")

    def hold(self, name: str) -> bytes:
        return self._key("hold/") + name.encode()

    def job(self, name: str) -> JobKeys:
        inside = name.replace("%", "%25").replace("/", "%2F").encode()
        raw = name.encode()
        return JobKeys(self.revisions + raw, self.live + raw, self._key("job/") + inside + b"/")

    def _key(self, rest: str) -> bytes:
        return f"{self.prefix}/{rest}".encode()
