"""The end of a worker: what is reported, how long the next start waits, and when the agent gives up."""

from __future__ import annotations

from pliant.core.job.launches import FENCED_CODE, describe_exit, is_own_failure
from pliant.core.messages import AgentLeave, Cancel, DrainAgent
from pliant.core.model.copies import change
from pliant.core.model.launch import SeatEnd
from pliant.core.start_failures import is_bad_input, is_incurable
from pliant.core.supervisor.live import start_missing
from pliant.core.supervisor.orders import apply_orders, leave
from pliant.core.supervisor.signals import Finish, ReadEvents, SendCommand, WorkerEnded
from pliant.core.supervisor.state import Decision, Supervisor, exited, is_live, is_server

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0  # after a launch that lasted this long, the next failure counts as the first
YOUNG_S = 10.0
ENDS_KEPT = 100
KILLED_MAX = 10  # workers in a row that are killed before they join; the machine may be short of memory


def handle_end(state: Supervisor, ended: WorkerEnded, now: float) -> Decision:
    """Report the end of a worker, then give up, leave, or start the next one."""
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
    # The slots of a job that is over are granted to others when its processes have ended.
    is_over = state.order is not None and state.order.ended
    said = (SendCommand(exited(end)),) if live or is_over or not asked else ()
    failed = not asked and (_is_first_failure(state, ended, now) if not live else quits or is_own_failure(ended.code))
    state = _back_off(state, now, live=live, failed=failed)
    never_joined = live and not joined and ended.events_read is True and not (asked or state.ended)
    failed_to_join = never_joined and (ended.code == 0 or is_own_failure(ended.code))
    late = live and joined and state.ended and ended.code not in (0, FENCED_CODE)
    earlier = state.ends[-ENDS_KEPT:] if live else state.ends  # a launch has so many seats, a live job any number
    state = change(
        state,
        workers=state.workers - {ended.member},
        joined=state.joined - {ended.member},
        draining=state.draining - {ended.member},
        stopping=state.stopping - {ended.member},
        left=state.left - {ended.member},
        lost=tuple(each for each in state.lost if each[0] != ended.member),
        ends=state.ends if asked and not live else (*earlier, end),
        never_joined=state.never_joined + failed_to_join,
        killed_unjoined=state.killed_unjoined + (never_joined and not failed_to_join),
        failed_after_end=(*state.failed_after_end, end) if late else state.failed_after_end,
    )
    if never_joined and (why := reason_to_give_up(state, ended, describe_exit(ended.code))):
        drain = SendCommand(DrainAgent(state.id, state.grace_s, why))
        state, leaving = leave(change(state, gave_up=why), state.grace_s, drain)
        return state, (SendCommand(Cancel(why, failed=True)), *said, *leaving)
    if state.leaving and not state.workers:
        return state, (*said, SendCommand(AgentLeave(state.id)), Finish())
    if live:
        return start_missing(state, said, now)
    state, actions = apply_orders(state, (), now)
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
        return change(state, failures=0 if live else state.failures)
    failures = 1 if not live and now - state.launched_at > STEADY_S else state.failures + 1
    exponent = min(failures - 1 if live else failures - 2, 10)
    backoff_s = min(BACKOFF_FIRST_S * 2**exponent, BACKOFF_MAX_S) if exponent >= 0 else 0.0
    return change(state, failures=failures, not_before=now + backoff_s)


def reason_to_give_up(state: Supervisor, ended: WorkerEnded, how: str) -> str:
    """Return why a script that never joins is not started again; empty if it is. `how` is its exit, as a phrase.

    Where other workers have joined, a worker that ended well without was asked to, by a person for instance.
    """
    if ended.code == 0 and not state.script_joins and not is_server(ended.member):
        return (
            f"{ended.member} ended with {how} and had never joined the job: "
            "a script for live training calls pliant.join(); for one that does not, use --mode relaunch --fresh"
        )
    if not state.trains and _will_fail_again(state, ended):
        return f"it cannot start: {ended.member} ended with {how}: {ended.error}"
    log = f"; its output is in {ended.log}" if ended.log else ""
    if state.killed_unjoined >= KILLED_MAX:
        workers = f"{state.killed_unjoined} workers in a row were killed before they joined"
        return f"{workers}, {ended.member} with {how}; check the memory of this machine{log}"
    if state.never_joined <= state.max_restarts:
        return ""
    return f"{state.never_joined} workers in a row ended before they joined, {ended.member} with {how}{log}"


def _will_fail_again(state: Supervisor, ended: WorkerEnded) -> bool:
    """Return whether the next worker is certain to end with this error: no restart cures it, or the last one had it."""
    before = [end.error for end in state.ends[-2:-1]]
    return is_incurable(ended.error, ended.code) or (is_bad_input(ended.error) and ended.error in before)
