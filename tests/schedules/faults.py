"""Faults: what may go wrong, drawn from the seed, and how each is done to real processes.

A fault counts as fired only if it found something to strike. All of them end by themselves, or are ended by `heal`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.messages import Drain, DrainAgent, Resize
from pliant.core.model.job import Target
from pliant.core.model.names import AgentId, MemberId
from schedules import messages as w
from schedules.checks import Mirror
from schedules.scene import Scene

FIRST_S = 0.5
AGENTS_MAX = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one moment. `draw` makes its choices."""

    at_s: float
    kind: FaultKind
    draw: int


def schedule(seed: int, until_s: float) -> tuple[Fault, ...]:
    """About one fault a second, each kind by its weight."""
    chance = Random(f"faults {seed}")
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    faults = []
    now = FIRST_S
    while now < until_s:
        faults.append(Fault(now, chance.choices(names, weights)[0], chance.getrandbits(32)))
        now += chance.expovariate(1.1)
    return tuple(faults)


def strike(scene: Scene, fault: Fault) -> None:
    """Do it, unless the faults are over."""
    if not scene.healed and KINDS[fault.kind][1](scene, Random(fault.draw)):
        scene.faults_fired(fault.kind)


def heal(scene: Scene) -> None:
    """Everything is well again, from now on."""
    scene.healed = True
    scene.tell("the faults are over")
    scene.cut_members.clear()
    scene.breaking.clear()
    scene.fabric.healed()
    for mirror in scene.workers_up:
        _go_on(scene, mirror)
    _coordinator_goes_on(scene)
    scene.start_coordinator()
    for name in list(scene.agents):
        scene.start_agent(name)


# ------------------------------------------------------------------------------------------------ processes


def _member(scene: Scene, draw: Random) -> Mirror | None:
    there = sorted((mirror for mirror in scene.workers_up if not mirror.paused), key=lambda mirror: mirror.id)
    return draw.choice(there) if there else None


def _agent(scene: Scene, draw: Random) -> AgentId | None:
    there = sorted(name for name, process in scene.agents.items() if process.poll() is None)
    return draw.choice(there) if there else None


def _kill_member(scene: Scene, draw: Random) -> bool:
    mirror = _member(scene, draw)
    return mirror is not None and scene.signal(mirror, signal.SIGKILL)


def _kill_everybody(scene: Scene, draw: Random) -> bool:
    """No member is left to hold the state: the newest checkpoint is all there is."""
    struck = [scene.signal(mirror, signal.SIGKILL) for mirror in scene.workers_up]
    return any(struck)


def _pause_member(scene: Scene, draw: Random) -> bool:
    """Stop a member for less than half a lease, or for longer than a lease."""
    mirror = _member(scene, draw)
    if mirror is None or not scene.signal(mirror, signal.SIGSTOP):
        return False
    low_s, high_s = draw.choice([(0.2, 0.5 * w.LEASE_TTL_S), (1.5 * w.LEASE_TTL_S, 2.5 * w.LEASE_TTL_S)])
    mirror.paused = True
    scene.after(draw.uniform(low_s, high_s), _go_on, scene, mirror)
    return True


def _go_on(scene: Scene, mirror: Mirror) -> None:
    if mirror.paused:
        mirror.paused, mirror.stopped_until = False, time.time()
        scene.signal(mirror, signal.SIGCONT)
        scene.tell(f"{mirror.id} goes on")


def _kill_coordinator(scene: Scene, draw: Random) -> bool:
    if scene.coordinator is None:
        return False
    scene.kill_coordinator()
    scene.after(draw.choice([0.0, 0.5, 3.0]), scene.start_coordinator)
    return True


def _pause_coordinator(scene: Scene, draw: Random) -> bool:
    if scene.coordinator is None or scene.coordinator_paused:
        return False
    scene.coordinator.send_signal(signal.SIGSTOP)
    scene.coordinator_paused = True
    scene.after(draw.uniform(1.2, 2.0) * w.LEASE_TTL_S, _coordinator_goes_on, scene)
    return True


def _coordinator_goes_on(scene: Scene) -> None:
    if scene.coordinator is not None and scene.coordinator_paused:
        scene.coordinator_paused = False
        scene.coordinator.send_signal(signal.SIGCONT)
        scene.tell("the coordinator goes on")


def _kill_agent(scene: Scene, draw: Random) -> bool:
    name = _agent(scene, draw)
    if name is None:
        return False
    scene.kill_agent(name)
    scene.after(draw.uniform(0.1, 3.0), scene.start_agent, name)
    return True


def _machine_goes(scene: Scene, draw: Random) -> bool:
    """A spot notice: the agent hears of it, and its members leave while there is time."""
    name = _agent(scene, draw)
    if name is None:
        return False
    scene.agents[name].send_signal(signal.SIGTERM)
    scene.after(w.GRACE_S + draw.uniform(1.5, 3.0), scene.start_agent, name)
    return True


def _agent_joins(scene: Scene, draw: Random) -> bool:
    name = AgentId(f"a{len(scene.agents)}")
    if len(scene.agents) >= AGENTS_MAX:
        return False
    scene.start_agent(name)
    size = min(scene.setting.size_max, scene.setting.members + draw.randint(1, 3))
    scene.ask(Resize(Target(size)))
    return True


# -------------------------------------------------------------------------------------------------- planned


def _drain_member(scene: Scene, draw: Random) -> bool:
    mirror = _member(scene, draw)
    if mirror is None:
        return False
    if draw.random() < 0.5:
        return scene.signal(mirror, signal.SIGTERM)
    scene.ask(Drain(mirror.id, draw.choice([1.0, w.GRACE_S]), "a user asked for it"))
    return True


def _drain_agent(scene: Scene, draw: Random) -> bool:
    name = _agent(scene, draw)
    if name is None:
        return False
    scene.ask(DrainAgent(name, w.GRACE_S, "a user asked for it"))
    return True


def _resize(scene: Scene, draw: Random) -> bool:
    job = scene.checks.job
    if job is None:
        return False
    size = job.target.size + draw.choice([1, -1]) * draw.randint(1, 3)
    size = min(max(size, scene.setting.size_min), scene.setting.size_max)
    scene.ask(Resize(Target(size)))
    return size != job.target.size


# -------------------------------------------------------------------------------------------------- network


def _cut_members(scene: Scene, draw: Random) -> bool:
    there = sorted(mirror.id for mirror in scene.workers_up)
    if len(there) < 2:
        return False
    a, b = draw.sample(there, 2)
    pairs = ((a, b), (b, a)) if draw.random() < 0.5 else ((a, b),)
    scene.cut_members.update(pairs)
    scene.after(draw.choice([0.3, 2.0, 7.0]), _mend, scene, pairs)
    return True


def _mend(scene: Scene, pairs: tuple[tuple[MemberId, MemberId], ...]) -> None:
    scene.cut_members.difference_update(pairs)
    scene.fabric.healed()


def _close_watch(scene: Scene, draw: Random) -> bool:
    mirror = _member(scene, draw)
    if mirror is None:
        return False
    scene.send(mirror.id, w.CloseWatch(draw.choice([0.01, 1.0])))
    return True


def _break_transfer(scene: Scene, draw: Random) -> bool:
    """Strikes the member that receives a state next; counted when it does."""
    scene.breaking.update(mirror.id for mirror in scene.workers_up if not mirror.machine.holds_state)
    return False


KINDS: dict[FaultKind, tuple[float, Callable[[Scene, Random], bool]]] = {
    FaultKind.KILL: (5.0, _kill_member),
    FaultKind.KILL_ALL: (0.5, _kill_everybody),
    FaultKind.STOP: (4.0, _pause_member),
    FaultKind.KILL_COORDINATOR: (3.0, _kill_coordinator),
    FaultKind.STOP_COORDINATOR: (1.5, _pause_coordinator),
    FaultKind.KILL_AGENT: (1.5, _kill_agent),
    FaultKind.SPOT_NOTICE: (1.5, _machine_goes),
    FaultKind.JOIN: (1.0, _agent_joins),
    FaultKind.DRAIN: (4.0, _drain_member),
    FaultKind.DRAIN_AGENT: (1.0, _drain_agent),
    FaultKind.RESIZE: (4.0, _resize),
    FaultKind.PARTITION_MEMBERS: (2.0, _cut_members),
    FaultKind.CLOSE_WATCH: (2.0, _close_watch),
    FaultKind.BREAK_TRANSFER: (3.0, _break_transfer),
}
