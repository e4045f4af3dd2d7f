"""Checkpoints as the coordinator sees them: parts that make a whole, and what becomes of it (rule 17)."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.job.checkpoints import (
    WRITERS_MAX,
    checkpoint_name,
    checkpoint_step,
    is_due,
    is_garbage,
    part_of,
    writer_generation,
)
from pliant.core.job.evolve import UNFINISHED_KEPT
from pliant.core.job.validation import CHECKPOINT_NAME_MAX, KEEP_MAX, PIECES_MAX, WAIT_MAX_S
from pliant.core.messages import Code, Command, Rejection
from pliant.core.model.checkpoint import NEVER_WHOLE, Checkpoint, CheckpointPolicy, Piece
from pliant.core.model.job import Job, JobSpec, JobState, Mode, Target
from pliant.core.model.names import MemberId
from pliant.core.model.view import kept_checkpoints, view_of, written_parts
from pliant.core.model.world import WorldKind
from unit.core.build import (
    NAMES,
    NOW,
    TERMS,
    A,
    B,
    C,
    D,
    after,
    drain,
    evolved,
    formed,
    join,
    lines,
    made,
    new_job,
    pump,
    refused,
    report,
    running,
    stopped,
)

FULL = "No space left on device"


def piece(part: int) -> Piece:
    return Piece(f"part-{part}", 10, "0" * 64)


def publish(
    job: Job,
    by: MemberId,
    part: int,
    count: int = 2,
    *,
    state: int = 5,
    generation: int = 1,
    lineage: Lineage | None = None,
) -> m.Publish:
    """That member's part of a checkpoint of the durable state, or of another, begun by members of `generation`."""
    lineage = job.durable if lineage is None else lineage
    name = checkpoint_name(lineage, generation)
    return m.Publish(by, job.current, Checkpoint(lineage, name, state, (piece(part),)), part, count)


def saved(job: Job, steps: int = 2, saves: int = 1) -> Job:
    """The job after so many checkpoints by A and B, with so many steps before each."""
    for _ in range(saves):
        job = after(job, report(job, A, job.current, steps))
        job = after(job, publish(job, A, 0), publish(job, B, 1))
    return job


def keeping(count: int, size: int = 2) -> Job:
    created = m.JobCreated(NOW, "demo", JobSpec(1, 6, Target(6), checkpoints=CheckpointPolicy(keep=count)))
    return running(size, evolved(None, created))


# ------------------------------------------------------------------------------------------------- parts make a whole


def test_a_checkpoint_is_there_with_its_last_part() -> None:
    job = running(3, steps=4)
    whole = replace(publish(job, A, 0, 3).checkpoint, pieces=(piece(0), piece(1), piece(2)))
    job, said = pump(job, publish(job, B, 1, 3))
    assert said == (m.PartWritten(NOW, 1, B, publish(job, B, 1, 3).checkpoint, 1, 3),)
    assert (job.checkpoint, written_parts(job)) == (None, ((whole.name, 1),))
    job = after(job, publish(job, A, 0, 3))
    job, said = pump(job, publish(job, C, 2, 3))
    assert said == (m.CheckpointPublished(NOW, 1, whole),)
    assert (job.checkpoint, written_parts(job), kept_checkpoints(job)) == (whole, (), (whole.name,))


def test_the_same_part_twice_is_one_part() -> None:
    job = running(2, steps=4)
    job = after(job, publish(job, A, 0))
    assert made(job, publish(job, A, 0)) == ()
    assert made(job, publish(job, B, 0)) == ()
    assert after(job, publish(job, B, 1)).checkpoint is not None


def test_parts_are_of_one_state() -> None:
    """People are told that members differ, and no member waits for what will never be whole."""
    job = running(2, steps=4)
    job = after(job, publish(job, A, 0))
    name = checkpoint_name(job.durable, 1)
    job, [failed] = pump(job, publish(job, B, 1, state=6))
    assert failed == m.CheckpointFailed(NOW, 1, name, B, f"its state differs from the one that others wrote as {name}")
    assert made(job, publish(job, B, 1)) == ()
    assert (job.checkpoint, written_parts(job)) == (None, ((name, NEVER_WHOLE),))


def test_parts_are_of_one_division() -> None:
    job = running(2, steps=4)
    job = after(job, publish(job, A, 0, 2))
    assert isinstance(made(job, publish(job, B, 1, 3))[0], m.CheckpointFailed)


def test_members_without_a_common_place_are_told_and_one_writes_everything_from_then_on() -> None:
    job = running(2, steps=4)
    here, there = publish(job, A, 0), publish(job, B, 1)
    job = after(job, replace(here, checkpoint=replace(here.checkpoint, storage_id="here")))
    job, [failed] = pump(job, replace(there, checkpoint=replace(there.checkpoint, storage_id="there")))
    assert isinstance(failed, m.CheckpointFailed)
    assert failed.split_storage
    assert "set --checkpoint-dir to a place that every machine reaches" in failed.why
    assert view_of(job, 1, A).split_storage


def test_a_checkpoint_that_lies_in_several_places_is_kept_and_one_writes_everything_from_then_on() -> None:
    """Each place was copied from one of them, so they looked like one."""
    job = saved(running(2))
    assert job.checkpoint is not None
    name = job.checkpoint.name
    job, [failed] = pump(job, m.PartNotWritten(A, 1, name, "/checkpoints", split_storage=True))
    assert isinstance(failed, m.CheckpointFailed)
    assert failed.why.startswith("not all of it is in /checkpoints; members save to different places")
    assert view_of(job, 1, A).split_storage
    assert (job.checkpoint.name if job.checkpoint else "", kept_checkpoints(job), written_parts(job)) == (
        name,
        (name,),
        (),
    )
    assert made(job, m.PartNotWritten(B, 1, name, "/checkpoints", split_storage=True)) == (), "it is known"


def test_that_an_earlier_checkpoint_lies_in_several_places_is_found_late_and_matters_as_much() -> None:
    """The member that looks has to wait for a shared folder, and may be told of the next one meanwhile."""
    job = saved(keeping(2), saves=2)
    [earlier] = job.older_checkpoints
    after_that = after(job, m.PartNotWritten(A, 1, earlier.name, "/checkpoints", split_storage=True))
    assert after_that.split_storage
    assert kept_checkpoints(after_that) == kept_checkpoints(job)


@pytest.mark.parametrize("saves", [0, 2])
def test_where_a_checkpoint_lies_that_no_member_keeps_does_not_matter(saves: int) -> None:
    job = saved(running(2), saves=saves)
    assert made(job, m.PartNotWritten(A, 1, checkpoint_name(GENESIS, 1), "/checkpoints", split_storage=True)) == ()


def test_parts_of_two_checkpoints_may_come_in_any_order() -> None:
    job = running(2, steps=2)
    early = job.durable
    job = after(job, publish(job, A, 0), report(job, A, 1, 2))
    job = after(job, publish(job, A, 0), publish(job, B, 1, lineage=early))
    assert job.checkpoint is not None
    assert (job.checkpoint.lineage, [each.lineage for each in job.unfinished_checkpoints]) == (early, [job.durable])
    job = after(job, publish(job, B, 1))
    assert (job.checkpoint, job.unfinished_checkpoints, len(kept_checkpoints(job))) == (
        replace(publish(job, A, 0).checkpoint, pieces=(piece(0), piece(1))),
        (),
        2,
    )


def test_a_newer_checkpoint_makes_the_parts_of_an_older_one_pointless() -> None:
    job = running(2, steps=2)
    early = job.durable
    job = after(job, publish(job, A, 0))
    job = saved(job)
    assert job.unfinished_checkpoints == ()
    assert made(job, publish(job, B, 1, lineage=early)) == ()


def test_a_failed_part_makes_the_whole_fail_once() -> None:
    job = running(2, steps=4)
    name = checkpoint_name(job.durable, 1)
    job = after(job, publish(job, A, 0))
    job, [failed] = pump(job, m.PartNotWritten(B, 1, name, FULL))
    assert failed == m.CheckpointFailed(NOW, 1, name, B, FULL)
    assert made(job, m.PartNotWritten(A, 1, name, FULL)) == ()
    assert made(job, publish(job, B, 1)) == ()
    assert written_parts(job) == ((name, NEVER_WHOLE),)
    assert view_of(job, 1, A).written_parts == ((name, NEVER_WHOLE),)
    assert saved(job).checkpoint is not None


@pytest.mark.parametrize("name", ["step-2-g1-0000000000000007-w1", "step-9-g1-0000000000000007-w0", "nonsense"])
def test_no_member_hears_of_a_failure_that_no_member_waits_for(name: str) -> None:
    job = saved(running(2))
    assert made(job, m.PartNotWritten(B, 1, name, FULL)) == ()


def test_while_one_is_being_written_others_that_fail_do_not_push_it_out() -> None:
    """A disk so slow that several come due before its part is there."""
    job = running(2, steps=1)
    slow = job.durable
    job = after(job, publish(job, A, 0))
    for _ in range(UNFINISHED_KEPT + 1):
        job = after(job, report(job, A, 1, 1))
        job = after(
            job,
            m.PartNotWritten(B, 1, checkpoint_name(job.durable, 1), "the previous checkpoint is still being written"),
        )
    assert len(job.unfinished_checkpoints) == UNFINISHED_KEPT
    job = after(job, publish(job, B, 1, lineage=slow))
    assert job.checkpoint is not None
    assert job.checkpoint.lineage == slow


def test_of_what_is_never_finished_the_oldest_is_forgotten() -> None:
    job = running(2, steps=1)
    for _ in range(UNFINISHED_KEPT + 2):
        job = after(job, publish(job, A, 0), report(job, A, 1, 1))
    assert [each.lineage.step for each in job.unfinished_checkpoints] == [3, 4, 5, 6]


BAD = {
    "a name that leads elsewhere": m.Publish(A, 1, Checkpoint(GENESIS, "../x", 1)),
    "a file that leads elsewhere": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1, (Piece(".f", 1, ""),))),
    "an endless hash": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1, (Piece("f", 1, "0" * 65),))),
    "a negative size": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1, (Piece("f", -1, ""),))),
    "an endless storage": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1, (), "s" * (CHECKPOINT_NAME_MAX + 1))),
    "a name that fits nowhere": m.Publish(A, 1, Checkpoint(GENESIS, "x" * (CHECKPOINT_NAME_MAX + 1), 1)),
    "a file that fits nowhere": m.Publish(
        A, 1, Checkpoint(GENESIS, "x", 1, (Piece("f" * (CHECKPOINT_NAME_MAX + 1), 1, ""),))
    ),
    "too many files": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1, (Piece("f", 1, ""),) * (PIECES_MAX + 1))),
    "too many parts": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1), 0, WRITERS_MAX + 1),
    "a part too many": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1), 2, 2),
    "a part before the first": m.Publish(A, 1, Checkpoint(GENESIS, "x", 1), -1, 2),
}


@pytest.mark.parametrize("command", BAD.values(), ids=BAD.keys())
def test_what_cannot_be_a_part_is_refused(command: m.Publish) -> None:
    assert refused(running(2), command).code is Code.BAD


# --------------------------------------------------------------------------------------------- who comes and who goes


def test_a_leaver_may_finish_its_part_after_the_others_went_on() -> None:
    """Generation 2 is entered without C, whose disk is still busy with its part of a checkpoint of generation 1."""
    job = running(3, steps=4)
    job = after(job, publish(job, A, 0, 3), drain(C))
    late = replace(publish(job, C, 2, 3), generation=1)
    job = after(job, report(job, A, 2))
    assert job.current == 2
    job = after(job, replace(publish(job, B, 1, 3), generation=2))
    job, [published] = pump(job, late)
    assert isinstance(published, m.CheckpointPublished)
    assert (published.generation, job.checkpoint) == (2, published.checkpoint)


def test_a_leaver_may_say_that_its_part_will_never_come() -> None:
    job = running(3, steps=4)
    job = after(job, drain(C))
    job = after(job, report(job, A, 2))
    name = checkpoint_name(job.durable, 1)
    assert made(job, m.PartNotWritten(C, 1, name, FULL)) == (m.CheckpointFailed(NOW, 2, name, C, FULL),)
    assert refused(job, m.NotReadable(C, 1, name, FULL, damaged=True)).code is Code.PAST


def test_who_is_gone_is_not_heard_of_its_part() -> None:
    job = running(3, steps=4)
    late = publish(job, C, 2, 3)
    job = after(job, drain(C))
    job = after(job, report(job, A, 2), m.Leave(C, 2, "left as planned"))
    assert refused(job, late).code is Code.GONE


def test_a_planned_change_loses_no_part() -> None:
    job = running(2, steps=4)
    job = after(job, publish(job, A, 0), join(C))
    job = after(job, report(job, A, 2))
    assert after(job, publish(job, B, 1)).checkpoint is not None


def test_after_a_recovery_no_member_waits_for_parts_of_the_world_before() -> None:
    """B's part may be lost with it."""
    job = running(3, steps=4)
    job = after(job, publish(job, A, 0, 3), stopped(B, 1))
    assert (job.unfinished_checkpoints, job.world(2)) == ((), formed(job, 2))
    late = replace(publish(job, A, 1, 3), generation=2)
    assert made(job, late) == ()
    alone = replace(publish(job, A, 0, 1), generation=2)
    assert isinstance(made(job, alone)[0], m.CheckpointPublished)


def test_the_last_state_is_saved_after_the_job_has_finished() -> None:
    job = running(2, steps=TERMS.grid.total_steps)
    assert job.state is JobState.FINISHED
    job = after(job, publish(job, A, 0))
    job, [published] = pump(job, publish(job, B, 1))
    assert isinstance(published, m.CheckpointPublished)
    assert made(job, m.PartNotWritten(A, 1, published.checkpoint.name, FULL)) == ()
    assert made(job, m.RequestCheckpoint("")) == ()
    assert refused(job, m.NotReadable(A, 1, "x", FULL, damaged=True)).code is Code.ENDED


# ------------------------------------------------------------------------------------------------- how many are kept


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_checkpoints_are_kept(count: int) -> None:
    job = saved(keeping(count), steps=1, saves=4)
    assert [checkpoint_step(name) for name in kept_checkpoints(job)] == [4, 3, 2, 1][:count][::-1]
    assert view_of(job, 1, A).kept_checkpoints == kept_checkpoints(job)


@pytest.mark.parametrize(
    "saves",
    [
        CheckpointPolicy(steps=-1),
        CheckpointPolicy(seconds=-1.0),
        CheckpointPolicy(seconds=WAIT_MAX_S * 2),
        CheckpointPolicy(keep=0),
        CheckpointPolicy(keep=KEEP_MAX + 1),
    ],
)
def test_saves_that_make_no_sense_are_refused(saves: CheckpointPolicy) -> None:
    assert (
        refused(None, m.Create("demo", JobSpec(1, 6, Target(6), None, 3, Mode.LIVE, checkpoints=saves))).code
        is Code.BAD
    )


def test_the_interval_of_checkpoints_can_change() -> None:
    job = evolved(None, *_create(CheckpointPolicy(steps=5)))
    assert made(job, m.Create("demo", JobSpec(1, 6, Target(6), checkpoints=CheckpointPolicy(steps=5)))) == ()
    assert view_of(running(2, job), 1, A).save_steps == 5
    job = after(running(2, job), m.Create("demo", JobSpec(1, 6, Target(6), checkpoints=CheckpointPolicy(steps=6))))
    assert view_of(job, 1, A).save_steps == 6


def _create(saves: CheckpointPolicy) -> tuple[m.Event, ...]:
    return (m.JobCreated(NOW, "demo", JobSpec(1, 6, Target(6), checkpoints=saves)),)


# -------------------------------------------------------------------------------------------------- what can be read


def rolled_back(size: int = 2, keep: int = 2, saves: int = 2) -> Job:
    """Every member died, and as many came anew: they are to go back to the newest checkpoint."""
    job = saved(keeping(keep, size), saves=saves) if size == 2 else _saved_by_many(size, keep, saves)
    job = after(job, *(m.Expire(name) for name in NAMES[:size]))
    job = pump(job, *(join(MemberId(f"{name}2")) for name in NAMES[:size]))[0]
    assert formed(job, job.generation).kind is WorldKind.ROLLBACK
    return job


def _saved_by_many(size: int, keep: int, saves: int) -> Job:
    job = keeping(keep, size)
    for _ in range(saves):
        job = after(job, report(job, A, 1, 2))
        job = after(job, *(publish(job, name, part, size) for part, name in enumerate(NAMES[:size])))
    return job


def unreadable(job: Job, by: str, *, damaged: bool, name: str | None = None) -> m.NotReadable:
    newest = job.checkpoint.name if job.checkpoint is not None else "none"
    return m.NotReadable(MemberId(by), job.generation, name or newest, "it is not what it was", damaged)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before() -> None:
    job = rolled_back()
    [before] = job.older_checkpoints
    assert job.checkpoint is not None
    damaged = job.checkpoint.name
    job, said = pump(job, unreadable(job, "a2", damaged=True))
    assert isinstance(said[0], m.CheckpointUnreadable)
    assert (job.checkpoint, job.older_checkpoints, job.durable) == (before, (), before.lineage)
    assert kept_checkpoints(job) == (damaged, before.name)  # parts of it may be good, and that is for people to say
    world = formed(job, job.generation)
    assert (world.kind, world.base) == (WorldKind.ROLLBACK, before.lineage)
    assert made(job, unreadable(job, "a2", damaged=True, name=damaged)) == ()


def test_without_one_before_the_job_begins_anew() -> None:
    job = rolled_back(keep=1)
    job = after(job, unreadable(job, "a2", damaged=True))
    assert (job.checkpoint, job.durable) == (None, GENESIS)
    assert made(job, unreadable(job, "a2", damaged=True)) == ()


def test_a_checkpoint_out_of_one_members_reach_is_read_by_another() -> None:
    job = rolled_back()
    newest = job.checkpoint
    assert formed(job, job.generation).members[0] == "a2"
    job = after(job, unreadable(job, "a2", damaged=False))
    assert (job.checkpoint, formed(job, job.generation).members[0]) == (newest, "b2")


def test_a_checkpoint_out_of_every_member_s_reach_ends_the_job() -> None:
    """To go further back would throw away what is still there."""
    job = rolled_back()
    newest = job.checkpoint
    assert newest is not None
    job = after(job, unreadable(job, "a2", damaged=False))
    job = after(job, unreadable(job, "b2", damaged=False))
    assert (job.state, job.checkpoint) == (JobState.FAILED, newest)
    assert job.why.startswith(f"no member can read the checkpoint {newest.name}")
    again = after(job, m.Create("demo", JobSpec(1, 6, Target(6), checkpoints=CheckpointPolicy(keep=2))))
    assert (again.checkpoint, again.older_checkpoints, again.cannot_read) == (
        newest,
        job.older_checkpoints,
        frozenset(),
    )


def test_who_could_not_reach_one_may_reach_the_next() -> None:
    job = rolled_back()
    job = after(job, unreadable(job, "a2", damaged=False))
    assert job.cannot_read == {"a2"}
    lineage = lines(job.durable, job.generation, 1)[0]
    first = MemberId("b2")
    job = after(job, m.Report(first, 0, job.generation, (lineage,), frozenset({first})))
    job = after(job, publish(job, first, 0, 1, generation=job.generation))
    assert job.cannot_read == frozenset()


def test_a_checkpoint_that_no_member_goes_back_to_may_be_unreadable() -> None:
    job = saved(running(2))
    assert made(job, unreadable(job, "a", damaged=True)) == ()


# ------------------------------------------------------------------------------------------------ wanted by a member


def test_a_checkpoint_is_wanted_until_one_of_that_step_is_there() -> None:
    job = running(2, steps=2)
    early = job.durable
    job = after(job, report(job, A, 1, 2), m.RequestCheckpoint("a person"))
    assert (job.checkpoint_wanted_at_step, view_of(job, 1, A).checkpoint_wanted) == (4, True)
    assert made(job, m.RequestCheckpoint("another person")) == ()
    job = after(job, publish(job, A, 0, lineage=early), publish(job, B, 1, lineage=early))
    assert job.checkpoint_wanted_at_step == 4
    job = saved(job)
    assert (job.checkpoint_wanted_at_step, view_of(job, 1, A).checkpoint_wanted) == (None, False)


def test_what_is_saved_already_is_not_wanted_again() -> None:
    assert made(saved(running(2)), m.RequestCheckpoint("it is time")) == ()


def test_a_job_without_live_members_has_no_state_to_save() -> None:
    why = "demo has no live members whose state can be saved"
    assert refused(new_job(), m.RequestCheckpoint("")) == Rejection(Code.BAD, why)


def test_a_rollback_asks_for_what_can_still_come() -> None:
    job = saved(running(2))
    job = after(job, report(job, A, 1, 4), m.RequestCheckpoint(""))
    assert job.checkpoint_wanted_at_step == 6
    job = after(job, m.Expire(A), m.Expire(B), join(C), join(D))
    assert job.checkpoint_wanted_at_step == job.durable.step == 2


@pytest.mark.parametrize("saves", [CheckpointPolicy(), CheckpointPolicy(steps=50), CheckpointPolicy(seconds=600.0)])
def test_a_member_that_leaves_makes_the_others_save_whatever_the_policy(saves: CheckpointPolicy) -> None:
    """A machine that goes is seldom the only one."""
    job = running(2, evolved(None, *_create(saves)), steps=2)
    job, said = pump(job, drain(B))
    assert m.CheckpointRequested(NOW, 2, "a member is leaving") in said
    assert not any(isinstance(event, m.CheckpointRequested) for event in made(job, drain(A)))


@pytest.mark.parametrize(("step", "asked"), [(4, None), (2, 4)])
def test_a_member_that_asked_is_told_that_it_failed_and_it_is_not_tried_at_every_step(
    step: int, asked: int | None
) -> None:
    job = running(2, steps=2)
    early = job.durable
    job = after(job, report(job, A, 1, 2), m.RequestCheckpoint(""))
    lineage = job.durable if step == 4 else early
    job = after(job, m.PartNotWritten(A, 1, checkpoint_name(lineage, 1), FULL))
    assert job.checkpoint_wanted_at_step == asked


# ------------------------------------------------------------------------------------------------------- plain rules


@pytest.mark.parametrize(
    ("every", "save_steps", "verify", "asked", "due"),
    [
        (0, 0, 0, False, [12]),
        (0, 0, 0, True, list(range(1, 13))),
        (5, 0, 0, False, [5, 10, 12]),
        (0, 4, 0, False, [4, 8, 12]),
        (5, 4, 0, False, [4, 5, 8, 10, 12]),
        (0, 5, 2, False, [10, 12]),
        (0, 0, 5, True, [5, 10, 12]),
    ],
)
def test_when_one_is_due(every: int, save_steps: int, verify: int, asked: bool, due: list[int]) -> None:
    terms = replace(TERMS, checkpoint_every=every, verify=verify)
    assert [step for step in range(1, 13) if is_due(terms, save_steps, step, asked=asked)] == due


def test_every_writer_has_a_part_of_its_own() -> None:
    assert [part_of(name, NAMES) for name in NAMES] == [(index, 6) for index in range(6)]
    assert part_of(D, (A, B)) is None


def test_a_name_says_the_step_and_who_began_it() -> None:
    lineage = Lineage(2, 30, 7)
    for name in (checkpoint_name(lineage, 4), checkpoint_name(lineage, 4, A)):
        assert (checkpoint_step(name), writer_generation(name)) == (30, 4)
    for name in ("notes.txt", f"step-{'9' * 5000}-g1-{'0' * 16}-w{'9' * 5000}", f"step-\u0663-g1-{'0' * 16}-w1"):
        assert (checkpoint_step(name), writer_generation(name)) == (0, 0)


def test_a_part_with_a_name_that_is_too_long_is_of_no_checkpoint() -> None:
    name = f"step-{'9' * 5000}-g1-{'0' * 16}-w{'9' * 5000}"
    assert made(running(2), m.PartNotWritten(B, 1, name, FULL)) == ()


NEWEST = "step-8-g3-0000000000000001-w3"


@pytest.mark.parametrize(
    ("name", "garbage"),
    [
        (NEWEST, False),
        ("step-4-g3-0000000000000001-w3", False),  # kept
        ("step-6-g3-0000000000000001-w3", True),  # earlier than the newest, and not kept
        ("step-8-g3-0000000000000002-w2-a", True),  # another one of the same step
        ("step-9-g3-0000000000000001-w3", False),  # being written
        ("step-9-g3-0000000000000001-w3-a", False),  # the same, by one alone
        ("step-9-g2-0000000000000001-w2", True),  # of steps that were rolled back
        ("step-6-g1-0000000000000001-w1", False),  # of an attempt that this one does not go on from
        ("step-6-g4-0000000000000001-w5", False),  # newer than the asking member's view
        ("notes.txt", False),
        ("step-6", False),
    ],
)
def test_what_no_member_can_read_again_is_garbage(name: str, garbage: bool) -> None:
    assert is_garbage(name, (NEWEST, "step-4-g3-0000000000000001-w3"), 8, origin=1, floor=3, generation=4) == garbage


COMMANDS: list[Command] = [m.PartNotWritten(C, 1, "x", FULL), m.NotReadable(C, 1, "x", FULL, damaged=True)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_who_is_not_in_a_world_is_not_heard_of_its_checkpoints(command: Command) -> None:
    assert refused(running(2), command).code is Code.UNKNOWN


# ------------------------------------------------------------------------------- a member that has no time left


def short_of_time() -> tuple[Job, m.Publish]:
    """A stopped in generation 1 after step 4, which is not committed, and the recovery has not begun.

    Also return what A sends: the checkpoint, and the steps up to it.
    """
    job = after(running(2, steps=2), stopped(B, 1))
    steps = lines(job.durable, 1, 2)
    alone = Checkpoint(steps[-1].lineage, checkpoint_name(steps[-1].lineage, 1, A), 5, (piece(0),))
    return job, m.Publish(A, 2, alone, 0, 1, steps)


def test_a_member_without_time_commits_its_steps_by_the_checkpoint_it_leaves() -> None:
    job, last = short_of_time()
    committed = m.StepsCommitted(NOW, 2, A, last.lines)
    assert made(job, last) == (committed, m.CheckpointPublished(NOW, 2, last.checkpoint))
    job = after(job, last)
    assert (job.durable, job.current, job.checkpoint) == (last.checkpoint.lineage, 1, last.checkpoint)
    assert made(job, last) == ()


def test_the_others_return_to_the_checkpoint_of_a_member_without_time_and_lose_no_step() -> None:
    job, last = short_of_time()
    job = after(job, last, m.Leave(A, 0, "the grace period is over"), stopped(B, 3, stateless=True))
    newest = job.worlds[-1]
    assert (newest.kind, newest.members, newest.base) == (WorldKind.ROLLBACK, (B,), last.checkpoint.lineage)
    assert "back to step 4, nothing is lost" in newest.why


def test_steps_that_are_durable_already_change_nothing_about_their_checkpoint() -> None:
    job, last = short_of_time()
    job = after(job, m.Report(A, 0, 2, last.lines))
    assert made(job, last) == (m.CheckpointPublished(NOW, 2, last.checkpoint),)


def test_once_a_member_has_entered_the_recovery_only_a_comparison_commits() -> None:
    """Rule 1: others may have gone on without the step."""
    job, last = short_of_time()
    job = after(job, m.Report(A, 0, 2, ()))
    why = "only a comparison commits it, or the checkpoint of a member in a recovery that no member has entered"
    assert refused(job, last) == Rejection(Code.NOT_NEXT, f"step 4 is not committed: {why}")


def test_the_checkpoint_of_a_member_without_time_is_whole_and_of_the_last_of_its_steps() -> None:
    job, last = short_of_time()
    assert isinstance(refused(job, replace(last, count=2)), Rejection)
    assert isinstance(refused(job, replace(last, lines=last.lines[:1])), Rejection)


def test_a_checkpoint_that_is_refused_commits_no_step() -> None:
    job, last = short_of_time()
    assert refused(job, replace(last, lines=last.lines[1:])).code is Code.NOT_NEXT
    assert refused(job, replace(last, checkpoint=replace(last.checkpoint, name="../x"))).code is Code.BAD


def test_a_finished_job_wants_no_checkpoint_if_its_last_state_is_saved() -> None:
    job = saved(running(2))
    job = after(job, drain(B))
    assert job.checkpoint_wanted_at_step == job.durable.step
    job = after(job, m.Report(A, 0, job.current, (), finished="converged"))
    assert (job.state, job.checkpoint_wanted_at_step) == (JobState.FINISHED, None)
