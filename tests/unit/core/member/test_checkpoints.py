"""Checkpoints: captured at a boundary, written when committed, published until seen (rules 1, 3, 17)."""

from dataclasses import replace

import pytest

from pliant.core.ledger import GENESIS, Lineage
from pliant.core.member import Machine, Phase, react
from pliant.core.member.moves import checkpoint_name
from pliant.core.member.signals import Apply, Compute, Save, Send, Snapshot, Tick, Written
from pliant.core.messages import Publish, Report
from pliant.core.model import Checkpoint, MemberId
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import LAST, TERMS, commands, lines, training

STEPS = lines(GENESIS, 1, LAST)
EVERY_3 = replace(TERMS, checkpoint_every=3)
THIRD = STEPS[2].lineage
MANIFEST = Checkpoint(THIRD, "made by a", 5)


def test_a_snapshot_is_taken_at_the_boundary_and_written_when_its_step_is_committed() -> None:
    """H1: a checkpoint of a step that only one member applied must not be published."""
    crew = training(A, B, terms=EVERY_3)
    crew.compute()
    crew.returns()
    crew.hush()
    crew.boundary()
    assert crew.said(A) == (Snapshot(THIRD), Compute(4, (0, 1), idle=False))
    assert crew.said(B) == (Compute(4, (1,), idle=True),)
    assert (crew[A].snapshot, crew[B].snapshot) == (THIRD, None)
    crew.compute()
    crew.hush()
    crew.returns()
    assert crew.said(A) == (Save(THIRD, checkpoint_name(THIRD, A, 1)), Apply(STEPS[3]))
    assert crew[A].snapshot is None
    assert crew.said(B) == (Apply(STEPS[3]),)
    crew.boundary()
    assert crew.said(A)[0] == Compute(5, (0, 1, 2), idle=False)


@pytest.mark.parametrize(("every", "steps"), [(0, []), (1, [3, 4, 5, 6]), (2, [4, 6]), (4, [4]), (7, [])])
def test_so_many_steps_lie_between_two_checkpoints(every: int, steps: list[int]) -> None:
    crew = training(A, B, terms=replace(TERMS, checkpoint_every=every))
    for _ in range(4):
        crew.step()
    taken = [action.lineage.step for action in crew.said(A) if isinstance(action, Snapshot)]
    assert taken == steps


def test_the_lowest_rank_that_holds_the_state_takes_the_snapshot() -> None:
    """D, the new rank 0, has no state yet."""
    crew = training(A, B, terms=EVERY_3, step=5)
    crew.add(D)
    crew.propose(world(2, D, B, A))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.hush()
    crew.step()
    sixth = lines(STEPS[4].lineage, 2, 1)[0].lineage
    assert Snapshot(sixth) in crew.said(B)
    assert Snapshot(sixth) not in crew.said(A)


def test_a_world_of_one_writes_at_once() -> None:
    """Rule 1: it commits as it applies."""
    crew = training(A, terms=EVERY_3)
    crew.compute()
    crew.returns()
    crew.hush()
    crew.boundary()
    assert crew.said(A)[:2] == (Snapshot(THIRD), Save(THIRD, checkpoint_name(THIRD, A, 1)))
    assert crew[A].snapshot is None


def test_a_snapshot_of_a_step_that_is_not_the_one_committed_is_not_written() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.compute()
    crew.returns()
    crew.hush()
    crew.boundary()
    crew[A].snapshot = STEPS[0].lineage
    crew.compute()
    crew.hush()
    crew.returns()
    assert crew.said(A) == (Apply(STEPS[3]),)
    assert crew[A].snapshot == STEPS[0].lineage


def test_a_snapshot_survives_a_failure_and_is_written_when_the_comparison_commits_it() -> None:
    """Its name says in which generation it was written."""
    crew = training(A, B, terms=EVERY_3)
    crew.step()
    assert crew[A].snapshot == THIRD
    crew.compute()
    crew.fails()
    crew.recover(2, A, B)
    crew.wire(2)
    crew.hush()
    crew.returns()
    assert crew.said(A)[0] == Save(THIRD, checkpoint_name(THIRD, A, 2))


@pytest.mark.parametrize(
    ("lineage", "member", "generation"),
    [
        (Lineage(1, 3, 8), A, 1),
        (Lineage(1, 4, 7), A, 1),
        (Lineage(2, 3, 7), A, 1),
        (Lineage(1, 3, 7), B, 1),
        (Lineage(1, 3, 7), A, 2),
    ],
)
def test_no_two_histories_share_a_file(lineage: Lineage, member: MemberId, generation: int) -> None:
    """H5, rule 17: generation, step, digest, member, and the life it was written in."""
    assert checkpoint_name(Lineage(1, 3, 7), A, 1) == "g1-s3-0000000000000007-a-1"
    assert checkpoint_name(lineage, member, generation) != checkpoint_name(Lineage(1, 3, 7), A, 1)


def test_a_checkpoint_is_published_after_its_step_was_reported() -> None:
    """Rule 17: a manifest of a step that is not durable is refused."""
    crew = training(A, B)
    crew.step()
    crew.step()
    actions = crew.feed(A, Written(MANIFEST))
    assert actions == (Send(Report(A, 0, 1, STEPS[1:3], None)), Send(Publish(A, 1, MANIFEST)))
    assert crew[A].manifest == MANIFEST


def test_a_checkpoint_is_published_again_until_it_is_seen() -> None:
    crew = training(A, B)
    crew.feed(B, Written(MANIFEST))
    crew.tell(B, durable=THIRD)
    publish = Publish(B, 1, MANIFEST)
    assert commands(*crew.feed(B, Tick()))[-1] == publish
    crew.tell(B, checkpoint=Checkpoint(STEPS[1].lineage, "older", 1))
    assert crew[B].manifest == MANIFEST
    assert commands(*crew.feed(B, Tick()))[-1] == publish
    crew.tell(B, checkpoint=MANIFEST)
    assert crew[B].manifest is None
    assert publish not in commands(*crew.feed(B, Tick()))


def test_a_newer_checkpoint_makes_an_older_manifest_pointless() -> None:
    crew = training(A, B)
    crew.feed(A, Written(MANIFEST))
    crew.tell(A, checkpoint=Checkpoint(STEPS[3].lineage, "newer", 1))
    assert crew[A].manifest is None


def test_a_stopped_member_still_publishes_what_it_wrote() -> None:
    """The step was committed before; whether its generation is open yet is for the coordinator to say (rule 17)."""
    crew = training(A, B)
    crew.compute()
    crew.fails()
    said = commands(*crew.feed(A, Written(MANIFEST)))
    assert said[-1] == Publish(A, 1, MANIFEST)
    assert crew[A].phase is Phase.STOPPED
    assert commands(*crew.feed(A, Tick()))[-1] == Publish(A, 1, MANIFEST)


def test_a_file_finished_in_no_world_is_published_by_nobody() -> None:
    machine, actions = react(Machine(C, TERMS), Written(MANIFEST))
    assert actions == ()
    assert machine.manifest == MANIFEST
    assert react(machine, Tick())[1] == ()


def test_a_whole_run_leaves_a_checkpoint_every_so_often() -> None:
    crew = training(A, B, terms=EVERY_3)
    crew.run(lambda: False)
    written = sorted(state.lineage.step for state in crew.files.values())
    assert written == [3, 6, 9, 12]
    assert all(crew.states[state.lineage] == state.hash for state in crew.files.values())
