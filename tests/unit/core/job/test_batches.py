"""The coordinator records the batches that lines agree on, and drops them with a rollback (ADR 0051)."""

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.data.grid import BATCH_MAX, change_batch
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, expected_digest, make_line
from pliant.core.data.sample_order import Cursor
from pliant.core.messages import Code
from pliant.core.model.job import Job, JobState, Terms
from pliant.core.model.view import view_of
from unit.core.build import (
    GRID,
    ORDER,
    TERMS,
    A,
    B,
    C,
    after,
    checkpoint,
    join,
    made,
    new_job,
    refused,
    running,
    stopped,
)

WIDE = change_batch(GRID, 3, 20)  # 60 samples: 10, 10, 10, 20 and 10, then 20, 20 and 20


def lines(head: Lineage, count: int) -> tuple[LedgerLine, ...]:
    found: list[LedgerLine] = []
    for step in range(head.step + 1, head.step + 1 + count):
        about = (WIDE.cursor(step), WIDE.size(step), expected_digest(WIDE, ORDER, step), 0)
        found.append(make_line(head, 1, step, *about, dict(WIDE.changes).get(step, 0)))
        head = found[-1].lineage
    return tuple(found)


def reported(job: Job, count: int) -> Job:
    return after(job, m.Report(A, 0, 1, lines(job.durable, count)))


def changes_of(job: Job) -> tuple[tuple[int, int], ...]:
    assert job.terms is not None
    return job.terms.grid.changes


def test_a_line_that_agrees_on_a_batch_changes_the_jobs_grid() -> None:
    job = reported(running(2), 2)
    assert changes_of(job) == ()
    job = reported(job, 1)
    assert changes_of(job) == ((3, 20),)
    assert job.terms is not None
    assert job.terms.grid.total_steps == 8
    assert view_of(job, 1, A).changes == ((3, 20),)


def test_the_job_is_finished_where_the_cursor_is_at_the_end() -> None:
    job = reported(running(2), 7)
    assert job.state is JobState.RUNNING
    assert reported(job, 1).state is JobState.FINISHED
    assert reported(running(2), 8).state is JobState.FINISHED  # in one report with the change itself


def test_a_member_that_ends_the_job_early_says_of_how_many_steps() -> None:
    job = running(2)
    *_, ended = made(job, m.Report(A, 0, 1, lines(job.durable, 4), finished="it is enough"))
    assert isinstance(ended, m.StateChanged)
    assert ended.why == "it is enough, after step 4 of 8"


def test_a_batch_that_the_slots_cannot_share_is_refused() -> None:
    job = running(2)
    for batch in (GRID.slots - 1, BATCH_MAX):
        line = make_line(GENESIS, 1, 1, GRID.cursor(1), 10, 1, 0, batch)
        assert refused(job, m.Report(A, 0, 1, (line,))).code is Code.BAD


def test_after_a_change_a_line_must_start_where_the_last_one_ended() -> None:
    job = reported(running(2), 3)
    digest = expected_digest(GRID, ORDER, 4)
    fourth = make_line(job.durable, 1, 4, GRID.cursor(4), 10, digest)  # of a member that does not know of the change
    assert made(job, m.Report(A, 0, 1, (fourth,)))  # the cursor is the same, the batch is not: the audit tells
    wrong = make_line(fourth.lineage, 1, 5, Cursor(0, 40), 10, digest)
    refusal = refused(job, m.Report(A, 0, 1, (fourth, wrong)))
    assert (refusal.code, refusal.why) == (Code.MISMATCH, "step 5 does not start where step 4 ended")
    job = reported(job, 4)
    beyond = make_line(lines(job.durable, 1)[0].lineage, 1, 9, Cursor(2, 0), 10, digest)
    assert refused(job, m.Report(A, 0, 1, (*lines(job.durable, 1), beyond))).code is Code.MISMATCH


def test_a_member_joins_with_the_first_batch_and_the_record_keeps_the_changes() -> None:
    job = reported(running(2), 4)
    joined = after(job, join(C))
    assert changes_of(joined) == ((3, 20),)
    (event, *_) = made(job, join(C))
    assert isinstance(event, m.MemberJoined)
    assert event.terms.grid == WIDE
    alone = made(new_job(), join(A, terms=Terms(WIDE, TERMS.seed)))[0]  # no history has agreed on anything yet
    assert isinstance(alone, m.MemberJoined)
    assert alone.terms == TERMS


def test_a_rollback_drops_the_changes_after_its_base() -> None:
    job = reported(running(2), 2)
    job = after(job, m.Publish(A, 1, checkpoint(job.durable)))
    job = reported(job, 3)
    assert changes_of(job) == ((3, 20),)
    job = after(job, m.Exited(A, -9), m.Exited(B, -9), join(C))
    assert (job.durable.step, changes_of(job)) == (2, ())
    kept = reported(running(2), 3)
    kept = after(kept, m.Publish(A, 1, checkpoint(kept.durable)))
    kept = after(reported(kept, 2), stopped(A, 1))
    assert changes_of(kept) == ((3, 20),)
    kept = after(kept, m.Exited(A, -9), m.Exited(B, -9), join(C))
    assert (kept.durable.step, changes_of(kept)) == (3, ((3, 20),))


def test_a_longer_job_goes_on_with_its_batches() -> None:
    job = reported(running(2), 4)
    job = after(job, m.Exited(A, -9), m.Exited(B, -9))
    short = replace(TERMS, grid=replace(GRID, epochs=1))  # 5 steps with the change, 6 without it
    assert made(job, join(C, terms=short))
    longer = replace(TERMS, grid=replace(GRID, epochs=3))
    (event, *_) = made(job, join(C, terms=longer))
    assert isinstance(event, m.MemberJoined)
    assert event.terms.grid == replace(WIDE, epochs=3)
    late = after(reported(running(2), 5), m.Exited(A, -9), m.Exited(B, -9))
    assert "would end with step 5, but the job is at step 5" in refused(late, join(C, terms=short)).why
