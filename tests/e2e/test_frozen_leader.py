"""A leading coordinator that freezes: no connection is reset, and no request is answered."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.running import Running, start, wait_for
from pliant.coordinator.service.leader import HOLD_TTL_S
from pliant.core.member import signals as s
from pliant.core.messages import AgentJoin, Create, Event, Join, MemberGone, Report, Resize
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.train.coordinator_link import MemberLink
from pliant.wire.views import PeerKey
from unit.core.build import TERMS

JOBS = ("red", "blue")
MEMBERS = (MemberId("a"), MemberId("b"))
VIEW_S = HOLD_TTL_S + 2.0  # after the freeze, every member has a view of the new leader's decisions
SPREAD_S = 0.8  # between the members' renewals, so that the freeze comes at another moment of each


class Listener:
    """The session of a member, as far as its link is concerned."""

    def __init__(self) -> None:
        self.views: queue.SimpleQueue[tuple[float, View]] = queue.SimpleQueue()
        self.fences: list[str] = []

    def feed(self, signal: s.Signal) -> None:
        pass

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        self.views.put((time.monotonic(), view))

    def fenced(self, revision: int, why: str) -> None:
        self.fences.append(why)

    def time_of_world_of(self, size: int) -> float:
        """Return when the first view came whose newest world has so many members."""
        while True:
            at, view = self.views.get(timeout=60.0)
            if view.worlds and len(view.worlds[-1].members) == size:
                return at


Crew = dict[tuple[str, MemberId], Listener]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Running, Running]]:
    store = f"sqlite:{tmp_path / 'store.db'}"
    with start(store, home=tmp_path) as first, start(store, home=tmp_path) as second:
        yield first, second


@pytest.fixture
def crew(pair: tuple[Running, Running]) -> Iterator[Crew]:
    """Two members of each of two jobs, which train, and renew at different moments."""
    first, second = pair
    pause = threading.Event()
    found: Crew = {}
    with ExitStack() as until:
        for job in JOBS:
            first.client().send(job, Create(job, JobSpec(1, 4, Target(2))))
            links = [MemberLink((first.url, second.url), first.token, job, member) for member in MEMBERS]
            for index, (member, link) in enumerate(zip(MEMBERS, links, strict=True)):
                link.join(Join(member, AgentId("x"), TERMS, address=f"127.0.0.1:{index + 1}"))
            for member, link in zip(MEMBERS, links, strict=True):
                listener = found[job, member] = Listener()
                until.callback(link.close)
                link.start(listener)
                pause.wait(SPREAD_S)  # not a wait for anything: it sets the members' clocks apart
            links[0].send(Report(MEMBERS[0], 0, 1, (), frozenset(MEMBERS[:1])))  # the second one may join its world
            for member in MEMBERS:
                found[job, member].time_of_world_of(2)
        yield found


def lost(events: list[tuple[int, Event]]) -> list[MemberGone]:
    return [event for _, event in events if isinstance(event, MemberGone) and event.how == "lost"]


@pytest.mark.parametrize("frozen_s", [13.0, pytest.param(30.0, marks=pytest.mark.long)])
def test_a_leader_that_freezes_costs_no_member_and_delays_views_by_two_seconds(
    pair: tuple[Running, Running], crew: Crew, frozen_s: float
) -> None:
    first, second = pair
    with first.paused():
        frozen_at = time.monotonic()
        wait_for(lambda: second.admin.get("/v1").json()["leads"], "the other coordinator to lead")
        for job in JOBS:
            second.client().send(job, Resize(Target(1)))
        seen = {who: listener.time_of_world_of(1) - frozen_at for who, listener in crew.items()}
        wait_for(lambda: time.monotonic() > frozen_at + frozen_s, "the end of the freeze", frozen_s + 10.0)
    for job in JOBS:
        second.client().send(job, AgentJoin(AgentId("x"), 1))  # it decides, still or again
        assert lost(list(second.client().events(job, 0, 1000))) == []
    assert all(not listener.fences for listener in crew.values())
    assert {who: round(late_s, 1) for who, late_s in seen.items() if late_s > VIEW_S} == {}
