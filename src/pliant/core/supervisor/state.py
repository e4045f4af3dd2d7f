"""An agent's state."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pliant.core.hangs import WorkerActivity
from pliant.core.messages import Exited
from pliant.core.model.launch import SeatEnd
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor.signals import Action, Kill, OrdersReceived

STOP_S = 30.0
GRACE_S = 30.0
MARGIN_S = 1.0  # so that a worker that leaves at the very end of its grace period is not killed on its way out


@dataclass(frozen=True)
class Supervisor:
    """An agent's state. `run_id` makes the names of its workers unique over restarts of the agent itself.

    `joined`, `draining`, `stopping`, `left` and `lost` are workers of this agent that still run. `stopping` were asked
    to end. `begun_seats` are the started seats of launch `launched`, and `ends` the ends of those not asked to.
    It has no slots, so that `change` copies it.
    """

    id: AgentId
    run_id: str
    capacity: int
    address: str = ""
    install_id: str = ""
    role: str = ""  # of its launched workers; empty: any
    stop_s: float = STOP_S  # the time a launched worker has to end
    grace_s: float = GRACE_S  # the time a worker of a live job has to end
    max_restarts: int = 3
    script_joins: bool = False  # some worker of the job has joined, on any machine
    trains: bool = False  # some worker has joined since this agent started, on any machine
    server_count: int = 0  # parameter servers that this agent runs beside its workers
    servers_started: int = 0
    stall_s: float = 0.0  # launched workers that are idle for this long are killed; 0 disables it
    wanted: int = 0
    workers: frozenset[MemberId] = frozenset()
    joined: frozenset[MemberId] = frozenset()
    draining: frozenset[MemberId] = frozenset()
    stopping: frozenset[MemberId] = frozenset()
    left: frozenset[MemberId] = frozenset()  # workers that left the job as planned and still run
    elsewhere: frozenset[MemberId] = frozenset()  # members that other agents run
    lost: tuple[tuple[MemberId, float], ...] = ()  # with the time since when, or of the last kill
    activity: tuple[WorkerActivity, ...] = ()
    order: OrdersReceived | None = None  # the newest
    known: bool = False  # the newest orders were for this run, so it need not register again
    launched: int = 0
    launched_at: float = 0.0
    begun_seats: frozenset[MemberId] = frozenset()
    ends: tuple[SeatEnd, ...] = ()
    started: int = 0
    failures: int = 0  # in a row
    not_before: float = 0.0  # no start before this time: the backoff
    never_joined: int = 0  # workers in a row that ended before they joined
    killed_unjoined: int = 0  # workers in a row that were killed before they joined
    gave_up: str = ""  # the reason why this agent cancelled the job
    leaving: bool = False
    leaves_within_s: float = inf  # the shortest grace period that it was given
    ended: bool = False
    finished: bool = False  # it ended well; its workers may run on as long as they like
    kill_at: float | None = None  # when to kill workers that outlive a job that ended badly
    failed_after_end: tuple[SeatEnd, ...] = ()


Decision = tuple[Supervisor, tuple[Action, ...]]


def is_live(state: Supervisor) -> bool:
    """Return whether the job is live, as far as this agent was ordered; before the first orders it may be."""
    return state.order is None or state.order.live


def is_permitted(state: Supervisor) -> bool:
    """Return whether each start needs a permit: the job is in a queue."""
    return state.order is not None and state.order.permitted is not None


def kill_all(state: Supervisor) -> tuple[Action, ...]:
    """Return the actions that end every worker now."""
    return tuple(Kill(member) for member in sorted(state.workers))


SERVER_MARK = "ps"  # begins the last part of the name of a parameter server


def is_server(member: MemberId) -> bool:
    """Return whether that name of this agent is of a parameter server."""
    return member.rpartition(".")[2].startswith(SERVER_MARK)


def exited(end: SeatEnd) -> Exited:
    """Return the command that reports the end of a worker."""
    return Exited(end.member, end.code, end.error, end.early)
