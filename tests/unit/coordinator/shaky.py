"""A store that fails as it is told, and what else the tests of the coordinator share."""

from collections.abc import Callable, Sequence

from pliant.coordinator.service.inbox import Accepted, Answer, Pumped, Reply, Sender
from pliant.coordinator.service.pump import Service
from pliant.core.job.decide import decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.messages import Command, Rejection
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import StoreError, StoreTimeout
from pliant.stores.base import Busy, Conflict, Entry, Hold, Outcome, Segment, Stored, Write
from pliant.stores.memory import MemoryStore
from pliant.wire.api import EVENTS, Renew, RenewAgent
from pliant.wire.codec import decode_state

WALL = 1000.0

Request = Command | Renew | RenewAgent


def member(name: MemberId) -> Sender:
    return Sender("member", name)


def agent(name: AgentId) -> Sender:
    return Sender("agent", name)


class Shaky:
    """A real store whose next calls go wrong: `trouble` has, for a method's name, the errors in their order.

    None in that list is a call that goes well. A write that times out is applied all the same to the jobs in
    `applied`. `before_write` has what others do just before our next writes.
    """

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.trouble: dict[str, list[StoreError | None]] = {}
        self.applied: set[str] = set()
        self.before_write: list[Callable[[], object]] = []
        self.writes: list[tuple[Write, ...]] = []
        self.holds = 0

    @property
    def identity(self) -> str:
        return self.inner.identity

    def _fail(self, method: str) -> None:
        error = next_of(self.trouble.get(method, []))
        if error is not None:
            raise error

    def read(self, job: str) -> Stored | None:
        self._fail("read")
        return self.inner.read(job)

    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        self._fail("read_page")
        return self.inner.read_page(after, limit)

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        self.writes.append(tuple(writes))
        if self.before_write:
            self.before_write.pop(0)()
        error = next_of(self.trouble.get("write", []))
        if isinstance(error, StoreTimeout):
            self.inner.write([write for write in writes if write.job in self.applied])
        if error is not None:
            raise error
        return self.inner.write(writes, under)

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        self._fail("events")
        return self.inner.events(job, after, limit)

    def segments(self, job: str) -> tuple[Segment, ...]:
        self._fail("segments")
        return self.inner.segments(job)

    def trim(self, job: str, segment: Segment, under: Hold | None = None) -> bool:
        self._fail("trim")
        return self.inner.trim(job, segment, under)

    def delete(self, job: str, expected: int, under: Hold | None = None) -> Conflict | None:
        self._fail("delete")
        return self.inner.delete(job, expected, under)

    def jobs(self) -> tuple[str, ...]:
        self._fail("jobs")
        return self.inner.jobs()

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        self.holds += 1
        self._fail("hold")
        return self.inner.hold(name, owner, ttl_s, now, url)

    def holder(self, name: str, now: float) -> Hold | None:
        self._fail("holder")
        return self.inner.holder(name, now)

    def release(self, hold: Hold) -> None:
        self.inner.release(hold)


def next_of(errors: list[StoreError | None]) -> StoreError | None:
    return errors.pop(0) if errors else None


class Desk:
    """A coordinator and a member that asks it: requests are submitted, pumped, and their answers matched."""

    def __init__(self, store: Shaky, owner: str = "c1", lease_ttl_s: float = 10.0) -> None:
        self.store = store
        self.service = Service(store, owner, lambda: WALL, lease_ttl_s)

    def pump(self, now: float, *requests: Request, job: str = "demo") -> Pumped:
        for ticket, request in enumerate(requests, 1):
            match request:
                case Renew(name, revision):
                    assert self.service.postpone(job, member(name), revision, ticket)
                case RenewAgent(name, revision):
                    assert self.service.postpone(job, agent(name), revision, ticket)
                case _:
                    assert self.service.submit(job, request, ticket)
        return self.service.pump(now)

    def close_watch(self, now: float, *senders: Sender, job: str = "demo") -> None:
        """Close the watches of these members and agents, then pump."""
        for sender in senders:
            self.service.suspect(job, sender, now)
        self.service.pump(now)

    def ask(self, now: float, *requests: Request, job: str = "demo") -> list[Answer]:
        """The answers, one for each request and in their order."""
        pumped = self.pump(now, *requests, job=job)
        answers = {reply.ticket: reply.answer for reply in pumped.all_replies}
        assert sorted(answers, key=str) == sorted(range(1, len(requests) + 1), key=str)
        assert all(reply.command == requests[int(str(reply.ticket)) - 1] for reply in pumped.replies)
        return [answers[ticket] for ticket in range(1, len(requests) + 1)]

    def tell(self, now: float, *requests: Request, job: str = "demo") -> Accepted:
        """The last answer, all having been accepted."""
        answers = self.ask(now, *requests, job=job)
        for answer in answers:
            assert isinstance(answer, Accepted), answer
        last = answers[-1]
        assert isinstance(last, Accepted)
        return last

    def idle(self, start: float, stop: float, every: float = 0.5) -> tuple[Reply, ...]:
        """Pump from `start` to `stop`, both included, as a coordinator with nothing to do does."""
        replies: tuple[Reply, ...] = ()
        for tick in range(round((stop - start) / every) + 1):
            replies += self.service.pump(start + tick * every).replies
        return replies

    def job(self, name: str = "demo") -> Job:
        found = self.service.job(name)
        assert found is not None
        return found[0]

    def revision(self, name: str = "demo") -> int:
        found = self.service.job(name)
        assert found is not None
        return found[1]


def desk(owner: str = "c1", lease_ttl_s: float = 10.0) -> Desk:
    return Desk(Shaky(MemoryStore("unit")), owner, lease_ttl_s)


def write_beside(store: Shaky, command: Command, job: str = "demo") -> None:
    """Decide a command and write it past every coordinator, under no hold: only the compare-and-swap is left."""
    state = stored(store, job)
    events = decide(state, command, WALL)
    assert not isinstance(events, Rejection)
    after = state
    for event in events:
        after = evolve(after, event)
    more = settle_all(after, WALL)[1]
    revision = len(store.inner.events(job, 0, 10_000))
    store.inner.write([Write(job, revision, tuple(EVENTS.encode(event) for event in (*events, *more)))])


def stored(store: Shaky, job: str = "demo") -> Job:
    """The job as any member would read it from the store: its record evolved over its tail."""
    kept = store.inner.read(job)
    assert kept is not None
    state = decode_state(kept.record, Job)
    for data in kept.tail:
        state = evolve(state, EVENTS.decode(data))
    return state
