"""The supervisor's brain: what an agent does with its workers.

One pure function, `supervise(state, signal, now) -> (state, actions)`. Of a live job the coordinator says how many
workers this agent should run; who of them is in a world is not the agent's business. A worker that is left out of a
world ends by itself, so the agent starts workers and, at the very end, makes sure that none is left.

Of a job that is not live it says which seats of a launch are this agent's. They are started together, and stopped
together when the launch is over; once none runs any more the agent says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from pliant.core.job.launches import FENCED_CODE, is_own_failure
from pliant.core.messages import AgentJoin, AgentLeave, Command, DrainAgent, Exited
from pliant.core.model.launch import Launch, SeatEnd
from pliant.core.model.names import AgentId, MemberId

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0  # a launch that lasted so long was sound: the next failure counts as the first
YOUNG_S = 10.0
STOP_S = 30.0
ENDS_KEPT = 100
KILLED = -9  # what is said of a worker whose own exit status is not known any more


@dataclass(frozen=True, slots=True)
class Supervisor:
    """An agent's state. `life` makes the names of its workers unique over restarts of the agent itself.

    `stopping` were asked to end, `began` are the seats of launch `launched` that were started at all, and `ends` how
    those of them ended that nobody had asked to.
    """

    id: AgentId
    run_id: str
    capacity: int
    address: str = ""
    install_id: str = ""
    stop_s: float = STOP_S  # how long a launched worker has to end
    wanted: int = 0
    workers: frozenset[MemberId] = frozenset()
    draining: frozenset[MemberId] = frozenset()
    stopping: frozenset[MemberId] = frozenset()
    order: Orders | None = None  # the newest
    launched: int = 0
    launched_at: float = 0.0
    begun_seats: frozenset[MemberId] = frozenset()
    ends: tuple[SeatEnd, ...] = ()
    started: int = 0
    failures: int = 0  # in a row
    not_before: float = 0.0  # no start before this moment: the backoff
    leaving: bool = False
    ended: bool = False


# ----------------------------------------------------------------------------------------------- signals


@dataclass(frozen=True, slots=True)
class Orders:
    """The coordinator's word: how many workers to run, whom it counts on here, who drains, whether it is over.

    Unless the job is live the launch says what to run. `ready` says that it knows the ports we have offered, `leaving`
    that somebody wants this agent to go. `home` and `life` are those of the agent it knows by our name; empty: none.
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


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker's process ended, seen by its pidfd; the code is negative for a signal, `error` what it said last."""

    member: MemberId
    code: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobOver:
    """The job has ended: heard with its events, should no order say so any more."""


@dataclass(frozen=True, slots=True)
class StopOverdue:
    """The time that a worker had to end is over."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class MachineGoing:
    """SIGTERM to the agent, or a spot notice for its machine; `at_once` as in `DrainAgent`."""

    grace_s: float
    why: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class GraceExpired:
    """The grace period, or the time after a job's end, is over."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """Time has passed: a backoff may be over, and what was said may have been lost."""


Signal = Orders | WorkerEnded | JobOver | StopOverdue | MachineGoing | GraceExpired | Recheck

# ----------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker under this name."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class StartSeat:
    """Start the worker of that seat, with its launch in its environment."""

    launch: Launch
    member: MemberId


@dataclass(frozen=True, slots=True)
class Offer:
    """Find free ports, and say that none of our workers runs, of that launch or any before."""

    generation: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a worker to go (SIGTERM); it has that long, and `StopOverdue` says when that is over."""

    member: MemberId
    grace_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker's whole process group now (SIGKILL)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class SendCommand:
    """Send a command to the coordinator."""

    command: Command


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: the agent may exit."""


Action = Start | StartSeat | Offer | Terminate | Kill | SendCommand | Finish


def supervise(state: Supervisor, signal: Signal, now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    """What the agent does on a signal."""
    match signal:
        case Orders():
            return _wanted(state, signal, now)
        case WorkerEnded():
            return _ended(state, signal, now)
        case JobOver():
            return _go_on(replace(state, ended=True), (), now)
        case StopOverdue(member):
            return state, (Kill(member),) if member in state.workers else ()
        case MachineGoing():
            return _going(
                state, signal.grace_s, SendCommand(DrainAgent(state.id, signal.grace_s, signal.why, signal.at_once))
            )
        case GraceExpired():
            return state, tuple(Kill(member) for member in sorted(state.workers))
        case Recheck():
            return _go_on(state, () if state.leaving else (SendCommand(agent_join(state)),), now)
        case _:
            assert_never(signal)


def agent_join(state: Supervisor) -> AgentJoin:
    """What an agent says first, and again and again: that it is there."""
    return AgentJoin(state.id, state.capacity, state.address, state.install_id, state.run_id)


def _wanted(state: Supervisor, order: Orders, now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    if not order.live and _is_old(state, order):
        return state, ()
    stolen = _is_for_another(state, order)
    state = replace(state, wanted=order.count, draining=order.draining, ended=order.ended or stolen, order=order)
    if order.live and stolen:
        return _fill(state, (), now)  # what runs here are members of their own; we start and say nothing more
    if order.live:
        return _fill(state, _corrections(state, order.members), now)
    if order.leaving and not state.leaving:
        return _going(state, order.grace_s)
    return _seated(state, order, (), now)


def _is_old(state: Supervisor, order: Orders) -> bool:
    """Whether it was given to an earlier life of this agent, or before a launch that we know of."""
    if order.launch is not None and order.launch.number < state.launched:
        return True
    return order.install_id == state.install_id and order.run_id not in ("", state.run_id)


def _is_for_another(state: Supervisor, order: Orders) -> bool:
    """Whether another machine's agent took our name while we were away: nothing of the job is ours any more."""
    return bool(order.install_id and state.install_id) and order.install_id != state.install_id


def _go_on(state: Supervisor, actions: tuple[Action, ...], now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    """Do what the newest order says, as far as it is not done."""
    if state.order is None or state.order.live:
        return _fill(state, actions, now)
    return _seated(state, state.order, actions, now)


# ---------------------------------------------------------------------------------------------- a live job


def _corrections(state: Supervisor, counted_on: frozenset[MemberId]) -> tuple[Action, ...]:
    """Say again who is dead and how it ended, should it have been lost on the way or died with an earlier life of ours.

    A worker never outlives its agent, so a name of ours that we do not run is a process that ended.
    """
    ours = f"{state.id}-"
    dead = sorted(member for member in counted_on - state.workers if member.startswith(ours))
    known = {end.member: Exited(end.member, end.code, end.error) for end in state.ends}
    return tuple(SendCommand(known.get(member, Exited(member, KILLED))) for member in dead)


def _fill(state: Supervisor, actions: tuple[Action, ...], now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    """Start what is missing. A draining worker is not counted on, but it takes up room until it is gone."""
    if state.ended and not state.workers:
        return state, (*actions, Finish())
    if state.leaving or state.ended or now < state.not_before:
        return state, actions
    staying = len(state.workers - state.draining - state.stopping)
    room = 2 * state.capacity - len(state.workers)  # old and new side by side while everybody is replaced
    for _ in range(min(state.wanted, state.capacity) - staying):
        if room <= 0:
            break
        room -= 1
        member = MemberId(f"{state.id}-{state.run_id}.{state.started + 1}")
        state = replace(state, started=state.started + 1, workers=state.workers | {member})
        actions += (Start(member),)
    return state, actions


# ---------------------------------------------------------------------------------- a job that is launched


def _seated(
    state: Supervisor, order: Orders, actions: tuple[Action, ...], now: float
) -> tuple[Supervisor, tuple[Action, ...]]:
    """Stop whoever has no seat, start whoever has one, and say when nobody runs."""
    launch = order.launch
    if state.ended and not state.workers:
        return state, (*actions, Finish())
    if launch is not None and launch.number > state.launched:
        state = replace(state, launched=launch.number, launched_at=now, begun_seats=frozenset(), ends=())
    seats = _own_seats(state, launch)
    stray = state.workers - seats
    asked = tuple(Terminate(member, state.stop_s) for member in sorted(stray - state.stopping))
    state = replace(state, stopping=state.stopping | stray)
    if stray or state.ended or state.leaving:
        return state, actions + asked
    if launch is None or launch.over or not any(seat.agent == state.id for seat in launch.seats):
        if unheard := _unheard(state, launch):
            return state, actions + unheard
        if order.ready or not state.capacity or now < state.not_before:
            return state, actions
        return state, (*actions, Offer(launch.number if launch is not None else 0))
    actions += _unheard(state, launch)
    fresh = seats - state.begun_seats
    if state.begun_seats and now < state.not_before:
        return state, actions  # seats to be refilled wait as a launch would
    state = replace(state, begun_seats=state.begun_seats | fresh, workers=state.workers | fresh)
    ordered = (seat.member for seat in launch.seats if seat.member in fresh)
    return state, actions + tuple(StartSeat(launch, member) for member in ordered)


def _unheard(state: Supervisor, launch: Launch | None) -> tuple[Action, ...]:
    """Say again how workers ended, should it have been lost on the way: whose failure it was depends on it."""
    if launch is None:
        return ()
    unheard = {seat.member for seat in launch.seats} - {end.member for end in launch.ends}
    return tuple(SendCommand(Exited(end.member, end.code, end.error)) for end in state.ends if end.member in unheard)


def _own_seats(state: Supervisor, launch: Launch | None) -> frozenset[MemberId]:
    """Who is to run here."""
    if launch is None or launch.over or state.ended or state.leaving or launch.number != state.launched:
        return frozenset()
    ended = {end.member for end in launch.ends} | {end.member for end in state.ends}
    return frozenset(seat.member for seat in launch.seats if seat.agent == state.id and seat.member not in ended)


# ------------------------------------------------------------------------------------------------- endings


def _ended(state: Supervisor, signal: WorkerEnded, now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    if signal.member not in state.workers:
        return state, ()
    live = state.order is None or state.order.live
    asked = signal.member in state.stopping
    said: tuple[Action, ...] = ()
    if live or not asked:
        said = (SendCommand(Exited(signal.member, signal.code, signal.error)),)
    failed = not asked and (_is_first_failure(state, signal, now) if not live else 0 < signal.code != FENCED_CODE)
    state = _backed_off(state, now, live=live, failed=failed)
    end = SeatEnd(signal.member, signal.code, signal.error)
    earlier = state.ends[-ENDS_KEPT:] if live else state.ends  # a launch has so many seats, a live job any number
    state = replace(
        state,
        workers=state.workers - {signal.member},
        draining=state.draining - {signal.member},
        stopping=state.stopping - {signal.member},
        ends=state.ends if asked and not live else (*earlier, end),
    )
    if state.leaving and not state.workers:
        return state, (*said, SendCommand(AgentLeave(state.id)), Finish())
    if live:
        return _fill(state, said, now)
    state, actions = _go_on(state, (), now)
    return state, said + tuple(action for action in actions if action not in said)


def _is_first_failure(state: Supervisor, ended: WorkerEnded, now: float) -> bool:
    """Whether a launch failed here by that end. The others' failures that follow are the same one, unless it was a
    worker that had taken another one's seat: that launch goes on.

    One that was killed soon after its start may be again, by a system that is short of memory for instance.
    """
    young = ended.code < 0 and now - state.launched_at < YOUNG_S
    took_a_seat = "." in ended.member.removeprefix(f"{state.id}-g{state.launched}.")
    return (young or is_own_failure(ended.code)) and (took_a_seat or not any(end.code for end in state.ends))


def _backed_off(state: Supervisor, now: float, *, live: bool, failed: bool) -> Supervisor:
    """How long to wait before the next start. A launch is tried again at once the first time."""
    if not failed:
        return replace(state, failures=0 if live else state.failures)
    failures = 1 if not live and now - state.launched_at > STEADY_S else state.failures + 1
    exponent = failures - 1 if live else failures - 2
    backoff_s = min(BACKOFF_FIRST_S * 2 ** min(exponent, 10), BACKOFF_MAX_S) if exponent >= 0 else 0.0
    return replace(state, failures=failures, not_before=now + backoff_s)


def _going(state: Supervisor, grace_s: float, *said: SendCommand) -> tuple[Supervisor, tuple[Action, ...]]:
    if state.leaving:
        return state, ()
    fresh = sorted(state.workers - state.stopping)  # the others were asked before, and twice may mean "now" to them
    state = replace(state, leaving=True, draining=state.workers, stopping=state.stopping | state.workers)
    if not state.workers:
        return state, (SendCommand(AgentLeave(state.id)), Finish())
    return state, (*said, *(Terminate(member, grace_s) for member in fresh))
