"""Launches that fail at their start: errors that no restart cures, and sizes that a script cannot follow."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.model.job import Job, JobState, Target
from unit.core.build import X, Y, after, with_spec
from unit.core.launched import all_ready, created, launch, members, two_by_two, with_agents

MISSING = "ModuleNotFoundError: No module named 'x'"
VALUE = "ValueError: --lr must be positive"
LOST = "ConnectionRefusedError: no listener"


def failed(job: Job, *errors: str, early: bool = True, code: int = 1) -> Job:
    """The job after its first workers ended with these errors, and its agents are ready again."""
    names = members(job)
    ends = [m.Exited(names[index], code, error, early) for index, error in enumerate(errors)]
    return all_ready(after(job, *ends), *(agent.id for agent in job.agents))


def test_an_error_that_no_restart_cures_fails_the_job_at_once() -> None:
    job = failed(two_by_two(), MISSING)
    assert (job.state, job.why) == (JobState.FAILED, f"it cannot start: x-g1.0 ended with exit code 1: {MISSING}")
    assert len(job.failures) == 1
    assert failed(two_by_two(max_restarts=0), MISSING).why.startswith("it crashed once (--max-restarts 0)")


@pytest.mark.parametrize(
    "error", ["train.py: error: argument --lr: invalid float value: 'abc'", "Error: No such option '--rl'."]
)
def test_a_command_line_that_the_script_refuses_fails_the_job_at_once(error: str) -> None:
    job = failed(two_by_two(), error, code=2)
    assert (job.state, job.why) == (JobState.FAILED, f"it cannot start: x-g1.0 ended with exit code 2: {error}")
    assert failed(two_by_two(), error, code=1).state is JobState.RUNNING
    assert failed(two_by_two(), "out of memory", code=2).state is JobState.RUNNING


def test_the_same_bad_input_on_all_workers_fails_the_job_at_once() -> None:
    assert failed(two_by_two(), VALUE, VALUE, VALUE, VALUE).state is JobState.FAILED
    assert failed(two_by_two(), VALUE, VALUE, VALUE).state is JobState.RUNNING
    assert failed(two_by_two(), VALUE, VALUE, VALUE, "ValueError: other").state is JobState.RUNNING
    assert failed(two_by_two(), LOST, LOST, LOST, LOST).state is JobState.RUNNING


def test_the_same_bad_input_in_the_next_launch_fails_the_job() -> None:
    once = failed(two_by_two(), VALUE)
    assert once.state is JobState.RUNNING
    assert failed(once, VALUE).state is JobState.FAILED
    assert failed(once, "ValueError: other").state is JobState.RUNNING
    assert failed(failed(two_by_two(), LOST), LOST).state is JobState.RUNNING


@pytest.mark.parametrize("error", [MISSING, VALUE])
def test_what_fails_after_some_training_is_launched_again(error: str) -> None:
    job = failed(two_by_two(), error, early=False)
    assert (job.state, launch(job).number) == (JobState.RUNNING, 2)
    resized = all_ready(after(with_agents(created(size_max=2), X), m.Resize(Target(1))), X)
    assert launch(replace(resized, launch=replace(launch(resized), size_before=0))).restarts == 1
    again = failed(replace(resized, launch=replace(launch(resized), size_before=0)), error)
    assert again.state is JobState.RUNNING  # a launch has worked before


# ------------------------------------------------------------------------------------ a size that does not work


def grown(max_restarts: int = 3) -> Job:
    """Two workers ran, and four were launched in their place."""
    job = with_agents(created(size_max=4, target=2, max_restarts=max_restarts), X, Y)
    assert len(members(job)) == 2
    return all_ready(after(job, m.Resize(Target(4))), X, Y)


def test_a_size_that_fails_at_the_start_goes_back_to_the_size_that_worked() -> None:
    job = grown(max_restarts=0)
    assert (len(members(job)), launch(job).size_before) == (4, 2)
    job = failed(job, VALUE)
    assert (job.target, len(members(job)), len(job.failures)) == (Target(2), 2, 0)
    assert launch(job).why == (
        f"back to 2 workers, which worked: 4 failed at the start; x-g2.0 ended with exit code 1: {VALUE}"
    )
    assert launch(job).size_before == 0
    assert failed(job, VALUE).state is JobState.FAILED  # there is no other size to go back to


def test_a_user_may_try_the_other_size_again() -> None:
    job = all_ready(after(failed(grown(), VALUE), m.Resize(Target(4))), X, Y)
    assert (len(members(job)), launch(job).size_before) == (4, 2)


def test_a_size_that_worked_for_a_while_is_launched_again() -> None:
    job = failed(grown(), VALUE, early=False)
    assert (job.target, len(members(job)), len(job.failures)) == (Target(4), 4, 1)


def test_a_launch_that_was_killed_is_not_the_size_that_worked() -> None:
    job = with_agents(created(size_max=4, target=2), X, Y)
    job = after(job, m.Exited(members(job)[0], -9), m.Resize(Target(4)))
    assert launch(all_ready(job, X, Y)).size_before == 0


def test_a_size_that_is_not_allowed_any_more_is_not_gone_back_to() -> None:
    job = grown()
    job = failed(after(job, m.Create("demo", replace(job.spec, size_min=3, target=None))), VALUE)
    assert (job.target, len(job.failures)) == (Target(4), 1)


def test_a_size_without_room_is_not_gone_back_to() -> None:
    """Four workers ran on two machines, then two on one of them, and the other machine left."""
    job = after(all_ready(after(two_by_two(), m.Resize(Target(2, ((X, 2),)))), X, Y), m.AgentLeave(Y))
    assert launch(job).size_before == 4
    short = failed(with_spec(job, size_min=3), VALUE)
    assert short.state is JobState.WAITING
    assert failed(job, VALUE).target == Target(4)
