"""The checkers can complain: each is shown a universe in which its promise is broken."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.coordinator.service.inbox import Accepted, Reply
from pliant.core.data.ledger import Lineage
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import CollectGarbage, Exit, Snapshot
from pliant.core.messages import (
    Cancel,
    CheckpointPublished,
    CheckpointUnreadable,
    Drain,
    MemberGone,
    StateChanged,
    WorldFormed,
)
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant_sim.live.checks import Checkers
from pliant_sim.live.toy_model import FALSE, Model, corrupted
from pliant_sim.live.world import Universe
from pliant_sim.processes.worker import Worker
from pliant_sim.run import setting_for


@pytest.fixture
def universe() -> Universe:
    """Well under way: several members hold the state and some steps are durable."""
    universe = Universe(setting_for(1))
    universe.run(20.0, universe.ended)
    job = universe.checkers.job
    assert job is not None
    assert job.durable.step >= 3
    assert universe.checkers.complaints == []
    return universe


def holder(universe: Universe) -> Worker:
    """A member in the middle of a step, with the one before it applied and not committed."""
    step = (Phase.COMPUTING, Phase.COLLECTING)
    return next(
        worker
        for worker in universe.workers.values()
        if worker.up
        and worker.machine.holds_state
        and worker.machine.phase in step
        and worker.machine.applied_line is not None
    )


def complaint(checkers: Checkers) -> str:
    assert len(checkers.complaints) == 1, checkers.complaints
    return checkers.complaints[0]


def acknowledged_too_early(universe: Universe) -> None:
    revision = universe.checkers.revision + 1
    universe.checkers.answered("c0", Reply("x", "sim", Cancel("x"), Accepted(revision, None), revision))


def an_invariant_refused(universe: Universe) -> None:
    """The coordinator's job is made one in which somebody is gone and live: it refuses to write the next change."""
    coordinator = next(c for c in universe.coordinators if c.service.leads)
    known = coordinator.service._jobs["sim"]
    assert known.job is not None
    known.job = replace(known.job, gone=(*known.job.gone, next(iter(known.job.members))))
    coordinator.receive("user", Drain(list(known.job.members)[-1], 5.0, "x"))
    universe.run(universe.now + 0.1, lambda: bool(universe.checkers.complaints))


def two_states_of_one_lineage(universe: Universe) -> None:
    worker = holder(universe)
    worker.model = replace(worker.model, weights=worker.model.weights + 1)
    universe.checkers.at_boundary(worker)


def post_step_code_ran_twice(universe: Universe) -> None:
    worker = holder(universe)
    worker.model = replace(worker.model, post=worker.model.post + 1, lineage=Lineage(99, worker.model.post, 0))
    universe.checkers.at_boundary(worker)


def a_slot_counted_twice(universe: Universe) -> None:
    worker = holder(universe)
    line = worker.machine.applied_line
    assert line is not None
    worker.model = replace(worker.model, lineage=line.parent)
    slots = worker.machine.terms.grid.filled(line.lineage.step)
    universe.checkers.applies(worker, line, (slots, slots[:1]))


def a_step_applied_to_another_history(universe: Universe) -> None:
    worker = holder(universe)
    line = worker.machine.applied_line
    assert line is not None
    worker.model = replace(worker.model, lineage=Lineage(99, line.parent.step, 1))
    universe.checkers.applies(worker, line, (worker.machine.terms.grid.filled(line.lineage.step),))


def stripes_of_two_steps(universe: Universe) -> None:
    worker = holder(universe)
    worker.aside = {0: Model(), 1: Model(lineage=Lineage(1, 1, 1))}
    universe.checkers.installs(worker, Lineage(1, 1, 1))


def a_file_overwritten(universe: Universe) -> None:
    worker = holder(universe)
    begun = Snapshot(worker.model.lineage, "step-7", 0, 2)
    universe.checkers.saves.writes_part(worker, begun, replace(worker.model, weights=1))
    universe.checkers.saves.writes_part(worker, begun, replace(worker.model, weights=2))


def a_part_of_another_step(universe: Universe) -> None:
    worker = holder(universe)
    universe.checkers.saves.writes_part(worker, Snapshot(Lineage(1, 1, 1), "step-1", 0, 2), worker.model)


def published(universe: Universe) -> Checkpoint:
    """The newest one, on the disk as it is published."""
    job = universe.checkers.job
    assert job is not None
    assert job.checkpoint is not None
    return job.checkpoint


def published_and_not_there(universe: Universe) -> None:
    newest = published(universe)
    there = replace(newest, pieces=(*newest.pieces, Piece("nowhere", 1, "")))
    universe.checkers.saves.event(CheckpointPublished(0.0, 1, there))


def given_up_for_nothing(universe: Universe) -> None:
    event = CheckpointUnreadable(0.0, 1, published(universe).name, MemberId("x"), "x", damaged=True)
    universe.checkers.saves.event(event)


def back_to_a_damaged_one(universe: Universe) -> None:
    """It is otherwise all that it should be."""
    worker, newest, job = holder(universe), published(universe), universe.checkers.job
    assert worker.machine.world is not None
    worker.model = universe.directory.read(newest)
    worker.machine.world = replace(worker.machine.world, base=newest.lineage)
    universe.checkers.saves.restores(worker, newest, job)
    assert universe.checkers.complaints == []
    universe.directory.damaged.add(newest.name)
    universe.checkers.saves.restores(worker, newest, job)


def back_to_another_base(universe: Universe) -> None:
    worker, newest = holder(universe), published(universe)
    worker.model = universe.directory.read(newest)
    universe.checkers.saves.restores(worker, newest, universe.checkers.job)


def a_kept_one_removed(universe: Universe) -> None:
    newest = published(universe)
    tidy = CollectGarbage(replace(newest, name="x"), (), (), 0, 1, 99)
    job = universe.checkers.job
    assert job is not None
    universe.checkers.saves.tidies(holder(universe), tidy, replace(job, older_checkpoints=()))


def calm(universe: Universe) -> Job:
    """The job is over, and everybody had the time to go."""
    job = universe.checkers.job
    assert job is not None
    for worker in universe.workers.values():
        universe.checkers.saves.leaves(worker, Exit(0, "all of them"))
    return replace(job, durable=published(universe).lineage)


def the_last_state_not_saved(universe: Universe) -> None:
    universe.checkers.saves.finally_(replace(calm(universe), checkpoint=None))


def wanted_for_ever(universe: Universe) -> None:
    universe.checkers.saves.finally_(replace(calm(universe), checkpoint_wanted_at_step=3))


def tidied_by_nobody(universe: Universe) -> None:
    job = calm(universe)
    newest = replace(published(universe), name="x")
    universe.checkers.saves.finally_(replace(job, checkpoint=newest))


def garbage_about(universe: Universe) -> None:
    job, newest = calm(universe), published(universe)
    name = "step-1-g1-0000000000000001-w1"
    universe.checkers.saves.finally_(job)
    assert universe.checkers.complaints == []
    universe.directory.files[name] = {}
    universe.checkers.saves._wrote[name] = -1.0
    assert newest.name != name
    universe.checkers.saves.finally_(job)


def a_manifest_that_lies(universe: Universe) -> None:
    worker = holder(universe)
    name, model = "x", worker.model
    lie = Checkpoint(model.lineage, name, model.hash + 1)
    universe.checkers.saves.published[name] = lie
    universe.checkers.saves.restores(worker, lie, None)


def parts_of_several_states(universe: Universe) -> None:
    worker, newest = holder(universe), published(universe)
    worker.model = universe.directory.read(newest)
    file = newest.pieces[-1].file
    universe.directory.files[newest.name][file] = replace(worker.model, weights=7)
    universe.checkers.saves.restores(worker, newest, None)


def fenced_by_nobody(universe: Universe) -> None:
    universe.checkers.leaves(holder(universe), Exit(75, "fenced"))


def the_last_state_carried_away(universe: Universe) -> None:
    worker = holder(universe)
    for other in universe.workers.values():
        if other is not worker:
            other.up, other.ended_at_s = False, -1.0
    universe.fabric.groups.clear()
    job = universe.checkers.job
    assert job is not None
    universe.checkers.job = replace(job, checkpoint=None)
    universe.checkers.leaves(worker, Exit(0, "left as planned"))


def gone_while_another_waits(universe: Universe) -> None:
    worker = holder(universe)
    others = [other for other in worker.machine.world.members if other != worker.id]  # type: ignore[union-attr]
    universe.fabric.groups[worker.machine.generation].waiting[others[0]] = 0
    universe.checkers.leaves(worker, Exit(0, "left as planned"))


def lost_without_proof(universe: Universe) -> None:
    universe.checkers._event(MemberGone(0.0, holder(universe).id, "lost", "somebody said so"))


def expired_early(universe: Universe) -> None:
    universe.checkers.writer = "c0"
    universe.heard["c0", holder(universe).id] = universe.now - 1.0
    universe.checkers._event(MemberGone(0.0, holder(universe).id, "lost", "its lease ran out"))


def waiting_without_a_reason(universe: Universe) -> None:
    universe.checkers._event(StateChanged(0.0, JobState.WAITING, ""))


def complete_at_half_the_steps(universe: Universe) -> None:
    job = universe.checkers.job
    assert job is not None
    universe.checkers.job = replace(job, state=JobState.FINISHED)
    worker = holder(universe)
    worker.machine.switch_to = 99
    universe.checkers.leaves(worker, Exit(0, "done", complete=True))


def shares_that_differ(universe: Universe) -> None:
    world = holder(universe).machine.world
    assert world is not None
    word = Word(Purpose.STEP, world.number, 1, Lineage(0, 0, 0), holds=True)
    slots = universe.setting.grid.filled(1)
    universe.checkers.reduces(world, (word, word), {0: (slots, ()), 1: ((), slots)}, (slots, ()))


def a_slot_brought_by_nobody(universe: Universe) -> None:
    world = holder(universe).machine.world
    assert world is not None
    word = Word(Purpose.STEP, world.number, 1, Lineage(0, 0, 0), holds=True)
    slots = universe.setting.grid.filled(1)[1:]
    universe.checkers.reduces(world, (word,), {0: (slots,)}, (slots,))


def other_slots_brought_than_said(universe: Universe) -> None:
    world = holder(universe).machine.world
    assert world is not None
    word = Word(Purpose.STEP, world.number, 1, Lineage(0, 0, 0), holds=True)
    slots = universe.setting.grid.filled(1)
    universe.checkers.reduces(world, (word, word), {0: (slots, ()), 1: (slots, ())}, ((), slots))


def the_wrong_one_lost(universe: Universe) -> None:
    universe.checkers._event(MemberGone(0.0, holder(universe).id, "lost", "silent corruption"))


def not_believed_and_right(universe: Universe) -> None:
    universe.checkers._event(MemberGone(0.0, holder(universe).id, "lost", "its gradients differ from those of x"))


def a_wrong_gradient_applied(universe: Universe) -> None:
    first, *rest = universe.setting.grid.filled(1)
    universe.checkers._gradients_are_right(holder(universe), 1, ((first + FALSE,), tuple(rest)))


def other_bits_in_a_world(universe: Universe) -> None:
    world = holder(universe).machine.world
    assert world is not None
    universe.checkers._event(WorldFormed(0.0, replace(world, members=(MemberId("stranger-1"),))))


def never_finished(universe: Universe) -> None:
    universe.checkers.finally_()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (acknowledged_too_early, "P5"),
        (an_invariant_refused, "invariant"),
        (two_states_of_one_lineage, "P4"),
        (post_step_code_ran_twice, "rule 3"),
        (a_slot_counted_twice, "P3"),
        (a_step_applied_to_another_history, "P2"),
        (stripes_of_two_steps, "rule 15"),
        (a_file_overwritten, "rule 17"),
        (a_manifest_that_lies, "rule 17"),
        (a_part_of_another_step, "rule 17"),
        (parts_of_several_states, "rule 17"),
        (published_and_not_there, "rule 17"),
        (given_up_for_nothing, "rule 17"),
        (back_to_a_damaged_one, "rule 17"),
        (back_to_another_base, "rule 17"),
        (a_kept_one_removed, "rule 17"),
        (the_last_state_not_saved, "rule 17"),
        (wanted_for_ever, "rule 17"),
        (tidied_by_nobody, "rule 17"),
        (garbage_about, "rule 17"),
        (fenced_by_nobody, "P1"),
        (the_last_state_carried_away, "rule 16"),
        (gone_while_another_waits, "rule 9"),
        (lost_without_proof, "rule 19"),
        (expired_early, "rule 19"),
        (waiting_without_a_reason, "P8"),
        (complete_at_half_the_steps, "P2"),
        (shares_that_differ, "rule 23"),
        (a_slot_brought_by_nobody, "rule 23"),
        (other_slots_brought_than_said, "rule 23"),
        (the_wrong_one_lost, "P4"),
        (not_believed_and_right, "P4"),
        (a_wrong_gradient_applied, "P4"),
        (other_bits_in_a_world, "P4"),
        (never_finished, "liveness"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_wrong_is_named(universe: Universe, wrong: Callable[[Universe], None], named: str) -> None:
    wrong(universe)
    assert f" s: {named}" in complaint(universe.checkers)


def test_a_corrupted_state_at_the_end_is_named_unless_nobody_could_have_seen_it(universe: Universe) -> None:
    job = universe.checkers.job
    assert job is not None
    universe.checkers.job = replace(job, state=JobState.FINISHED)
    worker = holder(universe)
    worker.model = corrupted(replace(worker.model, lineage=Lineage(1, universe.setting.grid.total_steps, 1)), 3)
    universe.checkers.leaves(worker, Exit(0, "done", complete=True))
    universe.checkers.escaped = True
    universe.checkers.finally_()
    assert not any("corrupted" in said for said in universe.checkers.complaints)
    universe.checkers.escaped = False
    universe.checkers.finally_()
    assert any("end with a state that was corrupted" in said for said in universe.checkers.complaints)


def test_a_universe_with_a_complaint_has_ended(universe: Universe) -> None:
    assert not universe.ended()
    universe.checkers.complain("something")
    assert universe.ended()


def test_a_member_that_was_never_there_is_nobodys_loss(universe: Universe) -> None:
    universe.checkers._event(MemberGone(0.0, MemberId("nobody"), "lost", "its process ended with signal 9"))
    assert universe.checkers.complaints == []
