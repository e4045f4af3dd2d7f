"""A follower delivers every event once and in order, whatever reads it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.running import Running, start
from pliant.client import Client
from pliant.client.event_follower import EventFollower
from pliant.core import messages as m
from pliant.core.messages import Event
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.errors import PliantError, Refused
from unit.cli.program import until
from unit.core.build import NOW


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start(home=tmp_path_factory.mktemp("home")) as running:
        yield running


class Delivered:
    """A follower of a job, with everything it delivered."""

    def __init__(self, coordinator: Running, job: str, after: int = 0) -> None:
        self.events: list[tuple[int, Event]] = []
        self.client = Client([coordinator.url], coordinator.token, patience_s=5.0)
        self.follower = EventFollower(self.client, job, after, self._deliver)

    def _deliver(self, revision: int, event: Event) -> None:
        self.events.append((revision, event))

    def close(self) -> None:
        self.follower.close()
        self.client.close()

    @property
    def revisions(self) -> list[int]:
        return [revision for revision, _ in self.events]


def test_each_event_is_delivered_once_in_order_and_none_from_before(coordinator: Running) -> None:
    got = Delivered(coordinator, "once", after=2)
    for revision in (1, 2, 3, 4, 3, 4, 5):
        got.follower.apply(revision, m.WorldEntered(NOW, 1))
    assert got.revisions == [3, 4, 5]
    assert (got.follower.revision, got.follower.state, got.follower.job_ended) == (5, None, False)
    got.close()


def test_two_readers_deliver_every_event_once(coordinator: Running) -> None:
    got = Delivered(coordinator, "two")

    def read() -> None:
        for revision in range(1, 2001):
            got.follower.apply(revision, m.WorldEntered(NOW, revision))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert got.revisions == list(range(1, 2001))
    got.close()


def test_the_stream_and_catching_up_give_the_same_events(coordinator: Running) -> None:
    with coordinator.client() as client:
        client.send("both", m.Create("both", JobSpec(1, 4, Target(2))))
        got = Delivered(coordinator, "both")
        got.follower.start()
        client.send("both", m.Resize(Target(3)))
        got.follower.catch_up()
        assert any(isinstance(event, m.TargetChanged) for _, event in got.events)
        client.send("both", m.Cancel("enough"))
        until(lambda: got.follower.job_ended, "the end")
        got.close()
    assert got.follower.state is JobState.CANCELLED
    assert "enough" in got.follower.why
    assert got.revisions == list(range(1, got.follower.revision + 1))


def test_a_stream_ends_with_the_job_and_has_everything_decided_with_its_end(coordinator: Running) -> None:
    with coordinator.client() as client:
        client.send("end", m.Create("end", JobSpec(1, 4, Target(2))))
        got = Delivered(coordinator, "end")
        following = threading.Thread(target=got.follower.stream, kwargs={"until_job_ends": True})
        following.start()
        client.send("end", m.Cancel("enough"))
        following.join(30)
        assert not following.is_alive()
        assert got.follower.revision == client.job("end").job.revision
        got.close()


def test_errors_are_reported_and_the_follower_goes_on(coordinator: Running) -> None:
    got = Delivered(coordinator, "later")
    troubles: list[PliantError] = []
    got.follower.start(troubles.append)
    until(lambda: bool(troubles), "the first error")
    assert isinstance(troubles[0], Refused)
    with coordinator.client() as client:
        client.send("later", m.Create("later", JobSpec(1, 4, Target(2))))
        until(lambda: bool(got.events), "the first event")
    got.close()


def test_events_after_a_restart_of_the_coordinator_follow_those_before(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    with start(store, home=tmp_path) as first:
        first.client().send("kept", m.Create("kept", JobSpec(1, 4, Target(2))))
        got = Delivered(first, "kept")
        got.follower.start()
        until(lambda: bool(got.events), "the first event")
        first.kill()
    with start(store, home=tmp_path, port=first.port) as second, second.client() as client:
        client.send("kept", m.Resize(Target(4)))
        until(lambda: any(isinstance(event, m.TargetChanged) for _, event in got.events), "the event after the restart")
    got.close()
    assert got.revisions == list(range(1, len(got.revisions) + 1))
