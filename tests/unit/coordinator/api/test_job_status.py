"""The status of a job over the API."""

from dataclasses import replace

import pytest

from pliant.coordinator.api.job_status import job_line, job_status
from pliant.core.data.ledger import Lineage
from pliant.core.model.view import MemberState
from unit.core.build import GRID, A, B, C, X, after, gathered, join, new_job, report, running


@pytest.mark.parametrize(("step", "epoch"), [(0, 0), (5, 0), (6, 1), (11, 1), (12, 1)])
def test_the_epoch_is_that_of_the_next_step_and_at_the_end_the_last(step: int, epoch: int) -> None:
    assert (GRID.steps_per_epoch, GRID.total_steps) == (6, 12)
    job = replace(running(2), durable=Lineage(1, step, 0))
    assert (job_line(job, 1).step, job_line(job, 1).epoch) == (step, epoch)


def test_before_anybody_joined_there_are_no_steps_to_count() -> None:
    found = job_line(new_job(2), 1)
    assert (found.epoch, found.total_steps, found.generation, found.size) == (0, None, 0, 0)


def test_members_are_shown_in_the_order_of_their_ranks_and_whoever_has_none_last() -> None:
    job = after(gathered(0, new_job(1, 6, 2)), join(A, pid=41), join(B, pid=42), join(C))
    job = after(job, report(job, A, 1, holders=(A,)))
    shown = job_status(job, 9, 0.0)
    assert [(one.id, one.rank, one.pid) for one in shown.members] == [(A, 0, 41), (B, None, 42), (C, None, None)]
    assert [one.state for one in shown.members] == [MemberState.ACTIVE, MemberState.JOINING, MemberState.SPARE]
    assert [one.agent for one in shown.members] == [X, X, X]
