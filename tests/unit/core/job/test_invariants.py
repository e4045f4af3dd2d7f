"""Every invariant: a state or a change that breaks it and is named, and its neighbour that does not.

Each row is checked three ways: the invariant itself reports it, `state_violations` or `change_violations` repeats
it and no other invariant does, and the sound neighbour passes all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.job import invariants
from pliant.core.job.invariants import (
    CHANGE_INVARIANTS,
    STATE_INVARIANTS,
    all_violations,
    change_violations,
    state_violations,
)
from pliant.core.model.job import Agent, Job, JobSpec, JobState, Member, Mode, Target, Terms
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind
from unit.core.build import (
    GRID,
    NOW,
    TERMS,
    A,
    B,
    C,
    D,
    E,
    checkpoint,
    ended,
    lines,
    member,
    new_job,
    pump,
    running,
    world,
)

ONE = world(1, A, B, C, kind=WorldKind.ROLLBACK)
TWO = world(2, A, B)
THREE = world(3, A, B, D)


def job(**changes: object) -> Job:
    """A sound job: 1 is current, 2 leaves C out, 3 takes D in; sizes 2 to 3."""
    base = Job(
        "demo",
        JobSpec(2, 3),
        Target(3),
        terms=TERMS,
        state=JobState.RUNNING,
        members={name: member(name, number) for number, name in enumerate((A, B, C, D, E), 1)},
        joined=5,
        generation=3,
        current=1,
        worlds=(ONE, TWO, THREE),
        holders=frozenset({A, B, C}),
        durable=Lineage(1, 5, 77),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def without(*names: MemberId) -> dict[MemberId, Member]:
    return {name: record for name, record in job().members.items() if name not in names}


def draining(*names: MemberId) -> dict[MemberId, Member]:
    return {name: replace(record, draining=name in names) for name, record in job().members.items()}


def test_a_sound_job_has_no_complaint() -> None:
    assert state_violations(job()) == ()
    assert state_violations(new_job()) == ()
    assert state_violations(ended()) == ()


ALL = frozenset({A, B, D, E})


@dataclass(frozen=True)
class State:
    """A state that breaks `name` and nothing else, what is said, and a neighbour that breaks nothing."""

    name: str
    bad: Job
    said: str
    good: Job


def weighed(*weights: int) -> tuple[World, ...]:
    return (ONE, TWO, replace(THREE, weights=weights))


ONE_KIND = (("torch", "1"),)


def with_bits(name: MemberId) -> dict[MemberId, Member]:
    members = job().members
    return {**members, name: replace(members[name], fingerprint=ONE_KIND)}


def seat(agent: AgentId, generation: int, index: int = 0, port: int = 20000) -> Seat:
    return Seat(MemberId(f"{agent}-g{generation}.{index}"), agent, "worker", f"10.0.0.1:{port}")


X, Y = AgentId("x"), AgentId("y")
LAUNCH = Launch(2, (seat(X, 2), seat(Y, 2)), "the job starts")
NEXT = Launch(3, (seat(X, 3), seat(Y, 3)), "y was started again")
AGENTS = (Agent(X, 1, ports=(20000,)), Agent(Y, 2, ports=(20000, 20001)), Agent(AgentId("z"), 0))


RELAUNCH = JobSpec(2, 3, mode=Mode.RELAUNCH)


def launched(**changes: object) -> Job:
    """A sound job of 2 to 3 workers whose launch 2 is over and stopped."""
    over = replace(LAUNCH, over="y was started again")
    base = Job("demo", RELAUNCH, Target(3), generation=2, sealed=2, launch=over, agents=AGENTS)
    return replace(base, **changes)  # type: ignore[arg-type]


STATES = [
    State(
        "open_worlds_ascend",
        job(worlds=(ONE, THREE, TWO), generation=2),
        "rule 4: open generations [1, 3, 2] do not ascend",
        job(worlds=(ONE, THREE)),
    ),
    State(
        "open_worlds_ascend",
        job(worlds=(ONE, THREE, THREE)),
        "rule 4: open generations [1, 3, 3] do not ascend",
        job(worlds=(THREE,)),
    ),
    State(
        "open_worlds_ascend",
        job(generation=4),
        "rule 4: the newest generation 4 is not open, [1, 2, 3] are",
        job(generation=4, worlds=(), current=0),
    ),
    State(
        "open_worlds_are_not_sealed",
        job(sealed=1, current=0),
        "rule 5: 1 is open, but 1 is sealed and 0 current",
        job(sealed=0, current=0),
    ),
    State(
        "open_worlds_are_not_sealed",
        job(current=2),
        "rule 5: 1 is open, but 0 is sealed and 2 current",
        job(current=2, worlds=(TWO, THREE), sealed=1),
    ),
    State(
        "only_the_first_open_world_seals",
        job(worlds=(ONE, TWO, replace(THREE, kind=WorldKind.RECOVERY))),
        "rule 4: 3 is a recovery world, yet a lower one is open",
        job(worlds=(replace(THREE, kind=WorldKind.RECOVERY),)),
    ),
    State(
        "only_the_first_open_world_seals",
        job(worlds=(ONE, replace(TWO, kind=WorldKind.ROLLBACK), THREE)),
        "rule 4: 2 is a rollback world, yet a lower one is open",
        job(worlds=(replace(TWO, kind=WorldKind.ROLLBACK), THREE)),
    ),
    State(
        "ranks_are_unique",
        job(worlds=(ONE, TWO, world(3, A, B, A))),
        "world 3 names a member twice or none: ('a', 'b', 'a')",
        job(worlds=(ONE, TWO, world(3, B, A))),
    ),
    State(
        "ranks_are_unique",
        job(worlds=(ONE, TWO, world(3, hold=True))),
        "world 3 names a member twice or none: ()",
        job(worlds=(ONE, TWO, world(3, A, hold=True))),
    ),
    State(
        "ranks_are_unique",
        job(worlds=weighed(1, 1)),
        "world 3 has weights (1, 1) for 3 members",
        job(worlds=weighed(1, 1, 9)),
    ),
    State(
        "ranks_are_unique",
        job(worlds=weighed(1, 0, 1)),
        "world 3 has weights (1, 0, 1) for 3 members",
        job(worlds=weighed(1, 1, 1)),
    ),
    State(
        "world_members_are_live_or_known_gone",
        job(members=without(D)),
        "d of world 3 is neither live nor known to be gone",
        job(members=without(D), gone_in_open_worlds=frozenset({D})),
    ),
    State(
        "gone_is_final",
        job(gone=(E, MemberId("x"), A)),
        "rule 11: ['a', 'e'] are gone and live",
        job(gone=(MemberId("x"),)),
    ),
    State(
        "left_out_members_stay_out",
        job(worlds=(ONE, TWO, world(3, A, B, C))),
        "rule 5: world 3 takes back ['c']",
        job(worlds=(ONE, world(2, A, B, C), world(3, A, B, C))),
    ),
    State(
        "left_out_members_stay_out",
        job(worlds=(ONE, world(2, A, B, D), THREE, world(4, A, B, C)), generation=4),
        "rule 5: world 4 takes back ['c']",
        job(worlds=(ONE, world(2, A, B, D), THREE, world(4, A, B)), generation=4),
    ),
    State(
        "planned_worlds_are_small_enough",
        job(worlds=(ONE, TWO, world(3, A, B, D, E)), holders=ALL),
        "world 3 has 4 members that stay, above max 3",
        job(worlds=(ONE, TWO, world(3, A, B, D, E)), holders=ALL, members=draining(A)),
    ),
    State(
        "planned_worlds_are_small_enough",
        job(worlds=(ONE, TWO, world(3, A, B, D, E)), holders=ALL),
        "world 3 has 4 members that stay, above max 3",
        job(worlds=(ONE, TWO, world(3, A, B, D, E)), holders=ALL - {E}),
    ),
    State(
        "planned_worlds_are_small_enough",
        job(worlds=(ONE, TWO, world(3, A, B, D, E)), holders=ALL),
        "world 3 has 4 members that stay, above max 3",
        job(worlds=(world(3, A, B, D, E, kind=WorldKind.RECOVERY),)),  # a recovery takes every member
    ),
    State(
        "holders_are_members",
        job(holders=frozenset({A, MemberId("z"), MemberId("x")})),
        "['x', 'z'] hold the state and are not members",
        job(holders=frozenset({A, E})),
    ),
    State(
        "batches_are_durable",
        job(terms=TERMS.with_changes(((4, 12), (6, 10)))),
        "P3: the batch changes after step 6, and step 5 is durable",
        job(terms=TERMS.with_changes(((4, 12), (5, 10)))),
    ),
    State(
        "worlds_have_one_fingerprint",
        job(fingerprint=(("torch", "2"),), members=with_bits(B)),
        "P4: b is in world 1 and computes other bits: with torch 1 where the job has 2",
        job(fingerprint=(("torch", "2"),), members=with_bits(E)),  # who is in no world
    ),
    State(
        "launches_are_sound",
        launched(launch=LAUNCH, generation=1),
        "rule 4: launch 2 is above the newest generation 1",
        launched(launch=LAUNCH),
    ),
    State(
        "launches_are_sound",
        launched(launch=replace(LAUNCH, seats=LAUNCH.seats[:1] * 2)),
        "launch 2 has two seats for one member",
        launched(launch=replace(LAUNCH, over="x leaves")),
    ),
    State(
        "launches_are_sound",
        launched(launch=replace(LAUNCH, seats=LAUNCH.seats[:1] * 2, over="x leaves")),
        "launch 2 has two seats for one member",
        launched(launch=None),
    ),
]


@pytest.mark.parametrize("row", STATES, ids=lambda row: row.said)
def test_a_state_that_must_not_be_is_named_and_its_neighbour_is_not(row: State) -> None:
    check: Callable[[Job], str] = getattr(invariants, row.name)
    assert check(row.bad) == row.said
    assert state_violations(row.bad) == (row.said,)
    assert state_violations(row.good) == ()


@dataclass(frozen=True)
class Change:
    """A change that breaks `name` and nothing else, what is said, and a neighbour that breaks nothing."""

    name: str
    bad: tuple[Job, m.Event, Job]
    said: str
    good: tuple[Job, m.Event, Job]


def change(event: m.Event, before: Job | None = None, **changes: object) -> tuple[Job, m.Event, Job]:
    start = before or job()
    return start, event, replace(start, **changes)  # type: ignore[arg-type]


def again(attempt: int = 2, *, onward: bool = False) -> m.JobCreated:
    return m.JobCreated(NOW, "demo", JobSpec(1, 2, Target(2)), attempt=attempt, resumes=onward)


FORMED = m.Launched(NOW, NEXT)
ALONE = m.Launched(NOW, replace(NEXT, seats=(seat(Y, 3), seat(Y, 3, 1, 20001))))
FOUR = world(4, A, B, D)
RECOVERY = world(4, A, B, C, D, kind=WorldKind.RECOVERY)
ROLLBACK = world(4, A, B, kind=WorldKind.ROLLBACK)
RESIZED = m.TargetChanged(NOW, Target(2))
COMMITTED = lines(GENESIS, 1, 1)


def heard(labelled: Callable[[int], m.Event], generation: int) -> Change:
    """Something labelled with a generation that is not open, and the same labelled with one that is."""
    sealed = job(worlds=(TWO, THREE), current=0, sealed=1)
    return Change(
        "only_open_generations_make_history",
        change(labelled(generation), sealed),
        f"P6: {type(labelled(1)).__name__} of generation {generation}, which is not open",
        change(labelled(2), sealed),
    )


LABELLED: list[Callable[[int], m.Event]] = [
    lambda number: m.StepsCommitted(NOW, number, A, COMMITTED),
    lambda number: m.CheckpointPublished(NOW, number, checkpoint(GENESIS)),
    lambda number: m.HoldersChanged(NOW, number, frozenset({A})),
    lambda number: m.WorldEntered(NOW, number),
]

CHANGES = [
    Change(
        "generations_are_never_reused",
        change(m.WorldFormed(NOW, replace(FOUR, number=3)), generation=4),
        "rule 4: generation 3 was formed and 4 is the newest; expected 4",
        change(m.WorldFormed(NOW, FOUR), generation=4),
    ),
    Change(
        "generations_are_never_reused",
        change(m.WorldFormed(NOW, FOUR), generation=5),
        "rule 4: generation 4 was formed and 5 is the newest; expected 4",
        change(m.WorldFormed(NOW, FOUR), generation=4),
    ),
    Change(
        "generations_are_never_reused",
        change(m.WorldFormed(NOW, replace(FOUR, number=5)), generation=5),
        "rule 4: generation 5 was formed and 5 is the newest; expected 4",
        change(m.WorldFormed(NOW, FOUR), generation=4),
    ),
    Change(
        "generations_are_never_reused",
        change(RESIZED, generation=4),
        "rule 4: generation 3 was formed and 4 is the newest; expected 3",
        change(RESIZED),
    ),
    Change(
        "numbers_never_go_back",
        change(RESIZED, job(sealed=2), sealed=1),
        "rule 4: the seal went back from 2 to 1",
        change(RESIZED, job(sealed=2), sealed=2),
    ),
    Change(
        "numbers_never_go_back",
        change(RESIZED, job(current=2), current=1),
        "rule 5: the current generation went back from 2 to 1",
        change(RESIZED, job(current=2), current=2),
    ),
    Change(
        "durable_steps_stay",
        change(RESIZED, durable=Lineage(2, 4, 0)),
        "P2: durable step 5 became 4 without a rollback",
        change(RESIZED, durable=Lineage(2, 5, 0)),
    ),
    Change(
        "durable_steps_stay",
        change(m.WorldFormed(NOW, RECOVERY), generation=4, durable=GENESIS),
        "P2: durable step 5 became 0 without a rollback",
        change(m.WorldFormed(NOW, ROLLBACK), generation=4, durable=GENESIS),
    ),
    *(heard(labelled, 1) for labelled in LABELLED),  # sealed
    *(heard(labelled, 4) for labelled in LABELLED),  # never formed
    Change(
        "only_open_generations_make_history",
        change(m.WorldEntered(NOW, 2), job(sealed=2)),  # listed among the open ones, and sealed all the same
        "P6: WorldEntered of generation 2, which is not open",
        change(m.WorldEntered(NOW, 3), job(sealed=2)),
    ),
    Change(
        "the_end_is_final",
        change(RESIZED, job(state=JobState.FAILED)),
        "job demo had ended, yet TargetChanged followed",
        change(RESIZED, job(state=JobState.WAITING)),
    ),
    Change(
        "a_seal_takes_every_survivor",
        change(m.WorldFormed(NOW, world(4, A, B, kind=WorldKind.RECOVERY)), generation=4),
        "rule 11: recovery world 4 leaves out ['c', 'd']",
        change(m.WorldFormed(NOW, RECOVERY), generation=4),
    ),
    Change(
        "a_seal_takes_every_survivor",
        change(m.WorldFormed(NOW, world(4, A, B, C, kind=WorldKind.RECOVERY)), generation=4),
        "rule 11: recovery world 4 leaves out ['d']",
        change(  # D is gone
            m.WorldFormed(NOW, world(4, A, B, C, kind=WorldKind.RECOVERY)), job(members=without(D)), generation=4
        ),
    ),
    Change(
        "a_world_takes_members_only",
        change(m.WorldFormed(NOW, world(4, A, MemberId("x"), MemberId("f"))), generation=4),
        "rule 4: world 4 names ['x', 'f'], which are not members",
        change(m.WorldFormed(NOW, world(4, A, E)), generation=4),
    ),
    Change(
        "worlds_that_train_are_large_enough",
        change(m.WorldFormed(NOW, world(4, A)), generation=4),
        "world 4 of 1 trains below min 2",
        change(m.WorldFormed(NOW, world(4, A, hold=True)), generation=4),
    ),
    Change(
        "planned_worlds_keep_a_holder",
        change(m.WorldFormed(NOW, world(4, D, E)), generation=4),
        "rule 16: no member of planned world 4 is known to hold the state",
        change(m.WorldFormed(NOW, world(4, D, E, C)), generation=4),
    ),
    Change(
        "planned_worlds_keep_a_holder",
        change(m.WorldFormed(NOW, FOUR), job(holders=frozenset()), generation=4),
        "rule 16: no member of planned world 4 is known to hold the state",
        change(m.WorldFormed(NOW, ROLLBACK), job(holders=frozenset()), generation=4),
    ),
    Change(
        "only_the_length_of_a_job_changes",
        change(RESIZED, terms=Terms(GRID, seed=8)),
        f"rule 21: the terms changed from {TERMS} to {Terms(GRID, seed=8)}",
        change(RESIZED, job(terms=None), terms=TERMS),
    ),
    Change(
        "only_the_length_of_a_job_changes",
        change(RESIZED, terms=None),
        f"rule 21: the terms changed from {TERMS} to None",
        change(RESIZED, job(terms=None)),
    ),
    Change(
        "only_the_length_of_a_job_changes",
        change(RESIZED, job(members={}), terms=Terms(GRID, seed=8)),
        f"rule 21: the terms changed from {TERMS} to {Terms(GRID, seed=8)}",
        change(RESIZED, job(members={}), terms=replace(TERMS, grid=replace(GRID, epochs=99))),
    ),
    Change(
        "only_the_length_of_a_job_changes",
        change(RESIZED, terms=TERMS.with_changes(((5, 12),))),
        f"rule 21: the terms changed from {TERMS} to {TERMS.with_changes(((5, 12),))}",
        change(m.WorldFormed(NOW, ROLLBACK), job(terms=TERMS.with_changes(((5, 12),))), generation=4, terms=TERMS),
    ),
    Change(
        "the_fingerprint_never_changes",
        change(RESIZED, job(fingerprint=ONE_KIND), fingerprint=(("torch", "2"),)),
        "P4: the job's fingerprint changed from (('torch', '1'),) to (('torch', '2'),)",
        change(RESIZED, fingerprint=ONE_KIND),
    ),
    Change(
        "the_end_is_final",
        change(RESIZED, ended()),
        "job demo had ended, yet TargetChanged followed",
        change(again(), ended(), attempt=2, current=0),
    ),
    Change(
        "durable_steps_stay",
        change(again(onward=True), ended(), attempt=2, current=0, durable=Lineage(0, -1, 0)),
        "P2: durable step 0 became -1 without a rollback",
        change(again(), ended(), attempt=2, current=0, durable=Lineage(0, -1, 0)),
    ),
    Change(
        "only_the_length_of_a_job_changes",
        change(again(onward=True), ended(), attempt=2, current=0, terms=None),
        f"rule 21: the terms changed from {TERMS} to None",
        change(again(), ended(), attempt=2, current=0, terms=None),
    ),
    Change(
        "the_fingerprint_never_changes",
        change(again(onward=True), replace(ended(), fingerprint=ONE_KIND), fingerprint=()),
        "P4: the job's fingerprint changed from (('torch', '1'),) to ()",
        change(again(), replace(ended(), fingerprint=ONE_KIND), fingerprint=()),
    ),
    Change(
        "attempts_follow_one_another",
        change(again(3), ended(), attempt=3, current=0),
        "attempt 3 of demo followed attempt 1",
        change(again(2), ended(), attempt=2, current=0),
    ),
    Change(
        "attempts_follow_one_another",
        change(again(), job()),
        "attempt 2 of demo began while attempt 1 ran",
        change(again(), job(members={}, worlds=(), holders=frozenset())),
    ),
    Change(
        "attempts_follow_one_another",
        change(again(), launched()),
        "attempt 2 of demo began while attempt 1 ran",
        change(again(), launched(agents=())),
    ),
    Change(
        "a_launch_waits_for_every_agent",
        change(FORMED, launched(launch=LAUNCH), generation=3),
        "launch 3 was formed while 2 runs",
        change(FORMED, launched(), generation=3),
    ),
    Change(
        "a_launch_waits_for_every_agent",
        change(FORMED, launched(agents=(*AGENTS, Agent(AgentId("w"), 1))), generation=3),
        "launch 3 was formed while workers of w may run",
        change(FORMED, launched(agents=(*AGENTS, Agent(AgentId("w"), 1, ports=(1,)))), generation=3),
    ),
    Change(
        "a_launch_waits_for_every_agent",
        change(ALONE, launched(agents=(Agent(X, 1, draining=True), AGENTS[1])), generation=3),
        "launch 3 was formed while workers of x may run",
        change(ALONE, launched(agents=(Agent(X, 1, ports=(1,), draining=True), AGENTS[1])), generation=3),
    ),
    Change(
        "a_launch_waits_for_every_agent",
        change(ALONE, launched(launch=None, agents=(Agent(X, 1), AGENTS[1])), generation=3),
        "launch 3 was formed while workers of x may run",
        change(FORMED, launched(launch=None), generation=3),
    ),
    Change(
        "live_jobs_have_no_launches",
        change(m.LaunchOver(NOW, 2, "x leaves"), launched(spec=JobSpec(2, 3))),
        "P1: LaunchOver in a live job",
        change(m.LaunchOver(NOW, 2, "x leaves"), launched()),
    ),
    Change(
        "a_launch_has_the_size_of_the_job",
        change(m.Launched(NOW, replace(NEXT, seats=NEXT.seats[:1])), launched(), generation=3),
        "launch 3 has 1 seats, not 2 to 3",
        change(FORMED, launched(), generation=3),
    ),
    Change(
        "seats_are_on_agents_with_room",
        change(FORMED, launched(agents=AGENTS[:1]), generation=3),
        "launch 3 has 1 seats on y: there is no room",
        change(FORMED, launched(agents=AGENTS[:2]), generation=3),
    ),
    Change(
        "seats_are_on_agents_with_room",
        change(m.Launched(NOW, replace(NEXT, seats=(seat(X, 3), seat(X, 3, 1)))), launched(), generation=3),
        "launch 3 has 2 seats on x: there is no room",
        change(m.Launched(NOW, replace(NEXT, seats=(seat(Y, 3), seat(Y, 3, 1, 20001)))), launched(), generation=3),
    ),
    Change(
        "seats_are_on_agents_with_room",
        change(m.Launched(NOW, replace(NEXT, seats=(seat(X, 3), seat(Y, 3, 0, 9)))), launched(), generation=3),
        "y-g3.0 is at 10.0.0.1:9, which y has not offered",
        change(FORMED, launched(), generation=3),
    ),
]


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row.said[:70])
def test_a_change_that_must_not_be_is_named_and_its_neighbour_is_not(row: Change) -> None:
    check: Callable[[Job, m.Event, Job], str] = getattr(invariants, row.name)
    assert check(*row.bad) == row.said
    assert change_violations(*row.bad) == (row.said,)
    assert change_violations(*row.good) == ()


def test_every_invariant_has_a_row() -> None:
    tasks = {"task_queues_are_sound", "done_shards_stay_done"}  # tests/unit/core/tasks has their rows
    tasks |= {"layouts_are_sound", "buckets_keep_a_filled_copy"}  # tests/unit/core/ps has theirs
    assert {check.__name__ for check in STATE_INVARIANTS} - tasks == {row.name for row in STATES}
    assert {check.__name__ for check in CHANGE_INVARIANTS} - tasks == {row.name for row in CHANGES}
    named = {
        name
        for name, value in vars(invariants).items()
        if callable(value) and value.__module__ == invariants.__name__ and not name.startswith("_")
    }
    checks = {check.__name__ for check in (*STATE_INVARIANTS, *CHANGE_INVARIANTS)}
    assert named == checks | {"state_violations", "change_violations", "all_violations"}


def test_several_complaints_are_all_made() -> None:
    wrong = job(gone=(A,), holders=frozenset({MemberId("x")}))
    assert state_violations(wrong) == (
        "rule 11: ['a'] are gone and live",
        "['x'] hold the state and are not members",
    )


# -------------------------------------------------------------------------------- all events of one write


def test_what_really_happens_is_not_complained_about() -> None:
    assert all_violations(None, ()) == ()
    assert all_violations(None, (m.JobCreated(NOW, "demo", JobSpec(1, 2, Target(2))),)) == ()
    start = running(3)
    _, events = pump(start, m.Expire(C))
    assert all_violations(start, events) == ()


def test_every_event_is_judged_by_the_job_as_it_was_just_before() -> None:
    """2 is entered, which closes 1; the recovery comes after that, without C, who is in no open world."""
    recovery = world(4, A, B, D, kind=WorldKind.RECOVERY, base=job().durable)
    events = (m.WorldEntered(NOW, 2), m.WorldBroken(NOW, 2, True, "torn"), m.WorldFormed(NOW, recovery))
    assert all_violations(job(), events) == ()
    assert all_violations(job(), events[1:]) == ("rule 11: recovery world 4 leaves out ['c']",)


def test_the_result_is_judged_too() -> None:
    bad = world(4, A, kind=WorldKind.PLANNED)
    assert all_violations(job(), (m.WorldFormed(NOW, bad),)) == ("world 4 of 1 trains below min 2",)


def test_complaints_about_every_event_are_kept() -> None:
    events = (m.StateChanged(NOW, JobState.FAILED, "x"), RESIZED, m.HoldersChanged(NOW, 9, frozenset()))
    assert all_violations(job(), events) == (
        "job demo had ended, yet TargetChanged followed",
        "P6: HoldersChanged of generation 9, which is not open",
        "job demo had ended, yet HoldersChanged followed",
    )
