"""The faults of task queues, and when they strike."""

from __future__ import annotations

from random import Random

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.messages import Cancel, Drain
from pliant.core.model.job import JobState
from pliant_sim.fault_kinds import SimulatedFaultKind
from pliant_sim.faults.processes import kill_agent, kill_coordinator, kill_worker, stop_agent, stop_coordinator
from pliant_sim.faults.requests import resize
from pliant_sim.faults.schedule import STORE_KINDS, ScheduledFault, Table, at_random, draw_faults
from pliant_sim.faults.surroundings import (
    arm_store,
    clock_jump,
    clock_skew,
    disturb_network,
    partition,
    partition_coordinators,
    two_leaders,
)
from pliant_sim.tasks.worker import TaskWorker
from pliant_sim.tasks.world import TaskSimulation, setting_for


def _at_work(sim: TaskSimulation) -> list[TaskWorker]:
    return [worker for worker in sim.running_workers() if worker.joined and not worker.paused]


def stop_worker(sim: TaskSimulation, draw: Random) -> bool:
    """Stop a worker (SIGSTOP), for longer than its deadline or its lease in some cases."""
    workers = _at_work(sim)
    if not workers:
        return False
    worker = draw.choice(workers)
    worker.pause()
    sim.after(draw.choice([0.5, 3.0, 9.5, 16.0]), worker.resume)
    return True


def hang_in_user_code(sim: TaskSimulation, draw: Random) -> bool:
    """Let the training thread of a worker get stuck; its other threads go on."""
    workers = [worker for worker in _at_work(sim) if worker.hung_since is None and not worker.hangs]
    if not workers:
        return False
    worker = draw.choice(workers)
    worker.hangs = True
    sim.after(draw.choice([4.0, 12.0, 25.0]), worker.hang_over)
    return True


def raise_in_user_code(sim: TaskSimulation, draw: Random) -> bool:
    """Let user code raise in a shard in which it did not raise before: twice would rightly fail the job."""
    workers = [
        worker
        for worker in _at_work(sim)
        if worker.shard is not None and (worker.shard.kind, worker.shard.number) not in sim.raised
    ]
    if not workers or sim.setting.poison is not None:
        return False
    worker = draw.choice(workers)
    assert worker.shard is not None
    sim.raised.add((worker.shard.kind, worker.shard.number))
    worker.raises_in = worker.shard
    return True


def drain_worker(sim: TaskSimulation, draw: Random) -> bool:
    workers = _at_work(sim)
    if not workers:
        return False
    sim.user(Drain(draw.choice(workers).id, draw.choice([3.0, 10.0]), "a user asked for it"))
    return True


def replace_all(sim: TaskSimulation, draw: Random) -> bool:
    workers = _at_work(sim)
    for worker in workers:
        worker.leave("every worker is replaced")
    return bool(workers)


def kill_all(sim: TaskSimulation, draw: Random) -> bool:
    workers = sim.running_workers()
    for worker in workers:
        worker.end(-9)
    return bool(workers)


def next_attempt(sim: TaskSimulation, draw: Random) -> bool:
    """Cancel the job, and create it again once its workers have ended, with other epochs in some schedules."""
    job = sim.checks.job
    if job is None or job.state.ended or sim.attempt_due:
        return False
    sim.attempt_due = True
    cancel = sim.user(Cancel("another attempt"))
    sim.after(draw.uniform(0.1, 9.0), _create_again, sim, cancel)
    return True


def _create_again(sim: TaskSimulation, cancel: int) -> None:
    """Create the job again, once its workers have ended and the user has the answer to that command."""
    job = sim.checks.job
    if job is None or not job.state.ended or sim.running_workers() or not sim.is_answered(cancel):
        sim.after(1.0, _create_again, sim, cancel)
        return
    if job.state is JobState.CANCELLED:
        sim.change_epochs()
        sim.after(2.0, _create_again, sim, sim.user(sim.creation()))  # a late copy of the cancel may cancel this one
    else:
        sim.attempt_due = False


MEMBERS: Table[TaskSimulation] = {
    FaultKind.KILL: (4.0, kill_worker),
    FaultKind.KILL_AGENT: (1.0, kill_agent),
    FaultKind.KILL_ALL: (0.3, kill_all),
    FaultKind.STOP: (3.0, stop_worker),
    SimulatedFaultKind.STOP_AGENT: (1.0, stop_agent),
    SimulatedFaultKind.HANG: (3.0, hang_in_user_code),
    FaultKind.USER_ERROR: (2.0, raise_in_user_code),
    FaultKind.DRAIN: (3.0, drain_worker),
    SimulatedFaultKind.REPLACE_ALL: (0.5, replace_all),
    FaultKind.RESIZE: (3.0, resize),
}
TASKS: Table[TaskSimulation] = {
    **MEMBERS,
    FaultKind.KILL_COORDINATOR: (3.0, kill_coordinator),
    FaultKind.STOP_COORDINATOR: (1.5, stop_coordinator),
    FaultKind.LOSE_MESSAGES: (2.0, disturb_network(loss=0.4)),
    FaultKind.DUPLICATE_MESSAGES: (3.0, disturb_network(duplicates=0.5)),
    FaultKind.DELAY_MESSAGES: (2.0, disturb_network(delay_s=1.0)),
    FaultKind.REORDER_MESSAGES: (2.0, disturb_network(jitter_s=2.0)),
    FaultKind.PARTITION: (2.0, partition(one_way=False)),
    FaultKind.PARTITION_ONE_WAY: (2.0, partition(one_way=True)),
    **{kind: (1.0, arm_store(kind)) for kind in STORE_KINDS},
    FaultKind.CLOCK_JUMP: (1.0, clock_jump),
    SimulatedFaultKind.CLOCK_SKEW: (0.7, clock_skew),
    FaultKind.TWO_LEADERS: (1.5, two_leaders),
    FaultKind.PARTITION_COORDINATORS: (0.0, partition_coordinators),
    SimulatedFaultKind.NEXT_ATTEMPT: (0.0, next_attempt),
}
CHURN: Table[TaskSimulation] = {
    FaultKind.KILL: (3.0, kill_worker),
    FaultKind.DRAIN: (3.0, drain_worker),
    FaultKind.STOP: (1.0, stop_worker),
    SimulatedFaultKind.HANG: (1.0, hang_in_user_code),
}


def task_schedule(seed: int, until_s: float, churn_until_s: float) -> tuple[ScheduledFault, ...]:
    """A fault every 1.5 seconds, each kind by its weight. Members are replaced for longer in schedules of churn."""
    setting = setting_for(seed)
    chance = Random(f"task faults {seed}")
    if setting.churn:
        return tuple(draw_faults(chance, CHURN, 2.0, churn_until_s, 0.7))
    faults = draw_faults(chance, MEMBERS if setting.steady else TASKS, 2.0, until_s, 0.7)
    if seed % 10 == 2:
        faults.append(at_random(chance, 3.0, 30.0, FaultKind.PARTITION_COORDINATORS))
    if setting.next_epochs is not None:
        faults += [at_random(chance, 5.0, 45.0, SimulatedFaultKind.NEXT_ATTEMPT) for _ in range(2)]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def strike_tasks(sim: TaskSimulation, fault: ScheduledFault) -> None:
    """Inject a fault into a task queue."""
    if TASKS[fault.kind][1](sim, Random(fault.draw)):
        sim.faults_fired(fault.kind)
