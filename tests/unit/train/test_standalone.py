"""Alone, a member goes through the same decisions as in a crowd, made in its own process."""

import errno
from pathlib import Path

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import signals as s
from pliant.core.messages import Join, Leave, Publish, Report
from pliant.core.model.checkpoint import NEVER_WHOLE, Checkpoint
from pliant.core.model.job import JobState, Terms
from pliant.core.model.view import View
from pliant.errors import Refused
from pliant.train.checkpoint import open_storage
from pliant.train.standalone import TERMS_FILE, StandaloneCoordinator
from pliant.wire.views import PeerKey
from unit.core.build import GRID, TERMS, A, X, lines


class Listening:
    """The messages that a session would receive."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.signals: list[s.Signal] = []

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        assert keys == ()
        self.views.append(view)

    def feed(self, signal: s.Signal) -> None:
        self.signals.append(signal)

    def fenced(self, revision: int, why: str) -> None:
        raise AssertionError(why)


def alone() -> tuple[StandaloneCoordinator, Listening]:
    contact, listening = StandaloneCoordinator("demo", A), Listening()
    contact.join(Join(A, X, TERMS))
    contact.start(listening)
    return contact, listening


def test_a_world_of_one_is_formed_at_once() -> None:
    _, listening = alone()
    (world,) = listening.views[-1].worlds
    assert world.members == (A,)
    assert listening.views[-1].known


def test_what_is_reported_is_durable_and_the_last_step_finishes_the_job() -> None:
    contact, listening = alone()
    number = listening.views[-1].worlds[-1].number
    all_lines = lines(GENESIS, number, GRID.total_steps)
    contact.send(Report(A, 0, number, all_lines[:5], frozenset({A})))
    assert listening.views[-1].durable == all_lines[4].lineage
    states = [listening.views[-1].state]
    contact.send(Report(A, 0, number, all_lines[5:], None))
    states.append(listening.views[-1].state)
    assert states == [JobState.RUNNING, JobState.FINISHED]
    contact.send(Leave(A, 0, "left as planned"))
    contact.close()


def test_a_checkpoint_whose_terms_cannot_be_written_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It could not be resumed, and older ones would be removed for it."""
    storage = open_storage(tmp_path)
    full = ["No space left on device"]
    write = storage.write_file

    def write_file(name: str, file: str, content: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, full.pop())
        write(name, file, content)

    monkeypatch.setattr(storage, "write_file", write_file)
    contact, listening = StandaloneCoordinator("demo", A, storage), Listening()
    contact.join(Join(A, X, TERMS))
    contact.start(listening)
    number = listening.views[-1].worlds[-1].number
    all_lines = lines(GENESIS, number, 5)
    contact.send(Report(A, 0, number, all_lines, frozenset({A})))
    failed, later = (Checkpoint(line.lineage, checkpoint_name(line.lineage, number), 0) for line in all_lines[3:])
    contact.send(Publish(A, number, failed, 0, 1))
    assert not any(view.checkpoint for view in listening.views)
    assert (failed.name, NEVER_WHOLE) in listening.views[-1].written_parts
    assert f"checkpoint {failed.name} could not be written: No space left on device" in caplog.text
    contact.send(Publish(A, number, later, 0, 1))
    assert listening.views[-1].checkpoint == later
    assert (tmp_path / later.name / TERMS_FILE).exists()
    contact.close()


def test_every_view_is_newer_than_the_one_before() -> None:
    contact, listening = alone()
    number = listening.views[-1].worlds[-1].number
    for step in lines(GENESIS, number, 3):
        contact.send(Report(A, 0, number, (step,), frozenset({A})))
    revisions = [view.revision for view in listening.views]
    assert revisions == sorted(set(revisions))


def test_what_the_decision_has_against_it_is_raised() -> None:
    with pytest.raises(Refused):
        alone()[0].join(Join(A, X, Terms(GRID, seed=8)))


def test_a_command_that_leads_to_another_is_decided_first() -> None:
    """The session sends from within what it is told."""
    contact = StandaloneCoordinator("demo", A)
    sent: list[int] = []

    class Answering(Listening):
        def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
            super().view_received(view, keys)
            if view.durable.step < 3 and view.worlds:
                sent.append(view.durable.step)
                number = view.worlds[-1].number
                contact.send(Report(A, 0, number, lines(view.durable, number, 1), frozenset({A})))

    listening = Answering()
    contact.join(Join(A, X, TERMS))
    contact.start(listening)
    assert sent == [0, 1, 2]
    assert listening.views[-1].durable.step == 3
