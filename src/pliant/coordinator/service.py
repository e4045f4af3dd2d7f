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

from pliant.coordinator.leader import Leader, Standing
from pliant.coordinator.requests import (
    Accepted,
    Answer,
    Pumped,
    Reply,
    Request,
    Unavailable,
    WatchClosed,
    overdue,
    set_back,
    speaker,
)
from pliant.core import messages as m
from pliant.core.evolve import evolve
from pliant.core.invariants import complaints
from pliant.core.job import decide, needs_settling, settled
from pliant.core.leases import Leases
from pliant.core.messages import Event, Rejection
from pliant.core.model import Job, JobState, MemberId, view
from pliant.errors import BadInput, PliantError, StoreError, StoreTimeout
from pliant.stores.base import Store, Write, Written
from pliant.wire.api import EVENTS, Renew, RenewAgent
from pliant.wire.codec import decode_state, encode_state

LEASE_TTL_S = 10.0
SUSPICION_S = 0.5  # a closed watch that does not come back within this ends the generation (rule 19)
PAUSE_S = 1.0  # a longer gap between two pumps is the coordinator's own sleep, and costs nobody a lease
INBOX_MAX = 65536
TRIES = 4  # lost races in one pump before the commands are sent back
RESERVED = "@"  # streams of the store whose names begin so are no jobs; no job's name can
TAIL_MAX = 64  # events after the newest record before a write brings a record along, or a quarter of the members


@dataclass(slots=True)
class _Known:
    """A job as last read or written, with how many events came after its newest record."""

    job: Job | None
    revision: int
    tail: int


@dataclass(slots=True)
class _Draft:
    """What a pump is about to write for one job."""

    name: str
    known: _Known
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
        self._pause_s = min(PAUSE_S, lease_ttl_s / 4)  # a sleep of our own must never be as long as a lease
        self._inbox: list[tuple[object, str, Request]] = []
        self._jobs: dict[str, _Known] = {}
        self._leases: Leases[tuple[str, str, str]] = Leases(self._pause_s)
        self._leased: dict[str, set[tuple[str, str, str]]] = {}  # by job, so that no job pays for another
        self._vouches: dict[str, tuple[int, float]] = {}  # by job, the generation that reported last, and when
        self._set_back: dict[str, str] = {}  # by job, why nothing more may be decided here (see `_is_set_back`)
        self._leader = Leader(store, owner)
        self._bugs: list[str] = []

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

    # ------------------------------------------------------------------------------------------- the pump

    def pump(self, now: float) -> Pumped:
        """Decide everything queued. Call when something was submitted, and at least a few times a second."""
        inbox, self._inbox = self._inbox, []
        self._bugs.clear()
        standing = self._leader.keep(now)
        refusal = self._lead(now, standing)
        if refusal is not None:
            # What time itself had asked for is void: whoever leads next grants every lease afresh.
            people = [entry for entry in inbox if entry[0] is not None]
            return Pumped(tuple(Reply(ticket, job, request, refusal) for ticket, job, request in people))
        by_job: dict[str, list[tuple[object, Request]]] = {}
        for _, name, request in inbox:
            if isinstance(
                request, Renew
            ):  # whoever has spoken by now is not late, however long this pump was in coming
                self._leases.renew((name, "member", request.member), now)
                self._leases.drop((name, "suspect", request.member))
        for name, kind, ident in self._leases.due(now, self._vouched):
            by_job.setdefault(name, []).append((None, overdue(kind, ident)))
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
            changed=tuple(draft.name for draft in done),
            took_over=standing is Standing.NEWLY,
            decided=tuple((draft.name, draft.events) for draft in done),
            moved=tuple(draft.name for draft in done if needs_settling(draft.events)),
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
            drafts = [draft for draft in drafts if draft not in writing]
            won, writing, writes = [], [], []
        for draft, write, is_won in zip(writing, writes, won, strict=True):
            if is_won:
                self._adopt(draft, write, now)
                done.append(draft)
            else:
                self._jobs.pop(draft.name, None)
                again[draft.name] = draft.asked
        for draft in drafts:
            if draft.name not in again:
                self._finish(draft, now, replies)
        return again

    def _decide(self, name: str, asked: list[tuple[object, Request]], now: float) -> _Draft:
        known = self._jobs.get(name) or self._load(name, now)
        if any(isinstance(request, Renew | RenewAgent) and request.revision > known.revision for _, request in asked):
            known = self._load(name, now)  # another coordinator may have written what that member knows
        job = known.job
        events: tuple[Event, ...] = ()
        answers: list[Rejection | None] = []
        wall = self._wall()
        for _, request in asked:
            if name in self._set_back and not isinstance(request, m.Cancel):
                answers.append(Rejection(m.Code.SET_BACK, self._set_back[name]))
                continue
            if isinstance(request, Renew | RenewAgent | WatchClosed):
                answers.append(self._note(name, known, request, now))
                continue
            if self._heard_again(name, request):
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
        if job is not None and events and needs_settling(events):
            job, more = settled(job, wall)
            events += more
            bug = "; ".join(complaints(known.job, events))
            if bug:
                self._bugs.append(f"{name}: {bug}")
        return _Draft(name, known, asked, job, events, answers, bug)

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
        if needs_settling(draft.events):
            self._follow(draft.name, known, now)

    def _finish(self, draft: _Draft, now: float, replies: list[Reply]) -> None:
        """Answer. Reports that were accepted vouch for their whole generation (rule 19)."""
        known = draft.known
        for (ticket, request), rejection in zip(draft.asked, draft.answers, strict=True):
            answer: Answer
            if draft.bug and not isinstance(request, Renew | RenewAgent):
                answer = Unavailable(f"refused to write, this is a bug in Pliant: {draft.bug}")
            elif rejection is not None:
                answer = rejection
            else:
                if isinstance(request, m.Report):
                    self._vouches[draft.name] = (request.generation, now)
                member = speaker(request)
                if member is not None:
                    self._leases.renew((draft.name, "member", member), now)
                news = member is not None and not (isinstance(request, Renew) and request.revision >= known.revision)
                shown = view(known.job, known.revision, member) if known.job and member and news else None
                answer = Accepted(known.revision, shown)
            replies.append(Reply(ticket, draft.name, request, answer, known.revision))

    def _answer(self, name: str, asked: list[tuple[object, Request]], answer: Answer, replies: list[Reply]) -> None:
        """Send requests back undecided. What time itself had asked for is asked again at the next pump."""
        for ticket, request in asked:
            if ticket is None:
                self._inbox.append((None, name, request))
            else:
                replies.append(Reply(ticket, name, request, answer))

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
        self._set_back.clear()
        self._leased.clear()
        self._vouches.clear()
        self._leases = Leases(self._pause_s)

    def _lost_history(self, name: str, known: int, found: int) -> None:
        """Somebody knows more than the store. Deciding on would number worlds a second time (P6, ADR 0009)."""
        if name not in self._set_back:
            self._set_back[name] = set_back(name, known, found)
            self._bugs.append(f"{name}: {self._set_back[name]}")

    def _load(self, name: str, now: float) -> _Known:
        stored = self._store.read(name)
        if stored is None:
            return _Known(None, 0, 0)  # not remembered: anybody may ask for any name
        job = decode_state(stored.record, Job)
        for data in stored.tail:
            job = evolve(job, EVENTS.decode(data))
        known = self._jobs[name] = _Known(job, stored.revision, len(stored.tail))
        self._follow(name, known, now)
        return known

    def _was_applied(self, write: Write) -> bool:
        """After a timeout: whether the events that were sent stand in the store."""
        with suppress(StoreError):
            found = self._store.events(write.job, write.expected, len(write.events))
            return tuple(entry.data for entry in found) == write.events
        return False

    # -------------------------------------------------------------------------------------------- leases

    def _follow(self, name: str, known: _Known, now: float) -> None:
        """Let the leases follow the job: grant what is new, drop what is gone, leave the rest running."""
        job = known.job
        wanted: dict[tuple[str, str, str], float] = {}
        if job is not None and not job.state.ended:
            wanted = {(name, "member", member): self._lease_ttl_s for member in job.members}
            wanted |= {(name, "agent", agent.id): self._lease_ttl_s for agent in job.agents}
            if job.state is JobState.WAITING and job.wait_limit_s is not None:
                wanted[name, "wait", ""] = job.wait_limit_s
        leased = self._leased.setdefault(name, set())
        for key in leased.difference(wanted):
            self._leases.drop(key)
        for key, ttl_s in wanted.items():
            if key not in self._leases:
                self._leases.grant(key, ttl_s, now)
        self._leased[name] = set(wanted)

    def _note(self, name: str, known: _Known, request: Request, now: float) -> Rejection | None:
        """Signs of life change no state: they stay in memory, and cost the same however large the job is."""
        job = known.job
        match request:
            case Renew(member, revision):
                self._leases.drop((name, "suspect", member))
                key = (name, "member", str(member))
            case RenewAgent(agent, revision):
                key = (name, "agent", str(agent))
            case WatchClosed(member):
                if job is not None and member in job.members:
                    self._leases.grant((name, "suspect", member), SUSPICION_S, now)
                return None
            case _:
                raise AssertionError(request)
        if revision > known.revision:
            # Only from somebody the store knows: a stranger's slip must not stop the job.
            if key in self._leased.get(name, ()):
                self._lost_history(name, revision, known.revision)
            return Rejection(m.Code.SET_BACK, set_back(name, revision, known.revision))
        if self._leases.renew(key, now) or (job is not None and job.state.ended):
            return None
        if job is not None and key in self._leased.get(name, ()):
            self._leases.grant(key, self._lease_ttl_s, now)  # it ran out, but nobody could act on it yet
            return None
        return Rejection(m.Code.UNKNOWN, f"{key[2]} has no lease in {name}; join first")

    def _heard_again(self, name: str, request: Request) -> bool:
        """Whether an expiry is void: who it is about was heard of again while the store could not be written."""
        match request:
            case m.Expire(member):
                return (name, "member", member) in self._leases
            case m.AgentExpire(agent):
                return (name, "agent", agent) in self._leases
            case _:
                return False

    def _vouched(self, key: tuple[str, str, str]) -> float | None:
        """A report of a generation is a sign of life of each of its members (rule 19)."""
        known = self._jobs.get(key[0])
        if known is None or known.job is None or key[1] != "member":
            return None
        generation, when = self._vouches.get(key[0], (0, 0.0))
        world = known.job.world(generation)
        return when if world is not None and MemberId(key[2]) in world.members else None
