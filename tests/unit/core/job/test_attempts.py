"""A job that is asked for again: another attempt, or nothing."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core import messages as m
from pliant.core.job.decide import decide
from pliant.core.job.evolve import evolve
from pliant.core.job.validation import SIZE_MAX
from pliant.core.messages import Code, Rejection
from pliant.core.model.checkpoint import CheckpointPolicy
from pliant.core.model.job import Job, JobSpec, JobState, Mode, Target, member_limit
from pliant.core.model.names import MemberId
from pliant.core.model.view import view_of
from unit.core.build import (
    NOW,
    TERMS,
    A,
    B,
    C,
    X,
    after,
    checkpoint,
    ended,
    evolved,
    join,
    made,
    pump,
    refused,
    report,
    running,
    with_spec,
)
from unit.core.launched import created, hello, launch, members, with_agents

CREATE = m.Create("demo", JobSpec(1, 6, Target(6)))
FRESH = replace(CREATE, fresh=True)
RELAUNCHED = with_spec(CREATE, mode=Mode.RELAUNCH)


# ------------------------------------------------------------------------------------- what makes no sense

ONCE = "roles must be chief, ps, evaluator, each named once; the rest are workers"
COUNTS = "a role must have at least one worker, and chief exactly one"
WRONG_ROLES = [
    ((("worker", 1),), Mode.RELAUNCH, ONCE),
    ((("ps", 1), ("ps", 1)), Mode.RELAUNCH, ONCE),
    ((("ps", 0),), Mode.RELAUNCH, COUNTS),
    ((("chief", 2),), Mode.AUTO, COUNTS),
    ((("ps", 1),), Mode.LIVE, "a live job cannot have roles: its members are all equal"),
    ((("chief", 1), ("ps", 5)), Mode.AUTO, "at least one plain worker is required; the roles take all 6"),
]


@pytest.mark.parametrize(("roles", "mode", "why"), WRONG_ROLES, ids=lambda value: str(value))
def test_roles_that_make_no_sense_are_refused(roles: tuple[tuple[str, int], ...], mode: Mode, why: str) -> None:
    assert refused(None, with_spec(CREATE, roles=roles, mode=mode)) == Rejection(Code.BAD, why)


def test_roles_that_do_are_not() -> None:
    roles = (("chief", 1), ("ps", 3), ("evaluator", 1))
    assert evolved(None, *create(with_spec(CREATE, roles=roles, mode=Mode.AUTO))).spec.roles == roles


@pytest.mark.parametrize("spares", [-1, SIZE_MAX + 1])
def test_spares_that_make_no_sense_are_refused(spares: int) -> None:
    why = f"spares must be 0 to {SIZE_MAX}; got {spares}"
    assert refused(None, with_spec(CREATE, spares=spares)) == Rejection(Code.BAD, why)
    assert create(with_spec(CREATE, spares=SIZE_MAX))


def create(command: m.Create) -> tuple[m.Event, ...]:
    decision = decide(None, command, NOW)
    assert not isinstance(decision, Rejection), decision
    return decision


# ---------------------------------------------------------------------------------------- another attempt


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_failed_goes_on_from_where_it_stood(state: JobState) -> None:
    job = replace(ended(state), checkpoint=checkpoint(running(2, steps=3).durable), durable=running(2, steps=3).durable)
    other = with_spec(CREATE, size_min=2, size_max=3, target=Target(3), max_restarts=7, spares=1)
    assert made(job, other) == (
        m.JobCreated(NOW, "demo", JobSpec(2, 3, Target(3), None, 7, spares=1), attempt=2, resumes=True),
    )
    again = after(job, other)
    assert (again.attempt, again.terms, again.durable, again.checkpoint) == (2, TERMS, job.durable, job.checkpoint)
    assert (again.members, again.worlds, again.agents, again.failures) == ({}, (), (), ())
    assert again.is_live


def test_a_finished_job_without_a_checkpoint_begins_afresh() -> None:
    again = after(ended(JobState.FINISHED), CREATE)
    assert made(ended(JobState.FINISHED), CREATE)[0] == m.JobCreated(NOW, "demo", JobSpec(1, 6, Target(6)), attempt=2)
    assert (again.attempt, again.terms, again.durable.step, again.checkpoint) == (2, None, 0, None)


def finished(saved: int = TERMS.grid.total_steps) -> Job:
    job = running(2, steps=TERMS.grid.total_steps)
    assert job.state is JobState.FINISHED
    return replace(job, checkpoint=checkpoint(running(2, steps=saved).durable))


def test_a_finished_job_trains_longer_from_its_last_checkpoint() -> None:
    job = finished()
    assert made(job, CREATE) == (m.JobCreated(NOW, "demo", CREATE.spec, attempt=2, resumes=True),)
    longer = replace(TERMS, grid=replace(TERMS.grid, epochs=TERMS.grid.epochs + 1))
    again = after(job, CREATE, join(C, terms=longer))
    assert (again.terms, again.worlds[-1].base, again.durable) == (longer, job.durable, job.durable)
    shorter = replace(TERMS, grid=replace(TERMS.grid, epochs=TERMS.grid.epochs - 1))
    assert "but the job is at step 12 already: train longer" in refused(after(job, CREATE), join(C, terms=shorter)).why


def test_a_finished_job_with_nothing_more_to_train_finishes_again_and_says_how_to_go_on() -> None:
    again = after(finished(), CREATE, join(C))
    over = after(again, report(again, C, again.generation))
    why = "all 12 steps were committed before; pass more epochs or max_steps to train longer, or --fresh to start over"
    assert (over.state, over.why, over.checkpoint) == (JobState.FINISHED, why, finished().checkpoint)


def test_a_finished_job_whose_last_state_was_not_saved_computes_the_last_steps_again() -> None:
    again = after(finished(saved=8), CREATE, join(C))
    assert (again.worlds[-1].base.step, again.durable.step) == (8, 8)


@pytest.mark.parametrize("command", [FRESH, RELAUNCHED])
def test_a_finished_job_may_be_begun_afresh(command: m.Create) -> None:
    again = after(finished(), command)
    assert (again.attempt, again.terms, again.durable.step, again.checkpoint) == (2, None, 0, None)


def test_the_names_of_an_attempt_do_not_depend_on_the_order_in_which_its_members_were_stored() -> None:
    job = finished()
    stored = replace(job, members={name: job.members[name] for name in reversed(job.members)})
    assert after(stored, CREATE) == after(job, CREATE)


def test_a_failed_job_may_be_begun_afresh() -> None:
    job = replace(ended(JobState.FAILED), checkpoint=checkpoint(running(2, steps=3).durable))
    assert after(job, FRESH).checkpoint is None


def test_what_an_attempt_saved_is_of_another_history_once_a_later_one_begins_afresh() -> None:
    job = ended(JobState.FAILED)
    onward = after(job, CREATE)
    assert (onward.history_from_generation, view_of(onward, 1, A).history_from_generation) == (0, 0)
    afresh = after(job, FRESH)
    assert (afresh.history_from_generation, view_of(afresh, 1, A).history_from_generation) == (
        job.generation,
        job.generation,
    )
    again = after(replace(afresh, state=JobState.FAILED, generation=7), CREATE)
    assert (again.generation_before, again.history_from_generation) == (7, job.generation)


def test_generations_and_names_are_never_used_twice() -> None:
    job = ended()
    again = after(job, CREATE)
    assert (again.generation, again.generation_before, again.sealed, again.joined) == (
        job.generation,
        job.generation,
        1,
        2,
    )
    assert again.gone == (A, B)
    assert refused(again, join(A)).code is Code.GONE
    assert after(again, join(C)).worlds[0].number == job.generation + 1


def test_the_departed_are_remembered_up_to_a_limit() -> None:
    many = tuple(MemberId(f"m{number}") for number in range(200))
    again = evolve(replace(ended(), gone=many), m.JobCreated(NOW, "demo", JobSpec(1, 1, Target(1)), attempt=2))
    assert len(again.gone) == member_limit(again) == 68
    assert again.gone[-3:] == (many[-1], A, B)


def test_a_launched_job_begins_its_launches_after_those_before() -> None:
    job = after(with_agents(created(), X), m.Exited(MemberId("x-g1.0"), 0), m.Exited(MemberId("x-g1.1"), 0))
    assert job.state is JobState.FINISHED
    job = after(job, RELAUNCHED)
    assert (job.state, job.why, job.launch) == (JobState.WAITING, "0 of the 1 workers needed", None)
    job = with_agents(job, X)
    assert members(job) == ["x-g2.0", "x-g2.1"]
    assert launch(job).restarts == 0


def test_a_job_that_runs_is_asked_for_again_in_vain() -> None:
    job = running(2)
    assert decide(job, CREATE, NOW) == ()
    assert decide(job, with_spec(CREATE, target=Target(2)), NOW) == ()  # which changes while it runs


# ------------------------------------------------------------------------------------------- other settings

CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"size_min": 2}, "--workers 1:6 -> 2:6"),
    ({"size_max": 7, "target": None}, "--workers 1:6 -> 1:7"),
    ({"spares": 1}, "--spares 0 -> 1"),
    ({"chaos_allowed": True}, "--allow-chaos no -> yes"),
    ({"max_restarts": 4}, "--max-restarts 3 -> 4"),
    ({"wait_limit_s": 1.5}, "--wait-limit-s none -> 1.5"),
    ({"mode": Mode.AUTO}, "--mode live -> auto"),
    (
        {"checkpoints": CheckpointPolicy(steps=5, keep=3)},
        "--checkpoint-every never -> 5 steps, --checkpoint-keep 2 -> 3",
    ),
    ({"checkpoints": CheckpointPolicy(seconds=600.0)}, "--checkpoint-every never -> 600 s"),
]


@pytest.mark.parametrize(("fields", "what"), CHANGES, ids=[what for _, what in CHANGES])
def test_settings_change_while_a_job_runs(fields: dict[str, Any], what: str) -> None:
    job, other = running(2), with_spec(CREATE, **fields)
    assert made(job, other) == (m.SettingsChanged(NOW, other.spec, other.spec.initial_target, what),)
    changed = after(job, other)
    assert changed.spec == other.spec
    assert changed.members == job.members
    assert made(changed, other) == ()


def test_a_larger_smallest_size_makes_a_small_world_wait_and_a_smaller_one_lets_it_go_on() -> None:
    job = after(running(2), with_spec(CREATE, size_min=3))
    assert job.newest is not None
    assert job.newest.hold
    assert job.why == "2 of the 3 workers needed; the same members, wired again"
    waits = after(with_spec(running(3), size_min=3), m.Expire(B))
    assert waits.state is JobState.WAITING
    enough = after(waits, CREATE, report(waits, A, 2))
    assert (enough.state, enough.why) == (JobState.RUNNING, "enough members again")


def test_a_target_follows_the_sizes_unless_a_resize_chose_it() -> None:
    wide, narrow = with_spec(CREATE, size_max=9, target=None), with_spec(CREATE, size_max=3, target=None)
    job = running(2)
    assert after(job, wide).target == Target(9)
    assert after(job, m.Resize(Target(4)), wide).target == Target(4)
    assert after(job, m.Resize(Target(4, ((X, 4),))), wide).target == Target(4, ((X, 4),))
    assert after(job, m.Resize(Target(4, ((X, 4),))), narrow).target == Target(3)
    assert after(job, m.Resize(Target(1)), with_spec(CREATE, size_min=2)).target == Target(2)


def test_a_launched_job_takes_other_sizes() -> None:
    job = with_agents(created(), X)
    assert len(launch(job).seats) == 2
    assert len(launch(after(job, with_spec(RELAUNCHED, size_min=3))).seats) == 2  # there is no room for a third
    smaller = after(job, with_spec(RELAUNCHED, size_max=1, target=None))
    assert (launch(smaller).over, smaller.target) == ("1 workers instead of 2", Target(1))
    assert after(abandoned(), with_spec(RELAUNCHED, size_min=3)).state is JobState.WAITING


OR_ELSE = "; or choose another name with --job"
ROLES = (("ps", 1),)


def test_a_live_job_does_not_become_a_launched_one() -> None:
    why = "job demo runs --mode live, which cannot become --mode relaunch: pass --mode live"
    assert refused(running(2), RELAUNCHED) == Rejection(Code.EXISTS, f"{why}{OR_ELSE}")
    left = after(running(2), m.Expire(A), m.Expire(B))
    assert refused(left, RELAUNCHED) == Rejection(Code.EXISTS, f"{why}{OR_ELSE}")


def test_the_mode_changes_while_no_agent_is_there() -> None:
    job = with_agents(created(), X)
    why = "job demo runs --mode relaunch, which cannot become --mode live: pass --mode relaunch"
    assert refused(job, CREATE) == Rejection(Code.EXISTS, f"{why}{OR_ELSE}")
    assert after(job, with_spec(CREATE, mode=Mode.AUTO)).spec.mode is Mode.AUTO
    assert after(abandoned(), CREATE).is_live


def test_roles_change_while_no_agent_is_there() -> None:
    other = with_spec(RELAUNCHED, roles=ROLES)
    why = (
        "job demo runs with the roles none, which cannot become ps:1 while it runs: "
        "pass the same roles, or stop its agents first"
    )
    assert refused(with_agents(created(), X), other) == Rejection(Code.EXISTS, f"{why}{OR_ELSE}")
    assert after(abandoned(), other).spec.roles == ROLES


def test_a_job_cannot_ask_for_more_workers_than_it_has_slots() -> None:
    most = TERMS.grid.slots
    why = f"--workers asks for at least {most + 1} workers, but the slots of job demo are enough for {most}: lower MIN"
    assert refused(running(2), with_spec(CREATE, size_min=most + 1, size_max=9, target=None)) == Rejection(
        Code.EXISTS, f"{why}{OR_ELSE}"
    )
    assert made(running(2), with_spec(CREATE, size_min=most, size_max=9, target=None))


def test_chaos_is_allowed_by_a_member_that_creates_the_job_and_for_that_attempt() -> None:
    assert not evolved(None, *create(CREATE)).spec.chaos_allowed
    allowed = evolved(None, *create(with_spec(CREATE, chaos_allowed=True)))
    assert allowed.spec.chaos_allowed
    assert not after(allowed, m.Cancel("enough"), CREATE).spec.chaos_allowed


def test_a_job_that_is_stopping_is_created_again_only_once_it_has_ended() -> None:
    job = after(running(2, steps=3), m.Cancel("wrong data"))
    why = "job demo is stopping: wrong data; start it again once it has ended"
    assert refused(job, CREATE) == refused(job, FRESH) == Rejection(Code.EXISTS, why)
    over = after(job, m.Leave(A, 0, "saved"), m.Leave(B, 0, "saved"))
    assert made(over, CREATE)[0] == m.JobCreated(NOW, "demo", CREATE.spec, attempt=2, resumes=True)


def test_a_later_attempt_knows_how_far_the_job_ever_got() -> None:
    job = replace(ended(JobState.FAILED), furthest_step=9)
    assert after(job, CREATE).furthest_step == 9
    assert after(job, FRESH).furthest_step == 0


def test_a_job_that_runs_is_not_begun_afresh() -> None:
    why = "job demo is running; cancel it first to start it from the beginning"
    assert refused(running(2), FRESH) == Rejection(Code.EXISTS, why)
    job = with_agents(created(), X)
    assert refused(job, replace(RELAUNCHED, fresh=True)) == Rejection(Code.EXISTS, why)


def abandoned() -> Job:
    """Every member is gone, and no member has ended it."""
    return after(with_agents(created(), X), m.AgentExpire(X))


def test_a_job_that_every_member_left_may_be_begun_afresh() -> None:
    job, events = pump(abandoned(), replace(RELAUNCHED, fresh=True))
    assert events[0] == m.JobCreated(NOW, "demo", JobSpec(1, 6, Target(6), None, 3, Mode.RELAUNCH), attempt=2)
    assert (job.attempt, job.launch, job.generation_before) == (2, None, 1)
    assert made(job, replace(RELAUNCHED, fresh=True)) == ()  # the answer may have been lost
    assert made(abandoned(), RELAUNCHED) == ()


def test_a_job_that_has_not_begun_is_as_fresh_as_can_be() -> None:
    assert made(after(created(), hello(X)), replace(RELAUNCHED, fresh=True)) == ()


# --------------------------------------------------------------------------------- settings, and no other attempt

SETTINGS = replace(CREATE, only_settings=True)


def test_settings_alone_change_a_job_that_goes_on() -> None:
    job = running(2)
    assert made(job, SETTINGS) == made(job, CREATE)


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.CANCELLED])
def test_settings_alone_start_no_attempt_of_a_job_that_ended_meanwhile(state: JobState) -> None:
    why = f"job demo is {state.value}: it has no settings to change"
    assert refused(ended(state), SETTINGS) == Rejection(Code.ENDED, why)


def test_settings_alone_create_no_job() -> None:
    assert refused(None, SETTINGS).code is Code.NO_JOB


def test_settings_alone_and_a_start_from_the_beginning_exclude_each_other() -> None:
    both = replace(SETTINGS, fresh=True)
    assert refused(running(2), both) == Rejection(Code.BAD, "fresh and only_settings cannot be combined")
