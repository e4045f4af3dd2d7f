"""The exit status of `pliant run`, and its last message."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from pliant.core.job.launches import describe_exit
from pliant.core.messages.describe import describe_state
from pliant.core.model.job import JobState
from pliant.core.supervisor import Supervisor
from pliant.errors import PliantError

SAME_S = 1.0
SIGNALLED = 128  # a shell adds the signal's number to it


@dataclass(slots=True)
class StopSignals:
    """The signals that the user sent to stop this agent."""

    first: int = 0
    first_at: float = 0.0
    repeated: bool = False

    def is_same(self, number: int, at: float) -> bool:
        """Return whether a signal only repeats the first one: `timeout` sends SIGTERM to a process and to its group."""
        return number == self.first == signal.SIGTERM and at - self.first_at < SAME_S


def exit_status(
    job: str,
    state: JobState,
    why: str,
    supervisor: Supervisor,
    signalled: int,
    first_failure: str,
    *,
    is_host: bool,
) -> int:
    """Return the exit status once nothing runs any more. Raise PliantError if the job, or a worker after it, failed.

    `is_host` means that the coordinator ends with this agent, so that no other agent goes on with the job.
    """
    late = [f"{end.member} ended with {describe_exit(end.code)}" for end in supervisor.failed_after_end]
    if state is JobState.FINISHED and not late:
        return 0  # also after a signal, which came too late to stop anything
    if signalled:
        return SIGNALLED + signalled
    if not state.ended and supervisor.gave_up:
        raise PliantError(supervisor.gave_up)
    if not state.ended and is_host:
        raise PliantError(f"{job} stopped: this agent was asked to leave. The same command resumes it.")
    if not state.ended:
        return 0
    if state is not JobState.FINISHED:
        first = f"\n{first_failure}" if first_failure else ""
        raise PliantError(f"{job} {describe_state(state)}: {why}{first}")
    raise PliantError(f"{job} is finished, but after it: {'; '.join(late)}.")
