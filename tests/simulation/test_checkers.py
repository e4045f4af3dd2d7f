"""The checkers can complain: each is shown a sim in which its promise is broken."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.coordinator.service.inbox import Accepted
from pliant.core.data.ledger import Lineage
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import CollectGarbage, Exit, Snapshot
from pliant.core.messages import (
    Cancel,
    CheckpointPublished,
    CheckpointUnreadable,
    Drain,
    Event,
    MemberGone,
    StateChanged,
    WorldFormed,
)
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant_sim.live.checks import LiveChecks
from pliant_sim.live.toy_model import FALSE, ToyModel, corrupted
from pliant_sim.live.world import LiveSimulation, setting_for
from pliant_sim.processes.coordinator import Ask
from pliant_sim.processes.worker import LiveWorker


@pytest.fixture
def sim() -> LiveSimulation:
    """Well under way: several members hold the state and some steps are durable."""
    sim = LiveSimulation(setting_for(1))
    sim.run(20.0, sim.ended)
    job = sim.checks.job
    assert job is not None
    assert job.durable.step >= 3
    assert sim.checks.complaints == []
    return sim


def holder(sim: LiveSimulation) -> LiveWorker:
    """A member in the middle of a step, with the one before it applied and not committed."""
    step = (Phase.COMPUTING, Phase.COLLECTING)
    return next(
        worker
        for worker in sim.workers.values()
        if worker.up
        and worker.machine.holds_state
        and worker.machine.phase in step
        and worker.machine.applied_line is not None
    )


def complaint(checks: LiveChecks) -> str:
    assert len(checks.complaints) == 1, checks.complaints
    return checks.complaints[0]


def check_event(sim: LiveSimulation, event: Event) -> None:
    assert sim.checks.job is not None
    sim.checks.check_reason(event)
    sim.checks.check_event(event, sim.checks.job)


def acknowledged_too_early(sim: LiveSimulation) -> None:
    revision = sim.checks.revision + 1
    sim.checks.answered("c0", Ask("x", 0, Cancel("x")), Accepted(revision, None))


def an_invariant_refused(sim: LiveSimulation) -> None:
    """The coordinator's job is made one in which a member is gone and live: it refuses to write the next change."""
    coordinator = next(c for c in sim.coordinators if c.service.leads)
    known = coordinator.service._jobs.get("sim")
    assert known is not None
    assert known.job is not None
    known.job = replace(known.job, gone=(*known.job.gone, next(iter(known.job.members))))
    coordinator.receive(Ask("user", 0, Drain(list(known.job.members)[-1], 5.0, "x")))
    sim.run(sim.now + 0.1, lambda: bool(sim.checks.complaints))


def two_states_of_one_lineage(sim: LiveSimulation) -> None:
    worker = holder(sim)
    worker.model = replace(worker.model, weights=worker.model.weights + 1)
    sim.checks.at_boundary(worker)


def post_step_code_ran_twice(sim: LiveSimulation) -> None:
    worker = holder(sim)
    worker.model = replace(worker.model, post=worker.model.post + 1, lineage=Lineage(99, worker.model.post, 0))
    sim.checks.at_boundary(worker)


def a_slot_counted_twice(sim: LiveSimulation) -> None:
    worker = holder(sim)
    line = worker.machine.applied_line
    assert line is not None
    worker.model = replace(worker.model, lineage=line.parent)
    slots = worker.machine.terms.grid.filled(line.lineage.step)
    sim.checks.applies(worker, line, (slots, slots[:1]))


def a_step_applied_to_another_history(sim: LiveSimulation) -> None:
    worker = holder(sim)
    line = worker.machine.applied_line
    assert line is not None
    worker.model = replace(worker.model, lineage=Lineage(99, line.parent.step, 1))
    sim.checks.applies(worker, line, (worker.machine.terms.grid.filled(line.lineage.step),))


def stripes_of_two_steps(sim: LiveSimulation) -> None:
    worker = holder(sim)
    worker.aside = {0: ToyModel(), 1: ToyModel(lineage=Lineage(1, 1, 1))}
    sim.checks.installs(worker, Lineage(1, 1, 1))


def a_file_overwritten(sim: LiveSimulation) -> None:
    worker = holder(sim)
    begun = Snapshot(worker.model.lineage, "step-7", 0, 2)
    sim.checks.saves.writes_part(worker, begun, replace(worker.model, weights=1))
    sim.checks.saves.writes_part(worker, begun, replace(worker.model, weights=2))


def a_part_of_another_step(sim: LiveSimulation) -> None:
    worker = holder(sim)
    sim.checks.saves.writes_part(worker, Snapshot(Lineage(1, 1, 1), "step-1", 0, 2), worker.model)


def published(sim: LiveSimulation) -> Checkpoint:
    """The newest one, on the disk as it is published."""
    job = sim.checks.job
    assert job is not None
    assert job.checkpoint is not None
    return job.checkpoint


def published_and_not_there(sim: LiveSimulation) -> None:
    newest = published(sim)
    there = replace(newest, pieces=(*newest.pieces, Piece("nowhere", 1, "")))
    sim.checks.saves.event(CheckpointPublished(0.0, 1, there))


def given_up_for_nothing(sim: LiveSimulation) -> None:
    event = CheckpointUnreadable(0.0, 1, published(sim).name, MemberId("x"), "x", damaged=True)
    sim.checks.saves.event(event)


def back_to_a_damaged_one(sim: LiveSimulation) -> None:
    """It is otherwise all that it should be."""
    worker, newest, job = holder(sim), published(sim), sim.checks.job
    assert worker.machine.world is not None
    worker.model = sim.directory.read(newest)
    worker.machine.world = replace(worker.machine.world, base=newest.lineage)
    sim.checks.saves.restores(worker, newest, job)
    assert sim.checks.complaints == []
    sim.directory.damaged.add(newest.name)
    sim.checks.saves.restores(worker, newest, job)


def back_to_another_base(sim: LiveSimulation) -> None:
    worker, newest = holder(sim), published(sim)
    worker.model = sim.directory.read(newest)
    sim.checks.saves.restores(worker, newest, sim.checks.job)


def a_kept_one_removed(sim: LiveSimulation) -> None:
    newest = published(sim)
    tidy = CollectGarbage(replace(newest, name="x"), (), (), 0, 1, 99)
    job = sim.checks.job
    assert job is not None
    sim.checks.saves.tidies(holder(sim), tidy, replace(job, older_checkpoints=()))


def calm(sim: LiveSimulation) -> Job:
    """The job is over, and every member had the time to go."""
    job = sim.checks.job
    assert job is not None
    for worker in sim.workers.values():
        sim.checks.saves.leaves(worker, Exit(0, "all of them"))
    return replace(job, durable=published(sim).lineage)


def the_last_state_not_saved(sim: LiveSimulation) -> None:
    sim.checks.saves.finally_(replace(calm(sim), checkpoint=None))


def wanted_for_ever(sim: LiveSimulation) -> None:
    sim.checks.saves.finally_(replace(calm(sim), checkpoint_wanted_at_step=3))


def tidied_by_nobody(sim: LiveSimulation) -> None:
    job = calm(sim)
    newest = replace(published(sim), name="x")
    sim.checks.saves.finally_(replace(job, checkpoint=newest))


def garbage_about(sim: LiveSimulation) -> None:
    job, newest = calm(sim), published(sim)
    name = "step-1-g1-0000000000000001-w1"
    sim.checks.saves.finally_(job)
    assert sim.checks.complaints == []
    sim.directory.files[name] = {}
    sim.checks.saves._wrote[name] = -1.0
    assert newest.name != name
    sim.checks.saves.finally_(job)


def a_manifest_that_lies(sim: LiveSimulation) -> None:
    worker = holder(sim)
    name, model = "x", worker.model
    lie = Checkpoint(model.lineage, name, model.hash + 1)
    sim.checks.saves.published[name] = lie
    sim.checks.saves.restores(worker, lie, None)


def parts_of_several_states(sim: LiveSimulation) -> None:
    worker, newest = holder(sim), published(sim)
    worker.model = sim.directory.read(newest)
    file = newest.pieces[-1].file
    sim.directory.files[newest.name][file] = replace(worker.model, weights=7)
    sim.checks.saves.restores(worker, newest, None)


def fenced_by_nobody(sim: LiveSimulation) -> None:
    sim.checks.leaves(holder(sim), Exit(75, "fenced"))


def the_last_state_carried_away(sim: LiveSimulation) -> None:
    worker = holder(sim)
    for other in sim.workers.values():
        if other is not worker:
            other.up, other.ended_at_s = False, -1.0
    sim.fabric.groups.clear()
    job = sim.checks.job
    assert job is not None
    sim.checks.job = replace(job, checkpoint=None)
    sim.checks.leaves(worker, Exit(0, "left as planned"))


def gone_while_another_waits(sim: LiveSimulation) -> None:
    worker = holder(sim)
    others = [other for other in worker.machine.world.members if other != worker.id]  # type: ignore[union-attr]
    sim.fabric.groups[worker.machine.generation].waiting[others[0]] = 0
    sim.checks.leaves(worker, Exit(0, "left as planned"))


def lost_without_proof(sim: LiveSimulation) -> None:
    check_event(sim, MemberGone(0.0, holder(sim).id, "lost", "no reason"))


def expired_early(sim: LiveSimulation) -> None:
    sim.checks.writer = "c0"
    sim.renewed_at["c0", holder(sim).id] = sim.now - 1.0
    check_event(sim, MemberGone(0.0, holder(sim).id, "lost", "its lease ran out"))


def waiting_without_a_reason(sim: LiveSimulation) -> None:
    check_event(sim, StateChanged(0.0, JobState.WAITING, ""))


def complete_at_half_the_steps(sim: LiveSimulation) -> None:
    job = sim.checks.job
    assert job is not None
    sim.checks.job = replace(job, state=JobState.FINISHED)
    worker = holder(sim)
    worker.machine.switch_to = 99
    sim.checks.leaves(worker, Exit(0, "done", complete=True))


def shares_that_differ(sim: LiveSimulation) -> None:
    world = holder(sim).machine.world
    assert world is not None
    word = Word(Purpose.STEP, world.number, 1, Lineage(0, 0, 0), holds=True)
    slots = sim.setting.grid.filled(1)
    sim.checks.reduces(world, (word, word), {0: (slots, ()), 1: ((), slots)}, (slots, ()))


def a_slot_brought_by_nobody(sim: LiveSimulation) -> None:
    world = holder(sim).machine.world
    assert world is not None
    word = Word(Purpose.STEP, world.number, 1, Lineage(0, 0, 0), holds=True)
    slots = sim.setting.grid.filled(1)[1:]
    sim.checks.reduces(world, (word,), {0: (slots,)}, (slots,))


def other_slots_brought_than_said(sim: LiveSimulation) -> None:
    world = holder(sim).machine.world
    assert world is not None
    word = Word(Purpose.STEP, world.number, 1, Lineage(0, 0, 0), holds=True)
    slots = sim.setting.grid.filled(1)
    sim.checks.reduces(world, (word, word), {0: (slots, ()), 1: (slots, ())}, ((), slots))


def the_wrong_one_lost(sim: LiveSimulation) -> None:
    check_event(sim, MemberGone(0.0, holder(sim).id, "lost", "silent corruption"))


def not_believed_and_right(sim: LiveSimulation) -> None:
    check_event(sim, MemberGone(0.0, holder(sim).id, "lost", "its gradients differ from those of x"))


def a_wrong_gradient_applied(sim: LiveSimulation) -> None:
    first, *rest = sim.setting.grid.filled(1)
    sim.checks._gradients_are_right(holder(sim), 1, ((first + FALSE,), tuple(rest)))


def other_bits_in_a_world(sim: LiveSimulation) -> None:
    world = holder(sim).machine.world
    assert world is not None
    check_event(sim, WorldFormed(0.0, replace(world, members=(MemberId("stranger-1"),))))


def never_finished(sim: LiveSimulation) -> None:
    sim.checks.finally_()


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
def test_what_is_wrong_is_named(sim: LiveSimulation, wrong: Callable[[LiveSimulation], None], named: str) -> None:
    wrong(sim)
    assert f" s: {named}" in complaint(sim.checks)


def test_a_corrupted_state_at_the_end_is_named_unless_no_member_could_have_seen_it(sim: LiveSimulation) -> None:
    job = sim.checks.job
    assert job is not None
    sim.checks.job = replace(job, state=JobState.FINISHED)
    worker = holder(sim)
    worker.model = corrupted(replace(worker.model, lineage=Lineage(1, sim.setting.grid.total_steps, 1)), 3)
    sim.checks.leaves(worker, Exit(0, "done", complete=True))
    sim.checks.escaped = True
    sim.checks.finally_()
    assert not any("corrupted" in said for said in sim.checks.complaints)
    sim.checks.escaped = False
    sim.checks.finally_()
    assert any("end with a state that was corrupted" in said for said in sim.checks.complaints)


def test_a_universe_with_a_complaint_has_ended(sim: LiveSimulation) -> None:
    assert not sim.ended()
    sim.checks.complain("something")
    assert sim.ended()


def test_a_member_that_was_never_there_is_no_member_s_loss(sim: LiveSimulation) -> None:
    check_event(sim, MemberGone(0.0, MemberId("stranger"), "lost", "its process ended with signal 9"))
    assert sim.checks.complaints == []
