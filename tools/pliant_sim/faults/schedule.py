"""Faults, drawn from the seed, and their effect on a simulation.

A fault counts as fired only if there was something to strike. Every fault ends by itself, or is ended by `heal`:
liveness is promised after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.model.job import Mode
from pliant_sim.engine import Timeline
from pliant_sim.fault_kinds import AnyFaultKind, SimulatedFaultKind
from pliant_sim.faults.act import Act
from pliant_sim.faults.processes import (
    compute_wrong,
    corrupt_state,
    fail_worker,
    freeze_leader,
    freeze_worker,
    hang_in_user_code,
    kill_agent,
    kill_all_agents,
    kill_all_workers,
    kill_coordinator,
    kill_worker,
    lose_leader,
    raise_in_user_code,
    stop_agent,
    stop_coordinator,
    stop_worker,
)
from pliant_sim.faults.requests import (
    drain_agent,
    drain_worker,
    foreign_join,
    go_live,
    interrupt,
    leave_agent,
    next_attempt,
    replace_all,
    request_checkpoint,
    resize,
    resume_cancelled,
    spot_notice,
    spot_storm,
)
from pliant_sim.faults.surroundings import (
    arm_store,
    break_transfer,
    clock_jump,
    clock_skew,
    close_agent_watch,
    close_member_watch,
    cut_store,
    damage_checkpoint,
    disturb_network,
    partition,
    partition_coordinators,
    partition_members,
    slow_store,
    take_name,
    two_leaders,
)
from pliant_sim.launch.world import LaunchSimulation
from pliant_sim.launch.world import setting_for as launch_setting_for
from pliant_sim.live.world import LiveSimulation, verify_for
from pliant_sim.live.world import setting_for as live_setting_for
from pliant_sim.simulation import NetworkConditions, Simulation

FOREIGN_MAX = 3
MOVES_UNTIL_S = 40.0
CORRUPTED_MAX = 2  # in one schedule: a third divergence at one step would rightly be taken for a fault of user code

S = TypeVar("S", bound=Timeline)
Table = Mapping[AnyFaultKind, tuple[float, Act[S]]]


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """One fault at one moment. `draw` makes its choices, so a shrunk schedule leaves the other faults unchanged."""

    at_s: float
    kind: AnyFaultKind
    draw: int


def live_schedule(seed: int, until_s: float = 60.0) -> tuple[ScheduledFault, ...]:
    """About one fault a second, each kind by its weight. Special kinds are drawn apart, by generators of their own.

    Calm schedules have one every eight seconds, and none of the network, the coordinators or the disk.
    """
    setting = live_setting_for(seed)
    if setting.script_ends is not None:
        return ()
    if setting.moves:
        return tuple(draw_faults(Random(f"moves {seed}"), MOVES, 6.0, min(until_s, MOVES_UNTIL_S), 0.2))
    if setting.failover:
        return tuple(draw_faults(Random(f"failover {seed}"), FAILOVER, 8.0, until_s, 0.15))
    if setting.calm:
        faults = draw_faults(Random(f"calm faults {seed}"), CALM, 4.0, until_s, 0.12)
        if seed % 40 == 27:
            faults.append(at_random(Random(f"freeze {seed}"), 4.0, 30.0, SimulatedFaultKind.FREEZE))
        return tuple(sorted(faults, key=lambda fault: fault.at_s))
    faults = draw_faults(Random(f"faults {seed}"), LIVE, 2.0, until_s, 1.0)
    if verify_for(seed):
        chance = Random(f"corruption {seed}")
        faults += [at_random(chance, 4.0, 40.0, SimulatedFaultKind.CORRUPT_STATE) for _ in range(CORRUPTED_MAX)]
        # One of the two: a member that is in the disputes of two faulty machines is rightly distrusted.
        kind = chance.choice([SimulatedFaultKind.WRONG_GRADIENT, SimulatedFaultKind.WRONG_GRADIENTS])
        faults.append(at_random(chance, 4.0, 40.0, kind))
        faults += [at_random(chance, 0.1, 40.0, SimulatedFaultKind.FOREIGN_JOIN) for _ in range(FOREIGN_MAX)]
    if seed % 3 == 1:
        faults.append(at_random(Random(f"cut off {seed}"), 3.0, 30.0, FaultKind.PARTITION_COORDINATORS))
    if seed % 4 in (1, 2):
        chance = Random(f"checkpoints {seed}")
        faults += [at_random(chance, 2.0, 40.0, FaultKind.REQUEST_CHECKPOINT) for _ in range(3)]
        faults.append(at_random(chance, 5.0, 40.0, FaultKind.DAMAGE_CHECKPOINT))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def launch_schedule(seed: int, until_s: float = 60.0) -> tuple[ScheduledFault, ...]:
    """A fault every two seconds, each kind by its weight; where workers may join, one does in most schedules."""
    chance = Random(f"launch faults {seed}")
    faults = draw_faults(chance, LAUNCH, 1.0, until_s, 0.5)
    if launch_setting_for(seed).mode is Mode.AUTO and chance.random() < 0.8:
        faults.append(at_random(chance, 3.0, until_s, SimulatedFaultKind.GO_LIVE))
    if seed % 3 == 1:
        faults.append(at_random(Random(f"cut off {seed}"), 4.0, 30.0, FaultKind.PARTITION_COORDINATORS))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def draw_faults(
    chance: Random, table: Table[S], first_s: float, until_s: float, per_second: float
) -> list[ScheduledFault]:
    kinds = list(table)
    weights = [table[kind][0] for kind in kinds]
    faults = []
    now = first_s
    while now < until_s:
        faults.append(ScheduledFault(now, chance.choices(kinds, weights)[0], chance.getrandbits(32)))
        now += chance.expovariate(per_second)
    return faults


def at_random(chance: Random, low_s: float, high_s: float, kind: AnyFaultKind) -> ScheduledFault:
    return ScheduledFault(chance.uniform(low_s, high_s), kind, chance.getrandbits(32))


def strike_live(sim: LiveSimulation, fault: ScheduledFault) -> None:
    """Inject a fault into a live job."""
    setting = sim.setting
    table = MOVES if setting.moves else FAILOVER if setting.failover else CALM if setting.calm else LIVE
    if table[fault.kind][1](sim, Random(fault.draw)):
        sim.struck_at = sim.now
        sim.faults_fired(fault.kind)


def strike_launch(sim: LaunchSimulation, fault: ScheduledFault) -> None:
    """Inject a fault into a launched job."""
    if LAUNCH[fault.kind][1](sim, Random(fault.draw)):
        sim.faults_fired(fault.kind)


def heal(sim: Simulation) -> None:
    """End all faults."""
    sim.network = NetworkConditions()
    sim.cut_machines.clear()
    sim.down_until.clear()
    sim.tick_rates.clear()
    for machine, agent in sim.agents.items():
        agent.resume()
        if machine.startswith("b"):  # it took another machine's name
            agent.kill()
    sim.heal_workers()
    for coordinator in sim.coordinators:
        coordinator.paused = False
        coordinator.ahead_s = 0.0
        coordinator.slow = coordinator.store.cut = False
        coordinator.store.armed.clear()
        coordinator.start()
    sim.tell("the faults are over")


STORE_KINDS = (
    FaultKind.CRASH_BEFORE_WRITE,
    FaultKind.CRASH_AFTER_WRITE,
    FaultKind.STORE_ERROR,
    FaultKind.STORE_TIMEOUT_APPLIED,
    FaultKind.STORE_TIMEOUT_LOST,
    FaultKind.STORE_TIMEOUT_LATE,
)
# A weight of 0: drawn apart, see `live_schedule` and `launch_schedule`.
LIVE: Table[LiveSimulation] = {
    FaultKind.KILL: (6.0, kill_worker),
    FaultKind.KILL_AGENT: (1.5, kill_agent),
    FaultKind.KILL_ALL: (0.35, kill_all_workers),
    FaultKind.KILL_COORDINATOR: (3.0, kill_coordinator),
    FaultKind.STOP: (3.0, stop_worker),
    FaultKind.STOP_COORDINATOR: (2.0, stop_coordinator),
    FaultKind.USER_ERROR: (1.0, raise_in_user_code),
    FaultKind.DRAIN: (4.0, drain_worker),
    FaultKind.SPOT_NOTICE: (1.5, spot_storm),
    SimulatedFaultKind.REPLACE_ALL: (0.8, replace_all),
    FaultKind.RESIZE: (4.0, resize),
    FaultKind.LOSE_MESSAGES: (2.0, disturb_network(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (2.0, disturb_network(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (2.0, disturb_network(delay_s=1.0)),
    FaultKind.REORDER_MESSAGES: (2.0, disturb_network(jitter_s=2.0)),
    FaultKind.PARTITION: (2.0, partition(one_way=False)),
    FaultKind.PARTITION_ONE_WAY: (2.0, partition(one_way=True)),
    FaultKind.PARTITION_MEMBERS: (3.0, partition_members),
    FaultKind.CLOSE_WATCH: (2.0, close_member_watch),
    FaultKind.BREAK_TRANSFER: (3.0, break_transfer),
    **{kind: (1.5, arm_store(kind)) for kind in STORE_KINDS},
    FaultKind.CLOCK_JUMP: (1.5, clock_jump),
    SimulatedFaultKind.CLOCK_SKEW: (1.5, clock_skew),
    FaultKind.TWO_LEADERS: (1.5, two_leaders),
    SimulatedFaultKind.CORRUPT_STATE: (0.0, corrupt_state),
    SimulatedFaultKind.FOREIGN_JOIN: (0.0, foreign_join),
    SimulatedFaultKind.WRONG_GRADIENT: (0.0, compute_wrong(once=True)),
    SimulatedFaultKind.WRONG_GRADIENTS: (0.0, compute_wrong(once=False)),
    FaultKind.PARTITION_COORDINATORS: (0.0, partition_coordinators),
    FaultKind.REQUEST_CHECKPOINT: (0.0, request_checkpoint),
    FaultKind.DAMAGE_CHECKPOINT: (0.0, damage_checkpoint),
}
CALM: Table[LiveSimulation] = {
    FaultKind.KILL: (3.0, kill_worker),
    SimulatedFaultKind.INTERRUPT: (2.0, interrupt),
    SimulatedFaultKind.NEXT_ATTEMPT: (2.0, resume_cancelled),
    SimulatedFaultKind.HANG: (1.0, hang_in_user_code),
    SimulatedFaultKind.FREEZE: (0.0, freeze_worker),
}
MOVES: Table[LiveSimulation] = {
    FaultKind.KILL: (2.0, kill_worker),
    FaultKind.KILL_AGENT: (1.0, kill_agent),
    FaultKind.RESIZE: (4.0, resize),
    SimulatedFaultKind.AGENT_LEAVES: (2.0, leave_agent),
}
FAILOVER: Table[LiveSimulation] = {
    SimulatedFaultKind.FREEZE_LEADER: (3.0, freeze_leader),
    SimulatedFaultKind.LOSE_LEADER: (2.0, lose_leader),
    SimulatedFaultKind.CUT_STORE: (1.0, cut_store),
    SimulatedFaultKind.SLOW_STORE: (1.0, slow_store),
    FaultKind.RESIZE: (3.0, resize),
}
LAUNCH: Table[LaunchSimulation] = {
    FaultKind.KILL: (5.0, kill_worker),
    FaultKind.USER_ERROR: (3.0, fail_worker),
    FaultKind.KILL_AGENT: (3.0, kill_agent),
    FaultKind.KILL_ALL: (0.5, kill_all_agents),
    SimulatedFaultKind.STOP_AGENT: (2.0, stop_agent),
    FaultKind.CLOSE_WATCH: (1.5, close_agent_watch),
    FaultKind.KILL_COORDINATOR: (2.0, kill_coordinator),
    FaultKind.STOP_COORDINATOR: (1.0, stop_coordinator),
    FaultKind.SPOT_NOTICE: (2.0, spot_notice),
    FaultKind.DRAIN_AGENT: (2.0, drain_agent),
    FaultKind.RESIZE: (4.0, resize),
    SimulatedFaultKind.GO_LIVE: (0.0, go_live),
    SimulatedFaultKind.NEXT_ATTEMPT: (0.4, next_attempt),
    SimulatedFaultKind.NAME_TAKEN: (1.0, take_name),
    FaultKind.LOSE_MESSAGES: (2.0, disturb_network(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (2.0, disturb_network(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (1.5, disturb_network(delay_s=1.0)),
    FaultKind.REORDER_MESSAGES: (1.5, disturb_network(jitter_s=2.0)),
    FaultKind.PARTITION: (1.5, partition(one_way=False)),
    FaultKind.PARTITION_ONE_WAY: (1.5, partition(one_way=True)),
    **{kind: (0.7, arm_store(kind)) for kind in STORE_KINDS},
    FaultKind.CLOCK_JUMP: (0.5, clock_jump),
    FaultKind.PARTITION_COORDINATORS: (0.0, partition_coordinators),
    FaultKind.TWO_LEADERS: (0.7, two_leaders),
}
