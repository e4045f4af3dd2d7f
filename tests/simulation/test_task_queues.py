"""Schedules of task queues over the real decisions: every record once, no shard stuck, the same every time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pliant.chaos.fault_kinds import FaultKind
from pliant.coordinator.service.inbox import Accepted
from pliant.core import messages as m
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import JobSpec, JobState, Mode
from pliant.core.model.names import AgentId, MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.decide import _save as save_model
from pliant.core.tasks.model import HeldShard, ModelPeers, ShardKind, TaskState, TaskTerms, range_digest
from pliant.core.tasks.pairs import CopyFacts, savable
from pliant.stores.base import Write
from pliant.wire.api import EVENTS
from pliant_sim.fault_kinds import SimulatedFaultKind
from pliant_sim.faults.schedule import ScheduledFault
from pliant_sim.processes.agent import SimulatedAgent
from pliant_sim.processes.coordinator import Ask
from pliant_sim.run import FAULTS_UNTIL_S, Result, ScheduleKind, run_batch, run_tasks, schedule_of
from pliant_sim.tasks.checks import TaskChecks
from pliant_sim.tasks.faults import MEMBERS, TASKS
from pliant_sim.tasks.worker import TaskWorker
from pliant_sim.tasks.world import TaskSetting, TaskSimulation, setting_for

# Seeds that failed once, each for a bug of its own; see the git log. They are kept for ever.
ONCE_FAILED = (0, 1, 23, 670, 844, 1306, 1476)
FRESH = tuple(range(1_000, 1_008))


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [run_tasks(seed) for seed in FRESH]


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_failed_once_does_not_fail_again(seed: int) -> None:
    assert run_tasks(seed).complaints == ()


def test_no_schedule_breaks_a_promise(results: list[Result]) -> None:
    assert [(result.seed, result.complaints[0]) for result in results if result.complaints] == []


def test_schedules_are_eventful(results: list[Result]) -> None:
    assert sorted(result.events for result in results)[len(results) // 2] >= 3000
    fired = {kind for result in results for kind in result.fired}
    assert fired >= {*MEMBERS} - {FaultKind.KILL_ALL, SimulatedFaultKind.REPLACE_ALL}


def test_the_same_seed_gives_the_same_trace(results: list[Result]) -> None:
    assert run_batch(FRESH[0], 1, ScheduleKind.TASKS).results == (results[0],)
    assert results[0].trace != results[1].trace


def test_schedules_differ_in_what_they_are_about() -> None:
    settings = [setting_for(seed) for seed in range(60)]
    assert {setting.coordinators for setting in settings} == {1, 2}
    assert {setting.terms.only_evaluates for setting in settings} == {True, False}
    assert {setting.terms.predicts for setting in settings} == {True, False}
    assert {setting.terms.shuffled for setting in settings} == {True, False}
    assert {setting.terms.evaluate_every for setting in settings} == {0, 11, 40}
    assert any(setting.poison is not None for setting in settings)
    assert any(setting.next_epochs for setting in settings)
    assert any(setting.terms.growing for setting in settings)
    assert any(setting.terms.averages for setting in settings)
    scheduled = {fault.kind for seed in range(30) for fault in schedule_of(ScheduleKind.TASKS, seed)}
    assert scheduled == set(TASKS)
    assert any(fault.at_s > FAULTS_UNTIL_S for fault in schedule_of(ScheduleKind.TASKS, 5))


def test_a_late_report_of_a_member_that_hung_is_refused_and_its_shard_is_done_once() -> None:
    story: list[str] = []
    hang = ScheduledFault(3.0, SimulatedFaultKind.HANG, 3)  # for 25 s
    assert run_tasks(4, (hang,), story).complaints == ()
    assert "made no progress for 8 s" in "\n".join(story)


GROWING = 1002


def test_growing_data_is_done_once_whenever_it_grows() -> None:
    story: list[str] = []
    assert run_tasks(GROWING, story=story).complaints == ()
    told = "\n".join(story)
    assert told.index("records so far") < told.index("completed train shard 0") < told.index("the data is complete")


@pytest.mark.parametrize(
    ("name", "bug", "says"),
    [
        ("awaits_records", lambda _: False, "and its data may still grow"),
        ("shards_per_epoch", lambda terms: -(-terms.records // terms.records_per_shard), "records so far"),
    ],
)
def test_a_bug_planted_in_growing_data_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, bug: Callable[[TaskTerms], object], says: str
) -> None:
    monkeypatch.setattr(TaskTerms, name, property(bug))
    found = [complaint for seed in range(GROWING, GROWING + 60, 20) for complaint in run_tasks(seed, ()).complaints]
    assert any(says in complaint for complaint in found), found


# --------------------------------------------------------------------------------------------- pair averaging

AVERAGING = (1011, 1111, 1351, 1411)


@pytest.mark.parametrize("seed", AVERAGING)
def test_every_mean_has_the_effect_of_all_shards_that_are_done(seed: int) -> None:
    story: list[str] = []
    assert run_tasks(seed, story=story).complaints == ()
    assert sum("saved the mean" in line for line in story) >= 5


def ignore_the_base(peers: ModelPeers, copies: Sequence[CopyFacts]) -> tuple[list[int], tuple[int, ...]]:
    return savable(peers, [replace(copy, base=peers.saves) for copy in copies])


def accept_late_saves(state: TaskState, command: t.SaveModel, now: float) -> tuple[m.Event, ...] | Rejection:
    return save_model(state, replace(command, number=state.saves + 1), now)


@pytest.mark.parametrize(
    ("place", "bug"),
    [("pliant_sim.tasks.pairs.savable", ignore_the_base), ("pliant.core.tasks.decide._save", accept_late_saves)],
)
def test_a_bug_planted_in_pair_averaging_is_found(
    monkeypatch: pytest.MonkeyPatch, place: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(place, bug)
    found = [complaint for seed in AVERAGING for complaint in run_tasks(seed).complaints]
    assert any("lacks its effect" in complaint for complaint in found), found


def test_a_shard_that_is_reported_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member claims its shards for a save whose model does not have them yet."""

    def claim(number: int, base: int, attempts: tuple[int, ...]) -> CopyFacts:
        return CopyFacts(number, base, (*attempts, *range(1, 1000)))

    monkeypatch.setattr("pliant_sim.tasks.pairs.CopyFacts", claim)
    found = [complaint for seed in AVERAGING for complaint in run_tasks(seed).complaints]
    assert any("lacks its effect" in complaint for complaint in found), found


# ------------------------------------------------------------------------------- the checks see what is wrong

A, B = MemberId("a"), MemberId("b")
TERMS = TaskTerms(records=25, records_per_shard=10, evaluation_records=5, evaluate_every=1, shuffled=False)


def held(number: int, attempt: int, member: MemberId = A, start: int | None = None) -> HeldShard:
    begin = number * 10 if start is None else start
    return HeldShard(ShardKind.TRAIN, number, attempt, member, begin, begin)


def given(*shards: HeldShard) -> t.ShardsGiven:
    return t.ShardsGiven(1.0, shards)


def done(shard: HeldShard, member: MemberId | None = None) -> t.ShardDone:
    found = TERMS.range_of(shard.kind, shard.number)
    digest = range_digest(shard.kind, found.epoch, shard.start, found.stop)
    return t.ShardDone(1.0, member or shard.member, shard.kind, shard.number, shard.attempt, shard.start, digest)


@pytest.fixture
def sim() -> TaskSimulation:
    """A queue with two members, and nothing given out."""
    it = TaskSimulation(TaskSetting(seed=1, coordinators=1, terms=TERMS))
    happens(it, m.JobCreated(0.0, "sim", JobSpec(1, 4, mode=Mode.TASKS), 1))
    for number, member in enumerate((A, B), 1):
        happens(it, t.TaskMemberJoined(0.0, member, AgentId("x"), number, 0, TERMS))
    return it


def happens(sim: TaskSimulation, *events: m.Event) -> list[str]:
    checks = sim.checks
    for event in events:
        checks.wrote(Write("sim", checks.revision, (EVENTS.encode(event),), b"whole"), checks.revision + 1)
    return [complaint.partition(": ")[2] for complaint in checks.complaints]


FIRST, SECOND = held(0, 1), held(1, 2)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ((given(FIRST, held(0, 2)),), "train shard 0 is given to two members at once"),
        ((given(FIRST), done(FIRST), given(held(0, 2))), "train shard 0 was given out after it was done"),
        ((given(FIRST), done(FIRST), done(FIRST)), "fencing: its end of attempt 1 was accepted after it was over"),
        ((given(FIRST), done(FIRST, B)), "b completed attempt 1, which a holds"),
        ((given(held(0, 2)),), "attempt 2 follows attempt 0"),
        ((given(FIRST), t.ShardAdvanced(1.0, 1, 4, 0), t.ShardAdvanced(1.0, 1, 3, 0)), "went from record 4 to 3 of 10"),
        (
            (given(FIRST), t.ShardReturned(1.0, 1, "late"), t.ShardAdvanced(1.0, 1, 4, 0)),
            "fencing: a position of attempt 1 was accepted after it was over",
        ),
        (
            (given(FIRST), t.ShardReturned(1.0, 1, "late"), given(held(1, 2))),
            "given out before those that were returned",
        ),
        ((given(FIRST), t.ShardReturned(1.0, 1, "late"), given(held(0, 2, B, 5))), "is continued at 5, not at 0"),
        ((given(FIRST), replace(done(FIRST), digest=1)), "a read other records than 0 to 10"),
        ((given(FIRST), done(FIRST), t.EvaluationBegun(1.0, 0, 1), given(held(1, 2))), "before the shards of an eval"),
        ((t.EvaluationDone(1.0, 0, 1, 5, (("total", 9.0),)),), "evaluation 0 is of 5 records, with (('total', 9.0),)"),
        ((m.MemberDraining(1.0, A, 5.0, "why"), given(FIRST)), "train shard 0 is given to a, which drains"),
        ((given(held(0, 1, MemberId("c"))),), "train shard 0 is given to c, which is not a member"),
        ((m.StateChanged(1.0, JobState.FINISHED, "why"),), "the job finished without 25 records"),
        ((m.StateChanged(1.0, JobState.FAILED, "(shard 0) raised"),), "the job failed without reason"),
        ((given(*(held(number, number + 1) for number in range(3))),), "size: a holds 3 shards"),
    ],
)
def test_a_wrong_event_is_seen(sim: TaskSimulation, events: tuple[m.Event, ...], says: str) -> None:
    assert any(says in said for said in happens(sim, *events)), sim.checks.complaints


@pytest.mark.parametrize(
    "request_",
    [t.CompleteShard(A, 1, 10, 0), t.AdvanceShard(A, 1, 5, 0), t.FailShard(A, 1, 5, 0, "no")],
)
def test_an_answer_without_a_stored_event_is_seen(sim: TaskSimulation, request_: m.Command) -> None:
    happens(sim, given(FIRST))
    sim.checks.answered("c0", Ask(A, 1, request_), Accepted(1, None))
    assert "which is not stored" in sim.checks.complaints[0]


def test_a_stored_report_that_is_refused_and_a_member_that_is_fenced_are_seen(sim: TaskSimulation) -> None:
    happens(sim, given(FIRST), done(FIRST))
    worker = TaskWorker(sim, A, SimulatedAgent(sim, "a0", AgentId("x"), "home"), TERMS, 0.1)
    sim.checks.refused(worker, Rejection(Code.PAST, "over"), t.CompleteShard(A, 1, 10, 0))
    sim.checks.refused(worker, Rejection(Code.PAST, "over"), t.CompleteShard(A, 9, 10, 0))
    sim.checks.refused(worker, Rejection(Code.UNKNOWN, "no member"))
    assert [said.partition(": ")[2] for said in sim.checks.complaints] == [
        "a completed attempt 1, and is refused when it reports that again",
        "a is fenced, and it is a member: no member",
    ]


def test_a_shard_that_is_stuck_is_seen_while_deadlines_run(
    sim: TaskSimulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    happens(sim, given(FIRST, SECOND), t.ShardReturned(1.0, 2, "late"))
    sim.now = 400.0
    sim.checks.watch_time()
    assert not sim.checks.complaints  # no coordinator leads
    sim.checks.well_since = 0.0
    monkeypatch.setattr(TaskChecks, "_deadlines_run", lambda _: True)
    sim.checks.watch_time()
    assert [said.partition(": ")[2] for said in sim.checks.complaints] == [
        "stuck: attempt 1 of a is at 0 since 0.000",
        "stuck: train shard 1 waits since 0.000",
    ]


def test_an_end_that_the_audit_does_not_know_is_seen(sim: TaskSimulation) -> None:
    sim.checks.finally_()
    assert "liveness: the job is starting" in sim.checks.complaints[0]
    sim.checks.complaints.clear()
    happens(sim, given(FIRST), m.StateChanged(1.0, JobState.CANCELLED, "enough"))
    sim.checks.effects[ShardKind.TRAIN, 0, 3] = 2
    sim.checks.finally_()
    said = "\n".join(sim.checks.complaints)
    assert "audit: (0, 0, 0) attempts, returns and shards, (1, 0, 0) in the simulator's books" in said
    assert "audit: at most 0 records are repeated, and 1 were" in said
