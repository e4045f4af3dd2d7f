"""Checks of a task queue: of each event, of each answer, of its state's size, of time, and of the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pliant.coordinator.service.inbox import Accepted, Answer
from pliant.coordinator.service.liveness import ISOLATION_FRACTION
from pliant.core import messages as m
from pliant.core.leases import LEASE_TTL_S
from pliant.core.messages import Event, Rejection
from pliant.core.model.job import Job, JobState
from pliant.core.tasks import messages as t
from pliant.core.tasks.audit import TaskHistory
from pliant.core.tasks.decide import LOSSES_MAX, RAISED_MAX
from pliant.core.tasks.member import AHEAD
from pliant.core.tasks.model import UNSAVED_MAX, HeldShard, ShardKind, TaskState
from pliant.wire.api import EVENTS
from pliant_sim.checks import StoreChecks
from pliant_sim.processes.coordinator import PUMP_EVERY_S, Ask
from pliant_sim.requests import Request
from pliant_sim.tasks.books import Books, Record

if TYPE_CHECKING:
    from pliant_sim.processes.coordinator import Given
    from pliant_sim.tasks.worker import TaskWorker
    from pliant_sim.tasks.world import TaskSimulation

LATE_S = 2.5  # a deadline is noticed at the next pump, and the clocks of the simulated coordinators are set back
WAIT_S = 45.0  # a returned shard waits so long at most: for a lease, the longest backoff of an agent, and a shard


class TaskChecks(StoreChecks):
    """Collects complaints about a task queue."""

    def __init__(self, sim: TaskSimulation) -> None:
        super().__init__(sim)
        self.sim = sim
        self.books: Books | None = None
        self.history = TaskHistory()
        self.effects: Counter[Record] = Counter()  # how often user code processed a record
        self.members_max = 0
        self.evaluated: list[tuple[int, int]] = []  # number and records of each evaluation that is done
        self.offsets: dict[int, tuple[str, int]] = {}  # of a queue with partitions, by the numbers of records
        self.numbers: dict[tuple[str, int], int] = {}
        self.well_since = 0.0  # since when coordinators, store and network are well

    # ------------------------------------------------------------------------------------------- the events

    def check_event(self, event: Event, after: Job) -> None:
        before = self.job
        self.history.take(event)
        if self.history.audit.wrong:
            self.complain(f"audit: {self.history.audit.wrong[-1]}")
        now = self.sim.now
        match event:
            case m.JobCreated():
                self.sim.attempt_due = False
                if self.books is not None and event.resumes:
                    self.books.next_attempt(now)
                elif self.books is not None:
                    self._fresh()
            case m.MemberGone():
                if self.books is not None:
                    self.books.gone(event.member, now, lost=event.how == "lost")
            case m.StateChanged(state=JobState.FAILED, why=why):
                self._failed(why)
            case m.StateChanged(state=JobState.FINISHED):
                self._finished(after)
            case _ if isinstance(event, t.TaskEvent):
                assert before is not None
                self._task_event(event, before, now)
            case _:
                pass
        if after.tasks is not None:
            self._check_size(after.tasks, after)

    def _fresh(self) -> None:
        self.books = None
        self.effects.clear()
        self.offsets.clear()
        self.numbers.clear()
        self.evaluated.clear()

    def _task_event(self, event: t.TaskEvent, before: Job, now: float) -> None:
        if isinstance(event, t.TaskMemberJoined):
            if self.books is None:
                self.books = Books(self.complain, event.terms)
            self.books.terms = event.terms.after(self.books.terms)
            return
        books = self.books
        if books is None:
            self.complain(f"{type(event).__name__} before any member joined")
            return
        match event:
            case t.ShardsGiven():
                for shard in event.shards:
                    self._given(books, shard, before)
                    books.given(shard, now)
            case t.ShardAdvanced():
                books.advanced(event, now)
            case t.ShardDone():
                books.completed(event)
            case t.ModelSaved():
                books.saved(event)
                self._saved(books, event)
            case t.ShardRaised():
                books.raised(event, now)
            case t.ShardReturned():
                books.late(event.attempt, now)
            case t.EvaluationBegun():
                pass
            case t.DataGrown():
                self._grown(books, event)
            case t.EvaluationDone():
                self._evaluated(books, event)

    def _saved(self, books: Books, event: t.ModelSaved) -> None:
        """Check that the mean has the effect of every shard that is done, of this save or of an earlier one."""
        mean = self.sim.means[event.name]
        for kind, number in sorted(books.done):
            found = books.terms.range_of(kind, number)
            if not mean.issuperset((found.epoch, record) for record in range(found.start, found.stop)):
                self.complain(f"shard {number} is done, and the mean {event.name} lacks its effect")

    def _grown(self, books: Books, event: t.DataGrown) -> None:
        """Check that the queue has no record that is not there, and is not complete too early."""
        grown = self.sim.grown
        if event.records > len(grown) or event.complete > grown.marked:
            self.complain(f"the queue has {event.records} records, and the data has {len(grown)}")
        if event.complete and event.records < len(grown):
            self.complain(f"the queue is complete with {event.records} of {len(grown)} records")
        books.terms = replace(books.terms, records=event.records, complete=event.complete)

    def _given(self, books: Books, shard: HeldShard, before: Job) -> None:
        """Check the order of shards, and the member that gets one."""
        key = (shard.kind, shard.number)
        state, member = before.tasks, before.members.get(shard.member)
        name = f"{shard.kind.value} shard {shard.number}"
        if state is None or member is None:
            self.complain(f"{name} is given to {shard.member}, which is not a member")
            return
        if member.draining:
            self.complain(f"{name} is given to {shard.member}, which drains")
        grown = self.sim.grown
        if state.terms.growing and shard.kind is not ShardKind.EVALUATE and not grown.marked:
            stop = (shard.number + 1) * state.terms.records_per_shard
            if stop > len(grown):
                self.complain(f"{name} ends at {stop}, and the data has {len(grown)} records so far")
        if shard.offsets:
            self._offsets(shard)
        mine = {each for each in books.waiting if shard.member not in books.raised_on.get(each, ())}
        if shard.kind is not ShardKind.EVALUATE:
            unbegun = state.evaluations * state.terms.shards_per_evaluation - self._begun(books, ShardKind.EVALUATE)
            if unbegun > 0 or any(kind is ShardKind.EVALUATE for kind, _ in mine):
                self.complain(f"{name} is given out before the shards of an evaluation")
        if key not in books.next_start and any(kind is shard.kind for kind, _ in mine):
            self.complain(f"{name} is new, and given out before those that were returned")

    def _offsets(self, shard: HeldShard) -> None:
        """Check that an offset of a queue is always the same record, and that no other offset is."""
        offsets = [(each.partition, offset) for each in shard.offsets for offset in range(each.start, each.stop)]
        for number, offset in enumerate(offsets, shard.start):
            if (self.offsets.setdefault(number, offset), self.numbers.setdefault(offset, number)) != (offset, number):
                self.complain(f"record {number} is {offset}, and was {self.offsets[number]}")

    def _begun(self, books: Books, kind: ShardKind) -> int:
        """Return the number of shards of a kind that were ever given out."""
        return sum(each[0] is kind for each in books.done | books.next_start.keys())

    def _evaluated(self, books: Books, event: t.EvaluationDone) -> None:
        """Check that the sums of an evaluation are of each of its records once."""
        records = books.terms.evaluation_records
        right = (("count", float(records)), ("total", float(sum(range(records)))))
        if (event.records, event.sums) != (records, right):
            self.complain(f"evaluation {event.number} is of {event.records} records, with {event.sums}")
        self.evaluated.append((event.number, event.records))

    def _failed(self, why: str) -> None:
        """A job fails by its shards only if one raised on two members, or was lost too often, and names the records."""
        books = self.books
        if books is None or "shard " not in why:
            return
        raised = [shard for shard, members in books.raised_on.items() if len(members) >= RAISED_MAX]
        lost = [shard for shard, count in books.losses.items() if count >= LOSSES_MAX]
        if not any(f"(shard {number})" in why for _, number in raised + lost):
            self.complain(f"the job failed without reason: {why}")

    def _finished(self, job: Job) -> None:
        books = self.books
        if books is None or job.tasks is None:
            self.complain("the job finished without a queue")
            return
        if books.terms.growing and not self.sim.grown.marked:
            self.complain("the job finished, and its data may still grow")
        if self.sim.setting.partitions and len(self.offsets) != self.sim.grown.records:
            self.complain(f"the job finished with {len(self.offsets)} of {self.sim.grown.records} offsets")
        if missing := books.missing():
            self.complain(f"the job finished without {len(missing)} records, {missing[:3]} for instance")
        if books.held or books.waiting:
            self.complain(f"the job finished with open shards: {books.held} {books.waiting}")
        due = bool(books.terms.evaluation_records)
        if due and job.tasks.evaluated_after != books.terms.total_shards:
            self.complain(f"the job finished, evaluated last after {job.tasks.evaluated_after} shards")

    def _check_size(self, state: TaskState, job: Job) -> None:
        """State is O(members): `AHEAD` shards of each kind for the most members that the job had at once."""
        self.members_max = max(self.members_max, len(job.members))
        raised = sum(bool(shard.raised) for shard in state.open_shards)
        most = UNSAVED_MAX if state.terms.averages else AHEAD
        for kind in ShardKind:
            count = sum(shard.kind is kind for shard in state.open_shards)
            if count > most * self.members_max + raised:
                self.complain(f"size: {count} {kind.value} shards are open, with {self.members_max} members at most")
        for member, count in Counter(shard.member for shard in state.held).items():
            if count > most:
                self.complain(f"size: {member} holds {count} shards")
        if len(state.last_done) > len(job.members):
            self.complain(f"size: {len(state.last_done)} last attempts are kept of {len(job.members)} members")

    # ------------------------------------------------------------------------------------------- the answers

    def answered(self, coordinator: str, given: Given, answer: Answer) -> None:
        super().answered(coordinator, given, answer)
        books = self.books
        if not isinstance(given, Ask) or books is None or not isinstance(answer, Accepted):
            return
        request = given.request
        match request:
            case t.CompleteShard(member=member, attempt=attempt) if books.terms.averages:
                if attempt not in books.processed:
                    self.complain(f"{member} is told that attempt {attempt} is processed, which is not stored")
            case t.CompleteShard(member=member, attempt=attempt):
                if books.done_by.get(attempt) != member:
                    self.complain(f"{member} is told that attempt {attempt} is done, which is not stored")
            case t.AdvanceShard(member=member, attempt=attempt, upto=upto):
                if books.positions.get((member, attempt), -1) < upto:
                    self.complain(f"{member} is told that attempt {attempt} is at {upto}, which is not stored")
            case t.FailShard(member=member, attempt=attempt):
                if books.raised_by.get(attempt) != member:
                    self.complain(f"{member} is told that attempt {attempt} raised, which is not stored")
            case _:
                pass

    def refused(self, worker: TaskWorker, answer: Rejection, request: Request | None = None) -> None:
        """Check that a member is fenced only if it is gone, and that no report of it is refused that was stored."""
        job = self.job
        if answer.code in (m.Code.GONE, m.Code.UNKNOWN) and job is not None and worker.id in job.members:
            self.complain(f"{worker.id} is fenced, and it is a member: {answer.why}")
        if not isinstance(request, t.CompleteShard) or answer.code is not m.Code.PAST or self.books is None:
            return
        if self.books.done_by.get(request.attempt) == worker.id:
            self.complain(f"{worker.id} completed attempt {request.attempt}, and is refused when it reports that again")

    # ----------------------------------------------------------------------------------------- the processes

    def takes(self, worker: TaskWorker) -> None:
        """Check a request for more shards: half a deadline after the last batch the member knows that it hangs."""
        since = worker.hung_since
        if since is not None and self.sim.now - since > worker.deadline_s / 2:
            self.complain(f"{worker.id} takes a shard, and hangs since {since:.3f}")

    def processed(self, worker: TaskWorker) -> None:
        """Note that user code processed a batch."""
        run = worker.run
        for number in run.numbers:
            self.effects[run.kind, run.epoch, number] += 1

    # ------------------------------------------------------------------------------------------------- time

    def healed(self) -> None:
        """Watch the time from now on, once a coordinator leads again and has granted every deadline anew."""
        if not self.sim.setting.steady:
            self.well_since = self.sim.now + LEASE_TTL_S
            self.watch_time()

    def watch_time(self) -> None:
        """Check, where no coordinator fails, that no shard is stuck: neither with a member, nor with none."""
        self.sim.after(1.0, self.watch_time)
        books, job = self.books, self.job
        if books is None or job is None or job.state.ended:
            return
        now, limit_s = self.sim.now, books.terms.deadline_s + LATE_S
        if not self._deadlines_run():
            self.well_since = now
        for attempt, held in books.held.items():
            if now - max(held.moved_at, self.well_since) > limit_s:
                self.complain(f"stuck: attempt {attempt} of {held.member} is at {held.upto} since {held.moved_at:.3f}")
        for (kind, number), since in books.waiting.items():
            if now - max(since, self.well_since) > WAIT_S:
                self.complain(f"stuck: {kind.value} shard {number} waits since {since:.3f}")

    def _deadlines_run(self) -> bool:
        """Return whether a coordinator leads and is sure not to consider itself isolated by its next pump."""
        limit_s = LEASE_TTL_S * ISOLATION_FRACTION - PUMP_EVERY_S
        leaders = [each.name for each in self.sim.coordinators if each.up and each.service.leads]
        return any(self.sim.now - self.sim.last_contact.get(name, 0.0) <= limit_s for name in leaders)

    # ---------------------------------------------------------------------------------------------- the end

    def finally_(self) -> None:
        """Check that the job ended as it should, and that the audit of its history agrees with the simulator."""
        job, books = self.job, self.books
        if job is None or books is None or not job.state.ended:
            self.complain(f"liveness: the job is {job.state.value if job else 'nothing'}: {job.why if job else ''}")
            return
        poison = self.sim.setting.poison
        if poison is not None:
            self._named(job, poison)
        elif job.state is not JobState.FINISHED:
            self.complain(f"liveness: the job is {job.state.value}: {job.why}")
        history = TaskHistory()
        for entry in self.sim.store.events(self.sim.job, 0, 1_000_000):
            history.take(EVENTS.decode(entry.data))
        audit = history.audit
        own = (books.attempts, books.returned, len(books.done))
        theirs = (audit.attempts, audit.returned, sum(audit.done(kind) for kind in ShardKind))
        if own != theirs:
            self.complain(f"audit: {theirs} attempts, returns and shards, {own} in the simulator's books")
        if job.state is JobState.FINISHED:
            wanted = sum(count for (kind, _, _), count in books.accounted.items() if kind is books.terms.wanted[0])
            if not history.finished or audit.missing() or audit.records_done() != wanted:
                self.complain(f"audit: {audit.records_done()} records are done, and {audit.missing()} shards missing")
            if never := [record for record in books.accounted if not self.effects[record]]:
                self.complain(f"{len(never)} records are done that no member processed: {never[:3]}")
        repeated = sum(count - 1 for count in self.effects.values())
        if repeated > audit.repeated_max:
            self.complain(f"audit: at most {audit.repeated_max} records are repeated, and {repeated} were")
        self.check_log()

    def _named(self, job: Job, poison: int) -> None:
        """Check that a record that always raises fails the job, which names its shard's records."""
        books = self.books
        assert books is not None
        named = any(
            f"(shard {number})" in job.why
            and books.terms.range_of(kind, number).start <= poison < books.terms.range_of(kind, number).stop
            for kind, number in books.raised_on
        )
        if job.state is not JobState.FAILED or not named or "raised on" not in job.why:
            self.complain(f"record {poison} raised on every member, and the job is {job.state.value}: {job.why}")
