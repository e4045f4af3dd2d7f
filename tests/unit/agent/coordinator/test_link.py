import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from e2e.running import Running, start
from pliant.agent.coordinator.link import CoordinatorLink
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.messages import Event
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor import signals as v
from unit.cli.program import until
from unit.core.build import TERMS

JOB, VM = "demo", AgentId("vm")
LEASE_TTL_S = 0.6


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start(home=tmp_path_factory.mktemp("home"), lease_ttl_s=LEASE_TTL_S) as running:
        yield running


class Scene:
    """A link for a job of its own, with everything it delivers."""

    def __init__(self, coordinator: Running, job: str) -> None:
        self.job = job
        self.client = coordinator.client()
        self.client.send(job, m.Create(job, JobSpec(1, 4, Target(2))))
        self.events: list[Event] = []
        self.complaints: list[str] = []
        self.heard: SimpleQueue[v.Signal] = SimpleQueue()
        self.joined: list[MemberId] = []
        own = Client([coordinator.url], coordinator.token, patience_s=5.0)
        found = replace(self.client.job(job).job, revision=0)
        self.link = CoordinatorLink(own, found, VM, self.heard.put, self.event, LEASE_TTL_S)

    def event(self, revision: int, event: Event) -> None:
        self.events.append(event)

    def say(self, text: str) -> None:
        self.complaints.append(text)

    def wanted(self) -> v.OrdersReceived:
        """The next word about how many workers to run."""
        while not isinstance(heard := self.heard.get(timeout=30), v.OrdersReceived):
            self.note(heard)
        return heard

    def note(self, heard: v.Signal) -> None:
        if isinstance(heard, v.JobEvent) and isinstance(heard.event, m.MemberJoined):
            self.joined.append(heard.event.member.id)

    def begin(self) -> None:
        self.link.send(m.AgentJoin(VM, 3))
        self.link.start(self.say)


def test_orders_come_as_they_change_and_events_as_they_happen(coordinator: Running) -> None:
    scene = Scene(coordinator, "told")
    scene.begin()
    assert replace(scene.wanted(), revision=0) == v.OrdersReceived(2, frozenset(), frozenset())
    scene.client.send("told", m.Resize(Target(3)))
    assert scene.wanted().count == 3
    scene.client.send("told", m.Join(MemberId("vm-1.1"), VM, TERMS))
    while scene.wanted().members != {"vm-1.1"}:
        pass
    scene.client.send("told", m.Cancel("enough"))
    while not scene.wanted().ended:
        pass
    scene.link.close(30)
    while not scene.heard.empty():
        scene.note(scene.heard.get())
    assert scene.joined == ["vm-1.1"]
    assert (scene.link.state, scene.link.why) == (JobState.CANCELLED, scene.client.job("told").job.why)
    assert isinstance(scene.events[0], m.JobCreated)
    assert scene.complaints == []


def test_renewals_keep_the_agent_known(coordinator: Running) -> None:
    scene = Scene(coordinator, "kept")
    scene.begin()
    for _ in range(6):  # of these one comes with each renewal, at a third of the lease
        while not isinstance(scene.heard.get(timeout=30), v.Recheck):
            pass
    assert [line.id for line in scene.client.job("kept").agents] == [VM]
    assert not any(isinstance(event, m.AgentGone) for event in scene.events)
    scene.link.close(30)


def test_an_agent_that_is_not_known_any_more_looks_again(coordinator: Running) -> None:
    scene = Scene(coordinator, "known")
    scene.link.start(scene.say)  # it never said that it is there
    while scene.heard.get(timeout=30) != v.Recheck(refused=True):  # among them may be the job's first events
        pass
    assert scene.complaints == []
    scene.link.send(m.AgentJoin(VM, 3))
    assert scene.wanted().count == 2
    scene.link.close(30)


def test_what_is_said_is_sent_in_order_before_what_is_to_be_done_after_it(coordinator: Running) -> None:
    scene = Scene(coordinator, "order")
    done = threading.Event()
    found: list[int] = []
    scene.begin()
    scene.link.send(m.Resize(Target(4)))
    scene.link.run_after_sent(lambda: found.append(scene.client.job("order").job.target))
    scene.link.run_after_sent(done.set)
    assert done.wait(30)
    assert found == [4]
    scene.link.close(30)


def test_closing_sends_and_tells_what_is_left(coordinator: Running) -> None:
    scene = Scene(coordinator, "last")
    scene.begin()
    scene.wanted()
    scene.link.send(m.AgentLeave(VM))
    scene.link.close(30)
    assert any(isinstance(event, m.AgentGone) for event in scene.events)
    assert scene.client.job("last").agents == ()


def test_requests_that_closing_has_ended_do_not_count_as_an_absent_coordinator(
    coordinator: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.agent.coordinator.link.WATCH_S", 1.0)
    before = set(threading.enumerate())
    scene = Scene(coordinator, "closed")
    scene.begin()
    scene.wanted()
    watching = [each for each in set(threading.enumerate()) - before if each.name == "agent _watch"]
    assert watching
    scene.link.close(30)
    for each in watching:
        each.join(30)
        assert not each.is_alive()
    assert scene.link.away_since is None


def test_what_no_waiting_mends_is_said_once(coordinator: Running) -> None:
    scene = Scene(coordinator, "bad")
    scene.begin()
    for _ in range(3):
        scene.link.send(m.Resize(Target(9)))
    scene.link.send(m.AgentLeave(AgentId("stranger")))
    scene.link.close(30)
    (complaint,) = scene.complaints
    assert "the target must lie between min 1 and max 4" in complaint


def test_a_coordinator_that_is_away_is_waited_for_without_a_word(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    with start(store, home=tmp_path) as first:
        scene = Scene(first, JOB)
        scene.begin()
        assert scene.wanted().count == 2
        assert scene.link.away_s == 0.0
        first.kill()
        assert not scene.link.catch_up()
        until(lambda: scene.link.away_since is not None, "its being missed")
    with start(store, home=tmp_path, port=first.port) as second, second.client() as client:
        client.send(JOB, m.Resize(Target(4)))
        while scene.wanted().count != 3:  # as many as there is room for
            pass
        until(lambda: any(isinstance(event, m.TargetChanged) for event in scene.events), "its being told")
        until(lambda: scene.link.away_since is None, "its being back")
        scene.link.close(30)
    assert scene.complaints == []
