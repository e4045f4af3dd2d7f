"""The submissions of a store: durable, and shared by coordinators."""

from collections.abc import Sequence

import pytest

from pliant.coordinator.submission_registry import SubmissionRegistry
from pliant.core import submissions as s
from pliant.core.messages import Rejection
from pliant.errors import StoreUnavailable
from pliant.stores.base import Conflict, Hold, Outcome, Write
from pliant.stores.memory import MemoryStore

WANTED = s.Submission("digits", "trainer:1", 1, 8)


def submit(registry: SubmissionRegistry, wanted: s.Submission = WANTED) -> s.StoredSubmission | Rejection:
    return registry.change(lambda known: s.accept(known, wanted, "t1", 5.0))


def test_a_submission_survives_its_coordinator() -> None:
    store = MemoryStore("id")
    made = submit(SubmissionRegistry(store, ("*",)))
    after = SubmissionRegistry(store, ("*",))
    after.load()
    assert after.known.entries == (made,)


def test_two_coordinators_see_one_another_s_changes() -> None:
    store = MemoryStore("id")
    first, second = SubmissionRegistry(store, ("*",)), SubmissionRegistry(store, ("*",))
    submit(first)
    second.change(lambda known: s.stop(known, "digits", None, "enough"))
    first.refresh()
    assert first.known.entries[0].state is s.SubmissionState.STOPPING


def test_a_rejection_and_a_repetition_write_nothing() -> None:
    store = MemoryStore("id")
    registry = SubmissionRegistry(store, ("*",))
    made = submit(registry)
    revision = store.read("@submissions")
    assert submit(registry) == made
    assert isinstance(submit(registry, s.Submission("digits", "other:1", 1, 1)), Rejection)
    assert store.read("@submissions") == revision


def test_a_status_goes_with_its_submission() -> None:
    registry = SubmissionRegistry(MemoryStore("id"), ("*",))
    submit(registry)
    registry.status = {1: "running", 2: "of a submission that was dropped"}
    registry.change(lambda known: s.stop(known, "digits", None, "enough"))
    assert registry.status == {1: "running"}


def test_a_store_that_others_keep_changing_is_reported() -> None:
    class Contended(MemoryStore):
        def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
            return tuple(Conflict(1) for _ in writes)

    with pytest.raises(StoreUnavailable, match="kept changing the submissions"):
        submit(SubmissionRegistry(Contended("id"), ("*",)))
