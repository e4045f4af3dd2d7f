"""The agent's decisions: which workers to start, stop and kill, and when to give up.

One pure function, `supervise(state, signal, now) -> (state, actions)`. The agent feeds it with what it observes and
carries out the actions.

- Live job: the coordinator orders a number of workers. The coordinator also decides which of them are in a world; a
  worker that is left out ends by itself. The agent starts workers, gives up on a script that never joins, kills workers
  that the coordinator has declared lost, and makes sure at the end that none is left.
- Relaunched job: the coordinator assigns seats of a launch. The agent starts them together, stops them together when
  the launch is over, kills them when they all hang, and reports when none runs any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import assert_never

from pliant.core.hangs import WorkerActivity, WorkerSample, add_samples, describe_hang
from pliant.core.job.launches import FENCED_CODE, describe_exit, is_own_failure
from pliant.core.messages import (
    AgentJoin,
    AgentLeave,
    Cancel,
    Command,
    DrainAgent,
    Exited,
    MemberGone,
    MemberJoined,
    StateChanged,
)
from pliant.core.model.job import JobState
from pliant.core.model.launch import Launch, SeatEnd
from pliant.core.model.names import AgentId, MemberId
from pliant.core.start_failures import reason_to_give_up

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0  # after a launch that lasted this long, the next failure counts as the first
YOUNG_S = 10.0
STOP_S = 30.0
GRACE_S = 30.0
MARGIN_S = 1.0  # so that a worker that leaves at the very end of its grace period is not killed on its way out
AWAY_S = 30.0  # an agent whose script has ended well waits so long for an absent coordinator
ENDS_KEPT = 100
KILLED = -9  # reported for a worker whose own exit status is unknown


@dataclass(frozen=True, slots=True)
class Supervisor:
    """An agent's state. `run_id` makes the names of its workers unique over restarts of the agent itself.

    `joined`, `draining`, `stopping`, `left` and `lost` are workers of this agent that still run. `stopping` were asked
    to end. `begun_seats` are the seats of launch `launched` that were started, and `ends` how those of them ended that
    were not asked to.
    """

    id: AgentId
    run_id: str
    capacity: int
    address: str = ""
    install_id: str = ""
    stop_s: float = STOP_S  # the time a launched worker has to end
    grace_s: float = GRACE_S  # the time a worker of a live job has to end
    max_restarts: int = 3
    script_joins: bool = False  # some worker of the job has joined, on any machine
    trains: bool = False  # some worker has joined since this agent started, on any machine
    stall_s: float = 0.0  # launched workers that are idle for this long are killed; 0 disables it
    wanted: int = 0
    workers: frozenset[MemberId] = frozenset()
    joined: frozenset[MemberId] = frozenset()
    draining: frozenset[MemberId] = frozenset()
    stopping: frozenset[MemberId] = frozenset()
    left: frozenset[MemberId] = frozenset()  # workers that left the job as planned and still run
    lost: tuple[tuple[MemberId, float], ...] = ()  # with the time since when, or of the last kill
    activity: tuple[WorkerActivity, ...] = ()
    order: OrdersReceived | None = None  # the newest
    launched: int = 0
    launched_at: float = 0.0
    begun_seats: frozenset[MemberId] = frozenset()
    ends: tuple[SeatEnd, ...] = ()
    started: int = 0
    failures: int = 0  # in a row
    not_before: float = 0.0  # no start before this time: the backoff
    never_joined: int = 0  # workers in a row that ended before they joined
    gave_up: str = ""  # the reason why this agent cancelled the job
    leaving: bool = False
    leaves_within_s: float = inf  # the shortest grace period that it was given
    ended: bool = False
    finished: bool = False  # it ended well; its workers may run on as long as they like
    kill_at: float | None = None  # when to kill workers that outlive a job that ended badly
    failed_after_end: tuple[SeatEnd, ...] = ()


# ----------------------------------------------------------------------------------------------- signals


@dataclass(frozen=True, slots=True)
class OrdersReceived:
    """The coordinator's orders: how many workers to run, which members it counts on here, and which of them drain.

    `launch` is set unless the job is live. `ready` is true if the coordinator has the ports that this agent offered,
    `leaving` if this agent was asked to leave. `install_id` and `run_id` are those of the agent that the coordinator
    has under this name; empty if it has none.
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


FollowedEvent = MemberJoined | MemberGone | StateChanged


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

    `away_s` is the time since when the coordinator has not answered; 0 if it does.
    """

    away_s: float = 0.0


Signal = OrdersReceived | JobEvent | WorkerEnded | WorkersSampled | StopOverdue | MachineGoing | GraceExpired | Recheck

# ----------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker under this name."""

    member: MemberId


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
Decision = tuple[Supervisor, tuple[Action, ...]]


def supervise(state: Supervisor, signal: Signal, now: float) -> Decision:
    """Decide what the agent does on a signal."""
    state, actions = _react(state, signal, now)
    if not state.ended or not is_live(state):
        return replace(state, kill_at=None), actions
    state, ending = _end_live_job(state, now)
    return state, actions + ending


def _react(state: Supervisor, signal: Signal, now: float) -> Decision:
    match signal:
        case OrdersReceived():
            return _follow_orders(state, signal, now)
        case JobEvent(event, revision):
            return _follow_event(state, event, revision, now)
        case WorkerEnded():
            return _handle_end(state, signal, now)
        case WorkersSampled(samples):
            return _kill_hung(state, samples, now)
        case StopOverdue(member):
            return state, (Kill(member),) if member in state.workers else ()
        case MachineGoing():
            return _leave(
                state, signal.grace_s, SendCommand(DrainAgent(state.id, signal.grace_s, signal.why, signal.immediate))
            )
        case GraceExpired():
            return state, _kill_all(state)
        case Recheck(away_s):
            return _recheck(state, away_s, now)
        case _:
            assert_never(signal)


def agent_join(state: Supervisor) -> AgentJoin:
    """Return the command by which an agent registers, and which it repeats to be known again."""
    return AgentJoin(state.id, state.capacity, state.address, state.install_id, state.run_id)


def is_live(state: Supervisor) -> bool:
    """Return whether the job is live, as far as this agent was ordered; before the first orders it may be."""
    return state.order is None or state.order.live


def next_deadline(state: Supervisor, now: float) -> float | None:
    """Return when `Recheck` has something to do next, if that is known; the backoff counts only once."""
    due = [since + state.grace_s for _, since in state.lost]
    due += [state.not_before] if state.not_before > now else []
    due += [state.kill_at] if state.kill_at is not None and state.workers else []
    return min(due, default=None)


def _recheck(state: Supervisor, away_s: float, now: float) -> Decision:
    if away_s >= AWAY_S and _have_seats_ended_well(state):
        return state, (Finish(),)
    state, killed = _kill_lost(state, now)
    if state.kill_at is not None and now >= state.kill_at:
        state, killed = replace(state, kill_at=now + state.grace_s), _kill_all(state)
    return _apply_orders(state, (() if state.leaving else (SendCommand(agent_join(state)),)) + killed, now)


def _have_seats_ended_well(state: Supervisor) -> bool:
    """Return whether every worker of a launch that this agent had to run has ended well."""
    launch = state.order.launch if state.order is not None else None
    if launch is None or state.workers:
        return False
    own = {seat.member for seat in launch.seats if seat.agent == state.id}
    return bool(own) and own <= launch.done | {end.member for end in state.ends if end.code == 0}


def _kill_all(state: Supervisor) -> tuple[Action, ...]:
    return tuple(Kill(member) for member in sorted(state.workers))


def _follow_orders(state: Supervisor, order: OrdersReceived, now: float) -> Decision:
    if not order.live and _is_old(state, order):
        return state, ()
    stolen = _is_for_another(state, order)
    state = replace(state, wanted=order.count, draining=order.draining, order=order)
    state = replace(state, ended=order.ended or stolen, finished=order.finished)
    if order.live and stolen:
        return _start_missing(state, (), now)  # the members of the other agent are not this agent's to report
    sooner = order.leaving and order.grace_s < state.leaves_within_s
    if sooner and not state.ended and not _is_for_earlier_run(state, order):
        state, leaving = _leave(state, order.grace_s)
        return state, (_report_dead(state, order.members) if order.live else ()) + leaving
    if order.live:
        return _start_missing(state, _report_dead(state, order.members), now)
    return _run_launch(state, order, (), now)


def _is_old(state: Supervisor, order: OrdersReceived) -> bool:
    """Return whether orders are for an earlier run of this agent, or from before the newest launch."""
    before_launch = order.launch is not None and order.launch.number < state.launched
    return before_launch or _is_for_earlier_run(state, order)


def _is_for_earlier_run(state: Supervisor, order: OrdersReceived) -> bool:
    return order.install_id == state.install_id and order.run_id not in ("", state.run_id)


def _is_for_another(state: Supervisor, order: OrdersReceived) -> bool:
    """Return whether another machine's agent took this name meanwhile: this agent has no part in the job any more."""
    return bool(order.install_id and state.install_id) and order.install_id != state.install_id


def _follow_event(state: Supervisor, event: FollowedEvent, revision: int, now: float) -> Decision:
    match event:
        case MemberJoined(member=member):
            state = replace(state, script_joins=True, trains=True)
            if member.id in state.workers:
                state = replace(state, joined=state.joined | {member.id}, never_joined=0)
            return state, ()
        case MemberGone(member=gone, how="left") if gone in state.workers:
            return replace(state, left=state.left | {gone}), ()
        case MemberGone(member=gone) if gone in state.workers:
            return replace(state, lost=(*state.lost, (gone, now))), ()
        case StateChanged(state=job_state) if job_state.ended and not _is_overtaken(state, revision):
            finished = job_state is JobState.FINISHED
            return _apply_orders(replace(state, ended=True, finished=finished), (), now)
        case _:
            return state, ()


def _is_overtaken(state: Supervisor, revision: int) -> bool:
    """Return whether newer orders than the event arrived: the end of an attempt must not end the next one."""
    return state.order is not None and 0 < revision <= state.order.revision


def _apply_orders(state: Supervisor, actions: tuple[Action, ...], now: float) -> Decision:
    """Carry out the newest orders as far as that is still to do."""
    if state.order is None or state.order.live:
        return _start_missing(state, actions, now)
    return _run_launch(state, state.order, actions, now)


# ---------------------------------------------------------------------------------------------- a live job


def _report_dead(state: Supervisor, counted_on: frozenset[MemberId]) -> tuple[Action, ...]:
    """Report again how workers ended that the coordinator still counts on.

    The first report may be lost, or the worker died with an earlier run of this agent. A worker never outlives its
    agent, so a name of this agent that it does not run is a process that ended.
    """
    ours = f"{state.id}-"
    dead = sorted(member for member in counted_on - state.workers if member.startswith(ours))
    known = {end.member: _exited(end) for end in state.ends}
    return tuple(SendCommand(known.get(member, Exited(member, KILLED))) for member in dead)


def _start_missing(state: Supervisor, actions: tuple[Action, ...], now: float) -> Decision:
    """Start workers up to the wanted number. A draining worker does not count, but takes up room until it is gone."""
    if state.ended and not state.workers:
        return state, (*actions, Finish())
    if state.leaving or state.ended or now < state.not_before:
        return state, actions
    staying = len(state.workers - state.draining - state.stopping)
    room = 2 * state.capacity - len(state.workers)  # old and new run side by side while all are replaced
    for _ in range(min(state.wanted, state.capacity) - staying):
        if room <= 0:
            break
        room -= 1
        member = MemberId(f"{state.id}-{state.run_id}.{state.started + 1}")
        state = replace(state, started=state.started + 1, workers=state.workers | {member})
        actions += (Start(member),)
    return state, actions


def _kill_lost(state: Supervisor, now: float) -> Decision:
    """Kill workers that were declared lost (rule 11) and still run after the grace period.

    Lost is final, and a worker that learns of it ends by itself; one that is frozen does not.
    """
    overdue = {member for member, since in state.lost if now - since >= state.grace_s}
    lost = tuple((member, now if member in overdue else since) for member, since in state.lost)
    actions: tuple[Action, ...] = ()
    for member in sorted(overdue):
        text = f"{member} was lost to the job and did not end within {state.grace_s:g} s; killed it"
        actions += (Announce(text), Kill(member))
    return replace(state, lost=lost), actions


def _end_live_job(state: Supervisor, now: float) -> Decision:
    """After a finished job, stop workers that never joined; after one that ended badly, set a limit for all."""
    if not state.finished:
        deadline = now + state.grace_s + MARGIN_S
        return (replace(state, kill_at=deadline) if state.kill_at is None else state), ()
    unneeded = state.workers - state.joined - state.stopping  # still importing, most likely
    state = replace(state, stopping=state.stopping | unneeded, kill_at=None)
    return state, tuple(Terminate(member, state.grace_s) for member in sorted(unneeded))


# ---------------------------------------------------------------------------------- a job that is launched


def _run_launch(state: Supervisor, order: OrdersReceived, actions: tuple[Action, ...], now: float) -> Decision:
    """Stop workers without a seat, start those of new seats, and offer ports when none runs."""
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
        if unreported := _unreported_ends(state, launch):
            return state, actions + unreported
        if order.ready or not state.capacity or now < state.not_before:
            return state, actions
        return state, (*actions, Offer(launch.number if launch is not None else 0))
    actions += _unreported_ends(state, launch)
    fresh = seats - state.begun_seats
    if state.begun_seats and now < state.not_before:
        return state, actions  # refilled seats wait as a launch would
    state = replace(state, begun_seats=state.begun_seats | fresh, workers=state.workers | fresh)
    ordered = (seat.member for seat in launch.seats if seat.member in fresh)
    return state, actions + tuple(StartSeat(launch, member) for member in ordered)


def _unreported_ends(state: Supervisor, launch: Launch | None) -> tuple[Action, ...]:
    """Report again the ends that the coordinator does not have: it decides from them whose failure it was."""
    if launch is None:
        return ()
    unheard = {seat.member for seat in launch.seats} - {end.member for end in launch.ends}
    return tuple(SendCommand(_exited(end)) for end in state.ends if end.member in unheard)


def _exited(end: SeatEnd) -> Exited:
    return Exited(end.member, end.code, end.error, end.early)


def _own_seats(state: Supervisor, launch: Launch | None) -> frozenset[MemberId]:
    """Return the workers that should run here."""
    if launch is None or launch.over or state.ended or state.leaving or launch.number != state.launched:
        return frozenset()
    ended = {end.member for end in launch.ends} | {end.member for end in state.ends}
    return frozenset(seat.member for seat in launch.seats if seat.agent == state.id and seat.member not in ended)


def _kill_hung(state: Supervisor, samples: tuple[WorkerSample, ...], now: float) -> Decision:
    """Kill launched workers that hang, so that they are launched again; live ones have a watchdog of their own."""
    state = replace(state, activity=add_samples(state.activity, samples, state.workers))
    launch = state.order.launch if state.order is not None else None
    if not state.stall_s or launch is None or is_live(state):
        return state, ()
    elsewhere = any(seat.agent != state.id and seat.member not in launch.done for seat in launch.seats)
    why = describe_hang(state.activity, now, state.stall_s, all_here=not elsewhere)
    if not why:
        return state, ()
    return replace(state, activity=()), (Announce(f"{why}; killed all workers here"), *_kill_all(state))


# ------------------------------------------------------------------------------------------------- endings


def _handle_end(state: Supervisor, ended: WorkerEnded, now: float) -> Decision:
    if ended.member not in state.workers:
        return state, ()
    live = is_live(state)
    joined = ended.member in state.joined
    asked = ended.member in state.stopping
    early = not live and is_own_failure(ended.code) and now - state.launched_at < STEADY_S
    end = SeatEnd(ended.member, ended.code, ended.error, early)
    quits = ended.code == 0 and joined and not (asked or state.ended or ended.member in state.draining | state.left)
    if live and (quits or not joined) and ended.events_read is None:
        return state, (ReadEvents(ended),)
    said = (SendCommand(_exited(end)),) if live or not asked else ()
    failed = not asked and (_is_first_failure(state, ended, now) if not live else quits or is_own_failure(ended.code))
    state = _back_off(state, now, live=live, failed=failed)
    never_joined = live and not joined and ended.events_read is True and not (asked or state.ended)
    gives_up = never_joined and (ended.code == 0 or is_own_failure(ended.code))
    late = live and joined and state.ended and ended.code not in (0, FENCED_CODE)
    earlier = state.ends[-ENDS_KEPT:] if live else state.ends  # a launch has so many seats, a live job any number
    state = replace(
        state,
        workers=state.workers - {ended.member},
        joined=state.joined - {ended.member},
        draining=state.draining - {ended.member},
        stopping=state.stopping - {ended.member},
        left=state.left - {ended.member},
        lost=tuple(each for each in state.lost if each[0] != ended.member),
        ends=state.ends if asked and not live else (*earlier, end),
        never_joined=state.never_joined + gives_up,
        failed_after_end=(*state.failed_after_end, end) if late else state.failed_after_end,
    )
    if gives_up and (why := reason_to_give_up(state, ended, describe_exit(ended.code))):
        drain = SendCommand(DrainAgent(state.id, state.grace_s, why))
        state, leaving = _leave(replace(state, gave_up=why), state.grace_s, drain)
        return state, (SendCommand(Cancel(why, failed=True)), *said, *leaving)
    if state.leaving and not state.workers:
        return state, (*said, SendCommand(AgentLeave(state.id)), Finish())
    if live:
        return _start_missing(state, said, now)
    state, actions = _apply_orders(state, (), now)
    return state, said + tuple(action for action in actions if action not in said)


def _is_first_failure(state: Supervisor, ended: WorkerEnded, now: float) -> bool:
    """Return whether a launch failed here by that end.

    Failures that follow in the same launch do not count again, except that of a worker in a refilled seat: its launch
    went on. A worker that was killed soon after its start counts: the machine may be short of memory, for instance.
    """
    young = ended.code < 0 and now - state.launched_at < YOUNG_S
    took_a_seat = "." in ended.member.removeprefix(f"{state.id}-g{state.launched}.")
    return (young or is_own_failure(ended.code)) and (took_a_seat or not any(end.code for end in state.ends))


def _back_off(state: Supervisor, now: float, *, live: bool, failed: bool) -> Supervisor:
    """Set the wait before the next start. A launch is tried again at once the first time."""
    if not failed:
        return replace(state, failures=0 if live else state.failures)
    failures = 1 if not live and now - state.launched_at > STEADY_S else state.failures + 1
    exponent = failures - 1 if live else failures - 2
    backoff_s = min(BACKOFF_FIRST_S * 2 ** min(exponent, 10), BACKOFF_MAX_S) if exponent >= 0 else 0.0
    return replace(state, failures=failures, not_before=now + backoff_s)


def _leave(state: Supervisor, grace_s: float, *said: SendCommand) -> Decision:
    if grace_s >= state.leaves_within_s:
        return state, ()
    state, was_leaving = replace(state, leaves_within_s=grace_s), state.leaving
    if was_leaving:
        return state, (*said, *(StopWithin(member, grace_s) for member in sorted(state.workers)))
    fresh = sorted(state.workers - state.stopping)  # a second SIGTERM may mean "now" to the others
    state = replace(state, leaving=True, draining=state.workers, stopping=state.stopping | state.workers)
    if not state.workers:
        return state, (SendCommand(AgentLeave(state.id)), Finish())
    return state, (*said, *(Terminate(member, grace_s) for member in fresh))
