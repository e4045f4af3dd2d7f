"""Schedules of launches over the real decisions: no two generations side by side, the job done, the same every time."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from pliant.chaos.fault_kinds import FaultKind
from pliant.core import messages as m
from pliant.core.model.job import Agent, Job, JobSpec, JobState, Mode, Target
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor import signals as v
from pliant.stores.base import Write
from pliant.wire.api import EVENTS
from pliant_sim.faults.schedule import LAUNCH as FAULTS
from pliant_sim.faults.schedule import ScheduledFault, launch_schedule
from pliant_sim.launch import world
from pliant_sim.launch.world import LaunchSetting, LaunchSimulation, setting_for
from pliant_sim.processes.agent import SimulatedAgent
from pliant_sim.processes.launched_worker import LaunchedWorker
from pliant_sim.run import FAULTS_UNTIL_S, Result, ScheduleKind, run_batch, run_launches, shrink

# Seeds that failed once, each for a bug of its own; see the git log. They are kept for ever.
ONCE_FAILED = (27, 45, 52, 92, 167, 183, 347, 523, 722, 991, 5333, 1983)
FRESH = tuple(range(1_000, 1_040))


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [run_launches(seed) for seed in FRESH]


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    assert run_launches(seed).complaints == ()


def test_no_schedule_breaks_a_promise(results: list[Result]) -> None:
    assert [(result.seed, result.complaints[0]) for result in results if result.complaints] == []


def test_schedules_are_eventful(results: list[Result]) -> None:
    by_events = sorted(result.events for result in results)
    by_generations = sorted(result.generations for result in results)
    assert by_events[len(results) // 2] >= 1000
    assert by_generations[len(results) // 2] >= 4


def test_every_kind_of_fault_strikes(results: list[Result]) -> None:
    assert {kind for result in results for kind in result.fired} == set(FAULTS)


def test_a_job_no_member_disturbs_is_launched_once_for_each_agent_that_comes() -> None:
    story: list[str] = []
    result = run_launches(1, faults=(), story=story)
    assert result.complaints == ()
    assert result.steps == setting_for(1).steps
    assert result.generations <= 3
    text = "\n".join(story)
    assert "generation 1 launched" in text
    assert "the job is finished: all 5 workers ended with exit code 0" in text


@pytest.mark.parametrize("seed", range(6))
def test_coordinators_cut_off_from_every_member_for_leases_on_end_launch_no_member_again(seed: int) -> None:
    """Rule 19, ADR 0019."""
    quiet = run_launches(seed, faults=())
    story: list[str] = []
    result = run_launches(seed, faults=(ScheduledFault(8.0, FaultKind.PARTITION_COORDINATORS, seed),), story=story)
    assert result.complaints == ()
    assert result.fired == {FaultKind.PARTITION_COORDINATORS: 1}
    assert not [line for line in story if "lease ran out" in line]
    assert result.generations == quiet.generations


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_launches(4) == run_launches(4)
    assert run_launches(4).trace != run_launches(5).trace


def test_the_trace_does_not_depend_on_the_process() -> None:
    program = "from pliant_sim.run import run_launches; r = run_launches(6); print(r.trace, r.events, r.steps)"
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    out = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    here = run_launches(6)
    assert out.stdout.split() == [str(here.trace), str(here.events), str(here.steps)]


def test_a_batch_is_its_seeds_one_by_one() -> None:
    assert run_batch(20, 2, ScheduleKind.LAUNCHES).results == (run_launches(20), run_launches(21))


def test_shrinking_keeps_only_what_makes_a_schedule_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = launch_schedule(9, FAULTS_UNTIL_S)
    guilty = {drawn[1], drawn[7]}

    def fails(seed: int, faults: tuple[object, ...] | None = None, story: list[str] | None = None) -> Result:
        chosen = set(drawn if faults is None else faults)
        return Result(seed, ("it fails",) if guilty <= chosen else (), 0, 0, 0, {}, 0)

    monkeypatch.setattr("pliant_sim.run.run_launches", fails)
    assert set(shrink(9, ScheduleKind.LAUNCHES)) == guilty


def test_schedules_differ_in_what_they_are_about() -> None:
    settings = [setting_for(seed) for seed in range(60)]
    assert {setting.mode for setting in settings} == {Mode.AUTO, Mode.RELAUNCH}
    assert {setting.coordinators for setting in settings} == {1, 2}
    assert {setting.max_restarts for setting in settings} == {2, 1000}
    assert {bool(setting.roles) for setting in settings} == {True, False}


# ------------------------------------------------------------------------------- the checks see what is wrong

X = AgentId("a0")


def seat(generation: int, index: int = 0) -> Seat:
    return Seat(MemberId(f"a0-g{generation}.{index}"), X, "worker", f"10.0.0.0:{20000 + index}")


LAUNCH = Launch(1, (seat(1, 0), seat(1, 1)), "the job starts")


@pytest.fixture
def sim() -> LaunchSimulation:
    """One agent, of one life, in a job that no member has decided anything about yet."""
    it = LaunchSimulation(LaunchSetting(seed=1, coordinators=1))
    it.checks.job = Job("sim", JobSpec(2, 7, mode=Mode.RELAUNCH), Target(2), agents=(ready_agent(),))
    it.agents["a0"] = SimulatedAgent(it, "a0", X, "home of a0")
    return it


def ready_agent() -> Agent:
    return Agent(X, 3, "10.0.0.0", "home of a0", "1", ports=(20000, 20001, 20002))


def happens(sim: LaunchSimulation, *events: m.Event) -> list[str]:
    checks = sim.checks
    write = Write("sim", checks.revision, tuple(EVENTS.encode(event) for event in events), b"whole")
    checks.wrote(write, checks.revision + len(events))
    return [complaint.partition(": ")[2] for complaint in checks.complaints]


def runs(sim: LaunchSimulation, member: str, generation: int, rank: int = 0) -> LaunchedWorker:
    agent = sim.agents["a0"]
    worker = LaunchedWorker(sim, MemberId(member), agent, generation, rank, "dies")
    agent.processes[worker.id] = worker
    sim.checks.started(worker)
    return worker


def test_a_launch_beside_another_is_seen(sim: LaunchSimulation) -> None:
    runs(sim, "a0-g0.0", 0)
    assert happens(sim, m.Launched(1.0, LAUNCH)) == ["1 was launched while a0-g0.0 of 0 runs on a0"]


def test_two_workers_of_one_rank_are_seen(sim: LaunchSimulation) -> None:
    happens(sim, m.Launched(1.0, LAUNCH))
    runs(sim, "a0-g1.0", 1)
    runs(sim, "a0-g1.9", 1)
    assert sim.checks.complaints == ["0.000 s: two workers of rank 0 run in 1: a0-g1.9 and a0-g1.0"]


def test_seats_that_are_not_theirs_are_seen(sim: LaunchSimulation) -> None:
    happens(sim, m.Launched(1.0, LAUNCH))
    agent = sim.agents["a0"]
    checks = sim.checks
    checks.starts(agent, LAUNCH, seat(1).member, 0)
    assert checks.complaints == []
    checks.starts(agent, replace(LAUNCH, seats=LAUNCH.seats[::-1]), seat(1).member, 1)
    checks.starts(agent, replace(LAUNCH, number=2), seat(1).member, 0)
    agent.state = replace(agent.state, run_id="2")
    checks.starts(agent, LAUNCH, seat(1).member, 0)
    assert [said.partition(": ")[2] for said in checks.complaints] == [
        "a0-g1.0 looks for rank 0 of 1 at 10.0.0.0:20001",
        "a0-g1.0 is started for generation 2, which was never launched",
        "a0-g1.0 is started on a0, and generation 1 was launched without it",
    ]


def test_failures_that_should_not_count_are_seen(sim: LaunchSimulation) -> None:
    happens(sim, m.Launched(1.0, LAUNCH))
    sim.checks.killed(runs(sim, "a0-g1.0", 1))
    sim.now = 5.0
    failed = m.WorkerFailed(5.0, MemberId("a0-g1.1"), 1)
    assert happens(sim, m.LaunchOver(5.0, 1, "x"), failed, failed) == [
        "a failure was counted for launch 1, of which a worker was killed at 0.000",
        "two failures were counted for launch 1",
        "a failure was counted for launch 1, of which a worker was killed at 0.000",
    ]


def test_a_job_that_is_finished_too_soon_is_seen(sim: LaunchSimulation) -> None:
    happens(sim, m.Launched(1.0, LAUNCH))
    sim.training.done.add("a0-g1.0")
    done = m.StateChanged(2.0, JobState.FINISHED, "all workers ended")
    assert happens(sim, done) == ["the job is finished, but a0-g1.1 has not ended well"]


def test_what_agents_must_not_do_is_seen(sim: LaunchSimulation) -> None:
    agent = sim.agents["a0"]
    worker = runs(sim, "a0-g1.0", 1)
    agent.state = replace(
        agent.state, workers=frozenset({worker.id}), order=v.OrdersReceived(1, frozenset(), frozenset())
    )
    sim.checks.agent_decided(agent, (v.Offer(1), v.Terminate(worker.id, 1.0)))
    agent.state = replace(agent.state, workers=frozenset())
    sim.checks.agent_decided(agent, ())
    assert [said.partition(": ")[2] for said in sim.checks.complaints] == [
        "a0 offers ports while ['a0-g1.0'] run",
        f"P1: a0 stops a worker of a live job: {v.Terminate(worker.id, 1.0)}",
        "a0 has forgotten ['a0-g1.0']",
    ]


def test_a_job_that_gets_nowhere_is_seen(sim: LaunchSimulation) -> None:
    sim.checks.settled()
    sim.checks.finally_()
    assert len(sim.checks.complaints) == 2
    assert all("liveness" in said for said in sim.checks.complaints)
    assert world.ROLES == (("chief", 1), ("ps", 1))
