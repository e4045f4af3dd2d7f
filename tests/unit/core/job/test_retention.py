"""Only ended jobs are deleted, and by age only those that are old enough."""

from dataclasses import replace

import pytest

from pliant.core.job.retention import refuse_deletion
from pliant.core.messages import Code
from pliant.core.model.job import Job, JobState
from unit.core.build import running


def ended(state: JobState, since: float = 100.0) -> Job:
    return replace(running(2), state=state, state_since=since)


@pytest.mark.parametrize("state", [state for state in JobState if state.ended])
def test_an_ended_job_may_be_deleted(state: JobState) -> None:
    assert refuse_deletion("demo", ended(state)) is None


@pytest.mark.parametrize("state", [state for state in JobState if not state.ended])
def test_a_job_that_goes_on_is_refused_with_the_way_out(state: JobState) -> None:
    refused = refuse_deletion("demo", ended(state))
    assert refused is not None
    assert refused.code is Code.RUNNING
    assert f"job demo is {state.value}" in refused.why
    assert "`pliant cancel demo`" in refused.why


def test_a_job_that_does_not_exist_is_refused() -> None:
    refused = refuse_deletion("demo", None)
    assert refused is not None
    assert refused.code is Code.NO_JOB


@pytest.mark.parametrize(("before", "kept"), [(99.0, True), (100.0, True), (100.5, False), (None, False)])
def test_by_age_a_job_is_kept_until_it_is_old_enough(before: float | None, kept: bool) -> None:
    assert (refuse_deletion("demo", ended(JobState.FINISHED), before) is not None) == kept
