"""The supervisor's signals, which the agent feeds it with, and its actions, which the agent carries out."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.hangs import WorkerSample
from pliant.core.messages import Command, MemberGone, MemberJoined, StateChanged
from pliant.core.model.launch import Launch
from pliant.core.model.names import MemberId
from pliant.core.ps.messages import ServerJoined
from pliant.core.tasks.messages import TaskMemberJoined

# ----------------------------------------------------------------------------------------------- signals


@dataclass(frozen=True, slots=True)
class OrdersReceived:
    """The coordinator's orders: how many workers to run, which members it counts on here, and which of them drain.

    `launch` is set unless the job is live. `ready` is true if the coordinator has the ports that this agent offered,
    `leaving` if this agent was asked to leave. `install_id` and `run_id` are those of the agent that the coordinator
    has under this name; empty if it has none. `permitted` is how many workers that run of the agent may start in all;
    None if the job is in no queue. `members` then has the permitted workers, too.
    """

    count: int
    members: frozenset[MemberId]
    draining: frozenset[MemberId]
    ended: bool = False
    live: bool = True
    launch: Launch | None = None
    ready: bool = False
    leaving: bool = False
    grace_s: float = 0.0
    install_id: str = ""
    run_id: str = ""
    finished: bool = False
    revision: int = 0  # of the job that the orders are based on
    permitted: int | None = None


FollowedEvent = MemberJoined | TaskMemberJoined | ServerJoined | MemberGone | StateChanged


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of the job that concerns an agent, delivered once and in order."""

    event: FollowedEvent
    revision: int = 0  # of the job after it; 0: unknown


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker's process ended. The code is negative for a signal; `error` is its last line, `log` its output file.

    `events_read` is the answer to `ReadEvents`: whether all events before this end were received. None before that.
    """

    member: MemberId
    code: int
    error: str = ""
    log: str = ""
    events_read: bool | None = None


@dataclass(frozen=True, slots=True)
class WorkersSampled:
    """The CPU time and output of all workers, now and then."""

    samples: tuple[WorkerSample, ...]


@dataclass(frozen=True, slots=True)
class StopOverdue:
    """The time that a worker had to end is over."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class MachineGoing:
    """The agent received SIGTERM, or a spot notice for its machine; `immediate` as in `DrainAgent`."""

    grace_s: float
    why: str
    immediate: bool = False


@dataclass(frozen=True, slots=True)
class GraceExpired:
    """The grace period of this machine is over."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """Time has passed. Feed it every few seconds and at `next_deadline`: messages may have been lost.

    `away_s` is the time since when the coordinator has not answered; 0 if it does. With `refused` it has refused a
    request, so it may not know this agent any more.
    """

    away_s: float = 0.0
    refused: bool = False


Signal = OrdersReceived | JobEvent | WorkerEnded | WorkersSampled | StopOverdue | MachineGoing | GraceExpired | Recheck

# ----------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker, or a parameter server, under this name."""

    member: MemberId
    is_server: bool = False


@dataclass(frozen=True, slots=True)
class StartSeat:
    """Start the worker of a seat, with its launch in its environment."""

    launch: Launch
    member: MemberId


@dataclass(frozen=True, slots=True)
class Offer:
    """Find free ports, and report that no worker of that launch or an earlier one runs here."""

    generation: int


@dataclass(frozen=True, slots=True)
class ReadEvents:
    """Read the job's events up to now, then feed `ended` again with `events_read` set.

    Whether a worker had joined decides what follows from its end, and its `MemberJoined` may still be on the way.
    """

    ended: WorkerEnded


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a worker to end (SIGTERM), and feed `StopOverdue` after `grace_s`."""

    member: MemberId
    grace_s: float


@dataclass(frozen=True, slots=True)
class StopWithin:
    """Give a worker less time that was asked to end before: feed `StopOverdue` after `grace_s`."""

    member: MemberId
    grace_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker's whole process group now (SIGKILL)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Announce:
    """Show a line to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class SendCommand:
    """Send a command to the coordinator."""

    command: Command


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: the agent may exit."""


Action = Start | StartSeat | Offer | ReadEvents | Terminate | StopWithin | Kill | Announce | SendCommand | Finish
