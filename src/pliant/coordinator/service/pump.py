"""The coordinator's service: turns commands into durable decisions, and renewals into leases.

`submit` queues a command. `pump(now)` takes all queued commands, decides them, writes the store once, and only then
answers. `renew` answers a renewal at once, without a pump. The service is synchronous and does no I/O except the
store's, so a server calls it from its event loop and the simulator from its own. Safety comes from the compare-and-swap
of each write alone. If two coordinators pump at once, one of them loses the race, reads again and decides again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pliant.coordinator.service.inbox import (
    Accepted,
    Answer,
    Pumped,
    RenewalReply,
    Reply,
    Sender,
    Unavailable,
    describe_set_back,
    sender_of,
)
from pliant.coordinator.service.leader import Leader, Standing
from pliant.coordinator.service.liveness import Liveness
from pliant.core import messages as m
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import all_violations
from pliant.core.leases import LEASE_TTL_S
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import Job
from pliant.core.model.names import MemberId
from pliant.core.model.view import view_of
from pliant.errors import BadInput, PliantError, StoreError, StoreTimeout
from pliant.stores.base import Store, Stored, Write, Written
from pliant.wire.api import EVENTS
from pliant.wire.codec import decode_state, encode_state

INBOX_MAX = 65536
TRIES = 4  # lost races in one pump before its commands are sent back
RESERVED = "@"  # first character of the store's streams that are not jobs; no job's name begins with it
TAIL_MAX = 64  # events after the newest record before a write adds a record; or a quarter of the members, if more

Submitted = tuple[object, Command]  # a ticket and its command; the ticket of the service's own commands is None


@dataclass(slots=True)
class _LoadedJob:
    """A job as last read or written. `tail` counts the events after its newest record."""

    job: Job | None
    revision: int
    tail: int
    stale: bool = False  # the store is ahead; read again before deciding


@dataclass(slots=True)
class _Draft:
    """The decisions of one pump for one job, before they are written."""

    name: str
    known: _LoadedJob
    submitted: list[Submitted]
    after: Job | None
    events: tuple[Event, ...]
    answers: list[Rejection | None]
    bug: str = ""


class Service:
    """One coordinator. `owner` names this run of this process. `wall` returns the time that events are stamped with."""

    def __init__(self, store: Store, owner: str, wall: Callable[[], float], lease_ttl_s: float = LEASE_TTL_S) -> None:
        self._store = store
        self._wall = wall
        self._lease_ttl_s = lease_ttl_s
        self._inbox: list[tuple[object, str, Command]] = []
        self._postponed: list[tuple[object, str, Sender, int]] = []  # renewals that wait for the next pump
        self._jobs: dict[str, _LoadedJob] = {}
        self._liveness = Liveness(lease_ttl_s)
        self._set_back: dict[str, str] = {}  # by job, why this coordinator decides nothing more (`_stop_set_back`)
        self._leader = Leader(store, owner)
        self._bugs: list[str] = []
        self._read_again: set[str] = set()  # jobs read in this pump, whose watchers may not have the newest events

    # ------------------------------------------------------------------------------------------ commands

    def submit(self, job: str, command: Command, ticket: object) -> bool:
        """Queue a command for the next pump. False if the inbox is full, which the caller must report."""
        if len(self._inbox) >= INBOX_MAX:
            return False
        self._inbox.append((ticket, job, command))
        return True

    def job(self, name: str) -> tuple[Job, int] | None:
        """Return a job and its revision, for reading only."""
        known = self._jobs.get(name)
        return (known.job, known.revision) if known and known.job else None

    def _state_of(self, name: str) -> Job | None:
        known = self._jobs.get(name)
        return known.job if known else None

    def names(self) -> tuple[str, ...]:
        """Return the names of all loaded jobs, sorted."""
        return tuple(sorted(self._jobs))

    @property
    def leads(self) -> bool:
        return self._leader.leads

    @property
    def why(self) -> str:
        """The reason why this coordinator does not lead; empty while it does."""
        return "" if self._leader.leads else self._leader.why

    def close(self) -> None:
        """Release the hold on a clean exit, so that the next coordinator need not wait for its expiry."""
        self._leader.release()

    # -------------------------------------------------------------------------------------- signs of life

    def renew(self, name: str, sender: Sender, revision: int, now: float) -> RenewalReply | None:
        """Answer a renewal at once, without a pump: thousands arrive in a second, and none changes any state.

        None if the store must be asked first, for the hold or for the job. Then `postpone` it.
        """
        known = self._jobs.get(name)
        if known is None or known.stale or name in self._set_back:
            return None
        if not self._leader.is_sure(now) or revision > known.revision:
            return None
        rejection = self._liveness.renew(name, known.job, sender, now)
        return RenewalReply(None, name, sender, rejection or _renewed(known, sender, revision), known.revision)

    def postpone(self, name: str, sender: Sender, revision: int, ticket: object) -> bool:
        """Queue a renewal for the next pump. False if the queue is full, which the caller must report."""
        if len(self._postponed) >= INBOX_MAX:
            return False
        self._postponed.append((ticket, name, sender, revision))
        return True

    def isolated_s(self, now: float) -> float | None:
        """Return how long no member or agent of any job has sent a message, if that is too long to be their fault."""
        return self._liveness.isolated_s(now)

    def suspect(self, name: str, sender: Sender, now: float) -> None:
        """Note a closed watch at once, without a pump: a sender that comes back a moment later clears the suspicion."""
        self._liveness.suspect(name, self._state_of(name), sender, now)

    def record_hangup(self, name: str, sender: Sender, now: float) -> None:
        """Note that a connection was closed on which its sender had joined or watched."""
        self._liveness.record_hangup(name, sender, now)

    # ------------------------------------------------------------------------------------------- the pump

    def pump(self, now: float) -> Pumped:
        """Decide all queued commands. Call it after `submit` and `postpone`, and at least a few times a second."""
        inbox, self._inbox = self._inbox, []
        postponed, self._postponed = self._postponed, []
        self._bugs.clear()
        self._read_again.clear()
        standing = self._leader.gain_or_renew(now)
        refusal = self._prepare_to_lead(now, standing)
        if refusal is not None:
            # The service's own commands are void: the next leader grants every lease anew.
            submitted = [entry for entry in inbox if entry[0] is not None]
            return Pumped(
                tuple(Reply(ticket, job, command, refusal) for ticket, job, command in submitted),
                tuple(RenewalReply(ticket, job, sender, refusal) for ticket, job, sender, _ in postponed),
            )
        by_job: dict[str, list[Submitted]] = {}
        for _, _, command in inbox:
            self._liveness.note_command(command, now)
        for _, name, sender, _ in postponed:
            self._liveness.renew_early(name, sender, now)
        for name, command in self._liveness.due(now, self._state_of):
            by_job.setdefault(name, []).append((None, command))
        for ticket, name, command in inbox:
            by_job.setdefault(name, []).append((ticket, command))
        replies: list[Reply] = []
        done: list[_Draft] = []
        for _ in range(TRIES):
            by_job = self._attempt(by_job, now, replies, done)
            if not by_job:
                break
        for name, submitted_to in by_job.items():
            self._send_back(name, submitted_to, "others kept writing to this job; ask again", replies)
        renewed = self._renew_postponed(postponed, now)
        return Pumped(
            tuple(reply for reply in replies if reply.ticket is not None),
            renewed,
            changed=(*(draft.name for draft in done), *self._read_again),
            took_over=standing is Standing.NEWLY,
            decided=tuple((draft.name, draft.events) for draft in done),
            moved=(*(draft.name for draft in done if changes_membership(draft.events)), *self._read_again),
            bugs=tuple(self._bugs),
        )

    def _attempt(
        self,
        by_job: dict[str, list[Submitted]],
        now: float,
        replies: list[Reply],
        done: list[_Draft],
    ) -> dict[str, list[Submitted]]:
        """Decide and write once. Return the commands that lost their race, to be decided again on the newer state."""
        drafts: list[_Draft] = []
        for name, submitted in by_job.items():
            try:
                drafts.append(self._decide(name, submitted, now))
            except PliantError as error:
                self._send_back(name, submitted, f"the store did not answer: {error}", replies)
        writing = [draft for draft in drafts if draft.events and not draft.bug]
        writes = [self._write(draft) for draft in writing]
        again: dict[str, list[Submitted]] = {}
        try:
            outcomes = self._store.write(writes) if writes else ()
            won = [isinstance(outcome, Written) for outcome in outcomes]
            for write, outcome in zip(writes, outcomes, strict=True):
                if outcome.revision < write.expected:
                    self._stop_set_back(write.job, write.expected, outcome.revision)
        except StoreTimeout:
            won = [self._was_applied(write) for write in writes]
        except StoreError as error:
            for draft in writing:
                self._send_back(draft.name, draft.submitted, f"the store failed: {error}", replies)
            drafts = [draft for draft in drafts if not any(draft is each for each in writing)]
            won, writing, writes = [], [], []
        for draft, write, is_won in zip(writing, writes, won, strict=True):
            if is_won:
                self._adopt(draft, write, now)
                done.append(draft)
            else:
                draft.known.stale = True
                again[draft.name] = draft.submitted
        for draft in drafts:
            if draft.name not in again:
                self._finish(draft, now, replies)
        return again

    def _decide(self, name: str, submitted: list[Submitted], now: float) -> _Draft:
        known = self._jobs.get(name)
        if known is None or known.stale:
            known = self._read(name, now)
        job = known.job
        events: tuple[Event, ...] = ()
        answers: list[Rejection | None] = []
        wall = self._wall()
        for _, command in submitted:
            if name in self._set_back and not isinstance(command, m.Cancel):
                answers.append(Rejection(m.Code.SET_BACK, self._set_back[name]))
                continue
            if self._liveness.is_void(name, command):
                answers.append(None)
                continue
            decision = decide(job, command, wall)
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
            bug = "; ".join(all_violations(known.job, events))
            if bug:
                self._bugs.append(f"{name}: {bug}")
        return _Draft(name, known, submitted, job, events, answers, bug)

    def _write(self, draft: _Draft) -> Write:
        known, job = draft.known, draft.after
        assert job is not None  # there are events, and the first of them created it
        # A record costs as much as the job has members, so it is written rarely and the tail has the events since.
        whole = known.revision == 0 or known.tail + len(draft.events) > max(TAIL_MAX, len(job.members) // 4)
        encoded = tuple(EVENTS.encode(event) for event in draft.events)
        return Write(draft.name, known.revision, encoded, encode_state(job) if whole else None)

    def _adopt(self, draft: _Draft, write: Write, now: float) -> None:
        """Replace the loaded job by the one that was written."""
        known = self._jobs[draft.name] = draft.known
        known.job = draft.after
        known.revision += len(draft.events)
        known.tail = 0 if write.record is not None else known.tail + len(draft.events)
        if changes_membership(draft.events):
            self._liveness.follow(draft.name, known.job, now)

    def _finish(self, draft: _Draft, now: float, replies: list[Reply]) -> None:
        """Answer the commands of a draft. Progress is a sign of life of the whole generation that made it (rule 19).

        A report without progress is not: its sender may be waiting for a member that is frozen.
        """
        known = draft.known
        for event in draft.events:
            if isinstance(event, m.StepsCommitted | m.WorldEntered):
                self._liveness.credit_generation(draft.name, event.generation, now)
        for (ticket, command), rejection in zip(draft.submitted, draft.answers, strict=True):
            answer: Answer
            if draft.bug:
                answer = Unavailable(f"refused to write, this is a bug in Pliant: {draft.bug}")
            elif rejection is not None:
                answer = rejection
            else:
                member = sender_of(command)
                if member is not None and not isinstance(command, m.Drain):  # people send Drain too
                    self._liveness.renew_by_command(draft.name, member, now)
                shown = view_of(known.job, known.revision, member) if known.job and member else None
                answer = Accepted(known.revision, shown)
            replies.append(Reply(ticket, draft.name, command, answer, known.revision))

    def _send_back(self, name: str, submitted: list[Submitted], why: str, replies: list[Reply]) -> None:
        """Answer commands without a decision. The service's own commands are queued again for the next pump."""
        for ticket, command in submitted:
            if ticket is not None:
                replies.append(Reply(ticket, name, command, Unavailable(why)))
            elif not isinstance(command, m.Suspect):  # the member may be back by then; if not, its lease expires
                self._inbox.append((None, name, command))

    def _renew_postponed(
        self, postponed: list[tuple[object, str, Sender, int]], now: float
    ) -> tuple[RenewalReply, ...]:
        """Answer renewals after the commands of the same pump, and read each of their jobs at most once."""
        read: dict[str, _LoadedJob] = {}
        renewed = []
        for ticket, name, sender, revision in postponed:
            known = read.get(name) or self._jobs.get(name)
            try:
                if known is None or known.stale or (revision > known.revision and name not in read):
                    known = read[name] = self._read(name, now)  # another coordinator may have written that revision
            except PliantError as error:
                why = Unavailable(f"the store did not answer: {error}")
                renewed.append(RenewalReply(ticket, name, sender, why))
                continue
            answer = self._renew_in(name, known, sender, revision, now)
            renewed.append(RenewalReply(ticket, name, sender, answer, known.revision))
        return tuple(renewed)

    def _renew_in(self, name: str, known: _LoadedJob, sender: Sender, revision: int, now: float) -> Answer:
        if name in self._set_back:
            return Rejection(m.Code.SET_BACK, self._set_back[name])
        if revision > known.revision:
            # Only a sender that the store has can stop the job. A stranger may have mistyped the revision.
            if self._liveness.is_leased(name, sender):
                self._stop_set_back(name, revision, known.revision)
            return Rejection(m.Code.SET_BACK, describe_set_back(name, revision, known.revision))
        return self._liveness.renew(name, known.job, sender, now) or _renewed(known, sender, revision)

    # ---------------------------------------------------------------------------------------- the store

    def _prepare_to_lead(self, now: float, standing: Standing) -> Unavailable | None:
        """Load every job if this coordinator newly leads. Return a refusal for all commands if it does not lead."""
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
        """Read every job and grant every lease anew: leases may expire late, never early."""
        for name in (name for name in self._store.jobs() if not name.startswith(RESERVED)):
            try:
                self._load(name, now)
            except BadInput as error:
                self._bugs.append(f"{name} cannot be read, the other jobs go on: {error}")

    def _forget(self) -> None:
        self._jobs.clear()
        self._liveness = Liveness(self._lease_ttl_s)

    def _stop_set_back(self, name: str, acknowledged: int, found: int) -> None:
        """Stop deciding for a job whose store lost an acknowledged revision.

        Further decisions would use generation numbers a second time (P6, ADR 0009).
        """
        if name not in self._set_back:
            self._set_back[name] = describe_set_back(name, acknowledged, found)
            self._bugs.append(f"{name}: {self._set_back[name]}")

    def _read(self, name: str, now: float) -> _LoadedJob:
        """Read a job that another coordinator may have written, and have its watchers notified."""
        known = self._load(name, now)
        if known.job is not None:
            self._read_again.add(name)
        return known

    def _load(self, name: str, now: float) -> _LoadedJob:
        stored = self._store.read(name)
        if stored is None:
            return _LoadedJob(None, 0, 0)  # not remembered, because a client may ask for any name
        job = stored_job(stored)
        known = self._jobs[name] = _LoadedJob(job, stored.revision, len(stored.tail))
        self._liveness.follow(name, job, now)
        return known

    def _was_applied(self, write: Write) -> bool:
        """Return whether a write that timed out stands in the store."""
        with suppress(StoreError):
            found = self._store.events(write.job, write.expected, len(write.events))
            return tuple(entry.data for entry in found) == write.events
        return False


def stored_job(stored: Stored) -> Job:
    """Return the state of a job from its record and the events after it."""
    job = decode_state(stored.record, Job)
    for data in stored.tail:
        job = evolve(job, EVENTS.decode(data))
    return job


def _renewed(known: _LoadedJob, sender: Sender, revision: int) -> Accepted:
    """Accept a renewal, with the view of a member that has an older one."""
    if known.job is None or sender.kind != "member" or revision >= known.revision:
        return Accepted(known.revision, None)
    return Accepted(known.revision, view_of(known.job, known.revision, MemberId(sender.id)))
