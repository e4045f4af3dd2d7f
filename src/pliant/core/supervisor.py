"""The supervisor's brain: what an agent does with its workers.

One pure function, `supervise(state, signal, now) -> (state, actions)`. The coordinator says how many workers this
agent should run; who of them is in a world is not the agent's business. A worker that is left out of a world ends by
itself, so the agent starts workers and, at the very end, makes sure that none is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from pliant.core.job import FENCED_CODE
from pliant.core.messages import AgentJoin, AgentLeave, Command, DrainAgent, Exited
from pliant.core.model import AgentId, MemberId

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
KILLED = -9  # what is said of a worker whose own exit status is not known any more


@dataclass(frozen=True, slots=True)
class Supervisor:
    """An agent's state. `life` makes the names of its workers unique over restarts of the agent itself."""

    id: AgentId
    life: str
    capacity: int
    wanted: int = 0
    workers: frozenset[MemberId] = frozenset()
    draining: frozenset[MemberId] = frozenset()
    started: int = 0
    failures: int = 0  # in a row
    not_before: float = 0.0  # no start before this moment: the backoff
    leaving: bool = False
    ended: bool = False


# ----------------------------------------------------------------------------------------------- signals


@dataclass(frozen=True, slots=True)
class Wanted:
    """The coordinator's word: how many workers to run, whom it counts on here, who drains, whether it is over."""

    count: int
    members: frozenset[MemberId]
    draining: frozenset[MemberId]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker's process ended, seen by its pidfd; the code is negative for a signal."""

    member: MemberId
    code: int


@dataclass(frozen=True, slots=True)
class MachineGoing:
    """SIGTERM to the agent, or a spot notice for its machine."""

    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class TooLate:
    """The grace period, or the time after a job's end, is over."""


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Time has passed: a backoff may be over, and what was said may have been lost."""


Signal = Wanted | Ended | MachineGoing | TooLate | LookAgain

# ----------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker under this name."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a worker to go (SIGTERM); it has that long."""

    member: MemberId
    grace_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker's whole process group now (SIGKILL)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Say:
    """Send a command to the coordinator."""

    command: Command


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do: the agent may exit."""


Action = Start | Terminate | Kill | Say | Finish


def supervise(state: Supervisor, signal: Signal, now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    """What the agent does on a signal."""
    match signal:
        case Wanted():
            state = replace(state, wanted=signal.count, draining=signal.draining, ended=signal.ended)
            return _fill(state, _corrections(state, signal.members), now)
        case Ended():
            return _ended(state, signal, now)
        case MachineGoing():
            return _going(state, signal)
        case TooLate():
            return state, tuple(Kill(member) for member in sorted(state.workers))
        case LookAgain():
            said = () if state.leaving else (Say(AgentJoin(state.id, state.capacity)),)
            return _fill(state, said, now)
        case _:
            assert_never(signal)


def _corrections(state: Supervisor, counted_on: frozenset[MemberId]) -> tuple[Action, ...]:
    """Say again who is dead, should it have been lost on the way or died with an earlier life of this agent.

    A worker never outlives its agent, so a name of ours that we do not run is a process that ended.
    """
    ours = f"{state.id}-"
    dead = sorted(member for member in counted_on - state.workers if member.startswith(ours))
    return tuple(Say(Exited(member, KILLED)) for member in dead)


def _fill(state: Supervisor, actions: tuple[Action, ...], now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    """Start what is missing. A draining worker is not counted on, but it takes up room until it is gone."""
    if state.ended and not state.workers:
        return state, (*actions, Finish())
    if state.leaving or state.ended or now < state.not_before:
        return state, actions
    staying = len(state.workers - state.draining)
    room = 2 * state.capacity - len(state.workers)  # old and new side by side while everybody is replaced
    for _ in range(min(state.wanted, state.capacity) - staying):
        if room <= 0:
            break
        room -= 1
        member = MemberId(f"{state.id}-{state.life}.{state.started + 1}")
        state = replace(state, started=state.started + 1, workers=state.workers | {member})
        actions += (Start(member),)
    return state, actions


def _ended(state: Supervisor, signal: Ended, now: float) -> tuple[Supervisor, tuple[Action, ...]]:
    if signal.member not in state.workers:
        return state, ()
    said = (Say(Exited(signal.member, signal.code)),)
    failed = signal.code > 0 and signal.code != FENCED_CODE
    failures = state.failures + 1 if failed else 0
    backoff_s = min(BACKOFF_FIRST_S * 2 ** min(failures - 1, 10), BACKOFF_MAX_S) if failed else 0.0
    state = replace(
        state,
        workers=state.workers - {signal.member},
        draining=state.draining - {signal.member},
        failures=failures,
        not_before=now + backoff_s if failed else state.not_before,
    )
    if state.leaving and not state.workers:
        return state, (*said, Say(AgentLeave(state.id)), Finish())
    return _fill(state, said, now)


def _going(state: Supervisor, signal: MachineGoing) -> tuple[Supervisor, tuple[Action, ...]]:
    if state.leaving:
        return state, ()
    state = replace(state, leaving=True, draining=state.workers)
    if not state.workers:
        return state, (Say(AgentLeave(state.id)), Finish())
    ask = tuple(Terminate(member, signal.grace_s) for member in sorted(state.workers))
    return state, (Say(DrainAgent(state.id, signal.grace_s, signal.why)), *ask)
