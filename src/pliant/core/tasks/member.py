"""A member's side of a task queue: the shards that it holds, and what it sends next to the coordinator.

Pure, like the rest of the core: callers pass the time, send the commands one after the other, and pass each answer
back. Reports come first and are repeated until they are answered, then positions, then requests for shards.
"""

from __future__ import annotations

from collections import deque

from pliant.core.job.launches import FENCED_CODE
from pliant.core.messages import Code
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HeldShard
from pliant.core.tasks.partitions import OffsetRange

AHEAD = 2  # shards that a member holds, so that it never waits for the next one
REPORT_S = 1.0  # between two reports of a position: the most that is repeated after a loss
FIRST_PAUSE_S = 0.1  # between two requests for a shard while there is none
PAUSE_MAX_S = 1.0
BUSY_FRACTION = 0.5  # of the deadline in one batch: a member that is so slow, or hangs, takes no further shard

MemberCommand = t.TakeShards | t.AdvanceShard | t.CompleteShard | t.FailShard | t.GrowData | t.SaveModel


class TaskMember:
    """One member's shards. `closing`: nothing but what is left to report is sent.

    A shard that made no progress for `deadline_s` is returned. The member must not take it again while its training
    thread hangs, so it asks for shards only if that thread waits for one, or was here not long ago.
    """

    def __init__(self, member: MemberId, deadline_s: float) -> None:
        self.member = member
        self._busy_max_s = deadline_s * BUSY_FRACTION
        self._busy_since: float | None = None  # when the training thread was here last; None: it waits for a shard
        self.closing = False
        self.ended: JobState | None = None
        self.exit_code = 0
        self.leaving = ""  # why this member must leave; empty: it stays
        self._ready: deque[HeldShard] = deque()  # held, and not begun
        self._open: set[int] = set()  # attempts that this member holds, as far as it knows
        self._processed: set[int] = set()  # of the attempts that it holds; with pair averaging they wait for a save
        self._save: t.SaveModel | None = None  # not reported yet
        self._reports: deque[t.CompleteShard | t.FailShard] = deque()
        self._position: t.AdvanceShard | None = None  # not reported yet
        self._reported_at = 0.0
        self._grown: t.GrowData | None = None  # not reported yet
        self._take_at, self._pause_s = 0.0, FIRST_PAUSE_S

    # -------------------------------------------------------------------------------------- for the run

    @property
    def is_over(self) -> bool:
        """True if this member begins no further shard."""
        return self.ended is not None or bool(self.leaving)

    @property
    def is_cut_off(self) -> bool:
        """True if this member must not even finish its batch: the job has ended, or has no such member."""
        return self.ended is not None or bool(self.exit_code)

    def next_shard(self, now: float) -> HeldShard | None:
        """Begin the next shard; None if there is none yet, or if this member must leave."""
        shard = self._ready.popleft() if self._ready and not self.is_over else None
        self._busy_since = None if shard is None else now
        return shard

    def advance(self, shard: HeldShard, upto: int, digest: int, now: float) -> None:
        self._busy_since = now
        self._position = t.AdvanceShard(self.member, shard.attempt, upto, digest)

    def complete(self, shard: HeldShard, records: int, digest: int, sums: t.Sums) -> None:
        self._position = None
        self._processed.add(shard.attempt)
        self._reports.append(t.CompleteShard(self.member, shard.attempt, records, digest, sums))

    def fail(self, shard: HeldShard, upto: int, digest: int, error: str) -> None:
        self._position = None
        self._reports.append(t.FailShard(self.member, shard.attempt, upto, digest, error))

    def grow(self, records: int, *, complete: bool, error: str = "", partitions: tuple[OffsetRange, ...] = ()) -> None:
        """Report how many records this member sees of growing data, or the offsets that it sees of a queue."""
        self._grown = t.GrowData(self.member, records, complete, error, partitions)

    def save(self, number: int, name: str, attempts: tuple[int, ...]) -> None:
        """Report that this member saved a mean of models with the effect of these attempts."""
        self._save = t.SaveModel(self.member, number, name, attempts)

    @property
    def has_save(self) -> bool:
        """True if a save is not reported yet."""
        return self._save is not None

    @property
    def unsaved(self) -> tuple[int, ...]:
        """The attempts of this member that are processed, and that it holds until a saved mean has their effect."""
        return tuple(sorted(self._processed))

    @property
    def waits(self) -> bool:
        """True if the training thread waits for a shard."""
        return self._busy_since is None

    def must_stop(self, shard: HeldShard) -> bool:
        """Return whether to stop this shard before its end: it was returned, or this member must leave."""
        return self.is_over or shard.attempt not in self._open

    def leave(self, why: str) -> None:
        """Stop at the end of the current batch. The first reason is kept."""
        self.leaving = self.leaving or why

    @property
    def left(self) -> tuple[int, str]:
        """The exit code and the reason of a member that leaves before all shards are done."""
        if self.ended is not None:
            return int(self.ended is JobState.FAILED), f"the job is {self.ended.value}"
        return self.exit_code, self.leaving

    # ------------------------------------------------------------------------------- for the coordinator's link

    def follow_job(self, state: JobState, *, draining: bool) -> None:
        """Follow the state of the job and of this member."""
        if state.ended:
            self.ended = state
        elif draining:
            self.leave("this member drains")

    def fence(self, why: str) -> None:
        """Stop: the coordinator does not have this member any more."""
        self.exit_code = FENCED_CODE
        self.leave(why)

    @property
    def has_reports(self) -> bool:
        """True if a completed or failed shard is not reported yet."""
        return bool(self._reports)

    @property
    def is_silent(self) -> bool:
        """True if this member sends nothing more."""
        if self.is_cut_off:
            return True
        return self.closing and not self._reports and self._position is None

    def next_command(self, now: float) -> MemberCommand | None:
        """Return what to send now. The same command comes again until it is answered."""
        if self.is_silent:
            return None
        if self._reports:
            return self._reports[0]
        if self._save is not None:
            return self._save
        hurry = self.closing or bool(self.leaving)
        if self._position is not None and (hurry or now >= self._reported_at + REPORT_S):
            return self._position
        if self._grown is not None and not hurry:
            return self._grown
        if not hurry and len(self._open) < AHEAD and now >= self._take_at and not self._is_stuck(now):
            return t.TakeShards(self.member, AHEAD)
        return None

    def next_in_s(self, now: float) -> float | None:
        """Return how long `next_command` has nothing to send, if nothing else happens; None: for ever."""
        due = []
        if self._grown is not None and not self.leaving:
            due.append(0.0)
        if self._position is not None:
            due.append(self._reported_at + REPORT_S - now)
        if not self.leaving and len(self._open) < AHEAD and not self._is_stuck(now):
            due.append(self._take_at - now)
        return max(min(due), 0.001) if due else None

    def _is_stuck(self, now: float) -> bool:
        return self._busy_since is not None and now > self._busy_since + self._busy_max_s

    def answered(self, command: MemberCommand, held: tuple[HeldShard, ...] | None, now: float) -> None:
        """Take the answer to a command: all shards that the coordinator has for this member."""
        self._forget(command, now)
        if held is not None:
            self._follow(held, now, took=isinstance(command, t.TakeShards))

    def refused(self, command: MemberCommand, code: str, why: str, now: float, ended: JobState | None = None) -> None:
        """Take a refusal. `ended` is the state of a job that has ended."""
        self._forget(command, now)
        match code:
            case Code.ENDED:
                self.ended = ended
            case Code.GONE | Code.UNKNOWN:
                self.fence(why)
            case Code.PAST if isinstance(command, t.SaveModel):
                pass  # another member saved before
            case Code.PAST if isinstance(command, t.AdvanceShard | t.CompleteShard | t.FailShard):
                self._open.discard(command.attempt)
                self._processed.discard(command.attempt)
                if self._position is not None and self._position.attempt == command.attempt:
                    self._position = None
            case _:
                self.exit_code = 1
                self.leave(why)

    def _forget(self, command: MemberCommand, now: float) -> None:
        """Drop a command that was answered."""
        match command:
            case t.CompleteShard() | t.FailShard():
                self._reports.popleft()
                self._open.discard(command.attempt)
            case t.AdvanceShard():
                self._reported_at = now
                if self._position == command:
                    self._position = None
            case t.GrowData():
                if self._grown == command:
                    self._grown = None
            case t.SaveModel():
                self._save = None
            case t.TakeShards():
                pass

    def _follow(self, held: tuple[HeldShard, ...], now: float, *, took: bool) -> None:
        """Take over the shards that the coordinator has for this member."""
        completed = {report.attempt for report in self._reports} | self._processed
        all_held = {shard.attempt for shard in held}
        self._processed &= all_held
        known = all_held - completed
        self._ready = deque(shard for shard in self._ready if shard.attempt in known)
        new = [shard for shard in held if shard.attempt not in self._open | completed]
        self._ready.extend(sorted(new, key=lambda shard: shard.attempt))
        self._open = known
        if took:
            self._pause_s = FIRST_PAUSE_S if new else min(2 * self._pause_s, PAUSE_MAX_S)
            self._take_at = now + (0.0 if new else self._pause_s)
