"""The outcomes of faults, read from events."""

from collections.abc import Iterable
from dataclasses import replace

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.outcomes import ChaosProgress, FaultOutcome, InjectedFault, compute_outcomes
from pliant.chaos.plan import COORDINATOR, ChaosOptions, Cut, PlannedFault
from pliant.chaos.report import ChaosReport, ChaosRun, build_report, describe_fault, describe_outcome
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage
from pliant.core.model.job import JobSpec, JobState, Member, Target
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind
from unit.core.build import TERMS

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")
KILL = PlannedFault(0, FaultKind.KILL, ("b",))
STOP = PlannedFault(0, FaultKind.STOP, ("b",), 2.0)


def joined(at: float, member: MemberId) -> m.Event:
    return m.MemberJoined(at, Member(member, 1, AgentId("x")), TERMS)


def steps(at: float, first: int, last: int, generation: int = 1) -> m.Event:
    """A report of steps first to last."""
    lines = [
        LedgerLine(
            Lineage(generation, step, step),
            GENESIS if step == 1 else Lineage(generation, step - 1, step - 1),
            0,
            0,
            1,
            1,
        )
        for step in range(first, last + 1)
    ]
    return m.StepsCommitted(at, generation, A, tuple(lines))


def formed(at: float, number: int, kind: WorldKind, step: int) -> m.Event:
    return m.WorldFormed(at, World(number, kind, (A, B), (1, 1), Lineage(1, step, step)))


def begun() -> list[m.Event]:
    """Ten steps a second, reported each second up to 10."""
    return [
        m.JobCreated(0.0, "demo", JobSpec(1, 3, Target(2))),
        joined(0.1, A),
        joined(0.2, B),
        m.WorldEntered(0.3, 1),
        m.HoldersChanged(0.4, 1, frozenset({A, B})),
        m.StateChanged(0.5, JobState.RUNNING, "2 members"),
        *(steps(float(second), 10 * second - 9, 10 * second) for second in range(1, 11)),
    ]


def going_on(seconds: Iterable[int], generation: int = 1) -> list[m.Event]:
    return [steps(float(second), 10 * second - 9, 10 * second, generation) for second in seconds]


def one(fault: PlannedFault, events: list[m.Event], at: float = 10.5) -> FaultOutcome:
    _, [found] = compute_outcomes([InjectedFault(fault, at, at + fault.lasts_s)], events)
    return found


def test_after_a_kill_the_next_step_is_one_of_the_world_after() -> None:
    found = one(
        KILL,
        [
            *begun(),
            steps(10.6, 101, 105),  # under way when it was struck
            m.MemberGone(10.7, B, "lost", "its process ended with signal 9"),
            m.WorldBroken(10.7, 1, entered=True, why="b lost"),
            formed(10.7, 2, WorldKind.RECOVERY, 105),
            m.WorldEntered(11.0, 2),
            steps(11.0, 106, 106, 2),
            joined(12.0, C),
        ],
    )
    assert (found.step_before, found.generation_before, found.generation_after) == (100, 1, 2)
    assert found.next_step_s == 0.5
    assert (found.rolled_back, found.lost, found.restarts, found.violations) == (0, ("b",), 1, ())
    assert found.went_on is None
    assert describe_outcome(found, live=True) == "next step after 0.50 s; generation 1 to 2; lost b; 1 worker started"


def test_a_world_that_stands_still_with_its_member_is_told_from_one_that_goes_on() -> None:
    still = one(STOP, [*begun(), steps(11.0, 101, 105), steps(13.0, 106, 110), steps(14.0, 111, 120)])
    assert (still.went_on, still.next_step_s, still.steps, still.span_s) == (False, 2.5, 10, 3.0)
    assert "about 0% of the usual speed meanwhile" in describe_outcome(still, live=True)
    on = one(replace(STOP, kind=FaultKind.SLOW), [*begun(), *going_on(range(11, 15))])
    assert (on.went_on, on.next_step_s, on.steps) == (True, 0.5, 30)
    assert "about 100% of the usual speed meanwhile" in describe_outcome(on, live=True)


def test_nothing_is_said_before_it_is_over_and_something_was_heard() -> None:
    found = one(STOP, [*begun(), *going_on([11])])
    assert (found.next_step_s, found.went_on, found.steps) == (None, None, 10)
    assert describe_outcome(found, live=True) == "no step reported yet"
    assert one(STOP, begun()).next_step_s is None


def test_what_a_coordinator_was_not_there_to_hear_counts_as_going_on() -> None:
    killed = PlannedFault(0, FaultKind.KILL_COORDINATOR, (COORDINATOR,))
    assert one(killed, [*begun(), steps(15.0, 101, 150)]).went_on is True
    assert one(killed, [*begun(), steps(15.0, 101, 105)]).went_on is False
    cut = PlannedFault(0, FaultKind.PARTITION, (COORDINATOR,), 3.0, Cut.COORDINATOR_ISOLATED)
    assert one(cut, [*begun(), steps(15.0, 101, 150)]).went_on is True


def lost_steps() -> list[m.Event]:
    return [
        *begun(),
        m.MemberGone(10.6, A, "lost", "signal 9"),
        m.MemberGone(10.6, B, "lost", "signal 9"),
        formed(11.0, 2, WorldKind.ROLLBACK, 60),
        steps(13.0, 61, 70, 2),
    ]


def test_steps_that_are_rolled_back_break_a_promise_unless_all_were_killed() -> None:
    found = one(KILL, lost_steps())
    assert found.rolled_back == 40
    assert found.violations == (
        "40 committed steps were lost",
        "a held the state and was lost, but was not the target of a fault",
    )
    assert "40 steps rolled back; VIOLATION: 40 committed steps were lost" in describe_outcome(found, live=True)
    found = one(PlannedFault(0, FaultKind.KILL_ALL, ("a", "b")), lost_steps())
    assert (found.rolled_back, found.violations) == (40, ())


def test_what_all_began_is_not_blamed_on_the_next() -> None:
    both = [
        InjectedFault(PlannedFault(0, FaultKind.KILL_ALL, ("a", "b")), 10.5, 10.5),
        InjectedFault(replace(KILL, number=1), 10.8, 10.8),
    ]
    _, found = compute_outcomes(both, lost_steps())
    assert [(each.rolled_back, each.violations) for each in found] == [(0, ()), (40, ())]


def test_who_was_struck_before_may_be_lost_later_and_a_peer_of_who_is_cut_off_too() -> None:
    events = [*begun(), m.MemberGone(11.0, B, "lost", "its lease ran out"), *going_on([14])]
    two = [
        InjectedFault(STOP, 10.1, 10.4),
        InjectedFault(PlannedFault(1, FaultKind.KILL_COORDINATOR, (COORDINATOR,)), 10.5, 10.5),
    ]
    assert [each.violations for each in compute_outcomes(two, events)[1]] == [(), ()]
    cut = PlannedFault(0, FaultKind.PARTITION, ("a",), 1.0, Cut.PEERS)
    assert one(cut, events).violations == ()
    assert one(PlannedFault(0, FaultKind.SLOW, ("a",), 1.0), events).violations != ()


def test_a_job_that_fails_breaks_a_promise() -> None:
    events = [*begun(), m.StateChanged(11.0, JobState.FAILED, "4 workers failed")]
    assert one(KILL, events).violations == ("the job failed: 4 workers failed",)
    past, _ = compute_outcomes([], events)
    assert (past.state, past.steps, past.step, past.live) == (JobState.FAILED, 100, 100, True)


def launched(at: float, number: int) -> m.Event:
    seats = tuple(Seat(MemberId(f"x-g{number}.{rank}"), AgentId("x"), "worker", "h:1") for rank in (0, 1))
    return m.Launched(at, Launch(number, seats, "because"))


def test_of_workers_that_are_no_members_it_is_told_when_they_were_launched_again() -> None:
    events = [m.JobCreated(0.0, "demo", JobSpec(1, 3, Target(2))), launched(1.0, 1), launched(12.0, 2)]
    found = one(KILL, events)
    assert (found.next_step_s, found.restarts, found.generation_before, found.generation_after) == (1.5, 2, 1, 2)
    assert describe_outcome(found, live=False) == "relaunched after 1.50 s; generation 1 to 2; 2 workers started"
    assert describe_outcome(one(STOP, events, 13.0), live=False) == "no effect"


def test_another_attempt_begins_its_own_steps() -> None:
    past = ChaosProgress()
    for event in [*begun(), m.JobCreated(20.0, "demo", JobSpec(1, 3, Target(2)), attempt=2)]:
        past.add(event)
    assert (past.step, past.live, past.state) == (0, False, JobState.STARTING)
    past.add(m.JobCreated(21.0, "demo", JobSpec(1, 3, Target(2)), attempt=3, resumes=True))
    assert past.step == 0


# ------------------------------------------------------------------------------------------------------ the report


def reported(fault: PlannedFault, events: list[m.Event], **more: str) -> ChaosReport:
    struck = [InjectedFault(fault, 10.5, 10.5 + fault.lasts_s)]
    told = ChaosRun("demo", ChaosOptions(7, (fault.kind,), 1.0, 9.0), 10.0, 9.0, interrupted=False, **more)  # type: ignore[arg-type]
    return build_report(told, struck, *compute_outcomes(struck, events), 50)


def test_the_report_adds_up() -> None:
    found = reported(KILL, lost_steps())
    assert not found.ok
    assert found.violations[0] == "fault 0: 40 committed steps were lost"
    assert (found.totals.faults, found.totals.by_kind, found.totals.steps) == (1, {"kill": 1}, 60)
    assert (found.totals.rolled_back, found.totals.rolled_back_by_all) == (40, 0)
    assert (found.totals.next_step_median_s, found.totals.next_step_max_s) == (2.5, 2.5)
    assert (found.faults[0].after_s, found.faults[0].lasted_s, found.seed) == (0.5, 0.0, 7)
    found = reported(PlannedFault(0, FaultKind.KILL_ALL, ("a", "b")), lost_steps())
    assert (found.ok, found.totals.rolled_back_by_all) == (True, 40)


def test_a_job_that_does_not_go_on_is_not_ok() -> None:
    found = reported(STOP, begun(), stuck="training did not go on")
    assert (found.ok, found.violations, found.faults[0].lasted_s) == (False, ("training did not go on",), 2.0)
    assert found.totals.next_step_median_s is found.totals.next_step_max_s is None


def test_a_failure_before_the_first_fault_is_told_once() -> None:
    failed = m.StateChanged(10.2, JobState.FAILED, "too many")
    assert reported(KILL, [*begun(), failed]).violations == ("the job failed: too many",)


def test_each_fault_has_its_words() -> None:
    words = {
        describe_fault(KILL),
        describe_fault(PlannedFault(0, FaultKind.KILL, ("a", "b"))),
        describe_fault(PlannedFault(0, FaultKind.KILL_ALL, ("a", "b"))),
        describe_fault(PlannedFault(0, FaultKind.KILL_COORDINATOR, (COORDINATOR,))),
        describe_fault(STOP),
        describe_fault(replace(STOP, kind=FaultKind.SLOW)),
        *(describe_fault(PlannedFault(0, FaultKind.PARTITION, ("a",), 1.0, cut)) for cut in Cut),
    }
    assert words == {
        "kill b",
        "kill a and b",
        "kill all 2 workers",
        "kill the coordinator",
        "stop b for 2.0 s",
        "slow b down for 2.0 s",
        "cut a off from all others for 1.0 s",
        "cut a off from its peers for 1.0 s",
        "cut a off from the coordinator for 1.0 s",
        "drop everything a receives for 1.0 s",
        "drop everything a sends for 1.0 s",
        "cut the coordinator off from all members for 1.0 s",
    }
