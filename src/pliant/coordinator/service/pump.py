"""The inbox and the pump: what turns commands into durable decisions.

`submit` queues; `pump(now)` takes everything queued, decides, writes the store once, and only then gives the answers.
It is synchronous and does no I/O but the store's, so a server calls it from its loop and the simulator from its own.
Safety comes from the compare-and-swap of each write alone: two coordinators may pump at once and one of them loses
the race, reads again and decides again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pliant.coordinator.service.inbox import (
    Accepted,
    AgentWatchClosed,
    Answer,
    Pumped,
    Reply,
    Request,
    Unavailable,
    WatchClosed,
    sender_of,
    set_back,
)
from pliant.coordinator.service.leader import Leader, Standing
from pliant.coordinator.service.liveness import Liveness
from pliant.core import messages as m
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import complaints
from pliant.core.messages import Event, Rejection
from pliant.core.model.job import Job
from pliant.core.model.names import MemberId
from pliant.core.model.view import view_of
from pliant.errors import BadInput, PliantError, StoreError, StoreTimeout
from pliant.stores.base import Store, Write, Written
from pliant.wire.api import EVENTS, Renew, RenewAgent
from pliant.wire.codec import decode_state, encode_state

LEASE_TTL_S = 10.0
INBOX_MAX = 65536
TRIES = 4  # lost races in one pump before the commands are sent back
RESERVED = "@"  # streams of the store whose names begin so are no jobs; no job's name can
TAIL_MAX = 64  # events after the newest record before a write brings a record along, or a quarter of the members


@dataclass(slots=True)
class _LoadedJob:
    """A job as last read or written, with how many events came after its newest record."""

    job: Job | None
    revision: int
    tail: int
    stale: bool = False  # the store has more; to be read again before anything is decided


@dataclass(slots=True)
class _Draft:
    """What a pump is about to write for one job."""

    name: str
    known: _LoadedJob
    asked: list[tuple[object, Request]]
    after: Job | None
    events: tuple[Event, ...]
    answers: list[Rejection | None]
    bug: str = ""


class Service:
    """One coordinator. `owner` names this life of this process; `wall` gives the time events are stamped with."""

    def __init__(self, store: Store, owner: str, wall: Callable[[], float], lease_ttl_s: float = LEASE_TTL_S) -> None:
        self._store = store
        self._wall = wall
        self._lease_ttl_s = lease_ttl_s
        self._inbox: list[tuple[object, str, Request]] = []
        self._jobs: dict[str, _LoadedJob] = {}
        self._liveness = Liveness(lease_ttl_s)
        self._set_back: dict[str, str] = {}  # by job, why nothing more may be decided here (see `_lost_history`)
        self._leader = Leader(store, owner)
        self._bugs: list[str] = []
        self._read_again: set[str] = set()  # in this pump: what others wrote is in them, and nobody was told

    # ----------------------------------------------------------------------------------------- the way in

    def submit(self, job: str, request: Request, ticket: object) -> bool:
        """Queue a request. False: the inbox is full, and the caller must say so to whoever asks."""
        if len(self._inbox) >= INBOX_MAX:
            return False
        self._inbox.append((ticket, job, request))
        return True

    def job(self, name: str) -> tuple[Job, int] | None:
        """What this coordinator knows of a job, with its revision. For reading only."""
        known = self._jobs.get(name)
        return (known.job, known.revision) if known and known.job else None

    def _state_of(self, name: str) -> Job | None:
        known = self._jobs.get(name)
        return known.job if known else None

    def names(self) -> tuple[str, ...]:
        """The jobs this coordinator knows, sorted."""
        return tuple(sorted(self._jobs))

    @property
    def leads(self) -> bool:
        return self._leader.leads

    @property
    def why(self) -> str:
        """Why it does not lead; empty while it does."""
        return "" if self._leader.leads else self._leader.why

    def close(self) -> None:
        """Call on a clean exit: whoever comes next need not wait for this one."""
        self._leader.release()

    def renew(self, name: str, request: Renew | RenewAgent, now: float) -> Reply | None:
        """Answer a sign of life at once, without a pump: thousands come in a second, and none changes anything.

        None: it is not as simple as that, `submit` it.
        """
        known = self._jobs.get(name)
        if known is None or known.stale or name in self._set_back:
            return None
        if not self._leader.is_sure(now) or request.revision > known.revision:
            return None
        rejection = self._liveness.renew(name, known.job, request, now)
        answer = rejection or _accepted(known, request, sender_of(request))
        return Reply(None, name, request, answer, known.revision)

    def isolated_s(self, now: float) -> float | None:
        """For how long no member or agent of any job has been heard, if that is too long to be their fault."""
        return self._liveness.isolated_s(now)

    def suspect(self, name: str, closed: WatchClosed | AgentWatchClosed, now: float) -> None:
        """Note at once that a watch was closed: who comes back in the next moment must find it noted."""
        self._liveness.suspect(name, self._state_of(name), closed, now)

    def record_hangup(self, name: str, closed: WatchClosed | AgentWatchClosed, now: float) -> None:
        """Note that a connection was closed on which its owner had joined or watched."""
        self._liveness.record_hangup(name, closed, now)

    # ------------------------------------------------------------------------------------------- the pump

    def pump(self, now: float) -> Pumped:
        """Decide everything queued. Call when something was submitted, and at least a few times a second."""
        inbox, self._inbox = self._inbox, []
        self._bugs.clear()
        self._read_again.clear()
        standing = self._leader.keep(now)
        refusal = self._lead(now, standing)
        if refusal is not None:
            # What time itself had asked for is void: whoever leads next grants every lease afresh.
            people = [entry for entry in inbox if entry[0] is not None]
            return Pumped(tuple(Reply(ticket, job, request, refusal) for ticket, job, request in people))
        by_job: dict[str, list[tuple[object, Request]]] = {}
        for _, name, request in inbox:
            self._liveness.renew_early(name, request, now)
        for name, command in self._liveness.due(now, self._state_of):
            by_job.setdefault(name, []).append((None, command))
        for ticket, name, request in inbox:
            by_job.setdefault(name, []).append((ticket, request))
        replies: list[Reply] = []
        done: list[_Draft] = []
        for _ in range(TRIES):
            by_job = self._attempt(by_job, now, replies, done)
            if not by_job:
                break
        for name, asked in by_job.items():
            self._answer(name, asked, Unavailable("others kept writing to this job; ask again"), replies)
        return Pumped(
            tuple(reply for reply in replies if reply.ticket is not None),
            changed=(*(draft.name for draft in done), *self._read_again),
            took_over=standing is Standing.NEWLY,
            decided=tuple((draft.name, draft.events) for draft in done),
            moved=(*(draft.name for draft in done if changes_membership(draft.events)), *self._read_again),
            bugs=tuple(self._bugs),
        )

    def _attempt(
        self,
        by_job: dict[str, list[tuple[object, Request]]],
        now: float,
        replies: list[Reply],
        done: list[_Draft],
    ) -> dict[str, list[tuple[object, Request]]]:
        """Decide and write once; what lost its race is returned, to be decided again on what is there now."""
        drafts: list[_Draft] = []
        for name, asked in by_job.items():
            try:
                drafts.append(self._decide(name, asked, now))
            except PliantError as error:
                self._answer(name, asked, Unavailable(f"the store did not answer: {error}"), replies)
        writing = [draft for draft in drafts if draft.events and not draft.bug]
        writes = [self._write(draft) for draft in writing]
        again: dict[str, list[tuple[object, Request]]] = {}
        try:
            outcomes = self._store.write(writes) if writes else ()
            won = [isinstance(outcome, Written) for outcome in outcomes]
            for write, outcome in zip(writes, outcomes, strict=True):
                if outcome.revision < write.expected:
                    self._lost_history(write.job, write.expected, outcome.revision)
        except StoreTimeout:
            won = [self._was_applied(write) for write in writes]
        except StoreError as error:
            for draft in writing:
                self._answer(draft.name, draft.asked, Unavailable(f"the store failed: {error}"), replies)
            drafts = [draft for draft in drafts if not any(draft is each for each in writing)]
            won, writing, writes = [], [], []
        for draft, write, is_won in zip(writing, writes, won, strict=True):
            if is_won:
                self._adopt(draft, write, now)
                done.append(draft)
            else:
                draft.known.stale = True
                again[draft.name] = draft.asked
        for draft in drafts:
            if draft.name not in again:
                self._finish(draft, now, replies)
        return again

    def _decide(self, name: str, asked: list[tuple[object, Request]], now: float) -> _Draft:
        known = self._jobs.get(name)
        if known is None or known.stale:
            known = self._read(name, now)
        if any(isinstance(request, Renew | RenewAgent) and request.revision > known.revision for _, request in asked):
            known = self._read(name, now)  # another coordinator may have written what that member knows
        job = known.job
        events: tuple[Event, ...] = ()
        answers: list[Rejection | None] = []
        wall = self._wall()
        for _, request in asked:
            if name in self._set_back and not isinstance(request, m.Cancel):
                answers.append(Rejection(m.Code.SET_BACK, self._set_back[name]))
                continue
            if isinstance(request, Renew | RenewAgent | WatchClosed | AgentWatchClosed):
                answers.append(self._note(name, known, request, now))
                continue
            if self._liveness.is_void(name, request):
                answers.append(None)
                continue
            decision = decide(job, request, wall)
            if isinstance(decision, Rejection):
                answers.append(decision)
                continue
            answers.append(None)
            for event in decision:
                job = evolve(job, event)
            events += decision
        bug = ""
        if job is not None and events and changes_membership(events):
            job, more = settle_all(job, wall)
            events += more
            bug = "; ".join(complaints(known.job, events))
            if bug:
                self._bugs.append(f"{name}: {bug}")
        return _Draft(name, known, asked, job, events, answers, bug)

    def _note(
        self, name: str, known: _LoadedJob, request: Renew | RenewAgent | WatchClosed | AgentWatchClosed, now: float
    ) -> Rejection | None:
        """What changes no state. A revision that the store does not have is the exception: it stops the job."""
        if isinstance(request, WatchClosed | AgentWatchClosed):
            self._liveness.suspect(name, known.job, request, now)
            return None
        if request.revision > known.revision:
            # Only from somebody the store knows: a stranger's slip must not stop the job.
            if self._liveness.knows(name, request):
                self._lost_history(name, request.revision, known.revision)
            return Rejection(m.Code.SET_BACK, set_back(name, request.revision, known.revision))
        return self._liveness.renew(name, known.job, request, now)

    def _write(self, draft: _Draft) -> Write:
        known, job = draft.known, draft.after
        assert job is not None  # events were decided, the first of them created it
        # A record costs as much as the job has members, so it is written rarely: what came since is in the tail.
        whole = known.revision == 0 or known.tail + len(draft.events) > max(TAIL_MAX, len(job.members) // 4)
        encoded = tuple(EVENTS.encode(event) for event in draft.events)
        return Write(draft.name, known.revision, encoded, encode_state(job) if whole else None)

    def _adopt(self, draft: _Draft, write: Write, now: float) -> None:
        """The write stands: from now on this is the job."""
        known = self._jobs[draft.name] = draft.known
        known.job = draft.after
        known.revision += len(draft.events)
        known.tail = 0 if write.record is not None else known.tail + len(draft.events)
        if changes_membership(draft.events):
            self._liveness.follow(draft.name, known.job, now)

    def _finish(self, draft: _Draft, now: float, replies: list[Reply]) -> None:
        """Answer. Progress vouches for the whole generation that made it (rule 19).

        A report without any proves nothing: its sender may be waiting for a member that is frozen.
        """
        known = draft.known
        for event in draft.events:
            if isinstance(event, m.StepsCommitted | m.WorldEntered):
                self._liveness.credit_generation(draft.name, event.generation, now)
        for (ticket, request), rejection in zip(draft.asked, draft.answers, strict=True):
            answer: Answer
            if draft.bug and not isinstance(request, Renew | RenewAgent):
                answer = Unavailable(f"refused to write, this is a bug in Pliant: {draft.bug}")
            elif rejection is not None:
                answer = rejection
            else:
                member = sender_of(request)
                if member is not None and not isinstance(request, m.Drain):  # which a person may say as well
                    self._liveness.renew_by_command(draft.name, member, now)
                answer = _accepted(known, request, member)
            replies.append(Reply(ticket, draft.name, request, answer, known.revision))

    def _answer(self, name: str, asked: list[tuple[object, Request]], answer: Answer, replies: list[Reply]) -> None:
        """Send requests back undecided. What time itself had asked for is asked again at the next pump."""
        for ticket, request in asked:
            if ticket is not None:
                replies.append(Reply(ticket, name, request, answer))
            elif not isinstance(request, m.Suspect):  # by then it may be back; if not, its lease says so
                self._inbox.append((None, name, request))

    # ---------------------------------------------------------------------------------------- the store

    def _lead(self, now: float, standing: Standing) -> Unavailable | None:
        """Know every job if this coordinator is the one that decides; a refusal for everybody if it is not."""
        if standing is Standing.LEADS:
            return None
        self._forget()
        if standing is Standing.NEWLY:
            try:
                self._take_over(now)
                return None
            except StoreError as error:
                self._forget()
                self._leader.forget(f"the store did not answer: {error}")
        return Unavailable(self._leader.why)

    def _take_over(self, now: float) -> None:
        """Read every job, and grant every lease afresh: late expiry, never early."""
        for name in (name for name in self._store.jobs() if not name.startswith(RESERVED)):
            try:
                self._load(name, now)
            except BadInput as error:
                self._bugs.append(f"{name} cannot be read, the other jobs go on: {error}")

    def _forget(self) -> None:
        self._jobs.clear()
        self._liveness = Liveness(self._lease_ttl_s)

    def _lost_history(self, name: str, known: int, found: int) -> None:
        """Somebody knows more than the store. Deciding on would number worlds a second time (P6, ADR 0009)."""
        if name not in self._set_back:
            self._set_back[name] = set_back(name, known, found)
            self._bugs.append(f"{name}: {self._set_back[name]}")

    def _read(self, name: str, now: float) -> _LoadedJob:
        """Read a job that somebody else may have written: whoever watches it has to be told."""
        known = self._load(name, now)
        if known.job is not None:
            self._read_again.add(name)
        return known

    def _load(self, name: str, now: float) -> _LoadedJob:
        stored = self._store.read(name)
        if stored is None:
            return _LoadedJob(None, 0, 0)  # not remembered: anybody may ask for any name
        job = decode_state(stored.record, Job)
        for data in stored.tail:
            job = evolve(job, EVENTS.decode(data))
        known = self._jobs[name] = _LoadedJob(job, stored.revision, len(stored.tail))
        self._liveness.follow(name, job, now)
        return known

    def _was_applied(self, write: Write) -> bool:
        """After a timeout: whether the events that were sent stand in the store."""
        with suppress(StoreError):
            found = self._store.events(write.job, write.expected, len(write.events))
            return tuple(entry.data for entry in found) == write.events
        return False


def _accepted(known: _LoadedJob, request: Request, member: MemberId | None) -> Accepted:
    """A yes, with what the member that asked does not know yet."""
    news = member is not None and not (isinstance(request, Renew) and request.revision >= known.revision)
    shown = view_of(known.job, known.revision, member) if known.job and member and news else None
    return Accepted(known.revision, shown)
