"""Launches: workers that do not use Pliant's API, started together, stopped together, and started again after a change.

Until a worker joins by itself, its agent acts as the member on its behalf. A launch forms when every known agent has
reported that none of its workers runs. So no two generations of a job run side by side on agents that the coordinator
sees. An agent that disappears holds up the launch until its lease expires. Workers that it may still run then are
stopped when it comes back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pliant.core import messages as m
from pliant.core.job.checkpoints import request_on_drain
from pliant.core.job.failures import counted_failures
from pliant.core.job.validation import ADDRESS_MAX, CHIEF, PARAMETER_SERVER, PORT_MAX, SIZE_MAX, WORKER, bad_grace
from pliant.core.messages import Code, Event, Rejection
from pliant.core.model.job import Agent, Job, JobState, Member, Target, member_limit
from pliant.core.model.launch import Launch, Seat, SeatEnd
from pliant.core.model.names import AgentId, MemberId, bad_name
from pliant.core.start_failures import is_bad_input, is_incurable

CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11})  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: caused by the worker itself
FENCED_CODE = 75  # exit code of a fenced worker; not counted as a failure
STUCK_CODE = 76  # exit code of a worker whose user code did not return
REFILLED = frozenset({"worker", "evaluator"})  # with parameter servers, these may come and go
AGENTS_NAMED = 3  # in the reason for waiting; the rest are counted


def describe_exit(code: int) -> str:
    if code == STUCK_CODE:
        return f"exit code {code}: its user code did not return within stall_s"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def is_own_failure(code: int) -> bool:
    """Return whether another try is likely to end the same way: not if the worker was killed or fenced."""
    return (code > 0 and code != FENCED_CODE) or -code in CRASH_SIGNALS


# -------------------------------------------------------------------------------------------------- agents


def agent_join(job: Job, command: m.AgentJoin, now: float) -> tuple[Event, ...] | Rejection:
    if bad := bad_name(command.agent):
        return Rejection(Code.BAD, bad)
    if not 0 <= command.capacity <= SIZE_MAX:
        return Rejection(Code.BAD, f"an agent's capacity must be 0 to {SIZE_MAX} workers; got {command.capacity}")
    if any(
        len(text) > ADDRESS_MAX or not text.isprintable()
        for text in (command.address, command.install_id, command.run_id)
    ):
        return Rejection(
            Code.BAD, f"an agent's address, install_id and run_id must have up to {ADDRESS_MAX} printable characters"
        )
    if bad := _bad_role(job, command.role):
        return Rejection(Code.BAD, bad)
    others = [agent for agent in job.agents if agent.id != command.agent]
    known = next((agent for agent in job.agents if agent.id == command.agent), None)
    if known is not None and known.install_id and command.install_id and known.install_id != command.install_id:
        why = f"another agent is called {known.id}, at {known.address or 'an unknown address'}"
        return Rejection(Code.EXISTS, f"{why}: set PLIANT_AGENT to another name here")
    if bad := _bad_workers(command):
        return Rejection(Code.BAD, bad)
    here = (command.agent, command.capacity, command.address, command.install_id, command.run_id)
    if known == Agent(*here, *_standing(known), command.role, known.permitted if known is not None else 0):
        return ()
    if bad := _loopback_conflict(command, others):
        return Rejection(Code.BAD, bad)
    if len(others) >= member_limit(job):
        return Rejection(
            Code.BAD, f"{job.name} has {len(others)} agents, far more than its largest size {job.spec.size_max}"
        )
    return (m.AgentJoined(now, *here, command.role, command.started, command.workers),)


def _bad_workers(command: m.AgentJoin) -> str:
    most = 2 * command.capacity  # old and new ones run side by side while all are replaced
    if command.started < 0 or len(command.workers) > most:
        return f"{command.agent} can have started 0 or more workers and run {most}; got {command.started} started"
    return next((bad for worker in command.workers if (bad := bad_name(worker))), "")


def _bad_role(job: Job, role: str) -> str:
    """Return why no worker of the job can take an agent's only role; empty if one can."""
    known = [WORKER, *(name for name, _ in job.spec.roles)]
    return "" if role in ("", *known) else f"{job.name} has no role {role!r}; an agent's role is {' or '.join(known)}"


def _standing(known: Agent | None) -> tuple[bool, tuple[int, ...], float]:
    return (known.draining, known.ports, known.grace_s) if known else (False, (), 0.0)


def _loopback_conflict(command: m.AgentJoin, others: list[Agent]) -> str:
    """Return why an agent at a loopback address cannot work with agents of other machines; empty if none does."""
    for other in others:
        if not (command.address and other.address) or _is_loopback(command.address) == _is_loopback(other.address):
            continue
        inner, outer = (command.agent, other) if _is_loopback(command.address) else (other.id, command)
        at = outer.address
        return (
            f"{inner} is at a loopback address, which other machines such as {at} cannot reach: "
            f"run {inner} with --local-addr and an address of its machine"
        )
    return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")


def agent_ready(job: Job, command: m.AgentReady, now: float) -> tuple[Event, ...] | Rejection:
    agent = next((known for known in job.agents if known.id == command.agent), None)
    if agent is None:
        return Rejection(Code.UNKNOWN, f"no agent {command.agent}; join first")
    if len(command.ports) != agent.capacity or not all(0 < port <= PORT_MAX for port in command.ports):
        return Rejection(
            Code.BAD, f"{agent.id} must send {agent.capacity} ports, one for each worker, from 1 to {PORT_MAX}"
        )
    launch = job.launch
    runs = launch is not None and any(seat.agent == agent.id for seat in launch.seats)
    if job.is_live or command.ports == agent.ports or (launch is not None and command.generation < launch.number):
        return ()  # a report from before the launch is outdated
    readied = m.AgentReadied(now, agent.id, command.ports)
    if launch is None or launch.over or not runs:
        return (readied,)
    return (m.LaunchOver(now, launch.number, f"all workers of {agent.id} have ended"), readied)


def drain_agent(job: Job, command: m.DrainAgent, now: float) -> tuple[Event, ...] | Rejection:
    """Let all members on that agent leave. A second command can shorten the grace period, or set `immediate`."""
    if (bad := bad_grace(command.grace_s)) is not None:
        return bad
    there = [x for x in job.members.values() if x.agent == command.agent]
    if not there and all(agent.id != command.agent for agent in job.agents):
        return Rejection(Code.UNKNOWN, f"no agent {command.agent} and no member on it")
    fresh = [x for x in there if is_drained_sooner(x, command.grace_s, immediate=command.immediate)]
    of_members = (
        m.MemberDraining(
            now,
            x.id,
            min(command.grace_s, x.grace_s) if x.draining else command.grace_s,
            command.why,
            command.immediate or x.immediate,
        )
        for x in fresh
    )
    return (*_agent_draining(job, command, now), *of_members, *request_on_drain(job, (x.id for x in fresh), now))


def is_drained_sooner(member: Member, grace_s: float, *, immediate: bool = False) -> bool:
    """Return whether a drain changes anything: a later one counts only if it leaves less time."""
    return not member.draining or grace_s < member.grace_s or immediate > member.immediate


def _agent_draining(job: Job, command: m.DrainAgent, now: float) -> tuple[Event, ...]:
    """Let the agent itself leave: it gets no more workers. Members of a live job alone may leave without it."""
    agent = next((known for known in job.agents if known.id == command.agent), None)
    if agent is None or (job.is_live and not command.leave):
        return ()
    if agent.draining and command.grace_s >= agent.grace_s:
        return ()
    return (m.AgentDraining(now, agent.id, command.grace_s, command.why),)


# ------------------------------------------------------------------------------------------- ends of workers


def seat_ended(job: Job, command: m.Exited, now: float) -> tuple[Event, ...]:
    """A launched worker ended. After exit code 0 the others go on; else the launch is over, or the seat is refilled."""
    launch = job.launch
    seat = launch.seat_of(command.member) if launch is not None else None
    if launch is None or seat is None or job.is_live or any(end.member == command.member for end in launch.ends):
        return ()
    end = SeatEnd(command.member, command.code, command.error, command.early)
    ended = m.SeatEnded(now, launch.number, end)
    if launch.over:
        return (ended,)
    if command.code == 0:
        return (ended, *_finished(job, launch, seat, now))
    if _is_refilled(job, seat):
        rank, taken = launch.seats.index(seat), _refill_count(launch, seat)
        # One cause may end all of them, such as a lost parameter server: only a worker that fails more often counts.
        counts = is_own_failure(end.code) and all(_refill_count(launch, other) <= taken for other in launch.seats)
        failed = _failed(job, end, now) if counts else ()
        if failed and isinstance(failed[-1], m.StateChanged):
            return (ended, *failed)
        name = MemberId(f"{seat.agent}-g{launch.number}.{rank}.{taken + 1}")
        return (ended, *failed, m.SeatRefilled(now, launch.number, rank, name))
    return (ended, m.LaunchOver(now, launch.number, _describe_end(end)))


def _finished(job: Job, launch: Launch, seat: Seat, now: float) -> tuple[Event, ...]:
    if any(role == CHIEF for role, _ in job.spec.roles):
        return (
            (m.StateChanged(now, JobState.FINISHED, "the chief ended with exit code 0"),) if seat.role == CHIEF else ()
        )
    done = launch.done | {seat.member}
    if any(other.member not in done for other in launch.seats):
        return ()
    count = len(launch.seats)
    why = f"all {count} workers ended with exit code 0" if count > 1 else "its worker ended with exit code 0"
    return (m.StateChanged(now, JobState.FINISHED, why),)


def _is_refilled(job: Job, seat: Seat) -> bool:
    return seat.role in REFILLED and any(role == PARAMETER_SERVER for role, _ in job.spec.roles)


def _refill_count(launch: Launch, seat: Seat) -> int:
    """Return how often a seat was refilled, which the name of its member contains."""
    return int(seat.member.removeprefix(f"{seat.agent}-g{launch.number}.").partition(".")[2] or "0")


def _failed(job: Job, end: SeatEnd, now: float) -> tuple[Event, ...]:
    failed = m.WorkerFailed(now, end.member, end.code)
    before = len(counted_failures(job, now))
    if before < job.spec.max_restarts:
        return (failed,)
    return (failed, m.StateChanged(now, JobState.FAILED, f"{describe_crashes(job, before + 1)}; {_describe_end(end)}"))


def describe_crashes(job: Job, count: int) -> str:
    """Return why a job fails after that many crashes of its workers."""
    times = "once" if count == 1 else f"{count} times"
    return f"it crashed {times} (--max-restarts {job.spec.max_restarts})"


def _describe_end(end: SeatEnd) -> str:
    return f"{end.member} ended with {describe_exit(end.code)}{f': {end.error}' if end.error else ''}"


# ------------------------------------------------------------------------------------------------- launches


def next_launch(job: Job, now: float) -> tuple[Event, ...]:
    """Return what follows for a job that is not live yet; `()` if nothing does."""
    launch = job.launch
    if launch is not None and not launch.over:
        why = _relaunch_reason(job, launch)
        if why:
            return (m.LaunchOver(now, launch.number, why),)
        size = "1 worker" if len(launch.seats) == 1 else f"{len(launch.seats)} workers"
        return _state_change(job, JobState.RUNNING, f"{size}, launched as generation {launch.number}", now)
    if busy := _agents_not_ready(job):
        whose = "its" if len(busy) == 1 else "their"
        what = f"to stop {whose} workers; {launch.over}" if launch else "to be ready"
        others = f" and {len(busy) - AGENTS_NAMED} more" if len(busy) > AGENTS_NAMED else ""
        return _state_change(job, JobState.WAITING, f"waiting for {', '.join(busy[:AGENTS_NAMED])}{others} {what}", now)
    culprit = _failure_that_ended(job, launch) if launch is not None else None
    if launch is not None and culprit is not None and (back := _go_back(job, launch, culprit, now)):
        return back
    failed = _failure_events(job, launch, culprit, now) if launch is not None and culprit is not None else ()
    if failed and isinstance(failed[-1], m.StateChanged):
        return failed
    seats = _seats(job, seats_per_agent(job))
    if wrong := _too_few(job, seats):
        because = f"; {launch.over}" if launch and launch.over != wrong else ""
        return _state_change(job, JobState.WAITING, f"{wrong}{because}", now)
    why = launch.over if launch is not None else "the job starts"
    return (*failed, m.Launched(now, _next(job, seats, why)))


def _next(job: Job, seats: tuple[Seat, ...], why: str) -> Launch:
    launch = job.launch
    ran = launch is not None and not launch.lost and not any(end.code for end in launch.ends)
    before = len(launch.seats) if launch is not None and ran else 0
    size_before = before if before != len(seats) else 0
    return Launch(job.generation + 1, seats, why, job.generation - job.generation_before, size_before=size_before)


def _go_back(job: Job, launch: Launch, culprit: SeatEnd, now: float) -> tuple[Event, ...]:
    """Launch the size that worked, if another size failed at its start; `()` if it did not.

    The size becomes the target, so that only a user tries the other one again.
    """
    size = launch.size_before
    if not (culprit.early and size and job.spec.size_min <= size <= job.spec.size_max):
        return ()
    back = replace(job, target=Target(size))
    seats = _seats(back, seats_per_agent(back))
    if _too_few(back, seats):
        return ()
    why = f"back to {size} workers, which worked: {len(launch.seats)} failed at the start; {launch.over}"
    return (m.TargetChanged(now, back.target), m.Launched(now, _next(back, seats, why)))


def _failure_events(job: Job, launch: Launch, culprit: SeatEnd, now: float) -> tuple[Event, ...]:
    """Return the failure of a launch, and the end of the job if that happened too often or cannot be cured."""
    if len(job.failures) >= job.spec.max_restarts or not _cannot_start(job, launch, culprit):
        return _failed(job, culprit, now)
    why = f"it cannot start: {_describe_end(culprit)}"
    return (m.WorkerFailed(now, culprit.member, culprit.code), m.StateChanged(now, JobState.FAILED, why))


def _cannot_start(job: Job, launch: Launch, culprit: SeatEnd) -> bool:
    """Return whether another launch is certain to fail: none has worked, and the error will be the same.

    That is so for an error that no restart cures, for the same error on all of several workers, and for the error of
    the launch before.
    """
    if not culprit.early or launch.restarts != len(job.failures):
        return False
    failed = {end.member: end.error for end in launch.ends if end.code}
    everywhere = 1 < len(launch.seats) == len(failed) and {*failed.values()} == {culprit.error}
    repeated = everywhere or launch.why.endswith(f": {culprit.error}")
    return is_incurable(culprit.error, culprit.code) or (is_bad_input(culprit.error) and repeated)


def seats_per_agent(job: Job) -> dict[AgentId, int]:
    """Return how many workers each agent is to launch: as in the last launch where possible, else spread evenly.

    A new agent counts once it is ready, so that no worker is stopped for an agent that may never be.
    """
    seated = {seat.agent for seat in job.launch.seats} if job.launch else set[AgentId]()
    staying = [agent for agent in job.agents if not agent.draining and (agent.ports or agent.id in seated)]
    if job.target.placement:
        wanted = dict(job.target.placement)
        return {agent.id: min(wanted.get(agent.id, 0), agent.capacity) for agent in staying}
    before = Counter(seat.agent for seat in job.launch.seats) if job.launch else Counter[AgentId]()
    limit = job.wanted_size
    share: dict[AgentId, int] = {}
    for role, count in job.spec.roles:
        share |= _share([agent for agent in staying if agent.role == role], count, before)
    workers = [agent for agent in staying if agent.role == WORKER]
    share |= _share(workers, limit - sum(count for _, count in job.spec.roles), before)
    return share | _share([agent for agent in staying if not agent.role], limit - sum(share.values()), before)


def _share(agents: list[Agent], limit: int, before: Counter[AgentId]) -> dict[AgentId, int]:
    """Deal that many seats: as many as before to each agent, taken from the youngest, then to those with the fewest."""
    share = {agent.id: min(before[agent.id], agent.capacity) for agent in agents}
    for agent in reversed(agents):
        share[agent.id] -= min(share[agent.id], max(0, sum(share.values()) - limit))
    while sum(share.values()) < limit and (free := [a for a in agents if share[a.id] < a.capacity]):
        fewest = min(free, key=lambda agent: share[agent.id])
        share[fewest.id] += 1
    return share


def _relaunch_reason(job: Job, launch: Launch) -> str:
    """Return why a running launch must be replaced; empty if it need not. One whose workers end well is left alone."""
    agents, done = {agent.id: agent for agent in job.agents}, launch.done
    for seat in launch.seats:
        agent = agents.get(seat.agent)
        if seat.member not in done and (agent is None or agent.draining):
            return f"{seat.agent} {'is gone' if agent is None else 'leaves'}"
    if job.spec.queue and not job.granted:
        return job.grant_missing
    before, wanted = Counter(seat.agent for seat in launch.seats), Counter(seats_per_agent(job))
    if done or +wanted == before or _too_few(job, _seats(job, wanted)):
        return ""
    size, now = len(launch.seats), wanted.total()
    if size == now:
        return "another placement is wanted"
    return f"{now} workers instead of {size}"


def is_stopping(job: Job) -> bool:
    """Return whether a launch is over and its workers may still run: no member is missing then."""
    return not job.is_live and job.launch is not None and bool(job.launch.over) and bool(_agents_not_ready(job))


def _agents_not_ready(job: Job) -> list[AgentId]:
    """Return the agents that have not reported that all their workers, of any launch, have ended."""
    return [agent.id for agent in job.agents if agent.capacity and not agent.ports]


def _failure_that_ended(job: Job, launch: Launch) -> SeatEnd | None:
    """Return the worker failure that ended a launch; None if a worker was killed, or lost with its agent."""
    seated = {seat.member for seat in launch.seats}
    ends = [end for end in launch.ends if end.member in seated]
    staying = {agent.id for agent in job.agents if not agent.draining}
    if launch.lost or not staying.issuperset(seat.agent for seat in launch.seats):
        return None
    if not all(end.code == 0 or is_own_failure(end.code) for end in ends):
        return None
    return next((end for end in ends if end.code and _describe_end(end) == launch.over), None)


def _seats(job: Job, share: Counter[AgentId] | dict[AgentId, int]) -> tuple[Seat, ...]:
    """Deal ranks agent by agent, in the order in which agents joined, so that rank 0 stays with the oldest.

    An agent with a role of its own gives it to all its workers. The others take the roles that are left, in the order
    in which the job names them. Ranks go by role in this order, workers last.
    """
    order = [role for role, _ in job.spec.roles]
    left = Counter(dict(job.spec.roles))
    left.subtract(Counter({role: _seats_of(job, role, share) for role in order}))
    roles = [role for role in order for _ in range(left[role])]
    seats: list[Seat] = []
    for agent in job.agents:
        for index in range(share.get(agent.id, 0)):
            role = agent.role or (roles.pop(0) if roles else WORKER)
            port = agent.ports[index] if agent.ports else 0  # no ports: the layout is computed before a launch
            member = MemberId(f"{agent.id}-g{job.generation + 1}.{index}")
            host = f"[{agent.address}]" if ":" in agent.address else agent.address or "127.0.0.1"
            seats.append(Seat(member, agent.id, role, f"{host}:{port}"))
    return tuple(sorted(seats, key=lambda seat: order.index(seat.role) if seat.role in order else len(order)))


def _seats_of(job: Job, role: str, share: Counter[AgentId] | dict[AgentId, int]) -> int:
    return sum(share.get(agent.id, 0) for agent in job.agents if agent.role == role)


def _too_few(job: Job, seats: tuple[Seat, ...]) -> str:
    least = max(job.spec.size_min, sum(count for _, count in job.spec.roles) + (1 if job.spec.roles else 0))
    if len(seats) < least:
        return job.grant_missing or f"{len(seats)} of the {least} workers needed"
    present = Counter(seat.role for seat in seats)
    missing = [(role, count - present[role]) for role, count in job.spec.roles if count > present[role]]
    return f"{missing[0][1]} more of the role {missing[0][0]} needed" if missing else ""


def _state_change(job: Job, state: JobState, why: str, now: float) -> tuple[Event, ...]:
    return () if (state, why) == (job.state, job.why) else (m.StateChanged(now, state, why),)
