"""A member's link to the task queue of a coordinator.

Reports are sent by one thread, in order, and repeated until the coordinator answers. While it is away, the member goes
on with the shards that it holds. The training thread waits only for a shard, never for a report.
`pliant.core.tasks.member` decides what is sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pliant.client import Client
from pliant.core.member import signals as s
from pliant.core.messages import Code, Leave
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.tasks import messages as t
from pliant.core.tasks.member import MemberCommand, TaskMember
from pliant.core.tasks.model import HeldShard
from pliant.core.tasks.partitions import OffsetRange
from pliant.credentials import TlsFiles, Token
from pliant.errors import PliantError, Refused, Unreachable
from pliant.ps.client import LayoutNews
from pliant.tasks.left import LeftQueue
from pliant.train.coordinator_link import MemberLink
from pliant.wire.views import PeerKey

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
GOODBYE_S = 5.0


class ShardLink:
    """Call `join` once, and `close` at the end."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        token: Token,
        job: str,
        member: MemberId,
        tls: TlsFiles,
        deadline_s: float,
    ) -> None:
        self._job = job
        self.layouts = LayoutNews()  # of the parameter servers
        self._client = Client(endpoints, token, patience_s=PATIENCE_S, tls=tls)
        self._link = MemberLink(endpoints, token, job, member, tls)
        self._changed = threading.Condition()
        self._state = TaskMember(member, deadline_s)
        self._sending = False
        self._unreachable = False
        self._woken = False
        self.on_view: Callable[[View, tuple[PeerKey, ...]], None] | None = None
        self.on_wake: Callable[[], None] | None = None  # in the training thread, while it waits for a shard
        self._thread = threading.Thread(target=self._send_loop, name="pliant-shards", daemon=True)

    def job_created_at(self) -> float:
        """Return the time at which the job was created; waits for the coordinator."""
        return self._link.job_created_at()

    def join(self, command: t.JoinTasks) -> None:
        """Return once this worker is a member. Raises the coordinator's refusal."""
        self._link.join(command)
        self._link.start(self)
        self._thread.start()

    def leave(self, why: str) -> None:
        """Stop at the end of the current batch, and leave. The shards go to other members."""
        with self._changed:
            self._state.leave(why)
            self._changed.notify_all()

    # -------------------------------------------------------------------------------------- for the run

    def next_shard(self) -> HeldShard | None:
        self._woken = self.on_wake is not None
        while True:
            with self._changed:
                while (shard := self._state.next_shard(time.monotonic())) is None and not self._state.is_over:
                    self._changed.notify_all()
                    if self._woken:
                        break
                    self._changed.wait()
                self._woken = False
                if shard is not None or self._state.is_over:
                    return shard
            assert self.on_wake is not None  # nothing else lets the wait end
            self.on_wake()

    def advance(self, shard: HeldShard, upto: int, digest: int) -> None:
        with self._changed:
            self._state.advance(shard, upto, digest, time.monotonic())
            self._changed.notify_all()

    def complete(self, shard: HeldShard, records: int, digest: int, sums: t.Sums) -> None:
        with self._changed:
            self._state.complete(shard, records, digest, sums)
            self._changed.notify_all()

    def fail(self, shard: HeldShard, upto: int, digest: int, error: str) -> None:
        with self._changed:
            self._state.fail(shard, upto, digest, error)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._state.has_reports or self._sending), GOODBYE_S)

    def grow(self, records: int, *, complete: bool, error: str = "", partitions: tuple[OffsetRange, ...] = ()) -> None:
        with self._changed:
            self._state.grow(records, complete=complete, error=error, partitions=partitions)
            self._changed.notify_all()

    # ---------------------------------------------------------------------------------- for pair averaging

    @property
    def unsaved(self) -> tuple[int, ...]:
        with self._changed:
            return self._state.unsaved

    @property
    def waits(self) -> bool:
        return self._state.waits

    def wait_for(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: ready() or self._state.is_over)

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def save(self, number: int, name: str, attempts: tuple[int, ...]) -> None:
        with self._changed:
            self._state.save(number, name, attempts)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._state.has_save or self._state.closing or self._state.is_silent)

    def check(self) -> None:
        """Raise LeftQueue if this member must not even finish its batch."""
        if self._state.is_cut_off:
            raise LeftQueue(*self._state.left)

    def must_stop(self, shard: HeldShard) -> bool:
        with self._changed:
            return self._state.must_stop(shard)

    @property
    def finished(self) -> bool:
        return self._state.ended is JobState.FINISHED

    @property
    def left(self) -> tuple[int, str]:
        return self._state.left

    def close(self) -> None:
        """Report the last position, leave, and stop. Without a coordinator, the lease ends the member."""
        with self._changed:
            self._state.closing = True
            self._changed.notify_all()
        self._thread.join(GOODBYE_S)
        state = self._state
        if state.ended is None and state.exit_code == 0 and not self._thread.is_alive():
            try:
                self._client.send(self._job, Leave(state.member, 0, state.leaving or "its script ended"), GOODBYE_S)
            except PliantError as error:
                log.debug("could not leave: %s", error.why)
        self._link.close()
        self._client.close()

    # --------------------------------------------------------------------------- called by the member's link

    def feed(self, signal: s.Signal) -> None:
        """Ignore signals for the machine of a live member."""

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        """Follow the state of the job and of this member, and the layout of the parameter servers."""
        for key in keys:
            if view.layout is not None and key.generation == view.layout.number:
                self.layouts.put(view.layout, key.key)
        if self.on_view is not None:
            self.on_view(view, keys)
        with self._changed:
            self._state.follow_job(view.state, draining=view.draining)
            self._changed.notify_all()

    def fenced(self, revision: int, why: str) -> None:  # noqa: ARG002 - as the link calls it
        """Stop: the coordinator does not have this member any more."""
        with self._changed:
            self._state.fence(why)
            self._changed.notify_all()

    # -------------------------------------------------------------------------------------------- the thread

    def _send_loop(self) -> None:
        while (command := self._next_command()) is not None:
            try:
                self._send(command)
            except Exception:  # why: without this thread no shard would be reported until the lease expires
                log.exception("a report to the coordinator failed; retrying")
                time.sleep(1.0)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _next_command(self) -> MemberCommand | None:
        """Wait for the next command to send; None once there will be none."""
        with self._changed:
            while not self._state.is_silent:
                now = time.monotonic()
                if (command := self._state.next_command(now)) is not None:
                    self._sending = True
                    return command
                self._changed.wait(self._state.next_in_s(now))
            return None

    def _send(self, command: MemberCommand) -> None:
        try:
            done = self._client.send(self._job, command)
        except Refused as error:
            self._refused(command, error)
            return
        except Unreachable as error:
            if not self._unreachable:
                self._unreachable = True
                log.warning("the coordinator is unreachable (%s); work on held shards continues", error.why)
            return
        if self._unreachable:
            self._unreachable = False
            log.info("the coordinator is reachable again")
        with self._changed:
            self._state.answered(command, done.shards, time.monotonic())
            self._changed.notify_all()

    def _refused(self, command: MemberCommand, error: Refused) -> None:
        ended = self._client.job(self._job).job.state if error.code == Code.ENDED else None
        if error.code == Code.PAST:
            log.info("%s", error.why)
        with self._changed:
            self._state.refused(command, error.code, error.why, time.monotonic(), ended)
            self._changed.notify_all()
