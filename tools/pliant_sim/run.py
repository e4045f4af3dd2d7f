"""Running schedules: one seed, many seeds, and the shrinking of one that failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from pliant_sim.fault_kinds import AnyFaultKind
from pliant_sim.launch import faults as launch_faults
from pliant_sim.launch import world as launch_world
from pliant_sim.live.faults import Fault, heal, schedule, strike, verify_for
from pliant_sim.live.world import Setting, Universe

FAULTS_UNTIL_S = 60.0
BITS = (("torch", "2.13.0"),)
LAUNCH_FAULTS_UNTIL_S = 60.0
SETTLED_S = 60.0  # a lease, the time workers have to end, the longest backoff, and some
PATIENCE_S = 240.0  # virtual seconds after the faults in which the job must end


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one schedule."""

    seed: int
    complaints: tuple[str, ...]
    events: int
    generations: int
    steps: int
    fired: dict[AnyFaultKind, int]
    trace: int


def setting_for(seed: int) -> Setting:
    """One coordinator in a third of the schedules, two in the others; bits are looked at in a fifth of them."""
    verify = verify_for(seed)
    coordinators = 1 if seed % 3 == 0 else 2
    return Setting(
        seed=seed,
        coordinators=coordinators,
        verify=verify,
        full_disk=0.1 if seed % 7 == 3 else 0.0,
        placeless=0.3 if seed % 11 == 5 else 0.0,
        bits=BITS if verify else (),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Some schedules in a row, and the CPU time they took."""

    first: int
    results: tuple[Result, ...]
    cpu_s: float


def run_batch(first: int, count: int, launched: bool = False) -> Batch:
    """Schedules `first`, `first + 1` and so on, in this process; of worlds, or of launches."""
    began = time.process_time()
    run = run_launches if launched else run_seed
    results = tuple(run(seed) for seed in range(first, first + count))
    return Batch(first, results, time.process_time() - began)


def run_seed(
    seed: int,
    faults: tuple[Fault, ...] | None = None,
    story: list[str] | None = None,
    detail: bool = False,
) -> Result:
    """One schedule: the faults, then quiet until the job ends."""
    universe = Universe(setting_for(seed), story, detail)
    chosen = schedule(seed, FAULTS_UNTIL_S) if faults is None else faults
    for fault in chosen:
        universe.after(fault.at_s, strike, universe, fault)
    universe.run(FAULTS_UNTIL_S, universe.ended)
    if not universe.checkers.complaints:
        heal(universe)
        universe.run(FAULTS_UNTIL_S + PATIENCE_S, universe.ended)
    if not universe.checkers.complaints:
        universe.checkers.finally_()
    job = universe.checkers.job
    return Result(
        seed=seed,
        complaints=tuple(universe.checkers.complaints),
        events=universe.events,
        generations=universe.checkers.generations,
        steps=job.durable.step if job else 0,
        fired=dict(universe.fired),
        trace=universe.trace,
    )


def run_launches(seed: int, faults: tuple[Fault, ...] | None = None, story: list[str] | None = None) -> Result:
    """One schedule of launches: the faults, then quiet until the job ends."""
    universe = launch_world.Launches(launch_world.setting_for(seed), story)
    chosen = launch_faults.schedule(seed, LAUNCH_FAULTS_UNTIL_S) if faults is None else faults
    for fault in chosen:
        universe.after(fault.at_s, launch_faults.strike, universe, fault)
    universe.run(LAUNCH_FAULTS_UNTIL_S, universe.wrong)
    if not universe.checks.complaints:
        launch_faults.heal(universe)
        universe.run(LAUNCH_FAULTS_UNTIL_S + SETTLED_S, universe.ended)
        universe.checks.settled()
    if universe.joining:
        universe.cancel()
    if not universe.checks.complaints:
        universe.run(LAUNCH_FAULTS_UNTIL_S + PATIENCE_S, universe.ended)
        universe.checks.finally_()
    return Result(
        seed=seed,
        complaints=tuple(universe.checks.complaints),
        events=universe.events,
        generations=len(universe.checks.sizes),
        steps=universe.trainer.steps,
        fired=dict(universe.fired),
        trace=universe.trace,
    )


def shrink(seed: int, launched: bool = False) -> tuple[Fault, ...]:
    """The fewest faults we can find that still make the seed fail, by leaving out ever smaller runs of them."""
    run = run_launches if launched else run_seed
    faults = launch_faults.schedule(seed, LAUNCH_FAULTS_UNTIL_S) if launched else schedule(seed, FAULTS_UNTIL_S)
    size = len(faults)
    while size >= 1:
        index = 0
        while index < len(faults):
            fewer = faults[:index] + faults[index + size :]
            if run(seed, fewer).complaints:
                faults = fewer
            else:
                index += size
        size //= 2
    return faults


def trace_hash(results: Sequence[Result]) -> str:
    """One hash over everything that happened: the same seeds give the same one, on any machine."""
    digest = sha256()
    for result in results:
        digest.update(f"{result.seed} {result.trace} {result.events} {result.steps}\n".encode())
    return digest.hexdigest()
