"""A member's contact with real coordinators: what it hears, what it says, and what it does while no member is there."""

import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Running, start, wait_for
from pliant.core.data.ledger import GENESIS
from pliant.core.member import signals as s
from pliant.core.messages import Create, Drain, Exited, Join, Leave, Report
from pliant.core.model.job import JobSpec, Target, Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.errors import Refused
from pliant.train.coordinator_link import MemberLink
from pliant.wire.views import PeerKey
from unit.core.build import GRID, TERMS, A, B, X, lines

JOB = "demo"
PATIENCE_S = 40.0  # a watch that sits in the kernel comes back after 25


class Heard:
    """The messages that a session would receive, to be waited for."""

    def __init__(self) -> None:
        self.views: queue.Queue[tuple[View, tuple[PeerKey, ...]]] = queue.Queue()
        self.signals: queue.Queue[s.Signal] = queue.Queue()
        self.fences: queue.Queue[tuple[int, str]] = queue.Queue()

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        self.views.put((view, keys))

    def feed(self, signal: s.Signal) -> None:
        self.signals.put(signal)

    def fenced(self, revision: int, why: str) -> None:
        self.fences.put((revision, why))

    def view_with(self, true: Any) -> tuple[View, tuple[PeerKey, ...]]:
        while True:
            view, keys = self.views.get(timeout=PATIENCE_S)
            if true(view):
                return view, keys

    def signal(self, kind: type) -> Any:
        while True:
            found = self.signals.get(timeout=PATIENCE_S)
            if isinstance(found, kind):
                return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with start(f"sqlite:{tmp_path / 'store.db'}", home=tmp_path / "home", lease_ttl_s=1.5) as found:
        found.client().send(JOB, Create(JOB, JobSpec(1, 4, Target(2))))
        yield found


@pytest.fixture
def contacts(running: Running) -> Iterator[Any]:
    made: list[MemberLink] = []

    def one(member: MemberId = A, terms: Terms = TERMS) -> tuple[MemberLink, Heard]:
        contact, heard = MemberLink((running.url,), running.token, JOB, member), Heard()
        made.append(contact)
        contact.join(Join(member, X, terms, address=f"127.0.0.1:{len(made)}"))
        contact.start(heard)
        return contact, heard

    yield one
    for contact in made:
        contact.close()


def test_a_member_hears_of_its_world_with_the_key_to_it(contacts: Any) -> None:
    _, heard = contacts()
    view, keys = heard.view_with(lambda view: view.worlds)
    assert view.worlds[0].members == (A,)
    assert [key.generation for key in keys] == [view.worlds[0].number]


def test_changes_build_on_one_another(contacts: Any, running: Running) -> None:
    contact, heard = contacts()
    view, _ = heard.view_with(lambda view: view.worlds)
    contact.send(Report(A, 0, view.worlds[0].number, (), frozenset({A})))
    contacts(B)
    view, _ = heard.view_with(lambda view: view.worlds and len(view.worlds[-1].members) == 2)
    assert view.worlds[-1].addresses == ("127.0.0.1:1", "127.0.0.1:2")
    running.client().send(JOB, Drain(A, 7.0, "a test"))
    view, _ = heard.view_with(lambda view: view.draining)
    assert view.grace_s == 7.0


def test_what_is_said_is_decided_and_the_answer_says_what_is_durable(contacts: Any, running: Running) -> None:
    contact, heard = contacts()
    view, _ = heard.view_with(lambda view: view.worlds)
    number = view.worlds[0].number
    steps = lines(GENESIS, number, 3)
    contact.send(Report(A, 0, number, steps, frozenset({A})))
    while heard.signal(s.Durable).lineage != steps[-1].lineage:
        pass
    assert running.client().job(JOB).job.step == 3


def test_of_several_reports_only_the_newest_is_said(contacts: Any, running: Running) -> None:
    contact, heard = contacts()
    view, _ = heard.view_with(lambda view: view.worlds)
    number = view.worlds[0].number
    steps = lines(GENESIS, number, 10)
    with running.paused():
        for count in range(1, 11):
            contact.send(Report(A, 0, number, steps[:count], frozenset({A})))
        assert sum(isinstance(each, Report) for each in contact._commands) <= 1
    wait_for(lambda: running.client().job(JOB).job.step == 10, "the newest report")


def test_ticks_come_with_every_renewal_and_keep_the_lease(contacts: Any, running: Running) -> None:
    _, heard = contacts()
    for _ in range(5):  # longer than a lease
        heard.signal(s.Tick)
    assert [line.id for line in running.client().job(JOB).members] == [A]


def test_a_member_that_is_gone_for_good_is_fenced(contacts: Any, running: Running) -> None:
    _, heard = contacts()
    heard.view_with(lambda view: view.worlds)
    running.client().send(JOB, Exited(A, -9))
    revision, why = heard.fences.get(timeout=PATIENCE_S)
    assert revision > 0
    assert "gone for good" in why


@pytest.mark.parametrize(
    "terms", [Terms(GRID, seed=8), Terms(GRID, seed=7, extra=(("model", "Net with 5 parameters"),))]
)
def test_what_the_coordinator_has_against_it_is_raised_at_join(contacts: Any, terms: Terms) -> None:
    contacts()
    with pytest.raises(Refused, match=r"seed|model"):
        contacts(B, terms)


def test_while_the_coordinator_is_away_it_says_so_once_and_goes_on(
    contacts: Any, running: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("pliant").propagate = True
    contact, heard = contacts()
    view, _ = heard.view_with(lambda view: view.worlds)
    number = view.worlds[0].number
    with caplog.at_level(logging.INFO, "pliant.train.coordinator_link"):
        running.kill()
        contact.send(Report(A, 0, number, lines(GENESIS, number, 2), frozenset({A})))
        for _ in range(3):
            heard.signal(s.Tick)
        store = f"sqlite:{tmp_path / 'store.db'}"
        with start(store, home=tmp_path / "home", port=running.port, lease_ttl_s=1.5) as again:
            wait_for(lambda: again.client().job(JOB).job.step == 2, "the report to arrive")
            wait_for(lambda: any("again" in record.getMessage() for record in caplog.records), "it to be back")
            contact.close()
    said = [record.getMessage() for record in caplog.records]
    assert sum("the coordinator is unreachable" in each for each in said) == 1
    assert sum("the coordinator is reachable again" in each for each in said) == 1


def test_what_is_still_to_be_said_is_said_before_it_closes(contacts: Any, running: Running) -> None:
    contact, heard = contacts()
    heard.view_with(lambda view: view.worlds)
    contact.send(Leave(A, 0, "bye"))
    contact.close()
    assert running.client().job(JOB).members == ()


def test_close_ends_its_threads(contacts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.train.coordinator_link.WATCH_S", 1.0)
    before = set(threading.enumerate())
    contact, heard = contacts()
    heard.view_with(lambda view: view.worlds)
    contact.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("pliant-"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name
