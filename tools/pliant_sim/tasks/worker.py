"""A worker of a task queue: the real loop over batches and the real decisions of a member, in a simulated process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pliant.coordinator.service.inbox import Accepted
from pliant.core.leases import LEASE_TTL_S, RENEWALS_PER_LEASE
from pliant.core.messages import Code, Leave, Rejection
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.tasks.member import TaskMember
from pliant.core.tasks.messages import JoinTasks, Sums, TakeShards
from pliant.core.tasks.model import HeldShard, ShardKind, TaskTerms
from pliant.core.tasks.partitions import OffsetRange
from pliant.tasks.growth import LOOK_S
from pliant.tasks.link import GOODBYE_S, PATIENCE_S
from pliant.tasks.run import TaskRun
from pliant.train.coordinator_link import JOIN_PATIENCE_S
from pliant.wire.api import Renew
from pliant_sim.processes.coordinator import Ask, Back, MemberWatch, ViewReply
from pliant_sim.requests import Request
from pliant_sim.tasks.pairs import SimulatedPairs

if TYPE_CHECKING:
    from pliant_sim.processes.agent import SimulatedAgent
    from pliant_sim.tasks.world import TaskSimulation

TICK_S = LEASE_TTL_S / RENEWALS_PER_LEASE
BATCH = 4
CRASH_CODE = 1


class TaskWorker:
    """One life of a worker. Its training thread needs `record_s` for each record."""

    def __init__(
        self, sim: TaskSimulation, member: MemberId, agent: SimulatedAgent, terms: TaskTerms, record_s: float
    ) -> None:
        self.sim, self.id, self.agent, self.terms, self.record_s = sim, member, agent, terms, record_s
        self.deadline_s = terms.deadline_s
        self.state = TaskMember(member, terms.deadline_s)
        evaluation = {ShardKind.EVALUATE: range(terms.evaluation_records)} if terms.evaluation_records else {}
        records = sim.grown if terms.growing else range(terms.records)
        self.run = TaskRun(self, terms, {terms.kind: records, **evaluation}, BATCH, None)
        self.pairs = SimulatedPairs(self) if terms.averages else None
        self.shard: HeldShard | None = None  # the one that its training thread works on
        self.up = True
        self.joined = False
        self.is_stopped = False  # a pause is not seen: its machine is overloaded or suspended
        self.paused = False
        self.hangs = False  # its training thread gets stuck in the next batch
        self.hung_since: float | None = None
        self.raises_in: HeldShard | None = None  # its user code raises in the next batch of this shard
        self._batches: Iterator[object] = iter(())
        self._waits = True  # its training thread waits for a shard
        self._backlog: list[tuple[Ask | MemberWatch, Back | None]] = []  # answers that came while it was stopped
        self._batch_due = False  # a batch ended while it was stopped
        self._sent = 0
        self._sending: Ask | None = None
        self._timer = 0
        self._says_goodbye = False
        self._exit_code = 0
        self._watches = 0
        self._watched_at = sim.now
        self._revision = -1
        self._renewing = False
        self._seen = (-1, False)  # records of growing data, as it last reported them
        sim.after(sim.chance.uniform(0.0, TICK_S), self._tick)
        if terms.growing:
            sim.after(sim.chance.uniform(0.0, LOOK_S), self._look)
        self._ask(JoinTasks(member, agent.state.id, terms), JOIN_PATIENCE_S)

    # ------------------------------------------------------------------------------------------ its process

    def end(self, code: int) -> None:
        """End the process, whatever it was doing."""
        if self.up:
            self.up = False
            self.sim.tell(f"{self.id} ended with {code}")
            self.agent.worker_ended(self.id, code)

    def terminate(self, grace_s: float) -> None:  # noqa: ARG002 - its agent kills it after the grace period
        """Leave after the current batch, as a worker does on SIGTERM; before it joined, the signal ends it."""
        if not self.joined:
            self.end(-15)
        elif self.up:
            self.leave("SIGTERM")

    def leave(self, why: str) -> None:
        self.state.leave(why)
        self.changed()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Go on after SIGCONT: first with the answers that have come, then with the batch."""
        if not self.paused:
            return
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for given, answer in backlog:
            self.answered(given, answer)
        if self._batch_due:
            self._batch_due = False
            self._batch_over()
        self.changed()

    def hang_over(self) -> None:
        """Return from user code at last."""
        self.hangs = False
        if self.hung_since is not None:
            self.hung_since = None
            self._batch_over()

    # ----------------------------------------------------------------------------------- the training thread

    def changed(self) -> None:
        """Let both threads look whether there is something to do, as a notified condition does."""
        if self.up and self.joined and not self.paused:
            if self._waits:
                self._begin_shard()
            self._send()

    def _begin_shard(self) -> None:
        if self.pairs is not None and not self.pairs.boundary() and not self.state.is_over:
            return
        shard = self.next_shard()
        if shard is not None:
            self._waits = False
            self.shard = shard
            self._batches = self.run.batches(shard)
            self._begin_batch()
        elif self.state.is_over:
            self._waits = False
            finished = self.state.ended is JobState.FINISHED
            self._goodbye(0 if finished else self.state.left[0])

    def _begin_batch(self) -> None:
        """Ask for the next batch, which counts the one before as processed."""
        if next(self._batches, None) is None:
            self.shard = None
            self._waits = True
            self.changed()
            return
        seconds = self.record_s * len(self.run.numbers) * self.sim.chance.uniform(0.8, 1.2)
        self.sim.after(seconds, self._batch_over)

    def _batch_over(self) -> None:
        if not self.up:
            return
        if self.paused:
            self._batch_due = True
        elif self.hangs:
            self.hangs = False
            self.hung_since = self.sim.now
        elif self.shard is self.raises_in or self.sim.is_poisoned(self.run.kind, self.run.numbers):
            self._raise()
        else:
            self.sim.checks.processed(self)
            if self.pairs is not None:
                self.pairs.stepped(self.run.epoch, self.run.numbers)
            if self.run.evaluating:
                self.run.add(total=sum(self.run.numbers), count=len(self.run.numbers))
            self._begin_batch()

    def _raise(self) -> None:
        """Let user code raise. The worker reports it and ends."""
        self.sim.tell(f"{self.id} raises in {self.run.kind.value} records {self.run.numbers}")
        self.run.report_exception(f"ValueError: in {self.run.numbers}")
        self._goodbye(CRASH_CODE)

    def _goodbye(self, code: int) -> None:
        """Deliver what is left to report, and leave, within a limit."""
        self._says_goodbye, self._exit_code = True, code
        self.state.closing = True
        self._send()
        self.sim.after(GOODBYE_S, self._goodbye_over)

    def _goodbye_over(self) -> None:
        if self.up and self.paused:
            self.sim.after(1.0, self._goodbye_over)
        elif self.up and self._says_goodbye:
            self._leave_job()

    def _leave_job(self) -> None:
        """Send `Leave` if all is reported, and end."""
        self._says_goodbye = False
        state = self.state
        if state.ended is None and state.exit_code == 0 and self._sending is None and state.is_silent:
            self._ask(Leave(self.id, 0, state.leaving or "its script ended"), GOODBYE_S)
        else:
            self.end(self._exit_code)

    # ------------------------------------------------------------------------- the queue, as its run sees it

    def next_shard(self) -> HeldShard | None:
        return self.state.next_shard(self.sim.now)

    def advance(self, shard: HeldShard, upto: int, digest: int) -> None:
        self.state.advance(shard, upto, digest, self.sim.now)
        self._send()

    def complete(self, shard: HeldShard, records: int, digest: int, sums: Sums) -> None:
        self.state.complete(shard, records, digest, sums)
        self._send()

    def fail(self, shard: HeldShard, upto: int, digest: int, error: str) -> None:
        self.state.fail(shard, upto, digest, error)
        self._send()

    def grow(self, records: int, *, complete: bool, error: str = "", partitions: tuple[OffsetRange, ...] = ()) -> None:
        self.state.grow(records, complete=complete, error=error, partitions=partitions)
        self._send()

    def must_stop(self, shard: HeldShard) -> bool:
        return self.state.must_stop(shard)

    @property
    def finished(self) -> bool:
        return self.state.ended is JobState.FINISHED

    @property
    def left(self) -> tuple[int, str]:
        return self.state.left

    def close(self) -> None:
        """Close nothing: `_goodbye` does it in steps."""

    def _look(self) -> None:
        """Look for new records, as the thread beside the training does."""
        if self.up:
            self.sim.after(LOOK_S, self._look)
            found, (records, partitions) = (len(self.sim.grown), self.sim.grown.marked), self.sim.grown.seen()
            if self.joined and not self.paused and (found != self._seen or partitions):
                self._seen = found
                self.grow(records, complete=found[1], partitions=partitions)

    # ------------------------------------------------------------------------------------ the sending thread

    def _send(self) -> None:
        if not self.up or self.paused or not self.joined or self._sending is not None:
            return
        self._timer += 1
        command = self.state.next_command(self.sim.now)
        if command is not None:
            if isinstance(command, TakeShards):
                self.sim.checks.takes(self)
            self._sending = self._ask(command, PATIENCE_S)
        elif self.state.is_silent:
            if self._says_goodbye:
                self._leave_job()
        elif (wait_s := self.state.next_in_s(self.sim.now)) is not None:
            self.sim.after(wait_s, self._timer_over, self._timer)

    def _timer_over(self, timer: int) -> None:
        if timer == self._timer:
            self._send()

    def _ask(self, request: Request, patience_s: float) -> Ask:
        self._sent += 1
        ask = Ask(self.id, self._sent, request)
        self.sim.ask(ask, patience_s)
        return ask

    def _reported(self, answer: Back | None) -> None:
        """Take the answer to the command that its thread sent last; None if no coordinator answered."""
        assert self._sending is not None
        command, self._sending = self._sending.request, None
        now = self.sim.now
        assert not isinstance(command, Renew | JoinTasks | Leave)
        if isinstance(answer, Accepted):
            self.state.answered(command, answer.shards, now)  # type: ignore[arg-type]
        elif isinstance(answer, Rejection):
            job = self.sim.checks.job
            ended = job.state if answer.code is Code.ENDED and job is not None else None
            self.sim.checks.refused(self, answer, command)
            self.state.refused(command, answer.code, answer.why, now, ended)  # type: ignore[arg-type]
        self.changed()

    # -------------------------------------------------------------------------------- the link to the job

    def _tick(self) -> None:
        if self.up:
            self.sim.after(TICK_S * self.sim.tick_rate(self.agent.machine), self._tick)
            if self.joined and not self.paused and not self._renewing:
                self._renewing = True
                self._ask(Renew(self.id, self._revision), TICK_S)

    def answered(self, given: Ask | MemberWatch, answer: Back | None) -> None:
        """Take an answer; None if no coordinator answered."""
        if not self.up:
            return
        if self.paused:
            self._backlog.append((given, answer))
        elif isinstance(given, MemberWatch):
            self._watch_ended(given, answer.view if isinstance(answer, ViewReply) else None)
        elif isinstance(given.request, JoinTasks):
            self._join_answered(answer)
        elif isinstance(given.request, Leave):
            self.end(self._exit_code)
        elif isinstance(given.request, Renew):
            self._renewed(answer)
        elif self._sending is not None and given.number == self._sending.number:
            self._reported(answer)

    def _join_answered(self, answer: Back | None) -> None:
        if isinstance(answer, Accepted):
            self.joined = True
            self._open_watch()
            self.changed()
        elif isinstance(answer, Rejection) and answer.code is Code.ENDED:
            job = self.sim.checks.job
            self.end(int(job is not None and job.state is JobState.FAILED))
        else:
            self.end(CRASH_CODE)

    def _renewed(self, answer: Back | None) -> None:
        self._renewing = False
        if isinstance(answer, Rejection) and answer.code in (Code.GONE, Code.UNKNOWN):
            self.sim.checks.refused(self, answer)
            self.state.fence(answer.why)
            self.changed()
        elif self.sim.client_of(self.id).known.moved_at > self._watched_at:
            self._open_watch()

    def _open_watch(self) -> None:
        if self.up:
            self._watches += 1
            self._watched_at = self.sim.now
            self.sim.ask(MemberWatch(self.id, self._watches, self._revision))

    def _watch_ended(self, watch: MemberWatch, view: View | None) -> None:
        if watch.number != self._watches:
            return
        if view is None:
            self.sim.after(0.1, self._watch_next, watch.number)
            return
        if view.revision >= self._revision:
            self._revision = view.revision
            self.state.follow_job(view.state, draining=view.draining)
            if self.pairs is not None and view.model_peers is not None:
                self.pairs.follow(view.model_peers)
            self.changed()
        self._watch_next(watch.number)

    def _watch_next(self, number: int) -> None:
        if number == self._watches:
            self._open_watch()
