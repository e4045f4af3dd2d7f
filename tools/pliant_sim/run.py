"""Run one schedule or many, and shrink one that failed."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256

from pliant.core.data.grid import Changes
from pliant_sim.fault_kinds import AnyFaultKind
from pliant_sim.faults.schedule import (
    MOVES_UNTIL_S,
    ScheduledFault,
    heal,
    launch_schedule,
    live_schedule,
    strike_launch,
    strike_live,
)
from pliant_sim.launch import world as launch_world
from pliant_sim.live import world as live_world
from pliant_sim.servers import world as server_world
from pliant_sim.servers.faults import server_schedule, strike_servers
from pliant_sim.simulation import Simulation
from pliant_sim.tasks import world as task_world
from pliant_sim.tasks.faults import strike_tasks, task_schedule

FAULTS_UNTIL_S = 60.0
SETTLED_S = 60.0  # a lease, the time workers have to end, the longest backoff, and some
PLACED_S = 30.0  # after the faults, when each agent must run as many workers as are wanted there
PATIENCE_S = 240.0  # virtual seconds after the faults in which the job must end
SERVER_FAULTS_UNTIL_S = 30.0
GARBAGE_AFTER = 10_000  # new objects before cycles are looked for: a schedule makes many, few of them in cycles
CHURN_UNTIL_S = FAULTS_UNTIL_S + PATIENCE_S  # members are replaced until the job ends


class ScheduleKind(StrEnum):
    """The kind of job that a schedule is about."""

    LIVE = "live"
    LAUNCHES = "launches"
    TASKS = "tasks"
    SERVERS = "servers"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one schedule."""

    seed: int
    complaints: tuple[str, ...]
    events: int
    generations: int
    steps: int
    fired: dict[AnyFaultKind, int]
    trace: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive schedules, and their CPU time."""

    first: int
    results: tuple[Result, ...]
    cpu_s: float


def run_batch(first: int, count: int, kind: ScheduleKind = ScheduleKind.LIVE) -> Batch:
    """Run schedules `first`, `first + 1` and so on in this process."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GARBAGE_AFTER)
    try:
        began = time.process_time()
        results = tuple(run_kind(kind, seed) for seed in range(first, first + count))
        return Batch(first, results, time.process_time() - began)
    finally:
        gc.set_threshold(*thresholds)


def run_kind(
    kind: ScheduleKind, seed: int, faults: tuple[ScheduledFault, ...] | None = None, story: list[str] | None = None
) -> Result:
    """Run one schedule of a kind of job."""
    match kind:
        case ScheduleKind.LIVE:
            return run_seed(seed, faults, story)
        case ScheduleKind.LAUNCHES:
            return run_launches(seed, faults, story)
        case ScheduleKind.TASKS:
            return run_tasks(seed, faults, story)
        case ScheduleKind.SERVERS:
            return run_servers(seed, faults, story)


def schedule_of(kind: ScheduleKind, seed: int) -> tuple[ScheduledFault, ...]:
    """Return the faults of a schedule."""
    match kind:
        case ScheduleKind.LIVE:
            return live_schedule(seed, FAULTS_UNTIL_S)
        case ScheduleKind.LAUNCHES:
            return launch_schedule(seed, FAULTS_UNTIL_S)
        case ScheduleKind.TASKS:
            return task_schedule(seed, FAULTS_UNTIL_S, CHURN_UNTIL_S)
        case ScheduleKind.SERVERS:
            return server_schedule(seed, SERVER_FAULTS_UNTIL_S)


def run_seed(
    seed: int,
    faults: tuple[ScheduledFault, ...] | None = None,
    story: list[str] | None = None,
    detail: bool = False,
    slow_store: bool = False,
    batches: Changes = (),
) -> Result:
    """Run one schedule of a live job: the faults, then quiet until the job ends.

    With `slow_store` renewals, commands and faults arrive while a coordinator waits for its store. With `batches` the
    script changes the batch.
    """
    sim = live_world.LiveSimulation(replace(live_world.setting_for(seed), batches=batches), story, detail)
    for coordinator in sim.coordinators:
        coordinator.slow_store = slow_store
    for fault in live_schedule(seed, FAULTS_UNTIL_S) if faults is None else faults:
        sim.after(fault.at_s, strike_live, sim, fault)
    until_s = MOVES_UNTIL_S if sim.setting.moves else FAULTS_UNTIL_S
    sim.run(until_s, sim.ended)
    if not sim.checks.complaints:
        heal(sim)
        if sim.setting.moves:
            sim.run(until_s + PLACED_S, sim.ended)
            sim.checks.are_placed()
        sim.run(FAULTS_UNTIL_S + PATIENCE_S, sim.ended)
    if not sim.checks.complaints:
        sim.checks.finally_()
    job = sim.checks.job
    return _result(sim, job.durable.step if job else 0)


def run_launches(seed: int, faults: tuple[ScheduledFault, ...] | None = None, story: list[str] | None = None) -> Result:
    """Run one schedule of a launched job: the faults, then quiet until the job ends."""
    sim = launch_world.LaunchSimulation(launch_world.setting_for(seed), story)
    for fault in launch_schedule(seed, FAULTS_UNTIL_S) if faults is None else faults:
        sim.after(fault.at_s, strike_launch, sim, fault)
    sim.run(FAULTS_UNTIL_S, lambda: bool(sim.checks.complaints))
    if not sim.checks.complaints:
        heal(sim)
        sim.run(FAULTS_UNTIL_S + SETTLED_S, sim.ended)
        sim.checks.settled()
    if sim.joining:
        sim.cancel()
    if not sim.checks.complaints:
        sim.run(FAULTS_UNTIL_S + PATIENCE_S, sim.ended)
        sim.checks.finally_()
    return _result(sim, sim.training.steps)


def run_tasks(seed: int, faults: tuple[ScheduledFault, ...] | None = None, story: list[str] | None = None) -> Result:
    """Run one schedule of a task queue: the faults, then quiet until the job ends. Churn goes on until then."""
    sim = task_world.TaskSimulation(task_world.setting_for(seed), story)
    for fault in schedule_of(ScheduleKind.TASKS, seed) if faults is None else faults:
        sim.after(fault.at_s, strike_tasks, sim, fault)
    if sim.setting.steady:
        sim.checks.watch_time()
    if not sim.setting.churn:
        sim.run(FAULTS_UNTIL_S, sim.ended)
        heal(sim)
        sim.checks.healed()
    if not sim.checks.complaints:
        sim.run(FAULTS_UNTIL_S + max(PATIENCE_S, SETTLED_S + sim.longest_s()), sim.ended)
    if not sim.checks.complaints:
        sim.checks.finally_()
    return _result(sim, sum(sim.checks.effects.values()))


def run_servers(seed: int, faults: tuple[ScheduledFault, ...] | None = None, story: list[str] | None = None) -> Result:
    """Run one schedule of parameter servers: the faults, then quiet until all is pushed and no bucket moves."""
    sim = server_world.ServerSimulation(server_world.setting_for(seed), story)
    for fault in schedule_of(ScheduleKind.SERVERS, seed) if faults is None else faults:
        sim.after(fault.at_s, strike_servers, sim, fault)
    sim.run(SERVER_FAULTS_UNTIL_S, lambda: bool(sim.checks.complaints))
    if not sim.checks.complaints:
        sim.heal()
        sim.run(SERVER_FAULTS_UNTIL_S + PATIENCE_S, sim.ended)
    if not sim.checks.complaints:
        sim.checks.finally_()
    pushes = sum(worker.done for worker in sim.workers)
    return Result(seed, tuple(sim.checks.complaints), sim.events, sim.layouts, pushes, dict(sim.fired), sim.trace)


def _result(sim: Simulation, steps: int) -> Result:
    return Result(
        seed=sim.sizes.seed,
        complaints=tuple(sim.store_checks.complaints),
        events=sim.events,
        generations=sim.store_checks.generations,
        steps=steps,
        fired=dict(sim.fired),
        trace=sim.trace,
    )


def shrink(seed: int, kind: ScheduleKind = ScheduleKind.LIVE) -> tuple[ScheduledFault, ...]:
    """Find few faults that still make the seed fail, by leaving out ever smaller groups of them."""
    faults = schedule_of(kind, seed)
    size = len(faults)
    while size >= 1:
        index = 0
        while index < len(faults):
            fewer = faults[:index] + faults[index + size :]
            if run_kind(kind, seed, fewer).complaints:
                faults = fewer
            else:
                index += size
        size //= 2
    return faults


def trace_hash(results: Sequence[Result]) -> str:
    """Return a hash over all events: the same seeds give the same one on any machine."""
    digest = sha256()
    for result in results:
        digest.update(f"{result.seed} {result.trace} {result.events} {result.steps}\n".encode())
    return digest.hexdigest()
