"""The coordinator's service: turns commands into durable decisions, and renewals into leases.

`submit` queues a command. `pump(now)` takes all queued commands, decides them, writes the store once, and only then
answers. `renew` answers a renewal at once, without a pump. The service is synchronous and does no I/O except the
store's, so the simulator calls it from its own loop. The server runs `pump_steps` and makes the store's calls in a
thread (`service.steps`). All other methods may be called between two steps, and nothing else runs at the same time.
Safety comes from the compare-and-swap of each write, and from the hold under which the store accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pliant.coordinator.service.draft import Draft, Submitted, draft_decisions
from pliant.coordinator.service.inbox import (
    Accepted,
    Answer,
    DeletionReply,
    LookupReply,
    Pumped,
    RenewalReply,
    Reply,
    Sender,
    Unavailable,
    describe_set_back,
    sender_of,
)
from pliant.coordinator.service.leader import HOLD_NAME, HOLD_TTL_S, Leader, Standing
from pliant.coordinator.service.liveness import Liveness
from pliant.coordinator.service.loaded_jobs import LoadedJob, LoadedJobs, accept_renewal, read_job, read_page
from pliant.coordinator.service.scheduler import Scheduler
from pliant.coordinator.service.steps import CallResult, Steps, run
from pliant.core import messages as m
from pliant.core.job.retention import refuse_deletion
from pliant.core.leases import LEASE_TTL_S
from pliant.core.messages import Command, Rejection
from pliant.core.model.job import Job
from pliant.errors import HoldLost, PliantError, StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.base import Conflict, Hold, Outcome, Store, Write, Written

UNASKED_LOOKUPS_MAX = 64  # loads that no request waits for, in one pump: more could outlast the hold
INBOX_MAX = 65536
TRIES = 4  # lost races in one pump before its commands are sent back
FAILURES_MAX = 2  # reads that the store left unanswered in one pump; each may have taken as long as the store waits

T = TypeVar("T")


class Service:
    """One coordinator. `owner` names this run of this process, `url` is its address for clients of other coordinators.

    `wall` returns the time that events are stamped with.
    """

    def __init__(
        self, store: Store, owner: str, wall: Callable[[], float], lease_ttl_s: float = LEASE_TTL_S, url: str = ""
    ) -> None:
        self._store = store
        self._owner = owner
        self._url = url
        self._wall = wall
        self._lease_ttl_s = lease_ttl_s
        self._inbox: list[tuple[object, str, Command]] = []
        self._postponed: list[tuple[object, str, Sender, int]] = []  # renewals that wait for the next pump
        self._lookups: list[tuple[object, str]] = []  # jobs that are not loaded and wait for the next pump
        self._deletions: list[tuple[object, str, float | None]] = []  # jobs to delete in the next pump
        self._jobs = LoadedJobs()
        self._is_loaded = False  # all live jobs are loaded
        self._liveness = Liveness(lease_ttl_s)
        self.scheduler = Scheduler()
        self._set_back: dict[str, str] = {}  # by job, why this coordinator decides nothing more (`_stop_set_back`)
        self._leader = Leader()
        self._now = 0.0  # of the current step of the pump
        self._failures = 0  # reads that the store left unanswered in this pump
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
        """Return a loaded job and its revision, for reading only. All live jobs are loaded; `look_up` loads others."""
        known = self._jobs.get(name)
        return (known.job, known.revision) if known and known.job else None

    def look_up(self, name: str, ticket: object) -> bool:
        """Have the next pump load a job. False if the queue is full, which the caller must report."""
        if len(self._lookups) >= (UNASKED_LOOKUPS_MAX if ticket is None else INBOX_MAX):
            return False
        self._lookups.append((ticket, name))
        return True

    def refuse_queued(self, why: str) -> Pumped:
        """Answer all requests that wait for the next pump. The service's own commands stay."""
        refusal = Unavailable(why)
        replies = tuple(Reply(*entry, refusal) for entry in self._inbox if entry[0] is not None)
        renewed = tuple(RenewalReply(ticket, job, sender, refusal) for ticket, job, sender, _ in self._postponed)
        found = tuple(LookupReply(ticket, refusal) for ticket, _ in self._lookups)
        self._inbox = [entry for entry in self._inbox if entry[0] is None]
        deleted = tuple(DeletionReply(ticket, refusal) for ticket, _, _ in self._deletions)
        self._postponed, self._lookups, self._deletions = [], [], []
        return Pumped(replies, renewed, found, deleted)

    def delete(self, name: str, ended_before: float | None, ticket: object) -> bool:
        """Have the next pump delete a job, unless it ended later. False if the queue is full."""
        if len(self._deletions) >= INBOX_MAX:
            return False
        self._deletions.append((ticket, name, ended_before))
        return True

    def _state_of(self, name: str) -> Job | None:
        known = self._jobs.get(name)
        return known.job if known else None

    def names(self) -> tuple[str, ...]:
        """Return the names of all loaded jobs, sorted."""
        return tuple(sorted(self._jobs))

    @property
    def leads(self) -> bool:
        """True while this coordinator has the hold and all live jobs are loaded."""
        return self._leader.hold is not None and self._is_loaded

    @property
    def hold(self) -> Hold | None:
        """The hold under which this coordinator leads; None if it does not lead."""
        return self._leader.hold if self._is_loaded else None

    def is_sure(self, now: float) -> bool:
        """Return whether this coordinator leads and its hold is in force, without asking the store."""
        return self._is_loaded and self._leader.is_sure(now)

    @property
    def why(self) -> str:
        """The reason why this coordinator does not lead; empty while it does."""
        if self.leads:
            return ""
        return self._leader.why if self._leader.hold is None else "it has just taken over and is loading the jobs"

    @property
    def is_standby(self) -> bool:
        """True if another coordinator leads, as far as this one knows."""
        return self._leader.hold is None and self._leader.is_other

    @property
    def leader_url(self) -> str:
        """The URL of the coordinator that leads, if that is another one and its URL is known."""
        return self._leader.url

    def close(self) -> None:
        """Release the hold on a clean exit, so that the next coordinator need not wait for its expiry."""
        run(self.close_steps(), self._now)

    def close_steps(self) -> Steps[None]:
        """Return `close` as a sequence of store calls."""
        hold = self._leader.hold
        if hold is not None:
            self._step_down("it is shutting down")
            yield from self._ask(partial(self._store.release, hold))

    # -------------------------------------------------------------------------------------- signs of life

    def renew(self, name: str, sender: Sender, revision: int, now: float) -> RenewalReply | None:
        """Answer a renewal at once, without a pump: thousands arrive in a second, and none changes any state.

        None if the store must be asked first, for the hold or for the job. Then `postpone` it.
        """
        known = self._jobs.get(name)
        if known is None or known.stale or name in self._set_back:
            return None
        if not self.is_sure(now) or revision > known.revision:
            return None
        rejection = self._liveness.renew(name, known.job, sender, now)
        return RenewalReply(None, name, sender, rejection or accept_renewal(known, sender, revision), known.revision)

    def postpone(self, name: str, sender: Sender, revision: int, ticket: object) -> bool:
        """Queue a renewal for the next pump. False if the queue is full, which the caller must report."""
        if len(self._postponed) >= INBOX_MAX:
            return False
        self._postponed.append((ticket, name, sender, revision))
        return True

    def note_renewal(self, name: str, sender: Sender, now: float) -> None:
        """Count a renewal that could not be answered as a sign of life all the same."""
        self._leader.note_call(now)
        self._liveness.renew_early(name, sender, now)

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
        return run(self.pump_steps(now), now)

    def pump_steps(self, now: float) -> Steps[Pumped]:
        """Return `pump` as a sequence of store calls. Run one at a time, each to its end."""
        self._now = now
        self._failures = 0
        self._bugs.clear()
        self._read_again.clear()
        standing = yield from self._lead()
        # Taken now and not before: what was queued while the store was asked for the hold is decided as well.
        inbox, self._inbox = self._inbox, []
        postponed, self._postponed = self._postponed, []
        lookups, self._lookups = self._lookups, []
        deletions, self._deletions = self._deletions, []
        replies: list[Reply] = []
        done: list[Draft] = []
        renewed: tuple[RenewalReply, ...] = ()
        found: tuple[LookupReply, ...] = ()
        deleted: list[DeletionReply] = []
        if self.leads:
            found = yield from self._find(lookups)
            by_job = self._sort(inbox, postponed)
            for _ in range(TRIES):
                by_job = yield from self._attempt(by_job, replies, done)
                if not by_job:
                    break
            for name, submitted_to in by_job.items():
                self._send_back(name, submitted_to, "others kept writing to this job; ask again", replies)
            renewed = yield from self._renew_postponed(postponed)
            for ticket, name, ended_before in deletions:
                answer, revision = yield from self._delete(name, ended_before)
                deleted.append(DeletionReply(ticket, answer, revision))
        else:
            if postponed:
                self._leader.note_call(self._now)
            # The service's own commands are void: the next leader grants every lease anew.
            refusal = Unavailable(self.why)
            replies = [Reply(*entry, refusal) for entry in inbox]
            renewed = tuple(RenewalReply(ticket, job, sender, refusal) for ticket, job, sender, _ in postponed)
            found = tuple(LookupReply(ticket, refusal) for ticket, _ in lookups)
            deleted = [DeletionReply(ticket, refusal) for ticket, _, _ in deletions]
        return Pumped(
            tuple([reply for reply in replies if reply.ticket is not None]),
            renewed,
            found,
            tuple(deleted),
            changed=(*[draft.name for draft in done], *self._read_again),
            took_over=standing is Standing.NEWLY and self.leads,
            decided=tuple([(draft.name, draft.events) for draft in done]),
            moved=(*[draft.name for draft in done if draft.changes_membership], *self._read_again),
            bugs=tuple(self._bugs),
        )

    def _ask(self, call: Callable[[], T]) -> Steps[T]:
        """Have a call of the store made, and go on with its result at a later time."""
        result: CallResult = yield call
        self._now = result.now
        if result.error is not None:
            raise result.error
        value: T = result.value  # type: ignore[assignment]  # the result of `call`
        return value

    def _sort(
        self, inbox: list[tuple[object, str, Command]], postponed: list[tuple[object, str, Sender, int]]
    ) -> dict[str, list[Submitted]]:
        """Return all commands by job, those of expired leases first. Signs of life count before leases expire."""
        by_job: dict[str, list[Submitted]] = {}
        for _, _, command in inbox:
            self._liveness.note_command(command, self._now)
        for _, name, sender, _ in postponed:
            self._liveness.renew_early(name, sender, self._now)
        due = list(self._liveness.due(self._now, self._state_of))
        for name, command in due + self.scheduler.due(self._now, self._wall(), self._jobs, inbox):
            by_job.setdefault(name, []).append((None, command))
        for ticket, name, command in inbox:
            by_job.setdefault(name, []).append((ticket, command))
        return by_job

    def _attempt(
        self, by_job: dict[str, list[Submitted]], replies: list[Reply], done: list[Draft]
    ) -> Steps[dict[str, list[Submitted]]]:
        """Decide and write once. Return the commands that lost their race, to be decided again on the newer state."""
        drafts: list[Draft] = []
        for name, submitted in by_job.items():
            try:
                drafts.append((yield from self._decide(name, submitted)))
            except PliantError as error:
                self._send_back(name, submitted, self._note_failure(error), replies)
        writing = [draft for draft in drafts if draft.events and not draft.bug]
        writes = [draft.encode() for draft in writing]
        again: dict[str, list[Submitted]] = {}
        try:
            outcomes: tuple[Outcome, ...] = ()
            if writes:
                outcomes = yield from self._ask(partial(self._store.write, writes, self._leader.hold))
            written = [outcome.revision if isinstance(outcome, Written) else 0 for outcome in outcomes]
            for write, outcome in zip(writes, outcomes, strict=True):
                if outcome.revision < write.expected:
                    self._stop_set_back(write.job, write.expected, outcome.revision)
        except StoreTimeout:
            written = yield from self._find_applied(writes)
        except HoldLost as error:
            # Nothing is answered from the state of a leader that was replaced, not even a rejection.
            self._step_down(f"its hold is over: {error}")
            for draft in drafts:
                self._send_back(draft.name, draft.submitted, self.why, replies)
            return {}
        except StoreError as error:
            for draft in writing:
                self._send_back(draft.name, draft.submitted, f"the store failed: {error}", replies)
            drafts = [draft for draft in drafts if not any(draft is each for each in writing)]
            written, writing, writes = [], [], []
        for draft, write, revision in zip(writing, writes, written, strict=True):
            if revision:
                self._adopt(draft, write, revision)
                done.append(draft)
            else:
                draft.known.stale = True
                again[draft.name] = draft.submitted
        for draft in drafts:
            if draft.name not in again:
                self._finish(draft, replies)
        return again

    def _decide(self, name: str, submitted: list[Submitted]) -> Steps[Draft]:
        known = self._jobs.get(name)
        if known is None or known.stale:
            known = yield from self._read(name)
        set_back, is_void = self._set_back.get(name), self._liveness.is_void
        draft = draft_decisions(name, known, submitted, self._wall(), set_back, is_void)
        if draft.bug:
            self._bugs.append(f"{name}: {draft.bug}")
        return draft

    def _adopt(self, draft: Draft, write: Write, revision: int) -> None:
        """Replace the loaded job by the one that was written."""
        known = draft.known
        known.job = draft.after
        known.revision = revision
        known.tail = 0 if write.record is not None else known.tail + len(draft.events)
        self._jobs.put(draft.name, known)
        if draft.changes_membership or draft.changes_shards:
            self._liveness.follow(draft.name, known.job, self._now)

    def _finish(self, draft: Draft, replies: list[Reply]) -> None:
        """Answer the commands of a draft. Progress is a sign of life of the whole generation that made it (rule 19).

        A report without progress is not: its sender may be waiting for a member that is frozen.
        """
        known, now = draft.known, self._now
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
                durable = known.job.durable if known.job and member else None
                shards = known.job.tasks.held_by(member) if known.job and known.job.tasks and member else None
                answer = Accepted(known.revision, durable, shards)
            replies.append(Reply(ticket, draft.name, command, answer, known.revision))

    def _send_back(self, name: str, submitted: list[Submitted], why: str, replies: list[Reply]) -> None:
        """Answer commands without a decision. The service's own commands are queued again for the next pump."""
        for ticket, command in submitted:
            if ticket is not None:
                replies.append(Reply(ticket, name, command, Unavailable(why)))
            elif not isinstance(command, m.Suspect):  # the member may be back by then; if not, its lease expires
                self._inbox.append((None, name, command))

    def _renew_postponed(self, postponed: list[tuple[object, str, Sender, int]]) -> Steps[tuple[RenewalReply, ...]]:
        """Answer renewals after the commands of the same pump, and read each of their jobs at most once."""
        read: dict[str, LoadedJob] = {}
        renewed = []
        for ticket, name, sender, revision in postponed:
            answer: Answer
            if not self.leads:  # the hold was lost earlier in this pump
                renewed.append(RenewalReply(ticket, name, sender, Unavailable(self.why)))
                continue
            known = read.get(name) or self._jobs.get(name)
            try:
                if known is None or known.stale or (revision > known.revision and name not in read):
                    known = read[name] = yield from self._read(name)  # another coordinator may have written it
                answer = self._renew_in(name, known, sender, revision)
                renewed.append(RenewalReply(ticket, name, sender, answer, known.revision))
            except PliantError as error:
                answer = Unavailable(self._note_failure(error))
                renewed.append(RenewalReply(ticket, name, sender, answer))
        return tuple(renewed)

    def _renew_in(self, name: str, known: LoadedJob, sender: Sender, revision: int) -> Answer:
        if name in self._set_back:
            return Rejection(m.Code.SET_BACK, self._set_back[name])
        if revision > known.revision:
            # Only a sender that the store has can stop the job. A stranger may have mistyped the revision.
            if self._liveness.is_leased(name, sender):
                self._stop_set_back(name, revision, known.revision)
            return Rejection(m.Code.SET_BACK, describe_set_back(name, revision, known.revision))
        return self._liveness.renew(name, known.job, sender, self._now) or accept_renewal(known, sender, revision)

    # ---------------------------------------------------------------------------------------- leading

    def _lead(self) -> Steps[Standing]:
        """Renew or gain the hold if it is time, and load the live jobs if this coordinator newly leads."""
        standing = yield from self._hold()
        if standing is Standing.WAITS:
            self._forget()
        elif standing is Standing.AGAIN and self._is_loaded:
            self._grant_anew()
        elif standing is Standing.NEWLY or not self._is_loaded:
            self._forget()
            try:
                yield from self._take_over()
                return Standing.NEWLY
            except StoreError as error:
                self._step_down(f"the store did not answer: {error}")
        return standing

    def _hold(self) -> Steps[Standing]:
        held = self._leader.hold
        if not self._leader.is_due(self._now):
            return Standing.LEADS if held is not None else Standing.WAITS
        try:
            if held is not None and self.is_sure(self._now) and (yield from self._may_another_lead()):
                yield from self._ask(partial(self._store.release, held))
                return self._leader.stand_back(self._now)
            hold = partial(self._store.hold, HOLD_NAME, self._owner, HOLD_TTL_S, self._now, self._url)
            standing = self._leader.answered((yield from self._ask(hold)), self._now)
        except StoreError as error:
            return self._leader.failed(error, self._now)
        if standing is Standing.WAITS:
            with suppress(StoreError):  # the next pump tries again
                for name in self._leader.names_of_a_standby(self._now):
                    yield from self._ask(partial(self._store.hold, name, self._owner, HOLD_TTL_S, self._now))
        return standing

    def _may_another_lead(self) -> Steps[bool]:
        """Return whether no message arrives here while another coordinator is there that members may reach."""
        for name in self._successors():
            other = yield from self._ask(partial(self._store.holder, name, self._now))
            if other is not None and other.owner != self._owner:
                return name in self._successors()  # a message may have arrived meanwhile
        return False

    def _successors(self) -> tuple[str, ...]:
        if not self._liveness.expects_messages:
            return ()
        is_isolated = self._liveness.isolated_s(self._now) is not None
        return self._leader.successors(self._liveness.quiet_s(self._now), is_isolated, self._lease_ttl_s, self._now)

    def _take_over(self) -> Steps[None]:
        """Load every live job and grant every lease anew: leases may expire late, never early.

        The hold is renewed between two pages.
        """
        after = ""
        while True:
            page = yield from self._ask(partial(read_page, self._store, after))
            for name, known in page.jobs:
                self._keep(name, known)
            for name, why in page.unreadable:
                self._bugs.append(f"{name} cannot be read, the other jobs go on: {why}")
            if not page.last:
                break
            after = page.last
            if (yield from self._hold()) not in (Standing.LEADS, Standing.AGAIN):
                self._step_down(self._leader.why)
                return
        self._is_loaded = True

    def _grant_anew(self) -> None:
        """Grant every lease anew after a time in which no coordinator led."""
        self._liveness = Liveness(self._lease_ttl_s)
        for name, known in self._jobs.items():
            self._liveness.follow(name, known.job, self._now)

    def _step_down(self, why: str) -> None:
        """Stop leading. The next pump asks for the hold again."""
        self._leader.lose(why)
        self._forget()

    def _forget(self) -> None:
        self._is_loaded = False
        self._jobs.clear()
        self._liveness = Liveness(self._lease_ttl_s)
        self.scheduler.forget()

    # ---------------------------------------------------------------------------------------- the store

    def _note_failure(self, error: PliantError) -> str:
        """Return why a request cannot be decided, and count the failures of a store that is away."""
        self._failures += isinstance(error, StoreUnavailable | StoreTimeout)
        return f"the store did not answer: {error}"

    @property
    def _is_away(self) -> bool:
        """True if the store is away, so that this pump asks it nothing more: hundreds of jobs may be waiting."""
        return self._failures >= FAILURES_MAX

    def _stop_set_back(self, name: str, acknowledged: int, found: int) -> None:
        """Stop deciding for a job whose store lost an acknowledged revision.

        Further decisions would use generation numbers a second time (P6, ADR 0009).
        """
        if name not in self._set_back:
            self._set_back[name] = describe_set_back(name, acknowledged, found)
            self._bugs.append(f"{name}: {self._set_back[name]}")

    def _read(self, name: str) -> Steps[LoadedJob]:
        """Read a job that is not loaded or that another coordinator wrote, and have its watchers notified."""
        if self._is_away:
            raise StoreUnavailable("it did not answer earlier requests; ask again")
        known = yield from self._ask(partial(read_job, self._store, name))
        if known is None:
            self._jobs.drop(name)
            self._liveness.follow(name, None, self._now)
            return LoadedJob(None, 0, 0)  # not remembered, because a client may ask for any name
        self._keep(name, known)
        self._read_again.add(name)
        return known

    def _find(self, lookups: list[tuple[object, str]]) -> Steps[tuple[LookupReply, ...]]:
        """Load jobs that requests named. The caller finds them with `job` afterwards, if they exist."""
        problems: dict[str, Unavailable] = {}
        for name in {name for _, name in lookups}:
            if self._jobs.get(name) is None:
                try:
                    yield from self._read(name)
                except PliantError as error:
                    problems[name] = Unavailable(self._note_failure(error))
        return tuple(LookupReply(ticket, problems.get(name)) for ticket, name in lookups)

    def _keep(self, name: str, known: LoadedJob) -> None:
        self._jobs.put(name, known)
        self._liveness.follow(name, known.job, self._now)

    def _delete(self, name: str, ended_before: float | None) -> Steps[tuple[Answer, int]]:
        """Delete a job. Return the answer, and the revision at which the job was deleted."""
        if not self.leads:  # the hold was lost earlier in this pump
            return Unavailable(self.why), 0
        try:
            known = self._jobs.get(name)
            if known is None or known.stale:
                known = yield from self._read(name)
            refusal = refuse_deletion(name, known.job, ended_before)
            if refusal is not None:
                return refusal, 0
            revision = known.revision
            try:
                conflict = yield from self._ask(partial(self._store.delete, name, revision, self._leader.hold))
            except StoreTimeout:
                conflict = Conflict(revision) if (yield from self._read(name)).job is not None else None
        except HoldLost as error:
            self._step_down(f"its hold is over: {error}")
            return Unavailable(self.why), 0
        except PliantError as error:
            return Unavailable(self._note_failure(error)), 0
        if conflict is not None:
            self._jobs.mark_stale(name)
            return Unavailable(f"job {name} changed meanwhile; ask again"), 0
        self._jobs.drop(name)
        self._liveness.follow(name, None, self._now)
        self._read_again.add(name)  # its watchers find it gone
        return Accepted(revision, None), revision

    def _find_applied(self, writes: list[Write]) -> Steps[list[int]]:
        """Return for each write that timed out its revision in the store; 0 if it is not there, or not to be found."""
        applied = []
        for write in writes:
            revision = 0
            if not self._is_away:
                try:
                    read = partial(self._store.events, write.job, write.expected, len(write.events))
                    found = yield from self._ask(read)
                    if tuple(entry.data for entry in found) == write.events:
                        revision = found[-1].revision
                except StoreError as error:
                    self._note_failure(error)
            applied.append(revision)
        return applied
