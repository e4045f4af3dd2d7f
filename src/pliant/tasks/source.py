"""The source of shards: a protocol, and a queue in this process alone for scripts without a coordinator."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from pliant.core import messages as m
from pliant.core.job.decide import changes_membership, decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.messages import Command, Rejection
from pliant.core.messages.describe import describe
from pliant.core.model.job import Job, JobSpec, JobState, Mode
from pliant.core.model.names import AgentId, MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HeldShard, TaskTerms
from pliant.core.tasks.partitions import OffsetRange
from pliant.errors import PliantError

log = logging.getLogger(__name__)


class ShardFeed(Protocol):
    """The queue, as a run sees it. All methods are called in the training thread."""

    def next_shard(self) -> HeldShard | None:
        """Wait for a shard; None if there is none any more, or if this member must leave."""

    def advance(self, shard: HeldShard, upto: int, digest: int) -> None:
        """Report the records before `upto` as processed."""

    def complete(self, shard: HeldShard, records: int, digest: int, sums: t.Sums) -> None:
        """Report a shard as done."""

    def fail(self, shard: HeldShard, upto: int, digest: int, error: str) -> None:
        """Report that user code raised, and wait until the report is delivered, if that is soon possible."""

    def grow(self, records: int, *, complete: bool, error: str = "", partitions: tuple[OffsetRange, ...] = ()) -> None:
        """Report how many records of growing data, or which offsets of a queue, this worker sees. For any thread."""

    def must_stop(self, shard: HeldShard) -> bool:
        """Return whether to stop this shard before its end: it was returned, or this member must leave."""

    @property
    def finished(self) -> bool:
        """True if all shards of the job are done."""

    @property
    def left(self) -> tuple[int, str]:
        """The exit code and the reason of a member that must leave before all shards are done."""

    def close(self) -> None:
        """Deliver what is left to report, leave the job, and stop."""


class LocalQueue:
    """A queue without a coordinator, in the memory of this process."""

    def __init__(self, terms: TaskTerms, member: MemberId) -> None:
        self._member = member
        self._grown = threading.Condition()  # its lock guards the job
        self._job: Job | None = None
        self._send(m.Create("alone", JobSpec(1, 1, mode=Mode.TASKS)))
        self._send(t.JoinTasks(member, AgentId("alone"), terms))

    def next_shard(self) -> HeldShard | None:
        with self._grown:
            while self._job is not None and not self._job.state.ended:
                self._send(t.TakeShards(self._member, 1))
                assert self._job.tasks is not None
                if held := self._job.tasks.held_by(self._member):
                    return held[0]
                self._grown.wait()
            return None

    def advance(self, shard: HeldShard, upto: int, digest: int) -> None:
        self._send(t.AdvanceShard(shard.member, shard.attempt, upto, digest))

    def complete(self, shard: HeldShard, records: int, digest: int, sums: t.Sums) -> None:
        self._send(t.CompleteShard(shard.member, shard.attempt, records, digest, sums))

    def fail(self, shard: HeldShard, upto: int, digest: int, error: str) -> None:
        self._send(t.FailShard(shard.member, shard.attempt, upto, digest, error))

    def grow(self, records: int, *, complete: bool, error: str = "", partitions: tuple[OffsetRange, ...] = ()) -> None:
        with self._grown:
            self._send(t.GrowData(self._member, records, complete, error, partitions))
            self._grown.notify_all()

    def must_stop(self, shard: HeldShard) -> bool:  # noqa: ARG002 - no other member can take it
        return False

    @property
    def finished(self) -> bool:
        return self._job is not None and self._job.state is JobState.FINISHED

    @property
    def left(self) -> tuple[int, str]:
        if self._job is not None and self._job.state is JobState.FAILED:
            return 1, self._job.why
        return 0, "the queue was closed"

    def close(self) -> None:
        """Nothing is left to deliver."""

    def _send(self, command: Command) -> None:
        with self._grown:
            self._decide(command, time.time())

    def _decide(self, command: Command, now: float) -> None:
        decision = decide(self._job, command, now)
        if isinstance(decision, Rejection):
            raise PliantError(decision.why)
        for event in decision:
            self._job = evolve(self._job, event)
        if self._job is not None and changes_membership(decision):
            self._job, _ = settle_all(self._job, now)
        for event in decision:
            if type(event) in (t.EvaluationDone, t.EvaluationBegun):
                log.info("%s", describe(event))
